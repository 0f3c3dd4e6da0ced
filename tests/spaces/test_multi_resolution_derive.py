import copy
import json
import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from random import Random
from typing import Any

import pytest

import segtailor
from segtailor.core.errors import InvalidArchitecture
from segtailor.spaces import published
from segtailor.spaces.multi_resolution import ArchitectureScores, Derivation, MultiResolution, derive
from segtailor.spaces.multi_resolution.derive import (
    allowed_paths,
    best_path,
    compact,
    kept_operators,
    minimum_length,
    path_pairs,
    paths,
    scales,
)
from tests.support import FIXTURES

RAW: dict[str, Any] = json.loads((FIXTURES / "fasterseg_scores.json").read_text())["networks"]
GOLDEN = json.loads((FIXTURES.parent / "golden" / "fasterseg.json").read_text())
STUDENT = Derivation()
TEACHER = Derivation(ratios=(12,), stem_ratio=12, head_ratio=12, ignore_skip=True)


def scores(name: str) -> ArchitectureScores:
    raw = copy.deepcopy(RAW[name])
    return ArchitectureScores(
        operators=tuple(raw["operators"]), entries=tuple(raw["entries"]), widths=tuple(raw["widths"])
    )


def row(skip: float, *others: float) -> list[float]:
    return [skip, *others, *[0.0] * (4 - len(others))]


@pytest.mark.parametrize(("name", "how"), [("student", STUDENT), ("teacher", TEACHER)])
def test_published_scores_derive_the_published_network(name: str, how: Derivation) -> None:
    given = scores(name)
    assert derive(given, how) == published(f"fasterseg-{name}")
    assert given == scores(name)  # nothing passed in is changed


@pytest.mark.parametrize("name", ["student", "teacher"])
@pytest.mark.parametrize("end", [8, 16, 32])
def test_published_paths_are_found(name: str, end: int) -> None:
    assert list(best_path(scores(name).entries, end)) == RAW[name]["paths"][str(end)]


def test_the_published_student_loses_the_published_layers() -> None:
    given, paths_by_end = scores("student"), RAW["student"]["paths"]
    for end in (8, 16, 32):
        path = tuple(paths_by_end[str(end)])
        rows = [list(given.operators[j][layer - j]) for layer, j in enumerate(scales(path, 16))]
        kept = kept_operators(rows, path)
        assert [layer for layer, op in enumerate(kept) if op is None] == RAW["student"]["removed"][str(end)]


@pytest.mark.parametrize(("name", "how"), [("student", STUDENT), ("teacher", TEACHER)])
def test_the_unused_branch_to_rate_8_is_derived_as_well(name: str, how: Derivation) -> None:
    settings = {**how.__dict__, "ends": (32, 8)}
    arch = derive(scores(name), Derivation(**settings))
    assert [[cell.operator, cell.ratio] for cell in arch.branches[1]] == RAW[name]["cells8"]
    space = MultiResolution()
    assert space.architecture(space.picks(arch)) == arch


def test_the_pruned_teacher_has_the_size_of_table_3() -> None:
    arch = derive(scores("teacher"), Derivation(ratios=(4,)))
    record, count = GOLDEN["table3"]["pruned_teacher"], segtailor.count(arch)
    assert [len(branch) for branch in arch.branches] == [16, 16]
    assert count.train_params == record["train_params"]
    assert round(count.train_params / 1e6, 1) == record["train_mparams"]
    assert 0.98 < count.macs / 1e9 / record["gmacs"] < 1


def test_the_consistent_rule_halves_the_branch_to_16_one_layer_later() -> None:
    arch = derive(scores("teacher"), Derivation(**{**TEACHER.__dict__, "path16": "consistent"}))
    strides = [[cell.stride for cell in branch].index(2) for branch in arch.branches]
    assert strides == [5, 5]


def test_there_are_as_many_pairs_of_paths_as_published() -> None:
    assert [len(paths(16, end)) for end in (8, 16, 32)] == [1, 15, 105]
    assert [len(allowed_paths(16, end)) for end in (8, 16, 32)] == [1, 12, 45]
    assert len(set(path_pairs(16))) == GOLDEN["paths"]["pairs"] == 1695
    assert len(set(path_pairs(16, allowed_paths))) == GOLDEN["paths"]["allowed_pairs"] == 597


def test_allowed_paths_leave_two_stride_1_layers_at_each_rate() -> None:
    for first, second in allowed_paths(16, 32):
        assert first >= 2
        assert second - first - 1 >= 2
        assert 16 - second - 1 >= 2
    assert set(allowed_paths(16, 32)) < set(paths(16, 32))


def test_minimum_lengths_are_those_of_the_release() -> None:
    assert [minimum_length(16, end) for end in (8, 16, 32)] == [5, 7, 9]


def test_equal_scores_take_the_first_path() -> None:
    entries = ([[0.0, 0.0]] * 14, [[0.0, 0.0]] * 13)
    assert best_path(entries, 16) == (1,)
    assert best_path(entries, 32) == (2, 5)


def test_a_layer_of_stride_2_takes_its_best_other_operator() -> None:
    rows = [row(-1.0, 1.0) for _ in range(16)]
    rows[5] = row(9.0, 1.0, 0.0, 3.0)
    assert kept_operators(rows, (5,))[5] == 3
    assert rows[5][0] == float("-inf")  # barred for the branches that follow


