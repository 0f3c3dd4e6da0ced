"""Eight bits for ncnn: its two files are read, ranges are measured by ncnn itself, and they are written again.

The packages of ncnn come without its converter. What is written follows its developer guide (the structure of both
files) and its layers (`int8_scale_term`, key 8): kernels as bytes with one scale per output channel, one scale for the
input, and, where only such layers read an output, also one for that, so that the map between them stays in bytes. All
scales are symmetric: round(value * scale) is from -127 to 127. The last convolutions stay in fp32, since rounded logits
would change labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segtailor.core.errors import Unsupported, UserError
from segtailor.nets.mobile.ncnn import as_mats, extractor_with, open_net

MAGIC = "7767517"
FLOATS, BYTES = 0x00000000, 0x000D4B38  # what a kernel is stored as, before its values
INT8_TERM, REQUANTISED = 8, 100  # key of a layer; added to its value where the output is in bytes too
LEVELS = 127  # on each side of zero
DEPTHWISE = "ConvolutionDepthWise"
# ncnn computes 3x3 convolutions by Winograd's F(4, 3) in 32 bits, where sums are 576 times as large: beyond this sum of
# the absolute values of a rounded kernel they can overflow, and then ncnn gives wrong results without an error. (Its
# own converter gives these kernels six bits.)
MAX_WINOGRAD_SUM = (2**31 - 1) // (576 * LEVELS)
TIMED_RUNS = 10

Floats = NDArray[np.float32]
Inputs = Sequence[NDArray[Any]]  # all inputs of a run


@dataclass(frozen=True, kw_only=True)
class NcnnLayer:
    """A line of the file of layers, with the texts of its parameters by key, and its weights as stored."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    params: Mapping[int, str]
    weights: bytes = b""

    def number(self, key: int, default: int = 0) -> int:
        """Return a whole parameter."""
        return int(self.params.get(key, default))

    @property
    def line(self) -> str:
        """The layer as text."""
        words = [self.kind, self.name, str(len(self.inputs)), str(len(self.outputs))]
        words += [*self.inputs, *self.outputs, *(f"{key}={text}" for key, text in self.params.items())]
        return " ".join(words)


@dataclass(frozen=True, kw_only=True)
class Form:
    """Where a kind of layer keeps the number of outputs, of kernel values, and of groups, and whether it has a bias."""

    outputs: int
    values: int
    bias: int
    term: int
    groups: int | None = None


# Depthwise layers have term 1: a scale per group. The others have 2: a scale per output.
# ncnn 1.0.20261020 computes other grouped convolutions wrongly in int8 (also NaN), so they stay in fp32.
FORMS: Mapping[str, Form] = {
    "Convolution": Form(outputs=0, values=6, bias=5, term=2),
    DEPTHWISE: Form(outputs=0, values=6, bias=5, term=1, groups=7),
    "InnerProduct": Form(outputs=0, values=2, bias=1, term=2),
}


# Values of layers without kernels.
VALUES: Mapping[str, Callable[[NcnnLayer], int]] = {
    "BatchNorm": lambda layer: 4 * layer.number(0),  # for each channel: slope, mean, variance, bias
    "PReLU": lambda layer: layer.number(0),
}


def quantise_files(source: tuple[Path, Path], out: tuple[Path, Path], feeds: Iterable[Inputs]) -> None:
    """Write a network (file of layers, file of weights) in eight bits; ranges are measured on inputs of it.

    Depthwise convolutions do little arithmetic, and some processors compute them faster in fp32: both forms are timed
    here, and the faster one is written.
    """
    layers, rest = read_layers(*source), iter(feeds)
    first = next(rest, None)
    if first is None:
        raise UserError("ncnn in int8: there is nothing to measure ranges on; give at least one image.")
    if not rounded_layers(layers):
        raise Unsupported("ncnn in int8: the network has no convolution that can be rounded; use fp32.")
    largest = largest_values(source, measured_maps(layers), chain([first], rest))
    write_layers(int8_layers(layers, largest), *out)
    if not any(layer.kind == DEPTHWISE for layer in rounded_layers(layers)):
        return
    with TemporaryDirectory(prefix="segtailor-ncnn-") as folder:
        other = (Path(folder) / out[0].name, Path(folder) / out[1].name)
        write_layers(int8_layers(layers, largest, exact=frozenset({DEPTHWISE})), *other)
        whole, partly = fastest_seconds([out, other], first)
        if partly < whole:
            for file, better in zip(out, other, strict=True):
                file.write_bytes(better.read_bytes())


