"""Networks by name, architecture or file: the public functions, and how wrong values are explained."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import segtailor
from segtailor.core.errors import InvalidArchitecture, UnknownName, UserError
from segtailor.core.space import architecture_document
from segtailor.spaces import published
from segtailor.spaces.networks import describe, expand, resolve
from segtailor.spaces.scalable_path import ScalablePathArchitecture
from segtailor.verbs.show import draw

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
        assert resolve(source) == arch
        assert segtailor.count(source, image=(64, 64)).params == segtailor.count(arch, image=(64, 64)).params


@pytest.mark.parametrize("source", ["nothing", 3, None, object()])
def test_anything_else_is_refused(source: object) -> None:
    with pytest.raises((UnknownName, InvalidArchitecture)):
        resolve(source)


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
    plan = expand(name, image=(64, 64))
    network = segtailor.create(name, outputs="all").eval()
    assert set(network.forward_all(torch.zeros(1, 3, 64, 64))) == set(plan.outputs)
    assert set(segtailor.create(name).forward_all(torch.zeros(1, 3, 64, 64))) == {"main"}
    with pytest.raises(InvalidArchitecture, match="outputs: 'depth'"):
        segtailor.create(name, outputs="depth")


@pytest.mark.parametrize("name", CONTRACT)
def test_a_description_holds_what_the_contract_promises(name: str) -> None:
    facts = describe(name)
    count = segtailor.count(name, classes=facts["classes"])
    assert (facts["macs"], facts["params"], facts["train_params"]) == tuple(count)
    assert facts["output_stride"] >= 4
    if name != "fasterseg-teacher":  # the paper states no result of its own for it
        assert facts["published"], "a shipped architecture carries its published results"
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_a_drawing_is_written(tmp_path: Path) -> None:
    draw("squeezenas-lat-small", tmp_path / "net.svg", image=(360, 480))
    assert "squeezenas-lat-small" in (tmp_path / "net.svg").read_text()


@pytest.mark.parametrize("classes", [0, -1, 1.5, "19", None, True, 10**9, float("nan")])
def test_a_wrong_number_of_classes_is_refused(classes: object) -> None:
    for call in (segtailor.create, segtailor.count):
        with pytest.raises(InvalidArchitecture, match=r"classes: .*allowed: 1 to 65536"):
            call("lpsnet-step0", classes=classes)


@pytest.mark.parametrize(
    "image",
    [
        (0, 5),
        (-1, 4),
        (5,),
        (1, 2, 3),
        "64x64",
        None,
        512,
        (64.0, 64.0),
        ("a", "b"),
        (10**9, 64),
        (True, True),
    ],
)
def test_a_wrong_image_size_is_refused(image: object) -> None:
    with pytest.raises(InvalidArchitecture, match=r"image: .*\(height, width\).*32768"):
        segtailor.count("lpsnet-step0", image=image)  # type: ignore[arg-type]


@pytest.mark.parametrize("outputs", ["aux9", ("main", "nope"), (), None, 3, "aux0", [["main"]]])
def test_wrong_outputs_are_refused(outputs: object) -> None:
    with pytest.raises(InvalidArchitecture, match=r"outputs: .*main, aux0, aux1, aux2"):
        segtailor.create("auxcells-arch0", outputs=outputs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "source",
    [
        None,
        3,
        [],
        b"lpsnet-s",
        "",
        "fasterseg",
        "x\0.json",
        "none.json",
        "x" * 1_000_000,
        "x" * 5000 + ".json",
    ],
)
def test_a_wrong_source_is_refused(source: object) -> None:
    for call in (segtailor.create, segtailor.count):
        with pytest.raises(UserError):
            call(source)


def test_an_architecture_that_would_fill_the_memory_is_refused_before_allocating() -> None:
    wide = ScalablePathArchitecture(depth=(256,) * 5, width=(8192,) * 5, resolution=(1,))
    with pytest.raises(InvalidArchitecture, match="at most 1,000,000,000"):
        segtailor.create(wide)


def test_a_file_of_any_name_is_an_architecture_but_a_published_name_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    document = architecture_document(published("lpsnet-step1"))
    for name in ("mine.txt", "lpsnet-s"):
        Path(name).write_text(json.dumps(document))
    assert segtailor.count("mine.txt") == segtailor.count("lpsnet-step1")
    assert segtailor.count("lpsnet-s") != segtailor.count("lpsnet-step1")


def test_an_encoder_takes_weights_alone_and_says_what_does_not_fit() -> None:
    one, other = (segtailor.create("auxcells-arch1", seed=seed) for seed in (0, 1))
    state = {}
    wanted = other.state_dict()
    for key, value in wanted.items():
        node, part = key.removeprefix("nodes.").split(".", 1)
        if node.startswith("encoder_layer") and node != "encoder_layer1":
            link, leaf = part.removeprefix("body.").split(".")
            slot = {
                "expand": 0,
                "expand_norm": 1,
                "depth": 3,
                "depth_norm": 4,
                "project": 6,
                "project_norm": 7,
            }[link]
            state[f"{node.removeprefix('encoder_').replace('_', '.')}.conv.{slot}.{leaf}"] = value
        elif node == "encoder_layer1":
            state[f"layer1.{part.replace('conv1', '0').replace('norm1', '1')}"] = value
    segtailor.load_encoder(one, state)
    for key, value in one.state_dict().items():
        same = torch.equal(value, wanted[key])
        assert same or not key.startswith("nodes.encoder")
    assert not torch.equal(one.nodes["head"].conv1.weight, other.nodes["head"].conv1.weight)
    with pytest.raises(UserError, match=r"layer1\.0\.weight"):
        segtailor.load_encoder(one, {})
    with pytest.raises(UserError, match="list"):
        segtailor.load_encoder(one, [])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no separate encoder"):
        segtailor.load_encoder(segtailor.create("lpsnet-step0"), state)
