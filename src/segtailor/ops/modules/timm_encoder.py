"""Modules of a timm encoder, and its shapes and counts without running it on values."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from segtailor.core.errors import Unsupported
from segtailor.core.plan import Shape
from segtailor.core.quiet import only_errors_of
from segtailor.core.text import first_line
from segtailor.ops.timm_encoder import TIMM_STRIDES

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # where timm states no others


class TimmCounts(NamedTuple):
    """Shapes of the four maps, multiply-accumulates and parameters of the model."""

    taps: tuple[Shape, ...]
    macs: int
    params: int


class TimmFeaturesModule(nn.Module):
    """The encoder; its output is the list of its four maps."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.model = features_only(name)

    def forward(self, image: Tensor) -> list[Tensor]:
        """Run the encoder."""
        return list(self.model(image))


class PickLevel(nn.Module):
    """One map out of the encoder's list."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level

    def forward(self, image: Tensor, features: list[Tensor] | Tensor) -> Tensor:  # noqa: ARG002 - shape only
        """Return map number `level`; a single tensor (an operator timed alone) is returned as it is."""
        return features if isinstance(features, Tensor) else features[self.level]


def features_only(name: str, *, pretrained: bool = False) -> nn.Module:
    """Build the encoder with exactly the maps at strides 4, 8, 16 and 32; random weights unless `pretrained`."""
    timm = import_timm()
    if not timm.is_model(name):
        raise Unsupported(
            f"encoder 'timm:{name}': the installed timm has no such model; see timm.list_models()."
        )
    try:
        reductions = timm.create_model(name, features_only=True, pretrained=False).feature_info.reduction()
    except (RuntimeError, AttributeError, TypeError) as problem:
        raise Unsupported(
            f"encoder 'timm:{name}': timm cannot give its feature maps ({first_line(problem)}). Choose another model."
        ) from problem
    missing = [stride for stride in TIMM_STRIDES if stride not in reductions]
    if missing:
        raise Unsupported(
            f"encoder 'timm:{name}': no map at stride {missing[0]}, it has {list(reductions)}. "
            f"The decoder needs strides {list(TIMM_STRIDES)}; choose another model."
        )
    levels = tuple(  # of several maps at one stride the last
        max(at for at, value in enumerate(reductions) if value == stride) for stride in TIMM_STRIDES
    )
    try:
        with only_errors_of("huggingface_hub"):
            model: nn.Module = timm.create_model(
                name, features_only=True, pretrained=pretrained, out_indices=levels
            )
    except (RuntimeError, OSError) as problem:
        raise Unsupported(
            f"encoder 'timm:{name}': its pre-trained weights cannot be loaded ({first_line(problem)}); give a state "
            "dictionary."
        ) from problem
    return model


class TimmClassifier(NamedTuple):
    """A classifier with pre-trained weights: their licence as timm states it, and the normalisation they expect."""

    module: nn.Module
    licence: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def pretrained_classifier(name: str) -> TimmClassifier:
    """Build a classifier of timm with its pre-trained weights, which timm fetches."""
    timm = import_timm()
    try:
        with only_errors_of("huggingface_hub"):
            model: nn.Module = timm.create_model(name, pretrained=True)
    except (RuntimeError, OSError) as problem:
        raise Unsupported(
            f"the pre-trained weights of timm's '{name}' cannot be loaded ({first_line(problem)}): check the network "
            "connection, or give a file."
        ) from problem
    config = getattr(model, "pretrained_cfg", None) or {}
    return TimmClassifier(
        module=model,
        licence=str(config.get("license") or ""),
        mean=tuple(config.get("mean", IMAGENET_MEAN)),
        std=tuple(config.get("std", IMAGENET_STD)),
    )


@cache
def count_timm(name: str, image: Shape) -> TimmCounts:
    """Count a model and its maps at an image size, on the `meta` device."""
    with torch.device("meta"):
        model = features_only(name).eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            maps = model(torch.empty(1, *image))
    taps = tuple(Shape(*level.shape[1:]) for level in maps)
    params = sum(parameter.numel() for parameter in model.parameters())
    return TimmCounts(taps, counter.get_total_flops() // 2, params)


def import_timm() -> Any:
    """Import timm; where it is missing, or its torchvision does not match torch, say so in one line."""
    try:
        import timm
    except ImportError:
        raise Unsupported(
            "encoders named 'timm:...' need the package timm, which is not installed: `pip install timm` "
            "beside a torchvision that matches torch, or choose a built-in encoder."
        ) from None
    except (
        RuntimeError,
        OSError,
        AttributeError,
    ) as problem:  # of a torchvision that was built for another torch
        raise Unsupported(
            f"timm is installed but cannot be imported ({first_line(problem)}): install a torchvision that was built "
            "for this torch, or choose a built-in encoder."
        ) from None
    return timm
