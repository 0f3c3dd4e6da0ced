"""State dictionaries from outside: what does not fit is named, and nothing is written then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import segtailor
from segtailor.nets.weights import WeightsProblem

State = dict[str, Tensor]
BIAS, SCALE = "net.stages.0.0.0.bias", "net.stages.0.0.1.weight"


def training_form() -> State:
    """Return a state of the smallest published network under its published names."""
    network = segtailor.create("lpsnet-step0", seed=1)
    state: State = {"head.weight": network.nodes["head"].conv1.weight, "head.bias": torch.arange(19.0)}
    for stage in range(5):
        block = network.nodes[f"path0_stage{stage}_block0"]
        state |= {f"net.stages.{stage}.0.0.{key}": value for key, value in block.conv.state_dict().items()}
        state |= {f"net.stages.{stage}.0.1.{key}": value for key, value in block.norm.state_dict().items()}
    return {key: value.detach().clone() for key, value in state.items()}


def inference_form() -> State:
    """Return the same kernels with biases instead of norms."""
    state = training_form()
    biases = {key.replace(".1.bias", ".0.bias"): state[key] for key in state if key.endswith(".1.bias")}
    return {key: value for key, value in state.items() if ".0.1." not in key} | biases


def without(state: State, key: str) -> State:
    return {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_converted(dtype: torch.dtype) -> None:
    network = segtailor.create("lpsnet-step0")
    for state in (training_form(), inference_form()):
        segtailor.load_published(network, {key: value.to(dtype) for key, value in state.items()})
        assert network.nodes["head"].conv1.bias.dtype is torch.float32
        assert network.nodes["head"].conv1.bias[18] == 18


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (None, "NoneType"),
        ([1], "list"),
        ("weights.pth", "str.*segtailor import"),
        (segtailor.create("lpsnet-step0"), "state_dict"),
    ],
)
def test_what_is_no_state_dictionary_is_refused(state: object, says: str) -> None:
    for name in (
        "lpsnet-step0",
        "fasterseg-student",
        "auxcells-arch0",
        "squeezenas-mac-small",
        "autortnet-a",
    ):
        with pytest.raises(WeightsProblem, match=says):
            segtailor.load_published(segtailor.create(name), state)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({3: torch.zeros(1)}, "key 3"),
        ({"head.bias": [0.0] * 19}, "'head.bias' is a list"),
        ({"head.bias": torch.zeros(19).numpy()}, "'head.bias' is a ndarray"),
        ({"epoch": 3}, "'epoch' is a int"),
        ({"head.bias": torch.zeros(19, dtype=torch.complex64)}, "'head.bias'.*complex64"),
        ({"head.bias": torch.zeros(19, dtype=torch.int64)}, "'head.bias'.*int64"),
        ({"head.bias": torch.zeros(19, device="meta")}, "'head.bias'.*meta"),
        ({"head.bias": torch.zeros(19).to_sparse()}, "'head.bias'.*sparse"),
        ({"head.bias": torch.zeros(11)}, "'head.bias' has shape.*11.*number of classes"),
        ({"net.stages.9.0.0.weight": torch.zeros(1)}, "unknown key 'net.stages.9.0.0.weight'"),
    ],
)
def test_a_value_that_does_not_fit_is_named_and_nothing_is_written(change: State, says: str) -> None:
    network = segtailor.create("lpsnet-step0")
    before = {key: value.clone() for key, value in network.state_dict().items()}
    for state in (training_form(), inference_form()):
        with pytest.raises(WeightsProblem, match=says):
            segtailor.load_published(network, {**state, **change})
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (lambda: without(training_form(), SCALE), f"missing key '{SCALE}'.*31 keys"),
        (lambda: without(inference_form(), BIAS), f"missing key '{BIAS}'.*11 keys"),
        (lambda: inference_form() | {BIAS: torch.zeros(7)}, f"key '{BIAS}' has shape .7,."),
        (lambda: training_form() | inference_form(), f"unknown key '{BIAS}'"),
    ],
)
def test_keys_of_either_form_are_named_as_the_file_has_them(state: Callable[[], State], says: str) -> None:
    with pytest.raises(WeightsProblem, match=says):
        segtailor.load_published(segtailor.create("lpsnet-step0"), state())


@pytest.mark.parametrize("network", [None, {}, torch.nn.Conv2d(1, 1, 1)])
def test_only_networks_of_ours_take_published_weights(network: object) -> None:
    with pytest.raises(WeightsProblem, match=r"segtailor\.create"):
        segtailor.load_published(network, training_form())  # type: ignore[arg-type]


def test_invented_keys_of_train_only_parts_are_not_dropped() -> None:
    network = segtailor.create("auxcells-arch0", classes=21)
    known = "decoder.aux_clfs.0.aux_cell._ops.0.op.sep_1.2.running_var"
    for key, says in (
        (known, "missing key"),
        (known + "x", "unknown key"),
        ("decoder.aux_clfs.0.aux_cell.x", "unknown"),
    ):
        full = _named(network) | {key: torch.zeros(64)}
        if key == known:
            segtailor.load_published(network, full)
            continue
        with pytest.raises(WeightsProblem, match=says):
            segtailor.load_published(network, full)


def _named(network: torch.nn.Module) -> State:
    from segtailor.spaces.decoder_cell.names import published_names

    own = network.state_dict()
    names = published_names(network, network.architecture).names  # type: ignore[arg-type]
    return {published: own[key] for key, aliases in names.items() for published in aliases}
