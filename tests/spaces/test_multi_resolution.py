import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from torch.nn import functional

import segtailor
from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import Plan, Shape
from segtailor.core.space import architecture_document, parse_architecture, read_architecture
from segtailor.core.variation import mutate, sample, sample_picks
from segtailor.nets.network import Network
from segtailor.nets.weights import WeightsProblem
from segtailor.spaces import published
from segtailor.spaces.multi_resolution import (
    ArchitectureScores,
    BranchCell,
    Derivation,
    MultiResolution,
    MultiResolutionArchitecture,
    derive,
)
from segtailor.spaces.networks import expand
from segtailor.testing import check_architecture, check_space
from tests.support import FIXTURES, deterministic_state, fixture, noise

GOLDEN = json.loads((FIXTURES.parent / "golden" / "fasterseg.json").read_text())
TINY = MultiResolution(layers=9, ratios=(1, 2, 3), stem_ratios=(1, 2), head_ratios=(1, 2))
NAMES = ("fasterseg-student", "fasterseg-teacher")
IMAGE = Shape(3, 64, 96)


def cells(*rows: tuple[str, int, int]) -> tuple[BranchCell, ...]:
    return tuple(BranchCell(operator=op, ratio=ratio, stride=stride) for op, ratio, stride in rows)  # type: ignore[arg-type]


FINE = cells(("zoomed_conv", 2, 1), ("conv", 1, 1))
MIDDLE = cells(("zoomed_conv", 2, 1), ("conv", 3, 2), ("zoomed_conv_2x", 1, 1))
COARSE = cells(("zoomed_conv", 2, 1), ("zoomed_conv", 2, 2), ("conv_2x", 3, 2), ("conv", 1, 1))


def small(*branches: tuple[BranchCell, ...]) -> MultiResolutionArchitecture:
    return MultiResolutionArchitecture(branches=branches, stem_ratio=1, head_ratio=1)


def nodes_of(plan: Plan, part: str) -> list[str]:
    names = part.split(",")
    if names == ["fusion"]:
        return ["fusion"]
    return [node.name for node in plan.nodes if node.name.startswith(tuple(names))]


@pytest.mark.parametrize("row", GOLDEN["counts"], ids=lambda row: f"{row['architecture']}-{row['image'][0]}")
def test_counts_of_the_published_networks_are_exact(row: dict[str, object]) -> None:
    found = segtailor.count(row["architecture"], image=tuple(row["image"]))  # type: ignore[arg-type]
    assert found == (row["macs"], row["params"], row["train_params"])


@pytest.mark.parametrize("row", GOLDEN["parts"], ids=lambda row: f"{row['architecture']}-{row['part']}")
def test_every_part_has_its_share_of_parameters_and_macs(row: dict[str, object]) -> None:
    plan = expand(row["architecture"], image=(1024, 2048))
    calls = [plan.call(name) for name in nodes_of(plan, str(row["part"]))]
    main = [plan.call(name) for name in nodes_of(plan.select(), str(row["part"]))]
    assert sum(call.params() for call in calls) == row["params"]
    assert round(sum(call.macs() for call in main) / 1e9, 3) == row["gmacs"]


@pytest.mark.parametrize("name", NAMES)
def test_the_main_output_runs_the_published_number_of_convolutions(name: str) -> None:
    network = segtailor.create(name)
    convolutions = [module for module in network.modules() if isinstance(module, torch.nn.Conv2d)]
    assert len(convolutions) == GOLDEN["convolutions"][name]
    assert sum(parameter.numel() for parameter in network.parameters()) == segtailor.count(name).params


def released_count(arch: MultiResolutionArchitecture | str) -> int:
    """Count as the release does, on a built network without storage."""
    with torch.device("meta"):
        network = Network(expand(arch, image=(1024, 2048)).select()).eval()
    total = 0

    def add(module: torch.nn.Module, _: object, out: torch.Tensor) -> None:
        nonlocal total
        if isinstance(module, torch.nn.Conv2d):
            total += out.numel() * (module.weight[0].numel() + (module.bias is not None))
        elif isinstance(module, torch.nn.BatchNorm2d):
            total += 2 * out.numel()

    for module in network.modules():
        module.register_forward_hook(add)
    network(torch.zeros(1, 3, 1024, 2048, device="meta"))
    return total


