"""Rounding inside a network: the same places and numbers as in its int8 file, and gradients that pass."""

from pathlib import Path

import pytest
import torch

import segtailor
from segtailor.deploy.fake_quantise import INPUTS_OF_KERNELS, FakeQuantised, RoundedMap, RoundedWeight
from segtailor.deploy.fold import inference_form
from segtailor.nets.network import Network
from segtailor.nets.onnx.graph import onnx_bytes, onnx_session

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SIZE = (64, 96)
NETWORKS = ["lpsnet-step0", pytest.param("squeezenas-mac-small", marks=pytest.mark.slow)]


def deployed(name: str) -> Network:
    torch.manual_seed(0)
    return inference_form(segtailor.create(name, classes=5))


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, *SIZE, generator=torch.Generator().manual_seed(1))


def int8_file(network: Network) -> bytes:
    from segtailor.nets.onnx.int8 import int8_onnx

    data = onnx_bytes(network, (images(1),), names=("image",), output="logits")
    return int8_onnx(data, [{"image": images(2)[row : row + 1].numpy()} for row in range(2)])


@pytest.mark.parametrize("name", NETWORKS)
def test_maps_are_rounded_where_the_int8_file_rounds_them(name: str) -> None:
    network = deployed(name)
    data = int8_file(network)
    rounded = FakeQuantised(network, batch=2, crop=SIZE).eval()
    nodes = onnx.load_from_string(data).graph.node
    assert len(rounded.ranges) == sum(node.op_type == "QuantizeLinear" for node in nodes)


@pytest.mark.slow
def test_a_rounded_network_is_closer_to_the_int8_file_than_the_exact_one() -> None:
    network = deployed("lpsnet-step0")
    data = int8_file(network)
    rounded = FakeQuantised(network, batch=2, crop=SIZE).eval()
    rounded.measure([images(2)])
    given = images(2)[:1]
    found = torch.from_numpy(onnx_session(data).run(None, {"image": given.numpy()})[0])
    with torch.no_grad():
        mine, exact = rounded(images(2))[:1], network(given)
    assert (mine - found).abs().mean() < (exact - found).abs().mean()


def ncnn_files(network: Network, folder: Path) -> tuple[Path, Path]:
    from segtailor.nets.mobile.converter import missing
    from segtailor.nets.mobile.ncnn import Ncnn

    reason = missing(Ncnn())
    if reason is not None:
        pytest.skip(reason)
    folder.mkdir()
    Ncnn().convert(network, (images(1),), folder)
    param, weights = (folder / name for name in Ncnn.files)
    return param, weights


@pytest.mark.parametrize("name", NETWORKS)
def test_maps_are_rounded_where_the_int8_file_of_ncnn_rounds_them(name: str, tmp_path: Path) -> None:
    from segtailor.nets.mobile.ncnn_int8 import measured_maps, read_layers, rounded_layers

    network = deployed(name)
    layers = read_layers(*ncnn_files(network, tmp_path / "fp32"))
    rounded = FakeQuantised(network, batch=2, crop=SIZE, rounding=INPUTS_OF_KERNELS).eval()
    kernels = [module for module in rounded.graph.modules() if isinstance(module, RoundedWeight)]
    assert len(rounded.ranges) == len(measured_maps(layers))
    assert len(kernels) == len(rounded_layers(layers))


def test_a_network_rounded_for_ncnn_is_closer_to_its_file_than_the_exact_one(tmp_path: Path) -> None:
    from segtailor.nets.mobile.ncnn import Ncnn
    from segtailor.nets.mobile.ncnn_int8 import quantise_files

    network = deployed("lpsnet-step0")
    source = ncnn_files(network, tmp_path / "fp32")
    (tmp_path / "int8").mkdir()
    param, weights = (tmp_path / "int8" / file.name for file in source)
    quantise_files(source, (param, weights), [[image[None].numpy()] for image in images(2)])
    rounded = FakeQuantised(network, batch=2, crop=SIZE, rounding=INPUTS_OF_KERNELS).eval()
    rounded.measure([images(2)])
    session = Ncnn().open(tmp_path / "int8", threads=1)
    session.load([images(1).numpy()])
    session.run()
    found = torch.from_numpy(session.outputs()[0])
    with torch.no_grad():
        mine, exact = rounded(torch.cat([images(1), images(1)]))[:1], network(images(1))
    assert (mine - found).abs().mean() < 0.5 * (exact - found).abs().mean()


def test_symmetric_maps_have_255_levels_around_zero() -> None:
    place = RoundedMap(symmetric=True).eval()
    place.begin()
    maps = torch.linspace(-2.9, 1.3, 4000).view(1, 1, 50, 80)
    place(maps)
    place.end()
    levels = place(10 * maps).unique()
    assert (float(place.low), float(place.high)) == pytest.approx((-2.9, 2.9))
    assert len(place(torch.linspace(-3, 3, 9000).view(1, 1, 90, 100)).unique()) == 255
    assert levels.min() == -levels.max()


def test_maps_have_256_levels_and_an_exact_zero() -> None:
    place = RoundedMap().eval()
    place.begin()
    maps = torch.linspace(-1.3, 2.9, 4000).view(1, 1, 50, 80)
    assert place(maps) is maps
    place.end()
    levels = place(maps).unique()
    assert len(levels) == 256
    assert (levels == 0).any()
    assert place(10 * maps).max() == levels.max()


def test_the_range_of_a_map_is_the_mean_over_images_and_follows_in_training() -> None:
    place = RoundedMap()
    place.begin()
    place(torch.stack([torch.full((1, 2, 2), -2.0), torch.full((1, 2, 2), 4.0)]))
    place.end()
    assert (float(place.low), float(place.high)) == (1.0, 1.0)
    place.train()(torch.full((1, 1, 2, 2), 5.0))
    assert 1.0 < float(place.high) < 5.0


def test_kernels_are_rounded_per_channel() -> None:
    kernel = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [1.0, 10.0, 0.1, 0.0]
    ).view(4, 1, 1, 1)
    found = RoundedWeight()(kernel)
    for given, row in zip(kernel, found, strict=True):
        assert (given - row).abs().max() <= given.abs().max() / 127 / 2 + 1e-7


def test_gradients_reach_every_weight_and_weights_come_back_under_their_names() -> None:
    network = deployed("lpsnet-step0")
    rounded = FakeQuantised(network, batch=2, crop=SIZE)
    rounded.measure([images(2)])
    rounded.train()(images(2)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in rounded.parameters())
    weights = rounded.weights(rounded.state_dict())
    assert weights.keys() == network.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in network.state_dict().items())