def fastest_seconds(networks: Sequence[tuple[Path, Path]], inputs: Inputs) -> list[float]:
    """Return the time of the fastest run of each network, run in turns with one thread."""
    nets, mats = [open_net(*files, threads=1) for files in networks], as_mats(inputs)
    best = [float("inf")] * len(nets)
    for _ in range(TIMED_RUNS):
        for index, net in enumerate(nets):
            extractor = extractor_with(net, mats)
            began = time.perf_counter()
            extractor.extract("out0")
            best[index] = min(best[index], time.perf_counter() - began)
    return best


def largest_values(
    source: tuple[Path, Path], names: Sequence[str], feeds: Iterable[Inputs]
) -> dict[str, float]:
    """Return the largest absolute value of maps as the mean over runs: one unusual image hardly changes it."""
    net = open_net(*source, threads=1, keep_maps=True)
    sums, count = dict.fromkeys(names, 0.0), 0
    for inputs in feeds:
        extractor = extractor_with(net, as_mats(inputs))
        for name in names:
            problem, values = extractor.extract(name)
            if problem != 0:
                raise Unsupported("ncnn could not run the network; the memory may be full.")
            sums[name] += float(np.abs(np.array(values)).max())
        count += 1
    return {name: value / count for name, value in sums.items()}


def read_layers(param: Path, weights: Path) -> list[NcnnLayer]:
    """Return the layers of a network in single precision, with their weights."""
    try:
        first, _, *lines = param.read_text(encoding="utf-8").splitlines()
        layers = [_layer(line.split()) for line in lines if line.strip()]
        sizes = [_stored_bytes(layer) for layer in layers]
        _before_splits(layers)
    except (ValueError, KeyError) as problem:  # too few words, no numbers, maps that nothing makes
        raise UserError(f"{param} is no network of ncnn, or damaged ({problem}); export it again.") from None
    if first.strip() != MAGIC:
        raise UserError(f"{param} is no network of ncnn; export it again.")
    data, ends = weights.read_bytes(), list(accumulate(sizes, initial=0))
    if ends[-1] != len(data):
        held = sorted({layer.kind for layer in layers} - FORMS.keys() - VALUES.keys())
        raise Unsupported(
            f"ncnn in int8: {weights} has {len(data)} bytes, {ends[-1]} were expected: one of the layers "
            f"{', '.join(held)} has weights that cannot be read here. Use fp32, or int8 of onnx."
        )
    return [
        replace(layer, weights=data[start:end])
        for layer, (start, end) in zip(layers, pairwise(ends), strict=True)
    ]


def _layer(words: Sequence[str]) -> NcnnLayer:
    kind, name, reads, writes, *rest = words
    count, ends = int(reads), int(reads) + int(writes)
    if not 0 <= count <= ends <= len(rest) or (kind == "Split" and not count):
        raise ValueError(f"layer {name} has other maps than it says")
    params = dict(text.split("=", 1) for text in rest[ends:])
    return NcnnLayer(
        kind=kind,
        name=name,
        inputs=tuple(rest[:count]),
        outputs=tuple(rest[count:ends]),
        params={int(key): text for key, text in params.items()},
    )


def write_layers(layers: Sequence[NcnnLayer], param: Path, weights: Path) -> None:
    """Write both files."""
    maps = {name for layer in layers for name in (*layer.inputs, *layer.outputs)}
    lines = [MAGIC, f"{len(layers)} {len(maps)}", *(layer.line for layer in layers)]
    param.write_text("\n".join(lines) + "\n", encoding="utf-8")
    weights.write_bytes(b"".join(layer.weights for layer in layers))


def rounded_layers(layers: Sequence[NcnnLayer]) -> list[NcnnLayer]:
    """Return the layers to write in eight bits: those with kernels, but not the last ones before the outputs."""
    makers = {name: layer for layer in layers for name in layer.outputs}
    read = {name for layer in layers for name in layer.inputs}
    waiting = [name for name in makers if name not in read]
    last: set[str] = set()
    while waiting:
        layer = makers.get(waiting.pop())
        if layer is None or layer.name in last:
            continue
        last.add(layer.name)
        if layer.kind not in FORMS:
            waiting.extend(layer.inputs)
    return [layer for layer in layers if _can_be_rounded(layer) and layer.name not in last]


def measured_maps(layers: Sequence[NcnnLayer]) -> list[str]:
    """Return the names of the maps whose ranges are needed: the inputs of the rounded layers, before they are split."""
    sources = _before_splits(layers)
    return list(dict.fromkeys(sources[layer.inputs[0]] for layer in rounded_layers(layers)))


