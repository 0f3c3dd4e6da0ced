"""Key names of published SqueezeNAS checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from segtailor.spaces.inverted_residual.architecture import FRAMES, InvertedResidualArchitecture

if TYPE_CHECKING:
    from segtailor.nets.network import Network
    from segtailor.nets.weights import NameMap

Layers: TypeAlias = tuple[tuple[str, str], ...]  # our layer, theirs

INDEXED: Layers = (("conv1", "0"), ("norm1", "1"))
NAMED: Layers = (("conv1", "conv"), ("norm1", "bn"))
BARE: Layers = (("conv1", ""),)
BLOCK: Layers = (
    ("body.expand", "op.0"), ("body.expand_norm", "op.1"),
    ("body.depth", "op.3"), ("body.depth_norm", "op.4"),
    ("body.project", "op.6"), ("body.project_norm", "op.7"),
)  # fmt: skip
WIDTH_SKIP: Layers = (("conv1", "op.op.1"), ("norm1", "op.op.2"))
STRIDE_SKIP: Layers = (
    ("conv1", "op.conv_1.0"), ("norm1", "op.conv_1.1"),
    ("conv2", "op.conv_2.0"), ("norm2", "op.conv_2.1"),
)  # fmt: skip

ENCODER: dict[str, tuple[str, Layers]] = {
    "stem": ("encoder.conv1", INDEXED),
    "last": ("encoder.last_conv", INDEXED),
}
DECODERS: dict[str, dict[str, tuple[str, Layers]]] = {
    "lr_aspp": {
        "decoder_features": ("decoder._1x1_TL", NAMED),
        "decoder_attention": ("decoder._1x1_BL", BARE),
        "decoder_high": ("decoder._1x1_TR", BARE),
        "decoder_low": ("decoder._1x1_BR", BARE),
    },
    "aspp": {
        "decoder_point": ("decoder._1x1_1_conv", NAMED),
        "decoder_dilated6": ("decoder._3x3_1_conv", NAMED),
        "decoder_dilated12": ("decoder._3x3_2_conv", NAMED),
        "decoder_dilated18": ("decoder._3x3_3_conv", NAMED),
        "decoder_fused": ("decoder._1x1_2_conv", NAMED),
        "decoder_low": ("lowlevel1x1", BARE),
        "decoder_refined": ("logits2", NAMED),
        "head": ("logits3", BARE),
    },
}


def published_names(network: Network, arch: InvertedResidualArchitecture) -> NameMap:
    """Return how the reference project names the weights of this network."""
    from segtailor.nets.weights import NameMap, key_pairs

    frame = FRAMES[arch.frame]
    nodes = ENCODER | DECODERS[frame.decoder]
    for index, (candidate, block) in enumerate(zip(arch.blocks, frame.blocks, strict=True)):
        skip = STRIDE_SKIP if block.stride != 1 else WIDTH_SKIP
        layers = skip if candidate == "skip" else BLOCK
        nodes[f"block{index}"] = (f"encoder.residuals.{index}", layers)
    own = network.state_dict()
    names: dict[str, tuple[str, ...]] = {}
    for node, (published, layers) in nodes.items():
        names |= key_pairs(f"nodes.{node}", published, layers, own)
    return NameMap(names=names)
