"""ncnn in eight bits: files in the form of its developer guide, run by ncnn, against the same arithmetic in torch."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

import segtailor
from segtailor.core.errors import Unsupported, UserError
from segtailor.deploy.fold import inference_form
from segtailor.nets.mobile.converter import missing
from segtailor.nets.mobile.ncnn import Ncnn
from segtailor.nets.mobile.ncnn_int8 import (
    DEPTHWISE,
    INT8_TERM,
    NcnnLayer,
    int8_layers,
    largest_values,
    measured_maps,
    quantise_files,
    read_layers,
    rounded_layers,
    write_layers,
)

reason = missing(Ncnn())
if reason is not None:
    pytest.skip(reason, allow_module_level=True)

INPUT = NcnnLayer(kind="Input", name="in0", inputs=(), outputs=("in0",), params={})
SIZE = (18, 22)


def paths(folder: Path) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    param, weights = (folder / name for name in Ncnn.files)
    return param, weights


def convolution(
    name: str,
    *,
    reads: str,
    writes: str,
    channels: tuple[int, int],
    side: int = 3,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    relu: bool = False,
    seed: int = 0,
    extreme: bool = False,
) -> NcnnLayer:
    rng, (inner, outer) = np.random.default_rng(seed), channels
    kernels = rng.standard_normal((outer, inner // groups, side, side)).astype("<f4")
    if extreme:
        kernels = np.sign(kernels)
    bias = rng.standard_normal(outer).astype("<f4")
    pad = dilation * (side // 2)
    numbers = {0: outer, 1: side, 11: side, 2: dilation, 12: dilation, 3: stride, 13: stride, 4: pad, 14: pad}
    numbers |= {5: 1, 6: kernels.size, **({7: groups} if groups > 1 else {}), **({9: 1} if relu else {})}
    return NcnnLayer(
        kind=DEPTHWISE if groups > 1 else "Convolution",
        name=name,
        inputs=(reads,),
        outputs=(writes,),
        params={key: str(value) for key, value in numbers.items()},
        weights=bytes(4) + kernels.tobytes() + bias.tobytes(),
    )


def computed(layer: NcnnLayer, maps: torch.Tensor) -> torch.Tensor:
    """Compute a layer in eight bits from what is stored of it, in whole numbers."""
    outer, groups, count = layer.number(0), layer.number(7, 1), layer.number(6)
    assert layer.weights[:4] == np.uint32(0x000D4B38).tobytes()
    kernels = torch.from_numpy(np.frombuffer(layer.weights, np.int8, count, offset=4).copy()).double()
    floats = np.frombuffer(layer.weights, "<f4", offset=4 + count + -count % 4)
    bias, scales, (scale,) = np.split(floats.astype(np.float64), [outer, 2 * outer])
    sums = functional.conv2d(
        (maps * scale).round().clamp(-127, 127),
        kernels.view(outer, -1, layer.number(1), layer.number(1)),
        stride=layer.number(3),
        padding=layer.number(4),
        dilation=layer.number(2),
        groups=groups,
    )
    found = sums / torch.from_numpy(scale * scales).view(1, -1, 1, 1) + torch.from_numpy(bias).view(
        1, -1, 1, 1
    )
    return found.relu() if layer.number(9) == 1 else found


def run(folder: Path, image: NDArray[np.float32]) -> NDArray[np.float32]:
    session = Ncnn().open(folder, threads=1)
    session.load([image])
    session.run()
    return np.asarray(session.outputs()[0])


def image(channels: int, *, extreme: bool = False) -> NDArray[np.float32]:
    values = np.random.default_rng(7).standard_normal((1, channels, *SIZE)).astype(np.float32)
    return np.sign(values) if extreme else values


@pytest.mark.parametrize("extreme", [False, True])  # all values at the ends of the range: sums may overflow
@pytest.mark.parametrize(
    "settings",
    [
        {"channels": (3, 32), "stride": 2, "relu": True},
        {"channels": (64, 64)},
        {"channels": (64, 48), "dilation": 2, "relu": True},
        {"channels": (20, 7), "side": 1},
        {"channels": (32, 32), "groups": 32},
        {"channels": (24, 24), "groups": 24, "side": 5, "stride": 2, "relu": True},
    ],
)
def test_two_layers_give_the_sums_of_whole_numbers(
    settings: dict[str, object], extreme: bool, tmp_path: Path
) -> None:
    first = convolution("a", reads="in0", writes="m", extreme=extreme, **settings)  # type: ignore[arg-type]
    outer = first.number(0)
    last = convolution("b", reads="m", writes="out0", channels=(outer, 5), side=1)
    given = image(settings["channels"][0], extreme=extreme)  # type: ignore[index]
    layers = [INPUT, first, last]
    assert rounded_layers(layers) == [first]
    done = int8_layers(layers, {"in0": float(np.abs(given).max())})
    write_layers(done, *paths(tmp_path))
    maps = computed(done[1], torch.from_numpy(given).double())
    data = torch.from_numpy(np.frombuffer(last.weights, "<f4", offset=4).copy()).double()
    wanted = functional.conv2d(maps, data[: last.number(6)].view(5, outer, 1, 1), data[last.number(6) :])
    found = run(tmp_path, given)
    assert np.abs(found - wanted.numpy()).max() <= 1e-4 * float(wanted.abs().max())


def test_a_map_between_two_rounded_layers_stays_in_bytes(tmp_path: Path) -> None:
    first = convolution("a", reads="in0", writes="m", channels=(3, 32), relu=True)
    copies = NcnnLayer(kind="Split", name="s", inputs=("m",), outputs=("m1", "m2"), params={})
    left = convolution("b", reads="m1", writes="l", channels=(32, 16), seed=1)
    right = convolution("c", reads="m2", writes="r", channels=(32, 16), seed=2, stride=1)
    both = NcnnLayer(kind="BinaryOp", name="add", inputs=("l", "r"), outputs=("sum",), params={0: "0"})
    last = convolution("d", reads="sum", writes="out0", channels=(16, 4), side=1)
    layers, given = [INPUT, first, copies, left, right, both, last], image(3)
    write_layers(layers, *paths(tmp_path / "fp32"))
    assert measured_maps(layers) == ["in0", "m"]
    largest = largest_values(paths(tmp_path / "fp32"), measured_maps(layers), [[given]])
    done = int8_layers(layers, largest)
    assert [layer.params.get(INT8_TERM) for layer in done] == [None, "102", None, "2", "2", None, None]
    write_layers(done, *paths(tmp_path / "int8"))
    exact, found = run(tmp_path / "fp32", given), run(tmp_path / "int8", given)
    assert 0 < np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize("groups", [1, 16])
def test_kernels_are_rounded_to_the_nearest_level_of_their_own_scale(groups: int) -> None:
    first = convolution("a", reads="in0", writes="m", channels=(16, 16), groups=groups)
    last = convolution("b", reads="m", writes="out0", channels=(16, 4))
    (_, done, _), count = int8_layers([INPUT, first, last], {"in0": 2.0}), first.number(6)
    exact = np.frombuffer(first.weights, "<f4", count, offset=4).reshape(16, -1)
    levels = np.frombuffer(done.weights, np.int8, count, offset=4).reshape(16, -1)
    bias, scales, scale = np.split(np.frombuffer(done.weights, "<f4", offset=4 + count), [16, 32])
    assert bias.tobytes() == first.weights[-64:]
    assert scale == np.float32(127 / 2)
    assert (np.abs(levels).max(axis=1) == 127).all()
    assert (np.abs(levels / scales[:, None] - exact) <= 0.5001 / scales[:, None]).all()


@pytest.mark.parametrize("channels", [16, 128])
def test_sums_of_one_sign_do_not_overflow(channels: int, tmp_path: Path) -> None:
    first = convolution("a", reads="in0", writes="m", channels=(channels, channels))
    kernels = np.ones(first.number(6), "<f4")
    first = replace(first, weights=bytes(4) + kernels.tobytes() + bytes(4 * channels))
    last = convolution("b", reads="m", writes="out0", channels=(channels, 1), side=1)
    last = replace(last, weights=bytes(4) + np.ones(channels, "<f4").tobytes() + bytes(4))
    write_layers(int8_layers([INPUT, first, last], {"in0": 1.0}), *paths(tmp_path))
    found = run(tmp_path, np.ones((1, channels, *SIZE), np.float32))
    inside = found[0, 0, 1:-1, 1:-1]
    assert np.allclose(inside, 9 * channels * channels, rtol=0.02)  # a half of 25 levels, at worst


def test_ranges_are_the_mean_over_images(tmp_path: Path) -> None:
    layers = [
        INPUT,
        convolution("a", reads="in0", writes="m", channels=(3, 8)),
        convolution("b", reads="m", writes="out0", channels=(8, 4)),
    ]
    write_layers(layers, *paths(tmp_path))
    images = [np.full((1, 3, *SIZE), value, np.float32) for value in (1.0, -4.0)]
    assert largest_values(paths(tmp_path), ["in0"], [[each] for each in images]) == {"in0": 2.5}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    network = inference_form(segtailor.create("lpsnet-step0", classes=4, seed=0)).eval().requires_grad_(False)
    Ncnn().convert(network, (torch.zeros(1, 3, 64, 96),), folder)
    return folder


def pictures(count: int) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal((1, 3, 64, 96)).astype(np.float32) for _ in range(count)]


def test_files_are_written_as_they_were_read(converted: Path, tmp_path: Path) -> None:
    layers = read_layers(*paths(converted))
    write_layers(layers, *paths(tmp_path))
    assert read_layers(*paths(tmp_path)) == layers
    assert paths(tmp_path)[1].read_bytes() == paths(converted)[1].read_bytes()


def test_a_network_in_eight_bits_is_small_and_close(converted: Path, tmp_path: Path) -> None:
    quantise_files(paths(converted), paths(tmp_path), iter([[each] for each in pictures(3)]))
    sizes = [paths(folder)[1].stat().st_size for folder in (tmp_path, converted)]
    assert sizes[0] < 0.35 * sizes[1]
    exact, found = (run(folder, pictures(1)[0]) for folder in (converted, tmp_path))
    assert 0 < np.abs(found - exact).max() < 0.15 * np.abs(exact).max()
    assert "8=" not in paths(tmp_path)[0].read_text().splitlines()[-1]  # logits are not rounded


def test_groups_of_several_channels_stay_exact() -> None:
    layers = [
        INPUT,
        convolution("a", reads="in0", writes="m", channels=(8, 8), groups=2),
        convolution("b", reads="m", writes="out0", channels=(8, 4)),
    ]
    assert rounded_layers(layers) == []


def test_a_network_without_anything_to_round_is_refused(tmp_path: Path) -> None:
    write_layers([INPUT, convolution("a", reads="in0", writes="out0", channels=(3, 4))], *paths(tmp_path))
    with pytest.raises(Unsupported, match="no convolution"):
        quantise_files(paths(tmp_path), paths(tmp_path / "out"), [[image(3)]])


def test_without_images_there_are_no_ranges(converted: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least one image"):
        quantise_files(paths(converted), paths(tmp_path), [])


def test_weights_that_cannot_be_read_are_refused(converted: Path, tmp_path: Path) -> None:
    param, weights = paths(tmp_path)
    param.write_bytes(paths(converted)[0].read_bytes())
    weights.write_bytes(paths(converted)[1].read_bytes() + bytes(8))
    with pytest.raises(Unsupported, match="has weights that cannot be read"):
        read_layers(param, weights)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<xml>",
        "7767517",
        "7767518\n1 1\nInput in0 0 1 in0",
        "7767517\n1 1\nInput in0",
        "7767517\n1 1\nInput in0 0 9 in0",
        "7767517\n1 1\nInput in0 zero 1 in0",
        "7767517\n1 1\nSplit s 1 2 in0 a b",
        "7767517\n1 1\nSplit s 0 2 a b",
        "7767517\n1 1\nConvolution c 0 1 a 6",
        "7767517\n1 1\nConvolution c 0 1 a 6=many",
    ],
)
def test_a_damaged_file_of_layers_is_refused(text: str, tmp_path: Path) -> None:
    param, weights = paths(tmp_path)
    param.write_text(text)
    weights.write_bytes(b"")
    with pytest.raises(UserError, match="no network of ncnn"):
        read_layers(param, weights)


def test_files_in_half_precision_are_refused(tmp_path: Path) -> None:
    network = inference_form(segtailor.create("lpsnet-step0", classes=4, seed=0)).eval().requires_grad_(False)
    Ncnn().convert(network, (torch.zeros(1, 3, 64, 96),), tmp_path, half=True)
    with pytest.raises(Unsupported):
        quantise_files(paths(tmp_path), paths(tmp_path / "out"), [pictures(1)])
