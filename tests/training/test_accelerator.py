"""What only an accelerator can show; run by `make test-device` where there is one."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from segtailor.data.augment import Augment
from segtailor.data.batches import Batch, Batches
from segtailor.training.device import Precision, pick_device
from segtailor.training.fit import Fit
from tests.training.toys import CPU, TASK, Toy, settings, training_data

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def batches(device: torch.device, memory: float = 0.5) -> partial[Batches]:
    images, labels, sizes = training_data()
    augment = Augment(crop=(20, 24), brightness=0.3, contrast=0.3, saturation=0.3, hue=0.1)
    return partial(
        Batches, images=images, labels=labels, sizes=sizes, augment=augment, device=device, memory=memory
    )


@pytest.mark.parametrize("memory", [0.5, 0.0])
def test_batches_are_those_of_the_cpu(memory: float) -> None:
    here = batches(CPU)(batch=6, seed=1)
    there = batches(pick_device(), memory)(batch=6, seed=1)
    for step in range(3):
        expected, found = here.at(step), there.at(step)
        assert torch.equal(found.labels.cpu(), expected.labels)
        torch.testing.assert_close(found.images.cpu(), expected.images, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_a_step_never_waits_for_the_device_and_bad_ones_are_skipped(
    precision: Precision, optimiser: str
) -> None:
    device = pick_device()
    how = settings(
        precision=precision, optimiser=optimiser, channels_last=True, clip=1.0, ema=0.9, steps=50, lr=0.01
    )
    job = Fit(network=Toy(), batches=batches(device), settings=how, task=TASK, device=device)
    job.engine.step(job.source.at(0), rate=0.01)  # the first one may set things up
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(1, 5):
            job.engine.step(job.source.at(number), rate=0.01)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    before = job.weights()
    images, labels = job.source.at(9)
    job.engine.step(Batch(images * float("nan"), labels), rate=0.01)
    assert all(
        torch.equal(job.network.state_dict()[name], value)
        for name, value in before.items()
        if "running" in name
    )
    report = job.engine.report()
    assert report.skipped == 1
    assert report.loss > 0


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_recorded_step_trains_as_a_plain_one(precision: Precision, accumulate: int) -> None:
    device = pick_device()
    found = []
    for record in (False, True):
        how = settings(precision=precision, record=record, accumulate=accumulate, deterministic=True, lr=0.01)
        job = Fit(network=Toy(), batches=batches(device), settings=how, task=TASK, device=device)
        for number in range(10):
            job.engine.step(job.source.at(number), rate=0.01)
        found.append((job.weights(), job.engine.report().loss))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_mixed_batches_never_wait_for_the_device() -> None:
    device = pick_device()
    images, labels, sizes = training_data()
    source = Batches(
        images=images, labels=labels, sizes=sizes, batch=4, seed=0, device=device,
        augment=Augment(crop=(20, 24), mix=1.0),
    )  # fmt: skip
    source.at(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        mixed = source.at(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    here = Batches(
        images=images, labels=labels, sizes=sizes, batch=4, seed=0, device=CPU,
        augment=Augment(crop=(20, 24), mix=1.0),
    )  # fmt: skip
    assert torch.equal(mixed.labels.cpu(), here.at(1).labels)
