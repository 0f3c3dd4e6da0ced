import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from torch.nn import functional

import segtailor
from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import OpCall, Plan, Shape
from segtailor.core.space import architecture_document, fingerprint_of, parse_architecture, read_architecture
from segtailor.core.variation import mutate, sample, sample_picks
from segtailor.nets.weights import WeightsProblem
from segtailor.ops import Zero
from segtailor.spaces.hyper_cell import (
    ADJACENT_SCALES,
    OWN_PATHS,
    Aggregation,
    HyperCell,
    HyperCellArchitecture,
    Link,
    MultiScale,
    Wiring,
)
from segtailor.spaces.hyper_cell.architecture import AGGREGATION_OPS, CELL_OPS, empty_nodes
from segtailor.spaces.hyper_cell.layers import operator
from segtailor.spaces.networks import expand
from segtailor.spaces.published import published, published_record
from segtailor.testing import check_architecture, check_operator, check_space
from tests.spaces.hyper_cell_twin import Twin
from tests.support import FIXTURES, deterministic_state, noise

GOLDEN = json.loads((FIXTURES.parent / "golden" / "autortnet.json").read_text())
IMAGE = (768, 1536)
TINY = HyperCell(depths=(2, 3, 3), widths=(4, 6, 8), stem=4, wiring=replace(OWN_PATHS, width=8),
                 context=MultiScale(branch=8, output=8, rates=(6, 12)))  # fmt: skip
A: HyperCellArchitecture = published("autortnet-a")
ADJACENT = Aggregation(
    operators=("conv3_x2",) * 4 + ("dsep3_d4_x2", "conv3_x2", "dsep3_d4_x2"), wiring=ADJACENT_SCALES
)


def with_stages(arch: HyperCellArchitecture, **columns: Any) -> HyperCellArchitecture:
    stages = tuple(
        replace(stage, **{field: values[index] for field, values in columns.items()})
        for index, stage in enumerate(arch.stages)
    )
    return replace(arch, stages=stages)  # type: ignore[arg-type]


def size_of(plan: Plan, prefix: str) -> list[int]:
    calls = [plan.call(node.name) for node in plan.nodes if node.name.startswith(prefix)]
    return [sum(call.params() for call in calls), sum(call.macs() for call in calls)]


@pytest.mark.parametrize("classes", [19, 11])
@pytest.mark.parametrize("size", ["768x1536", "720x960", "1024x2048", "512x1024"])
def test_counts_of_the_published_network_are_exact(size: str, classes: int) -> None:
    height, width = map(int, size.split("x"))
    params = GOLDEN["params"][str(classes)]
    expected = (GOLDEN["macs"][str(classes)][size], params, params)
    assert segtailor.count("autortnet-a", image=(height, width), classes=classes) == expected


def test_parameters_round_to_the_published_size() -> None:
    # No evidence for the head: its widths were chosen to land here.
    assert round(segtailor.count("autortnet-a").params / 1e6, 1) == GOLDEN["published_params_millions"]


def test_counts_of_every_part_are_exact_and_add_up() -> None:
    plan = expand("autortnet-a", image=IMAGE)
    parts = {prefix: size_of(plan, prefix) for prefix in GOLDEN["parts_768x1536"]}
    assert parts == GOLDEN["parts_768x1536"]
    assert [sum(column) for column in zip(*parts.values(), strict=True)] == [plan.params(), plan.macs()]


def test_without_aggregation_the_head_reads_the_last_hyper_cell() -> None:
    count = segtailor.count(replace(A, aggregation=None), image=IMAGE)
    assert [count.params, count.macs] == GOLDEN["without_aggregation"]


@pytest.mark.parametrize(("depths", "params"), GOLDEN["depths"])
def test_depth_variants_have_the_expected_size(depths: list[int], params: int) -> None:
    assert segtailor.count(with_stages(A, depth=depths)).params == params


