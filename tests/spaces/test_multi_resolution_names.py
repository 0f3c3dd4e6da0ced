from functools import cache

import pytest
import torch

import segtailor
from segtailor.nets.weights import WeightsProblem
from segtailor.spaces.multi_resolution import MultiResolution
from tests.support import fixture

NAMES = ("fasterseg-student", "fasterseg-teacher")


@cache
def _published(name: str) -> dict[str, torch.Tensor]:
    network = segtailor.create(name, outputs="all")
    names, own = MultiResolution.published_names(network, network.architecture).names, network.state_dict()
    return {
        alias: own[key] + number for key, aliases in names.items() for number, alias in enumerate(aliases)
    }


def published_state(name: str) -> dict[str, torch.Tensor]:
    """Return a fresh network's state under published names; aliases of a shared cell hold different values."""
    return dict(_published(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("outputs", ["main", "all"])
@pytest.mark.parametrize("without", [(), ("ffm.channel_attention",), ("ffm.channel", "heads16", "heads32")])
def test_checkpoints_load_with_and_without_train_only_keys(
    name: str, outputs: str, without: tuple[str, ...]
) -> None:
    state = {key: value for key, value in published_state(name).items() if not key.startswith(without)}
    network = segtailor.create(name, outputs=outputs)
    if outputs == "all" and "heads16" in without:
        with pytest.raises(WeightsProblem, match="missing key 'heads16"):
            segtailor.load_published(network, state)
        return
    segtailor.load_published(network, state)
    assert torch.equal(network.nodes["head8"].conv2.bias, state["heads8.conv_1x1.bias"])


def test_names_of_the_student_are_those_of_the_reference_and_the_later_alias_wins() -> None:
    facts, _ = fixture("fasterseg_student_parity")
    state = published_state(NAMES[0])
    assert {key: list(value.shape) for key, value in state.items()} == dict(facts["state"])
    network = segtailor.create(NAMES[0])
    segtailor.load_published(network, state)
    assert torch.equal(network.nodes["cell1"].conv2.weight, state["cells.1-1._op._op.conv2.weight"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: state.pop("cells.2-0._op._op.bn1.weight"), "missing key 'cells.2-0._op._op.bn1.weight'"),
        (lambda state: state.pop("refines16.conv.0.weight"), "missing key 'refines16.conv.0.weight'"),
        (lambda state: state.update({"heads16.extra": torch.zeros(1)}), "unknown key 'heads16.extra'"),
        (lambda state: state.update({"cells.9-1.x": torch.zeros(1)}), "unknown key 'cells.9-1.x'"),
        (lambda state: state.update({"stem.0.conv.0.weight": torch.zeros(1)}), "'stem.0.conv.0.weight' has shape"),
    ],
)  # fmt: skip
def test_a_key_that_does_not_fit_is_named(change: object, says: str) -> None:
    state = published_state(NAMES[0])
    change(state)  # type: ignore[operator]
    with pytest.raises(WeightsProblem, match=says):
        segtailor.load_published(segtailor.create(NAMES[0]), state)