@pytest.mark.slow
def test_the_built_networks_count_as_the_release_counts() -> None:
    record = GOLDEN["release_counter"]
    assert [released_count(name) for name in NAMES] == [record[name] for name in NAMES]
    raw = json.loads((FIXTURES / "fasterseg_scores.json").read_text())["networks"]["teacher"]
    scores = ArchitectureScores(**{field: tuple(raw[field]) for field in ("operators", "entries", "widths")})
    assert (
        round(released_count(derive(scores, Derivation(ratios=(4,)))) / 1e9, 3) == record["pruned_teacher_g"]
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_unread_attention_is_counted_apart(name: str) -> None:
    plan = expand(name, image=(256, 512))
    unread = plan.call("fusion_attention").params()
    assert plan.select().params() + unread == GOLDEN["with_attention"][name]


def test_the_paper_counts_the_training_form_and_a_hundredth_more_macs() -> None:
    count, paper = segtailor.count(NAMES[0]), GOLDEN["table3"]["student"]
    assert round(count.train_params / 1e6, 1) == paper["train_mparams"]
    assert 0.98 < count.macs / 1e9 / paper["gmacs"] < 1


def test_shared_prefixes_are_as_published() -> None:
    assert [published(name).shared for name in NAMES] == [3, 4]
    assert [published(name).ends for name in NAMES] == [(32, 16), (32, 16)]


def test_all_outputs_of_the_student_equal_the_reference() -> None:
    facts, expected = fixture("fasterseg_student_parity")
    network = segtailor.create(NAMES[0], outputs="all")
    segtailor.load_published(network, deterministic_state(facts["state"]))
    with torch.no_grad():
        found = network.forward_all(noise(1, 3, 256, 512))
    full = functional.interpolate(
        found["main"], size=(256, 512), mode="bilinear", align_corners=network.plan.align_corners
    )
    assert set(found) == {"main", "aux16", "aux32"}
    for ours, theirs in (
        (found["main"], "logits_1_8"),
        (found["aux16"], "aux16_1_16"),
        (found["aux32"], "aux32_1_32"),
        (full[:, :, ::4, ::4], "logits_full_stride4"),
    ):
        assert np.abs(ours.numpy() - expected[theirs]).max() < 3e-5, theirs  # the fixture allows 1e-4
    assert (full.argmax(1).numpy() == expected["argmax_full"]).mean() > 0.9999


def test_every_stage_of_the_student_equals_the_reference() -> None:
    facts, _ = fixture("fasterseg_student_parity")
    network = segtailor.create(NAMES[0])
    segtailor.load_published(network, deterministic_state(facts["state"]))
    values: dict[str, torch.Tensor] = {}
    for name, module in network.nodes.items():
        module.register_forward_hook(lambda _module, _inputs, out, name=name: values.update({name: out}))
    with torch.no_grad():
        network(noise(1, 3, 256, 512))
    for stage in facts["stages"]:
        out = values[node_of(stage["stage"])]
        assert list(out.shape) == stage["shape"], stage
        found = [float(value) for value in (out.mean(), out.std(), out.min(), out.max())]
        wanted = [stage[key] for key in ("mean", "std", "min", "max")]
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5), stage


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "size", [(64, 64), (65, 97), (90, 120)]
)  # the reference fails where a side is no multiple of 32
def test_published_networks_run_at_any_size(name: str, size: tuple[int, int]) -> None:
    network, plan = network_with_all_outputs(name), expand(name, image=size)
    with torch.no_grad():
        found = network.forward_all(torch.randn(1, 3, *size))
    for output, logits in found.items():
        assert tuple(logits.shape[1:]) == plan.shape(plan.outputs[output])
        assert bool(torch.isfinite(logits).all())
    assert plan.shape(plan.outputs["main"])[1:] == (-(-size[0] // 8), -(-size[1] // 8))


@cache
def network_with_all_outputs(name: str) -> Network:
    return segtailor.create(name, outputs="all")


def node_of(stage: str) -> str:
    kind, _, rest = stage.partition(".")
    if kind == "cells":
        position, branch = rest.split("+")[0].split("-")
        return f"cell{position}" if "+" in rest else f"cell{position}_to{(32, 16)[int(branch)]}"
    if kind[:4] in ("arms", "refi"):
        return kind.replace("s", "") + f"_{rest or 0}"
    return {"ffm": "fusion", "heads8": "head8"}.get(kind, f"{kind}{rest}")


@pytest.mark.parametrize("image", [Shape(3, 96, 128), Shape(3, 104, 136), Shape(3, 65, 97)])
def test_random_architectures_keep_every_invariant(image: Shape) -> None:
    check_space(TINY, draws=200, image=image)


def test_the_default_space_contains_the_calls_of_its_architectures() -> None:
    check_space(MultiResolution(), draws=40, image=Shape(3, 360, 480))


@pytest.mark.parametrize("seed", range(8))
def test_random_architectures_count_and_run_as_built(seed: int) -> None:
    check_architecture(TINY, sample(TINY, Random(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_two_hundred_random_architectures_count_and_run_as_built(seed: int) -> None:
    check_architecture(TINY, sample(TINY, Random(1000 + seed)))


@pytest.mark.parametrize(
    ("branches", "outputs"),
    [
        ((COARSE, MIDDLE), {"main", "aux16", "aux32"}),
        ((COARSE, FINE), {"main", "aux16", "aux32"}),
        ((MIDDLE, FINE), {"main", "aux16"}),
        ((COARSE,), {"main", "aux16", "aux32"}),
        ((MIDDLE,), {"main", "aux16"}),
        ((FINE,), {"main"}),
        ((COARSE[1:], MIDDLE[1:]), {"main", "aux16", "aux32"}),  # the 1/8 map is the stem
    ],
)
def test_every_set_of_branches_counts_and_runs_as_built(
    branches: tuple[tuple[BranchCell, ...], ...], outputs: set[str]
) -> None:
    arch = small(*branches)
    check_architecture(TINY, arch, sizes=((64, 96), (65, 67), (40, 72)))
    assert set(TINY.plan(arch, IMAGE, 4).outputs) == outputs
    network = segtailor.create(arch, classes=4, outputs="all")
    plan = TINY.plan(arch, Shape(3, 65, 67), 4)
    for name, logits in network.forward_all(torch.randn(1, 3, 65, 67)).items():
        assert tuple(logits.shape[1:]) == plan.shape(plan.outputs[name])


def test_a_cell_is_shared_only_while_both_branches_agree() -> None:
    lead = cells(("conv", 1, 1), ("conv", 2, 2), ("zoomed_conv", 2, 1))
    tail = cells(("conv", 1, 2), ("conv", 1, 1))
    end = cells(("conv", 1, 1))
    assert small((*lead, *tail), (*lead, *end)).shared == 3
    assert small((*lead, *tail), lead[:2] + end).shared == 2
    wider = (lead[0], replace(lead[1], ratio=3), *lead[2:])
    assert small((*wider, *tail), (*lead, *end)).shared == 1
    assert small((*lead, *tail), (*end, *end)).shared == 1
    assert (
        small(cells(("conv", 1, 1), *[("conv", 1, 2)] * 2), cells(("conv", 1, 1))).shared == 0
    )  # a last cell
    plan = TINY.plan(small((*lead, *tail), (*lead, *end)), IMAGE, 4)
    assert [node.name for node in plan.nodes if node.name.startswith("cell")] == [
        "cell0", "cell1", "cell2", "cell3_to32", "cell4_to32", "cell3_to16",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_default_space_expresses_the_published_networks(name: str) -> None:
    space = MultiResolution()
    picks = space.picks(published(name))
    assert space.architecture(picks) == published(name)
    assert set(picks) == {decision.name for decision in space.decisions}
    assert set(space.plan(published(name), IMAGE, 19).calls) <= set(space.calls(IMAGE, 19))


def test_picks_are_canonical_and_mutation_stays_inside_the_space() -> None:
    space, rng = MultiResolution(), Random(3)
    picks = sample_picks(space, rng)
    for _ in range(50):
        arch = space.architecture(picks)
        again = space.picks(arch)
        assert space.picks(space.architecture(again)) == again
        picks = mutate(space, again, rng)


def test_all_skips_leave_a_short_branch() -> None:
    space = MultiResolution()
    picks = {decision.name: 0 for decision in space.decisions}
    arch = space.architecture(picks)
    # Minimum 9 and 5; the layer spared between the halvings is one of those first chosen for removal.
    assert [len(branch) for branch in arch.branches] == [10, 5]
    assert space.architecture(space.picks(arch)) == arch


@pytest.mark.parametrize(
    ("arch", "says"),
    [
        (small(COARSE, MIDDLE), "too short"),
        (small(COARSE), "branches: 1"),
        (small(MIDDLE, FINE), "branches.0: no path"),
        (small(cells(*[("conv", 2, 1)] * 9, *[("conv", 2, 2)] * 2, ("conv", 1, 1)), FINE), "branches.0: no path"),
        (small(cells(("conv", 9, 1), *[("conv", 2, 2)] * 2, ("conv", 1, 1)), FINE), "branches.0.0.ratio: 9"),
        (replace(small(COARSE, MIDDLE), stem_ratio=5), "stem_ratio: 5"),
    ],
)  # fmt: skip
def test_an_architecture_outside_the_space_is_refused(arch: MultiResolutionArchitecture, says: str) -> None:
    with pytest.raises(InvalidArchitecture, match=says):
        TINY.picks(arch)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"branches": []}, "branches: there are 0"),
        ({"branches": [[]]}, "branches.0: 0 cells"),
        ({"branches": [[{"operator": "conv", "ratio": 1, "stride": 1}] * 65]}, "branches.0: 65 cells"),
        ({"branches": [[{"operator": "conv_9x", "ratio": 1, "stride": 1}]]}, r"branches\.0\.0\.operator.*conv_2x"),
        ({"branches": [[{"operator": "skip", "ratio": 1, "stride": 1}]]}, r"branches\.0\.0\.operator"),
        ({"branches": [[{"operator": "conv", "ratio": 0, "stride": 1}]]}, r"branches\.0\.0\.ratio: 0"),
        ({"branches": [[{"operator": "conv", "ratio": 1.5, "stride": 1}]]}, r"branches\.0\.0\.ratio"),
        ({"branches": [[{"operator": "conv", "ratio": 1, "stride": 3}]]}, r"branches\.0\.0\.stride"),
        ({"branches": [[{"operator": "conv", "ratio": 1, "stride": 2}] * 3]}, "branches.0: ends at rate 64"),
        ({"branches": [[{"operator": "conv", "ratio": 2, "stride": 1}]]}, r"branches\.0\.0\.ratio: 2.*head ratio"),
        ({"branches": [[{"operator": "conv", "ratio": 1, "stride": 1}]] * 2}, "branches: they end at"),
        ({"branches": [[{"operator": "conv", "ratio": 1}, {"ratio": 1}]]}, r"branches\.0\.1\.operator"),
        ({"branches": [[{"operator": "conv", "ratio": 1, "input": 4}]]}, r"branches\.0\.0\.input"),
        ({"stem_ratio": 0}, "stem_ratio: 0"),
        ({"head_ratio": 1000}, "head_ratio: 1000"),
        ({"shared": 3}, "shared"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(change: dict[str, object], says: str) -> None:
    body = {"branches": [[{"operator": "conv", "ratio": 1, "stride": 1}]], "stem_ratio": 1, "head_ratio": 1}
    document = {"format": 1, "family": "multi_resolution", "architecture": {**body, **change}}
    with pytest.raises(InvalidArchitecture, match=says):
        parse_architecture(document)


def test_a_wrong_value_in_python_is_named_too() -> None:
    with pytest.raises(InvalidArchitecture, match=r"branches\.0\.0\.operator: 'skip'; allowed: conv"):
        small(cells(("skip", 1, 1)))
    with pytest.raises(InvalidArchitecture, match=r"branches\.0\.0\.stride: 4"):
        small(cells(("conv", 1, 4)))


def test_newer_and_truncated_files_are_refused(tmp_path: Path) -> None:
    document = architecture_document(small(COARSE, FINE))
    file = tmp_path / "arch.json"
    file.write_text(json.dumps({**document, "format": 2}))
    with pytest.raises(InvalidArchitecture, match="newer"):
        read_architecture(file)
    file.write_text(json.dumps(document)[:-20])
    with pytest.raises(InvalidArchitecture, match="truncated"):
        read_architecture(file)


@pytest.mark.parametrize("field", [{"layers": 7}, {"ratios": ()}, {"ratios": (6, 4)}, {"head_ratios": (0,)}])
def test_a_space_that_cannot_be_is_refused(field: dict[str, object]) -> None:
    with pytest.raises(InvalidArchitecture, match=next(iter(field))):
        MultiResolution(**field)  # type: ignore[arg-type]


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