@pytest.mark.parametrize(("positions", "params", "gmacs"), GOLDEN["reductions"])
def test_table_5_position_variants_have_the_expected_size(
    positions: list[int], params: int, gmacs: float
) -> None:
    variant = A.with_reductions(*positions)
    count = segtailor.count(variant, image=IMAGE)
    assert (count.params, round(count.macs / 1e9, 2)) == (params, gmacs)
    assert list(variant.reductions) == positions
    assert variant.with_reductions(*A.reductions) == A


@pytest.mark.parametrize(("widths", "params"), GOLDEN["backbone_by_widths"])
def test_backbone_sizes_by_node_width(widths: list[int], params: int) -> None:
    plan = expand(with_stages(A, width=widths), image=IMAGE)
    assert size_of(plan, "stem")[0] + size_of(plan, "hyper")[0] == params


@pytest.mark.parametrize(("swapped", "params"), GOLDEN["swapped_reductions"])
def test_other_readings_of_figure_7_have_the_expected_size(swapped: list[int], params: int) -> None:
    cells = [stage.reduction for stage in A.stages]
    one, two = swapped
    cells[one], cells[two] = cells[two], cells[one]
    assert segtailor.count(with_stages(A, reduction=cells)).params == params


def test_the_stray_label_read_as_separable_has_the_expected_size() -> None:
    first, second, third = A.stages
    normal = ("conv3_x2", *second.normal[1:])
    reduction = (*third.reduction[:4], "sep3")
    arch = with_stages(
        A,
        normal=[first.normal, normal, third.normal],
        reduction=[first.reduction, second.reduction, reduction],
    )
    assert segtailor.count(arch).params == GOLDEN["stray_label_separable"]


def test_the_adjacent_scale_wiring_has_the_expected_size() -> None:
    count = segtailor.count(replace(A, aggregation=ADJACENT), image=IMAGE)
    assert [count.params, round(count.macs / 1e9, 1)] == GOLDEN["adjacent_scales"]


@pytest.mark.parametrize("name", GOLDEN["operators_24_channels"])
def test_parameters_per_operator_are_exact(name: Any) -> None:
    call = OpCall(op=operator(name, stride=1), inputs=(Shape(24, 9, 7),), channels=24)
    assert call.params() == GOLDEN["operators_24_channels"][name]


def test_a_skip_that_halves_is_a_factorised_reduction() -> None:
    call = OpCall(op=operator("skip", stride=2), inputs=(Shape(24, 9, 7),), channels=24, stride=2)
    assert (call.params(), call.output()) == (624, Shape(24, 5, 4))


@pytest.mark.parametrize("name", sorted({*CELL_OPS, *AGGREGATION_OPS}))
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(16, 24), (15, 9), (4, 3), (1, 1)])
def test_every_operator_counts_and_runs_as_built(name: Any, stride: int, size: tuple[int, int]) -> None:
    call = OpCall(op=operator(name, stride=stride), inputs=(Shape(8, *size),), channels=8, stride=stride)
    check_operator(call)
    assert call.output() == call.source.halved(8, stride)


