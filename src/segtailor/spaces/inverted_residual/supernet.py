"""All 13 candidates of every block in one network (SqueezeNAS section 3).

The input of a block is added once, outside the weighted sum: a skip that changes no shape contributes zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from segtailor.core.errors import Unsupported
from segtailor.core.plan import IMAGE, OpCall, Shape
from segtailor.nets.mixed import Mixed, Price
from segtailor.nets.network import Network
from segtailor.nets.relax import Live, Weights
from segtailor.nets.supernet import (
    MixedPlan,
    Outputs,
    SupernetSettings,
    checked,
    freeze_affine,
    receive_nodes,
    remaining_options,
    transfer_nodes,
)
from segtailor.ops import Identity
from segtailor.ops.modules.blocks import InvertedResidualBlock
from segtailor.spaces.inverted_residual.architecture import (
    CANDIDATES,
    FRAMES,
    BlockFrame,
    InvertedResidualArchitecture,
)
from segtailor.spaces.inverted_residual.fused import FusedInverted
from segtailor.spaces.inverted_residual.space import InvertedResidual, block_operator


class InvertedResidualSupernet(nn.Module):
    """Stem, superblocks and decoder; the decoder and its low-level input see mixed outputs."""

    def __init__(
        self, space: InvertedResidual, image: Shape, classes: int, settings: SupernetSettings
    ) -> None:
        super().__init__()
        self.space = space
        self.decisions = space.decisions
        blocks = FRAMES[space.frame].blocks
        uniform = InvertedResidualArchitecture(frame=space.frame, blocks=(CANDIDATES[0],) * len(blocks))
        plan = space.plan(uniform, image, classes)
        names = [decision.name for decision in self.decisions]
        mixed = {
            name: _superblock(block, plan.call(name).source, settings)
            for name, block in zip(names, blocks, strict=True)
        }
        self.body = MixedPlan(plan, mixed, driven_by={name: name for name in names})
        self.align_corners = plan.align_corners

    def forward(self, image: Tensor, weights: Weights, live: Live | None = None) -> Outputs:
        """Return the logits, at the stride of the low-level feature."""
        known = checked(self.decisions, weights, live, images=len(image))
        outputs: Outputs = self.body({IMAGE: image}, weights, known)
        return outputs

    def cost(self, weights: Weights, price: Price) -> Tensor:
        """Return the expected cost with stem, last convolution and decoder."""
        return self.searched_cost(weights, price) + self.body.fixed_cost(price)

    def searched_cost(self, weights: Weights, price: Price) -> Tensor:
        """Return the expected cost of the blocks."""
        return self.body.mixed_cost(weights, price)

    def transfer(self, arch: InvertedResidualArchitecture, network: Network) -> None:
        """Copy the weights that an architecture uses into its network."""
        modules = dict(self.body.nodes.items())
        transfer_nodes(network, modules, picks=self.space.picks(arch), driven_by=self.body.driven_by)

    def receive(self, arch: InvertedResidualArchitecture, network: Network) -> None:
        """Take the weights of a network: the inverse of `transfer`."""
        modules = dict(self.body.nodes.items())
        receive_nodes(network, modules, picks=self.space.picks(arch), driven_by=self.body.driven_by)

    def remove(self, decision: str, option: int) -> None:
        """Drop a candidate of a block for the rest of the search."""
        self._mixed(decision)[0].remove(option)

    def remaining(self) -> dict[str, tuple[int, ...]]:
        """Return the options of every block that were not removed."""
        return remaining_options(self.decisions, {row.name: self._mixed(row.name) for row in self.decisions})

    def _mixed(self, decision: str) -> Sequence[Mixed]:
        if decision not in self.body.driven_by:
            raise Unsupported(f"there is no decision '{decision}'; blocks are called block0, block1, ...")
        node = self.body.nodes[decision]
        return [node] if isinstance(node, Mixed) else []


def _superblock(block: BlockFrame, source: Shape, settings: SupernetSettings) -> Mixed:
    residual = block.stride == 1 and block.inputs == block.outputs
    calls: dict[str, OpCall] = {
        candidate: OpCall(
            op=block_operator(candidate, block), inputs=(source,), channels=block.outputs, stride=block.stride
        )
        for candidate in CANDIDATES
    }
    mixed = Mixed(
        calls,
        silent=[candidate for candidate, call in calls.items() if isinstance(call.op, Identity)],
        residual=residual,
        fuse=None if settings.kernels is None else FusedInverted(settings.kernels),
        recompute=settings.recompute,
    )
    for module in mixed.candidates.values():
        if isinstance(module, InvertedResidualBlock):
            module.residual = False  # the superblock adds its input once, for all candidates
    if not settings.affine:
        freeze_affine(mixed)
    return mixed
