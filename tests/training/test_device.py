"""Steps that are recorded where the device can; here they are called."""

import pytest
import torch
from torch import Tensor

from segtailor.core.errors import Unsupported
from segtailor.training import device
from segtailor.training.device import CapturedStep

CPU = torch.device("cpu")


class Recorder:
    """Stands for a device that records: counts, and replays what the function did."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0


def total_after(step: CapturedStep, state: Tensor, calls: int) -> float:
    for number in range(calls):
        step(value=torch.tensor(float(number)))
    return float(state)


def test_without_a_device_that_records_a_step_is_a_call() -> None:
    state = torch.zeros(())
    step = CapturedStep(lambda value: state.add_(value) and None, CPU)
    assert total_after(step, state, 5) == 10
    assert not step.recorded


def test_every_call_is_one_step_while_warming_up_recording_and_replaying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = Recorder()

    def record(function, device, *, pool=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        assert (device, pool) == (CPU, "shared")
        counts.recorded += 1

        def replay() -> None:
            counts.replayed += 1
            function()

        return replay

    monkeypatch.setattr(device, "can_record", lambda _: True)
    monkeypatch.setattr(device, "record", record)
    monkeypatch.setattr(device, "on_side_stream", lambda _: torch.no_grad())
    state = torch.zeros(())
    step = CapturedStep(lambda value: state.add_(value) and None, CPU, warmup=2, pool="shared")
    assert total_after(step, state, 5) == 10
    assert step.recorded
    assert [counts.recorded, counts.replayed] == [1, 3]
    with pytest.raises(Unsupported, match="one shape only"):
        step(value=torch.zeros(3))


def test_recording_can_be_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "can_record", lambda _: True)
    state = torch.zeros(())
    assert (
        total_after(CapturedStep(lambda value: state.add_(value) and None, CPU, record=False), state, 3) == 3
    )