@pytest.mark.parametrize(("last_skip", "spared"), [(1.0, 12), (2.0, 12), (3.0, 11)])
def test_the_least_sure_layer_stays_where_all_between_two_halvings_would_go(
    last_skip: float, spared: int
) -> None:
    rows = [row(-1.0, 1.0) for _ in range(16)]
    rows[11], rows[12] = row(2.0, 0.5), row(last_skip, 0.5)
    kept = kept_operators(rows, (10, 13))
    assert [layer for layer, op in enumerate(kept) if op is None] == [23 - spared]
    assert kept[spared] == 1


def test_the_surest_skips_are_removed_down_to_the_minimum_length() -> None:
    rows = [row(1.0 + 0.1 * layer) for layer in range(16)]
    kept = kept_operators(rows, ())
    assert [layer for layer, op in enumerate(kept) if op is not None] == [0, 1, 2, 3, 4]
    tied = kept_operators([row(1.0) for _ in range(16)], ())
    assert [layer for layer, op in enumerate(tied) if op is not None] == [11, 12, 13, 14, 15]


def test_removal_drops_the_width_after_the_layer_and_the_last_cell_writes_the_head_ratio() -> None:
    operators: Sequence[int | None] = [1, None, 4, 2, None]
    branch = compact(operators, [4, 6, 8, 10], (2,), head_ratio=12)
    assert [(cell.operator, cell.ratio, cell.stride) for cell in branch] == [
        ("conv", 4, 1),
        ("zoomed_conv_2x", 8, 2),
        ("zoomed_conv", 12, 1),
    ]


def test_scores_of_the_wrong_shape_are_refused() -> None:
    given = scores("student")
    with pytest.raises(InvalidArchitecture, match=r"scores\.entries"):
        ArchitectureScores(
            operators=given.operators, entries=(given.entries[1], given.entries[0]), widths=given.widths
        )
    with pytest.raises(InvalidArchitecture, match=r"scores\.widths: a row has 5 values; allowed: 1"):
        derive(given, TEACHER)


def drawn_scores(layers: int, rng: Random) -> ArchitectureScores:
    def rows(count: int, options: int) -> list[list[float]]:
        return [
            [rng.gauss(0, 1) + (1.5 if options == 5 and not k else 0) for k in range(options)]
            for _ in range(count)
        ]

    return ArchitectureScores(
        operators=tuple(rows(layers - scale, 5) for scale in range(3)),
        entries=tuple(rows(layers - scale - 1, 2) for scale in (1, 2)),
        widths=tuple(rows(layers - max(scale, 1), 5) for scale in range(3)),
    )


def probability(values: Sequence[float], option: int = 0) -> float:
    powers = [math.exp(value) for value in values]
    return powers[option] / sum(powers)


def best_of_all_paths(given: ArchitectureScores, end: int) -> tuple[int, ...]:
    """Score every path there is, and leave out those with fewer than two stride-1 layers at a rate."""
    layers = len(given.operators[0])
    found = {}
    for path in paths(layers, end):
        runs = [stop - start - 1 for start, stop in pairwise((-1, *path, layers))]
        if end == 32 and min(runs) >= 2:  # the first cell at 16 is that behind the halving
            rows = [given.entries[scale][stride - scale - 1] for scale, stride in enumerate(path)]
            found[path] = math.prod(map(probability, rows))
        if end == 16 and 1 <= path[0] < layers - 3:
            found[path] = probability(given.entries[0][path[0]])
    return max(found, key=lambda path: found[path]) if found else ()


def best_of_all_removals(rows: list[list[float]], path: tuple[int, ...], fewest: int) -> set[int]:
    """Look at every set of layers that may go, and take the largest that the rules allow."""
    layers = range(len(rows))
    sure = {layer: probability(rows[layer]) for layer in layers}
    skips = [layer for layer in layers if max(rows[layer]) == rows[layer][0] and layer not in path]
    spared = set()
    for start, stop in pairwise((*path, len(rows))):
        between = list(range(start + 1, stop))
        if between and set(between) <= set(skips):
            spared.add(min(between, key=lambda layer: sure[layer]))
    surest = sorted(skips, key=lambda layer: -sure[layer])[: len(rows) - fewest]
    allowed = [
        set(some)
        for count in range(len(skips) + 1)
        for some in combinations(skips, count)
        if not set(some) & spared and set(some) <= set(surest)
    ]
    return max(allowed, key=len)


@pytest.mark.parametrize("seed", range(20))
def test_derivation_equals_brute_force_on_tiny_spaces(seed: int) -> None:
    rng = Random(seed)
    layers = rng.choice([8, 9, 10])
    given = drawn_scores(layers, rng)
    for end in (16, 32):
        path = best_of_all_paths(given, end)
        assert best_path(given.entries, end) == path
        rows = [
            list(given.operators[scale][layer - scale]) for layer, scale in enumerate(scales(path, layers))
        ]
        gone = best_of_all_removals(rows, path, minimum_length(layers, end))
        kept = kept_operators([list(row) for row in rows], path)
        assert {layer for layer, op in enumerate(kept) if op is None} == gone
        for layer, op in enumerate(kept):
            others = (
                rows[layer] if layer not in path and max(rows[layer]) != rows[layer][0] else rows[layer][1:]
            )
            assert op is None or rows[layer][op] == max(others)
