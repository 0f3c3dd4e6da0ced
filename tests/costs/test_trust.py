"""Correction, correlation, error, plot, and estimates for what was not timed."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from segtailor.core.plan import OpCall, Shape
from segtailor.core.registry import SPACES
from segtailor.costs.entries import estimate_entries, rank_calls, table_calls
from segtailor.costs.pack import Checked, Correction, Entry, Pack
from segtailor.costs.trust import MeasuredNetwork, fit_correction, judge, with_correction, with_trust
from segtailor.ops import Conv, Identity
from segtailor.spaces import networks


def checked(predicted: float, measured: float) -> Checked:
    return Checked(fingerprint="f", predicted_ms=predicted, measured_ms=measured, median_ms=measured)


def test_a_perfect_table_is_trusted() -> None:
    trust = judge([checked(value, value) for value in (1.0, 2.0, 5.0)])
    assert (trust.pearson, trust.spearman, trust.mape) == (1.0, 1.0, 0.0)


def test_the_error_is_the_mean_of_shares() -> None:
    assert judge([checked(1.1, 1.0), checked(1.6, 2.0)]).mape == pytest.approx(0.15)


def test_rank_correlation_does_not_care_about_the_scale() -> None:
    trust = judge([checked(value, value**5) for value in (1.0, 2.0, 3.0, 4.0)])
    assert trust.spearman == 1.0
    assert trust.pearson < 0.95


def test_equal_values_share_a_rank() -> None:
    trust = judge([checked(1, 1), checked(1, 2), checked(2, 3), checked(3, 4)])
    assert trust.spearman == pytest.approx(0.94868, abs=1e-5)


def test_networks_that_do_not_vary_correlate_with_nothing() -> None:
    assert judge([checked(1, 1), checked(1, 2)]).pearson == 0


def test_the_correction_is_found_again() -> None:
    rng = Random(0)
    sums = [rng.uniform(1000, 9000) for _ in range(10)]
    kernels = [rng.randrange(20, 200) for _ in range(10)]
    measured = [1.2 * total + 3 * number for total, number in zip(sums, kernels, strict=True)]
    correction = fit_correction(sums, kernels, measured)
    assert correction.slope == pytest.approx(1.2, rel=1e-4)
    assert correction.per_kernel_us == pytest.approx(3, rel=1e-3)


def test_disturbed_networks_do_not_spoil_the_correction() -> None:
    rng = Random(1)
    sums = [rng.uniform(1000, 9000) for _ in range(10)]
    kernels = [rng.randrange(20, 200) for _ in range(10)]
    measured = [1.1 * total + 2 * number for total, number in zip(sums, kernels, strict=True)]
    noisy = [value * (3 if index % 4 == 0 else 1) for index, value in enumerate(measured)]
    correction = fit_correction(sums, kernels, noisy)
    assert correction.slope == pytest.approx(1.1, rel=0.02)
    assert checked(1.0, 1.0).disturbed is False
    assert Checked(fingerprint="f", predicted_ms=1, measured_ms=1, median_ms=1.5).disturbed


def test_the_correction_is_never_negative() -> None:
    sums, kernels = [1000.0, 2000.0, 4000.0], [10, 100, 400]
    measured = [total - 2 * number for total, number in zip(sums, kernels, strict=True)]
    correction = fit_correction(sums, kernels, measured)
    assert correction.per_kernel_us == 0
    assert 0.7 < correction.slope < 1


def test_correction_and_judgement_use_different_networks_and_prices() -> None:
    space = SPACES.get("inverted_residual")()
    image = Shape(3, 64, 96)
    calls = rank_calls(space, image, 4)
    entries = {call: Entry(us=10.0 + call.macs() / 1e4, runs=5) for call in calls}
    from segtailor.costs.keys import key_of

    pack = Pack(
        space="inverted_residual",
        settings={},
        image=(64, 96),
        classes=4,
        target="cpu/eager/fp32",
        machine={},
        entries={key_of(call): entry for call, entry in entries.items()},
    )
    seen = []
    for name in ("squeezenas-mac-small", "squeezenas-lat-small"):
        plan = networks.expand(name, image=(64, 96), classes=4)
        total = sum(1.5 * entries[call].us + 2 for call in table_calls(plan)) / 1000
        seen.append(MeasuredNetwork(name, plan, total, total))
    assert with_correction(pack, []) == pack
    assert with_trust(pack, []) == pack
    fitted = with_correction(pack, seen)
    assert fitted.correction == Correction(
        slope=pytest.approx(1.5, rel=1e-3), per_kernel_us=pytest.approx(2, rel=0.05)
    )
    trust = with_trust(fitted, seen).trust
    assert trust is not None
    assert trust.mape < 1e-3


def conv(inputs: int, channels: int, side: int) -> OpCall:
    return OpCall(op=Conv(), inputs=(Shape(inputs, side, side),), channels=channels)


def test_estimates_follow_the_work() -> None:
    rng = np.random.default_rng(0)
    grid = [conv(i, c, s) for i in (8, 16, 32, 64) for c in (8, 16, 32, 64) for s in (8, 16, 32)]
    times = {call: 2 + call.macs() / 5000 for call in grid}
    known = {call: Entry(us=times[call], runs=3) for call in grid if rng.random() < 0.5}
    missing = [call for call in grid if call not in known]
    found = estimate_entries(known, missing)
    assert set(found) == set(missing)
    assert max(abs(found[call].us / times[call] - 1) for call in missing) < 0.05
    assert all(entry.runs == 0 for entry in found.values())


def test_nothing_is_estimated_from_too_little() -> None:
    known = {conv(8, 8, 8): Entry(us=1.0, runs=3)}
    assert estimate_entries(known, [conv(8, 16, 8)]) == {}
    assert estimate_entries({}, [conv(8, 16, 8)]) == {}


def test_operators_are_not_estimated_from_others() -> None:
    known = {conv(8, width, 8): Entry(us=1.0, runs=3) for width in (8, 16, 24, 32)}
    other = OpCall(op=Identity(), inputs=(Shape(8, 8, 8),), channels=8)
    assert estimate_entries(known, [other]) == {}


@pytest.mark.parametrize("name", ["inverted_residual", pytest.param("hyper_cell", marks=pytest.mark.slow)])
def test_entries_are_ranked_by_use_and_complete(name: str) -> None:
    space = SPACES.get(name)()
    image = Shape(3, 64, 96)
    ranked = rank_calls(space, image, 4)
    assert len(set(ranked)) == len(ranked)
    from segtailor.costs.keys import split_call

    assert set(ranked) == {part for call in space.calls(image, 4) for part in split_call(call)}
    assert ranked == rank_calls(space, image, 4)