VARIANTS = {
    "published": A,
    "alternative wiring": replace(A, aggregation=ADJACENT),
    "no aggregation": replace(A, aggregation=None),
    "bridges": with_stages(A, depth=(1, 1, 1)),
    "plain chain": A.with_reductions(1, 2, 4),
    "leading cells": A.with_reductions(3, 5, 8),
    "empty node": with_stages(A, normal=[("zero", "zero", "skip", "zero", "conv3")] * 3),
    "skips": with_stages(A, reduction=[("skip", "zero", "maxpool3", "skip", "sep3_x2")] * 3),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_equal_a_second_implementation(name: str) -> None:
    network = segtailor.create(VARIANTS[name], classes=5)
    state = deterministic_state([(key, list(value.shape)) for key, value in network.state_dict().items()])
    segtailor.load_published(network, state)
    image = noise(1, 3, 71, 98)
    with torch.no_grad():
        logits, expected = network(image), Twin(VARIANTS[name], state)(image)
    assert logits.shape[2:] == ((9, 13) if name == "alternative wiring" else (5, 7))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("size", [(719, 961), (720, 960), (768, 1536), (65, 97), (64, 64)])
def test_the_output_stride_is_16_rounded_up(size: tuple[int, int]) -> None:
    plan = expand("autortnet-a", image=size)
    assert plan.shape("classifier") == Shape(19, -(-size[0] // 16), -(-size[1] // 16))
    assert plan.align_corners is False


@pytest.mark.slow
def test_an_odd_full_size_image_runs() -> None:
    with torch.no_grad():
        logits = segtailor.create("autortnet-a")(torch.zeros(1, 3, 719, 961))
    assert logits.shape == (1, 19, 45, 61)


def test_one_training_step_with_a_single_image_reaches_every_parameter() -> None:
    network = segtailor.create("autortnet-a", classes=5).train()
    labels = torch.randint(5, (1, 64, 96))
    logits = functional.interpolate(network(noise(1, 3, 64, 96)), size=(64, 96), mode="bilinear")
    functional.cross_entropy(logits, labels).backward()
    assert [key for key, value in network.named_parameters() if value.grad is None] == []


def test_two_hundred_random_architectures_round_trip_and_stay_inside_the_calls() -> None:
    check_space(HyperCell(), draws=200, image=Shape(3, 65, 97))


@pytest.mark.parametrize("wiring", [None, ADJACENT_SCALES])
def test_other_wirings_round_trip_and_stay_inside_the_calls(wiring: Wiring | None) -> None:
    check_space(HyperCell(wiring=wiring, depths=(1, 2, 3)), draws=30, image=Shape(3, 64, 96))


def test_calls_hold_every_call_of_architectures_full_of_zeros() -> None:
    calls = set(HyperCell().calls(Shape(3, 64, 64), 4))
    rng = Random(0)
    for _ in range(200):
        picks = sample_picks(HyperCell(), rng)
        picks |= {key: 0 for key in picks if "edge" in key and rng.random() < 0.6}
        plan = HyperCell().plan(HyperCell().architecture(picks), Shape(3, 64, 64), 4)
        assert calls.issuperset(plan.calls)


@pytest.mark.parametrize("seed", range(8))
def test_random_architectures_count_and_run_as_built(seed: int) -> None:
    check_architecture(TINY, sample(TINY, Random(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_two_hundred_random_architectures_count_and_run_as_built(seed: int) -> None:
    check_architecture(TINY, sample(TINY, Random(1000 + seed)))


@pytest.mark.parametrize("lead", [0, 2])
@pytest.mark.parametrize("bridge", [True, False])
def test_alternative_wiring_and_positions_count_and_run_as_built(lead: int, bridge: bool) -> None:
    rng = Random(lead)
    space = replace(TINY, wiring=replace(ADJACENT_SCALES, width=8))
    arch = replace(with_stages(sample(space, rng), depth=(1, 1, 2)), lead=lead, bridge=bridge)
    check_architecture(space, arch)


def test_decisions_are_those_of_the_paper() -> None:
    by_group: dict[str, list[int]] = {}
    for decision in HyperCell().decisions:
        by_group.setdefault(decision.group, []).append(len(decision.options))
        assert decision.ordered == (decision.group == "depth")
    assert by_group == {"op": [10] * 30 + [5] * 7, "depth": [5, 10, 10]}


def test_an_all_zero_pick_is_rescued_and_round_trips() -> None:
    space = HyperCell()
    picks = {decision.name: 0 for decision in space.decisions}
    arch = space.architecture(picks)
    assert {stage.reduction for stage in arch.stages} == {("zero", "skip", "zero", "zero", "zero")}
    assert space.architecture(space.picks(arch)) == arch
    assert space.plan(arch, Shape(3, 64, 64), 4).macs() > 0


def test_a_cell_that_only_reads_its_own_empty_node_is_dead_and_rescued() -> None:
    space = HyperCell()
    picks = dict(space.picks(A))
    for source, target in ((0, 2), (1, 2), (0, 3), (1, 3)):
        picks[f"reduction1_edge{source}{target}"] = CELL_OPS.index("zero")
    arch = space.architecture(picks)
    assert arch.stages[0].reduction[1] == "skip"
    assert space.architecture(space.picks(arch)) == arch
    with pytest.raises(InvalidArchitecture, match=r"every edge from an input is zero"):
        expand(with_stages(A, normal=[("zero", "zero", "zero", "zero", "conv3")] * 3), image=(64, 64))


def test_mutation_never_leaves_the_space() -> None:
    space, rng = HyperCell(), Random(3)
    picks = dict(space.picks(A))
    for _ in range(50):
        picks = mutate(space, picks, rng)
        assert space.architecture(space.picks(space.architecture(picks))) == space.architecture(picks)


def test_zero_edges_and_what_only_they_read_are_not_in_the_plan() -> None:
    cell = ("zero", "conv3", "zero", "zero", "zero")
    plan = expand(with_stages(A, normal=[cell] * 3), image=(64, 64))
    names = {node.name for node in plan.nodes}
    assert "hyper3_cell2_edge12" in names
    assert not {"hyper3_cell2_edge02", "hyper3_cell2_pre0", "hyper3_cell2_node2"} & names
    assert isinstance(plan.by_name["hyper3_cell2_node3"].op, Zero)
    assert empty_nodes(cell) == (3,)


def test_a_bridge_exists_only_behind_a_depth_of_one() -> None:
    def bridges(arch: HyperCellArchitecture) -> list[str]:
        plan = expand(arch, image=(64, 64))
        return [node.name for node in plan.nodes if node.name.endswith("bridge")]

    assert bridges(A) == []
    assert bridges(with_stages(A, depth=(1, 1, 1))) == ["hyper1_bridge", "hyper2_bridge"]
    assert bridges(replace(with_stages(A, depth=(1, 1, 1)), bridge=False)) == []


def test_a_meaningless_bridge_does_not_change_identity() -> None:
    assert fingerprint_of(replace(A, bridge=False)) == fingerprint_of(A)
    shallow = with_stages(A, depth=(1, 4, 6))
    assert fingerprint_of(replace(shallow, bridge=False)) != fingerprint_of(shallow)


def test_the_shipped_record_is_canonical_and_cites_its_source() -> None:
    record = published_record("autortnet-a")
    expand(A, image=(64, 64))  # derived wiring facts must not leak into the document
    assert architecture_document(A, record["origin"]) == record
    assert record["origin"]["classes"] == 19
    assert record["origin"]["results"]["cityscapes_val_miou_percent"] == 72.9
    assert (A.reductions, HyperCell().picks(A)["depth3"]) == ((1, 3, 7), 5)


BAD_FIELDS: list[tuple[tuple[Any, ...], Any, str]] = [
    (("stages", 0, "depth"), 0, r"stages\.0\.depth"),
    (("stages", 2, "depth"), "deep", r"stages\.2\.depth"),
    (("stages", 1, "width"), 7, r"stages\.1\.width.*even"),
    (("stages", 1, "width"), 10**9, r"stages\.1\.width"),
    (("stages", 1, "reduction", 3), "conv5", r"stages\.1\.reduction\.3.*sep3"),
    (("stages", 1, "normal"), ["skip"] * 4, r"stages\.1\.normal"),
    (("stages", 2, "normal"), ["zero"] * 5, r"stages\.2\.normal.*both nodes are empty"),
    (("stages", 0, "colour"), 1, r"stages\.0\.colour"),
    (("stages",), [], "stages"),
    (("stem",), 0, "stem"),
    (("lead",), -1, "lead"),
    (("context", "branch"), 0, "context: branch"),
    (("context", "rates"), [6, 6], r"context\.rates"),
    (("aggregation", "operators"), ["conv1_x2"], r"aggregation\.operators"),
    (("aggregation", "operators", 2), "zero", r"aggregation\.operators\.2"),
    (("aggregation", "wiring", "links", 0), ["N3", "N1", 2], r"links\.0: reads 'N3', which no earlier"),
    (("aggregation", "wiring", "links", 1), ["N1", "F1", 2], r"links\.4: a second edge"),
    (("aggregation", "wiring", "links", 6), ["H1", "N2", 2], r"links\.5: reads 'N2' before"),
    (("aggregation", "wiring", "links", 0), ["H1", "N1", 3], r"links\.0: stride"),
    (("aggregation", "wiring", "links", 0), ["H1", "H2", 2], r"links\.0: 'H2' cannot be"),
    (("aggregation", "wiring", "links", 6), ["N3", "F.3", 1], r"links\.6: 'F\.3' cannot be"),
    (("aggregation", "wiring", "like"), "N1", r"aggregation\.like.*F1, F2, F3"),
    (("aggregation", "wiring", "width"), 0, r"aggregation\.width"),
    (("aggregation", "wiring", "colour"), 1, r"aggregation\.wiring\.colour"),
    (("bridge",), 1, "bridge"),
    (("head",), 1, "head"),
]


@pytest.mark.parametrize(("path", "value", "says"), BAD_FIELDS)
def test_a_wrong_field_is_named(path: tuple[Any, ...], value: Any, says: str) -> None:
    document = json.loads(json.dumps(published_record("autortnet-a")))
    place = document["architecture"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(InvalidArchitecture, match=says):
        parse_architecture(document)


def test_an_unknown_operator_is_refused_from_python_too() -> None:
    with pytest.raises(InvalidArchitecture, match=r"stages\.0\.normal: 'conv9' on edge 0-2"):
        with_stages(A, normal=[("conv9", *["skip"] * 4)] * 3)
    with pytest.raises(InvalidArchitecture, match=r"aggregation\.operators\.0: 'skip'"):
        Aggregation(operators=("skip",) * 7)  # type: ignore[arg-type]


@pytest.mark.parametrize("positions", [(1, 3), (0, 3, 7), (1, 7, 3), (1, 3, 13), (3, 3, 5)])
def test_impossible_positions_are_refused(positions: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArchitecture, match="reductions"):
        A.with_reductions(*positions)


@pytest.mark.parametrize(
    ("arch", "says"),
    [
        (with_stages(A, depth=(6, 1, 1)), "depth1: 6"),
        (with_stages(A, width=(8, 24, 64)), "widths"),
        (A.with_reductions(3, 5, 8), "lead"),
        (replace(A, aggregation=None), "wiring"),
        (A.with_reductions(1, 2, 4), "bridge"),
    ],
)
def test_an_architecture_outside_the_space_has_no_picks(arch: HyperCellArchitecture, says: str) -> None:
    with pytest.raises(InvalidArchitecture, match=says):
        HyperCell().picks(arch)


def test_damaged_and_newer_files_are_refused(tmp_path: Any) -> None:
    text = json.dumps(published_record("autortnet-a"))
    (tmp_path / "cut.json").write_text(text[:300])
    with pytest.raises(InvalidArchitecture, match="truncated"):
        read_architecture(tmp_path / "cut.json")
    (tmp_path / "newer.json").write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(InvalidArchitecture, match="format is 2"):
        read_architecture(tmp_path / "newer.json")


def test_loading_is_strict() -> None:
    network = segtailor.create(sample(TINY, Random(0)), classes=4)
    state = network.state_dict()
    key = "nodes.classifier.conv1.weight"
    segtailor.load_published(network, state)
    for wrong, says in (
        ({k: v for k, v in state.items() if k != key}, f"missing key '{key}'"),
        ({**state, "nodes.extra.weight": state[key]}, r"unknown key 'nodes\.extra\.weight'"),
        ({**state, key: state[key][:2]}, f"key '{key}' has shape"),
    ):
        with pytest.raises(WeightsProblem, match=says):
            segtailor.load_published(network, wrong)


def test_a_wiring_of_other_nodes_runs() -> None:
    wiring = Wiring(
        links=(Link("H3", "Mix", 1), Link("H2", "Mix", 2), Link("Mix", "End", 1)), like="End", width=8
    )
    arch = replace(A, aggregation=Aggregation(operators=("conv1_x2",) * 3, wiring=wiring))
    plan = expand(arch, image=(65, 97))
    assert plan.shape("agg_out") == Shape(8, 5, 7)
    assert segtailor.create(arch)(torch.zeros(1, 3, 65, 97)).shape[2:] == (5, 7)
    assert "agg_pre_H1" not in plan.by_name  # nobody reads it
