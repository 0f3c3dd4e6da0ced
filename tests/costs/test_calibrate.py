"""Calibration as a job: complete, bounded, resumable; operators timed in their neighbourhood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import segtailor.spaces  # noqa: F401 - registers the families
from segtailor import tables
from segtailor.core.errors import RunProblem, Unsupported, UserError
from segtailor.core.plan import OpCall, Shape
from segtailor.core.registry import SPACES
from segtailor.core.space import SearchSpace
from segtailor.core.target import parse_target
from segtailor.costs.board_runner import operator_kernels, time_models
from segtailor.costs.calibrate import Calibration, CalibrationSettings
from segtailor.costs.entries import group_of, most_used_per_group, rank_calls
from segtailor.costs.keys import split_call
from segtailor.costs.operator_files import export_operators
from segtailor.costs.pack import parse_pack
from segtailor.costs.timers import CopiesTimer, ProfileTimer, timer_for
from segtailor.ops import Concat, Conv, Identity, Resize
from segtailor.targets.timing import TimingSettings

torch.set_num_threads(1)
QUICK = TimingSettings(runs=2, seconds=0.0, warm_up_seconds=0.0, warm_up_limit=0.0, window=2)
EAGER = "cpu/eager/fp32?threads=1"


def tiny() -> SearchSpace:
    return SPACES.get("scalable_path")(
        depths=(1,), width_steps=(1, 2), ratios=("0", "1/2", "1"), paths=1, block="conv"
    )


def settings(**changes: Any) -> CalibrationSettings:
    values: dict[str, Any] = {
        "target": parse_target(EAGER),
        "image": (32, 64),
        "classes": 4,
        "seconds_per_entry": 0.0,
        "fit_networks": 2,
        "trust_networks": 3,
        "whole": QUICK,
    }
    return CalibrationSettings(**{**values, **changes})


@pytest.mark.slow
def test_calibration_times_every_entry_and_judges_itself() -> None:
    job = Calibration(tiny(), settings())
    steps = list(job.steps())
    pack = job.pack()
    expected = {part for call in tiny().calls(Shape(3, 32, 64), 4) for part in split_call(call)}
    assert len(pack.entries) == len(expected)
    assert all(entry.runs > 0 for entry in pack.entries.values())
    assert pack.trust is not None
    assert len(pack.trust.networks) == 3
    assert {step.phase for step in steps} == {"operators", "fit", "trust"}
    assert parse_pack(json.loads(json.dumps(pack.document())), what="pack") == pack
    assert set(job.result()) >= {"entries", "pearson", "spearman", "mape"}


@pytest.mark.slow
def test_an_interrupted_calibration_goes_on_where_it_was(tmp_path: Path) -> None:
    first = Calibration(tiny(), settings())
    steps = first.steps()
    done = [next(steps).done, next(steps).done]
    first.save(tmp_path)
    second = Calibration(tiny(), settings())
    second.load(tmp_path)
    following = next(second.steps())
    assert following.done > done[-1]
    kept = first.pack().entries
    measured = {key: entry for key, entry in kept.items() if entry.runs}
    assert all(second.pack().entries[key] == entry for key, entry in measured.items())


@pytest.mark.slow
def test_time_runs_out_after_the_most_used_and_the_rest_is_estimated() -> None:
    space = SPACES.get("scalable_path")(
        depths=(1,), width_steps=(1, 2, 3), ratios=("0", "1/2", "3/4", "1"), paths=1, block="conv"
    )
    job = Calibration(space, settings(minutes=1e-9))
    steps = list(job.steps())
    timed = [step for step in steps if step.phase == "operators"]
    pack = job.pack()
    assert timed[-1].done < len(job.calls) == len(pack.entries)
    assert sum(entry.runs > 0 for entry in pack.entries.values()) == timed[-1].done
    assert {group_of(call) for call in job.calls} == {
        group_of(call) for call in most_used_per_group(job.calls)
    }


def test_the_state_of_another_calibration_is_refused(tmp_path: Path) -> None:
    Calibration(tiny(), settings()).save(tmp_path)
    with pytest.raises(RunProblem, match="another calibration"):
        Calibration(tiny(), settings(classes=5)).load(tmp_path)


def test_a_truncated_state_is_refused(tmp_path: Path) -> None:
    Calibration(tiny(), settings()).save(tmp_path)
    file = tmp_path / "calibration.json"
    file.write_text(file.read_text()[:-20])
    with pytest.raises(RunProblem, match="truncated"):
        Calibration(tiny(), settings()).load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minutes": 0.0}, "minutes=0"),
        ({"minutes": float("nan")}, "minutes=nan"),
        ({"classes": 0}, "classes=0"),
        ({"trust_networks": 1}, "at least 2"),
    ],
)
def test_senseless_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"target": parse_target("cuda/graph/int8")},
        {"target": parse_target("cpu/graph/fp16")},
        {"target": parse_target("cpu/onnxruntime/int8")},  # before, times in fp32 were told as int8
        {"image": (2**15, 2**15)},
    ],
)
def test_targets_and_sizes_that_cannot_work_are_refused_before_any_work(changes: dict[str, Any]) -> None:
    with pytest.raises(Unsupported):
        Calibration(tiny(), settings(**changes))


def test_the_way_of_timing_follows_the_target() -> None:
    assert isinstance(timer_for(parse_target("cpu/onnxruntime/fp32?threads=2")), ProfileTimer)
    assert isinstance(timer_for(parse_target(EAGER)), CopiesTimer)


@pytest.mark.slow
def test_copies_cost_what_one_costs() -> None:
    small, large = (OpCall(op=Conv(), inputs=(Shape(width, 48, 48),), channels=width) for width in (8, 64))
    nothing = OpCall(op=Identity(), inputs=(Shape(8, 48, 48),), channels=8)
    entries = CopiesTimer(target=parse_target(EAGER)).time([small, large, nothing], seconds=0.05)
    assert 0 < entries[0].us < entries[1].us
    assert entries[2].us == 0
    assert entries[2].kernels == 0


def test_only_kernels_between_the_neighbours_count() -> None:
    def kernel(name: str, dur: int) -> dict[str, Any]:
        return {"cat": "Node", "name": f"{name}_kernel_time", "dur": dur, "args": {"node_index": "1"}}

    run = [
        kernel("before_1_0_nchwc", 100),
        kernel("ReorderOutput", 3),
        kernel("inside_2", 7),
        kernel("after_3_0_nchwc", 100),
        kernel("ReorderOutput_token_5", 50),
        {"cat": "Session", "name": "model_run", "dur": 300},
    ]
    found = operator_kernels(run * 2)
    assert sorted(found.values()) == [[3, 3], [7, 7]]


@pytest.mark.slow
def test_profiled_times_grow_with_the_work_and_leave_the_neighbours_out() -> None:
    fine, coarse = Shape(16, 48, 64), Shape(16, 24, 32)
    calls = [
        OpCall(op=Identity(), inputs=(fine,), channels=16),
        OpCall(op=Conv(), inputs=(fine,), channels=16),
        OpCall(op=Conv(repeats=4), inputs=(fine,), channels=16),
        OpCall(op=Resize(), inputs=(coarse, fine._replace(channels=1)), channels=16),
        OpCall(op=Concat(), inputs=(fine, fine), channels=32),
    ]
    identity, one, four, resize, concat = ProfileTimer(threads=1).time(calls, seconds=0.1)
    assert identity.us == 0
    assert identity.kernels == 0
    assert (one.kernels, four.kernels) == (1, 4)
    assert 2.5 < four.us / one.us < 6
    assert resize.us > 0
    assert concat.us > 0


@pytest.mark.slow
def test_equal_operators_give_equal_files_and_others_do_not() -> None:
    call = OpCall(op=Conv(), inputs=(Shape(8, 8, 8),), channels=8)
    other = OpCall(op=Conv(dilation=2), inputs=(Shape(8, 8, 8),), channels=8)
    first, second, third = export_operators([call, other, call])
    assert first == third
    assert first != second


@pytest.mark.slow
def test_many_sessions_at_once_keep_their_profiles_apart() -> None:
    call = OpCall(op=Conv(), inputs=(Shape(8, 8, 8),), channels=8)
    (file,) = export_operators([call])
    readings = time_models([file] * 12, threads=1, seconds=0.0)
    assert len(readings) == 12
    assert len({row["kernels"] for row in readings}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", tables.SPACES)
def test_one_of_each_group_of_every_space_can_be_timed(name: str) -> None:
    if name == "scalable_path":
        space = SPACES.get(name)(width_steps=(1, 2), ratios=("0", "1/2", "1"))
    else:
        space = SPACES.get(name)()
    calls = {group_of(call): call for call in rank_calls(space, Shape(3, 64, 96), 4)}
    entries = ProfileTimer(threads=1).time(list(calls.values()), seconds=0.0)
    assert all(entry.us >= 0 and entry.runs > 0 for entry in entries)
    assert any(entry.us > 0 for entry in entries)
