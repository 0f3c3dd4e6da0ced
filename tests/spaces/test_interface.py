import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import segtailor
from segtailor import api
from segtailor.core.errors import InvalidArchitecture, UnknownName
from segtailor.core.space import architecture_document
from segtailor.spaces import published

CONTRACT = [
    "fasterseg-student", "fasterseg-teacher", "autortnet-a", "auxcells-arch0", "auxcells-arch1", "auxcells-arch2",
    *[f"squeezenas-{kind}-{size}" for kind in ("mac", "lat") for size in ("small", "large", "xlarge")],
    "lpsnet-s", "lpsnet-m", "lpsnet-l", *[f"lpsnet-step{step}" for step in range(15)],
]  # fmt: skip


def test_the_published_names_are_those_of_the_contract() -> None:
    assert sorted(segtailor.architectures()) == sorted(CONTRACT)


def test_importing_the_package_is_instant_and_without_torch() -> None:
    program = "import segtailor, sys; assert 'torch' not in sys.modules; assert 'numpy' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_public_names_are_there_and_others_are_not() -> None:
    for name in segtailor.__all__:
        assert callable(getattr(segtailor, name))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        segtailor.nothing  # noqa: B018


def test_a_network_can_be_named_given_or_read_from_a_file(tmp_path: Path) -> None:
    arch = published("lpsnet-step0")
    file = tmp_path / "a.json"
    file.write_text(json.dumps(architecture_document(arch)))
    for source in ("lpsnet-step0", arch, file, str(file)):
        assert api.resolve(source) == arch
        assert segtailor.count(source, image=(64, 64)).params == segtailor.count(arch, image=(64, 64)).params


@pytest.mark.parametrize("source", ["nothing", 3, None, object()])
def test_anything_else_is_refused(source: object) -> None:
    with pytest.raises((UnknownName, InvalidArchitecture)):
        api.resolve(source)


def test_create_gives_logits_at_the_networks_own_stride() -> None:
    network = segtailor.create("lpsnet-step0", classes=7)
    assert not network.training
    logits = network(torch.zeros(2, 3, 64, 96))
    assert logits.shape == (2, 7, 2, 3)


def test_seeds_make_weights() -> None:
    one, two, other = (segtailor.create("lpsnet-step0", seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", ["fasterseg-student", "auxcells-arch1"])
def test_outputs_can_be_chosen(name: str) -> None:
    plan = api.plan(name, image=(64, 64))
    network = segtailor.create(name, outputs="all").eval()
    assert set(network.forward_all(torch.zeros(1, 3, 64, 64))) == set(plan.outputs)
    assert set(segtailor.create(name).forward_all(torch.zeros(1, 3, 64, 64))) == {"main"}
    with pytest.raises(InvalidArchitecture, match="outputs: 'depth'"):
        segtailor.create(name, outputs="depth")


@pytest.mark.parametrize("name", CONTRACT)
def test_a_description_holds_what_the_contract_promises(name: str) -> None:
    facts = api.describe(name)
    count = segtailor.count(name, classes=facts["classes"])
    assert (facts["macs"], facts["params"], facts["train_params"]) == tuple(count)
    assert facts["output_stride"] >= 4
    if name != "fasterseg-teacher":  # the paper states no result of its own for it
        assert facts["published"], "a shipped architecture carries its published results"
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_a_drawing_is_written(tmp_path: Path) -> None:
    api.draw("squeezenas-lat-small", tmp_path / "net.svg", image=(360, 480))
    assert "squeezenas-lat-small" in (tmp_path / "net.svg").read_text()
