"""Two processes train as one does. Batch norms would see halves of the batch (torch syncs them on accelerators only),
so the toy has group norms: then the only difference left is the order of additions."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from segtailor.core.errors import Unsupported
from segtailor.training import pace
from segtailor.training.distributed import any_process, world
from tests.training.toys import Shots, Toy, fit

HOW = {"steps": 8, "accumulate": 2, "clip": 5.0, "ema": 0.9}
WHO = [(16, 16), (20, 16), (16, 16), (12, 20)]


def train(folder: Path) -> None:
    """Train, and write losses, scores and weights."""
    torch.set_num_threads(1)
    pace.REPORT_SECONDS = 0.0
    job = fit(Toy(norm="group"), validation=Shots(WHO), validate_every=1, **HOW)
    losses = [step.metrics["loss"] for step in job.steps()]
    rank = world().rank
    (folder / f"{rank}.json").write_text(json.dumps({"losses": losses, "result": dict(job.result())}))
    torch.save(job.weights(), folder / f"{rank}.pt")


def agree_while_stepping(folder: Path) -> None:
    """Talk between two steps, as a run does to stop together: only possible if all yield at the same ones."""
    pace.REPORT_SECONDS = 0.01
    job, seen = fit(Toy(norm="group"), steps=60), []
    for step in job.steps():
        time.sleep(0.01 * world().rank)  # unequal clocks
        seen.append((step.done, any_process(world().rank == 1 and step.done > 40, job.device)))
    (folder / f"seen{world().rank}.json").write_text(json.dumps(seen))


def process(rank: int, size: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    try:
        train(folder)
        agree_while_stepping(folder)
        with pytest.raises(Unsupported, match="sync_bn"):
            fit(Toy(), sync_bn=True)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_follow_the_loss_curve_of_one(tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    train(alone)
    pace.REPORT_SECONDS = 0.5
    mp.start_processes(process, args=(2, together), nprocs=2, start_method="spawn")
    one = json.loads((alone / "0.json").read_text())
    first, second = (json.loads((together / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["losses"] == pytest.approx(one["losses"], rel=1e-4)
    assert first == second
    assert first["result"]["miou"] == pytest.approx(one["result"]["miou"], abs=0.02)
    assert first["result"]["images"] == len(WHO)
    seen = [json.loads((together / f"seen{rank}.json").read_text()) for rank in (0, 1)]
    assert seen[0] == seen[1]
    assert len(seen[0]) < 60
    assert [agreed for _, agreed in seen[0]] == [done > 40 for done, _ in seen[0]]
    weights = [
        torch.load(folder, weights_only=True)
        for folder in (alone / "0.pt", together / "0.pt", together / "1.pt")
    ]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-3, atol=1e-5)
        assert torch.equal(weights[1][name], weights[2][name]), name