def int8_layers(
    layers: Sequence[NcnnLayer], largest: Mapping[str, float], *, exact: frozenset[str] = frozenset()
) -> list[NcnnLayer]:
    """Return the network in eight bits, with the `largest` absolute value of each of `measured_maps`.

    Kinds of layers that are `exact` stay in fp32.
    """
    chosen = {layer.name for layer in rounded_layers(layers) if layer.kind not in exact}
    sources, readers = _before_splits(layers), _readers_behind_splits(layers)
    scales = {name: LEVELS / max(value, 1e-8) for name, value in largest.items()}
    done = []
    for layer in layers:
        if layer.name not in chosen:
            done.append(layer)
            continue
        (output,) = layer.outputs
        inner = layer.kind != "InnerProduct" and all(
            reader.name in chosen and reader.kind != "InnerProduct" for reader in readers[output]
        )
        done.append(_in_bytes(layer, scales[sources[layer.inputs[0]]], scales[output] if inner else None))
    return done


def _can_be_rounded(layer: NcnnLayer) -> bool:
    form = FORMS.get(layer.kind)
    if form is None or (form.groups is not None and layer.number(form.groups) != layer.number(form.outputs)):
        return False
    return (
        not _is_winograd(layer) or layer.number(form.values) // layer.number(form.outputs) < MAX_WINOGRAD_SUM
    )


def _is_winograd(layer: NcnnLayer) -> bool:
    """Tell whether ncnn may compute a layer by Winograd's algorithm."""
    sides, ones = [layer.number(1), layer.number(11)], [layer.number(key, 1) for key in (2, 12, 3, 13)]
    return layer.kind == "Convolution" and sides == [3, 3] and ones == [1, 1, 1, 1]


def _in_bytes(layer: NcnnLayer, scale: float, out_scale: float | None) -> NcnnLayer:
    """Return a layer with its kernels in bytes, and the scales behind them."""
    form = FORMS[layer.kind]
    kernels, bias = _kernels(layer)
    weight_scales = LEVELS / np.maximum(np.abs(kernels).max(axis=1), 1e-8)
    if _is_winograd(layer):
        most = MAX_WINOGRAD_SUM - kernels.shape[1] / 2  # rounding adds at most a half to each value
        weight_scales = np.minimum(weight_scales, most / np.maximum(np.abs(kernels).sum(axis=1), 1e-8))
    weight_scales = weight_scales.astype(np.float32)
    rounded = np.clip(np.rint(kernels * weight_scales[:, None]), -LEVELS, LEVELS).astype(np.int8).tobytes()
    floats = [bias, weight_scales, np.array([scale], np.float32)]
    term = form.term
    if out_scale is not None:
        term += REQUANTISED
        floats.append(np.array([out_scale], np.float32))
    stored = np.uint32(BYTES).tobytes() + rounded + bytes(-len(rounded) % 4)
    stored += b"".join(values.astype("<f4").tobytes() for values in floats)
    return replace(layer, params={**layer.params, INT8_TERM: str(term)}, weights=stored)


def _kernels(layer: NcnnLayer) -> tuple[Floats, Floats]:
    """Return the kernels of a layer as rows, one for each of its scales, and its bias."""
    form = FORMS[layer.kind]
    count = layer.number(form.values)
    if layer.weights[:4] != np.uint32(FLOATS).tobytes():
        raise Unsupported(f"ncnn in int8: layer {layer.name} is not in single precision; export fp32 first.")
    values = np.frombuffer(layer.weights, "<f4", offset=4)
    rows = layer.number(form.outputs if form.groups is None else form.groups)
    return values[:count].reshape(rows, -1), values[count:]


def _stored_bytes(layer: NcnnLayer) -> int:
    """Return how many bytes a layer in single precision has in the file of weights."""
    form, values = FORMS.get(layer.kind), VALUES.get(layer.kind)
    if form is None:
        return 4 * values(layer) if values is not None else 0
    return 4 + 4 * layer.number(form.values) + 4 * layer.number(form.outputs) * layer.number(form.bias)


def _before_splits(layers: Sequence[NcnnLayer]) -> dict[str, str]:
    """Return for every map the one that it is a copy of, or itself."""
    sources: dict[str, str] = {}
    for layer in layers:
        for name in layer.outputs:
            sources[name] = sources[layer.inputs[0]] if layer.kind == "Split" else name
    return sources


def _readers_behind_splits(layers: Sequence[NcnnLayer]) -> dict[str, list[NcnnLayer]]:
    """Return for every map the layers that read it or a copy of it; a map that nothing reads has none."""
    sources = _before_splits(layers)
    readers: dict[str, list[NcnnLayer]] = {name: [] for name in sources.values()}
    for layer in layers:
        for name in layer.inputs if layer.kind != "Split" else ():
            readers[sources[name]].append(layer)
    return readers
