"""The training job: learns, resumes to the bit, survives bad steps and too little memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import segtailor
from segtailor.core.codec import from_json, to_json
from segtailor.core.errors import RunProblem, Unsupported, UserError
from segtailor.core.job import Job, Step
from segtailor.core.task import Task
from segtailor.data.augment import Augment
from segtailor.data.batches import Batch, Batches
from segtailor.tasks.loss_settings import LossSettings
from segtailor.training import pace
from segtailor.training.device import pick_device
from segtailor.training.distill import DistillSettings
from segtailor.training.fit import Fit
from segtailor.training.settings import FitSettings, Schedule
from tests.training.toys import Hungry, Shots, Toy, assert_equal_weights, fit, run, settings


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "REPORT_SECONDS", 0.0)


def test_a_toy_network_learns_its_task() -> None:
    job = run(fit(steps=50, batch=4, lr=0.2, validation=Shots([(20, 24), (24, 20), (20, 24)]), ema=0.9))
    assert isinstance(job, Job)
    assert job.scores is not None
    assert job.scores.miou > 0.6
    assert job.result()["images"] == 3


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"optimiser": "adamw", "lr": 0.01, "ema": 0.99, "ema_norms": True, "clip": 0.5, "accumulate": 2},
        {"precision": "bf16", "channels_last": True, "decay_norms": False},
        {
            "precision": "fp16",
            "momentum": 0.0,
            "loss": LossSettings(ohem=0.7, balance=True, label_smoothing=0.1),
        },
    ],
)
@pytest.mark.parametrize("stop", [1, 4, 11])
def test_a_resumed_run_ends_with_the_same_bits(
    how: dict[str, Any], stop: int, tmp_path: Path, every_step: None
) -> None:
    whole = run(fit(Toy(dropout=0.2), validation=Shots([(16, 16)]), validate_every=1, **how))
    first = fit(Toy(dropout=0.2), validation=Shots([(16, 16)]), validate_every=1, **how)
    for step in first.steps():
        if step.done == stop:
            first.save(tmp_path)
            break
    torch.manual_seed(99)
    second = fit(Toy(dropout=0.2, seed=7), validation=Shots([(16, 16)]), validate_every=1, **how)
    second.load(tmp_path)
    run(second)
    assert_equal_weights(second.network.state_dict(), whole.network.state_dict())
    assert_equal_weights(second.weights(), whole.weights())
    assert second.result() == whole.result()


class Grouped(Toy):
    """Has a grouped convolution with dilation on maps of some size: small ones take another kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.wide = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8)

    def forward_all(self, image: Tensor) -> dict[str, Tensor]:
        enlarged = functional.interpolate(image, scale_factor=2)
        return {"main": self.head(self.wide(torch.relu(self.norm(self.stem(enlarged)))))}


def test_half_precision_has_the_gradients_of_single_precision() -> None:
    moved = []
    for precision in ("fp32", "bf16"):
        network = Grouped()
        before = network.wide.weight.detach().clone()
        how: dict[str, Any] = {"precision": precision, "channels_last": True, "momentum": 0.0}
        run(fit(network, steps=4, lr=0.05, **how))
        moved.append((network.wide.weight.detach() - before).flatten())
    assert torch.cosine_similarity(*moved, dim=0) > 0.98


def test_weights_are_not_those_at_the_start() -> None:
    job = run(fit())
    assert not torch.equal(job.network.state_dict()["head.weight"], Toy().state_dict()["head.weight"])


def test_steps_count_up_and_the_last_one_validates(every_step: None) -> None:
    records = list(fit(validation=Shots([(16, 16)]), validate_every=1).steps())
    assert [record.done for record in records] == list(range(1, 13))
    assert [record.done for record in records if record.checkpoint] == [3, 6, 9, 12]
    assert all("miou" in record.metrics for record in records if record.checkpoint)
    assert {"loss", "lr", "images_per_s", "skipped"} <= set(records[0].metrics)


def test_epochs_are_counted_in_batches() -> None:
    assert fit(steps=None, epochs=5).total == 15


@pytest.mark.parametrize(
    "how", [{}, {"loss": LossSettings(balance=True)}, {"distill": DistillSettings(kind="l2")}]
)
def test_accumulating_gives_the_same_weights_as_the_whole_batch(how: dict[str, Any]) -> None:
    """Labels ignored unevenly between the parts must not matter."""
    teacher = Toy(norm="group", seed=3) if "distill" in how else None
    whole = run(fit(Toy(norm="group"), accumulate=1, teacher=teacher, **how))
    parts = run(fit(Toy(norm="group"), accumulate=4, teacher=teacher, **how))
    for name, value in whole.network.state_dict().items():
        torch.testing.assert_close(parts.network.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_running_out_of_memory_halves_the_batch_and_says_so() -> None:
    job = fit(Hungry(most=1))
    records = list(job.steps())
    told = [record.message for record in records if record.message]
    assert len(told) == 1
    assert "1 images at a time" in told[0]
    enough = run(fit(Hungry(most=4)))
    for name, value in enough.network.state_dict().items():
        torch.testing.assert_close(job.network.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_the_size_that_fits_is_remembered(tmp_path: Path) -> None:
    job = run(fit(Hungry(most=2)))
    job.save(tmp_path)
    again = fit(Hungry(most=2))
    again.load(tmp_path)
    assert again.engine.part == 2


def test_too_little_memory_for_one_image_is_an_error_with_advice() -> None:
    with pytest.raises(UserError, match="smaller crop"):
        run(fit(Hungry(most=0)))


class Spoilt:
    """Batches of which some hold a value that is no number."""

    def __init__(self, inner: Any, bad: set[int]) -> None:
        self.inner, self.bad = inner, bad
        self.labels, self.steps_per_epoch = inner.labels, inner.steps_per_epoch

    def at(self, step: int) -> Batch:
        images, labels = self.inner.at(step)
        return Batch(images + float("nan") if step in self.bad else images, labels)


@pytest.mark.parametrize("how", [{}, {"optimiser": "adamw"}, {"precision": "fp16"}, {"clip": 1.0}])
@pytest.mark.parametrize("when", [{0}, {3, 4}])
def test_a_bad_step_leaves_no_trace_but_is_counted(how: dict[str, Any], when: set[int]) -> None:
    job = fit(ema=0.9, **how)
    job.source = Spoilt(job.source, when)
    states: dict[int, dict[str, Tensor]] = {}
    for number in range(6):
        before = {name: value.clone() for name, value in job.network.state_dict().items()}
        job.engine.step(job.source.at(number), rate=0.1)
        states[number] = before
    for number in when:
        after = states[number + 1]
        for name, value in states[number].items():
            assert torch.equal(value, after[name]) or name.endswith("num_batches_tracked"), name
    assert not torch.equal(states[2]["head.weight"], states[3]["head.weight"])
    assert all(torch.isfinite(value).all() for value in job.weights().values())
    assert job.engine.report().skipped == len(when)


def test_many_bad_steps_in_a_row_stop_the_run_with_advice(every_step: None) -> None:
    job = fit(patience=3, steps=30)
    job.source = Spoilt(job.source, {2, 3} | set(range(6, 30)))
    records: list[Step] = []
    with pytest.raises(UserError, match=r"3 steps in a row.*Lower lr"):
        records.extend(job.steps())
    assert records[-1].done == 8
    assert all(np.isfinite(list(record.metrics.values())).all() for record in records)
    assert all(torch.isfinite(value).all() for value in job.network.state_dict().values())


def test_a_batch_without_labels_does_not_harm() -> None:
    job = fit(Toy(norm="group"), weight_decay=0.0)
    job.source.labels[:] = 255
    images, labels = job.source.at(0)
    before = job.weights()
    job.engine.step(Batch(images, torch.full_like(labels, 255)), rate=0.1)
    assert_equal_weights(job.weights(), before)
    assert job.engine.report() == (0.0, 0, 0)


@pytest.mark.parametrize("kind", ["kl", "l2"])
def test_distillation_pulls_the_student_towards_the_teacher(kind: Literal["kl", "l2"]) -> None:
    """All class weights are 0, so the teacher alone pulls."""
    teacher, blank = Toy(norm="group", seed=5), LossSettings(class_weights=(0.0, 0.0, 0.0))
    how = {
        "teacher": teacher,
        "loss": blank,
        "lr": 0.1,
        "weight_decay": 0.0,
        "distill": DistillSettings(kind=kind),
    }
    job = fit(Toy(norm="group"), steps=40, **how)
    images, _ = job.source.at(0)

    def distance() -> float:
        gap = job.network(images).softmax(1) - teacher(images).softmax(1)
        return float(gap.square().mean().detach())

    start = distance()
    run(job)
    assert distance() < 0.5 * start
    assert all(not parameter.requires_grad for parameter in teacher.parameters())


def test_distillation_without_a_teacher_is_refused() -> None:
    with pytest.raises(UserError, match="teacher"):
        fit(distill=DistillSettings())


def test_average_is_what_gets_validated_and_returned() -> None:
    job = run(fit(ema=0.5, ema_warmup=False, validation=Shots([(16, 16)])))
    own, averaged = job.network.state_dict(), job.weights()
    assert not torch.equal(own["head.weight"], averaged["head.weight"])
    assert torch.equal(own["norm.running_mean"], averaged["norm.running_mean"])
    job.validate()
    assert_equal_weights(job.network.state_dict(), own)


def test_norms_and_biases_may_be_spared_from_decay() -> None:
    groups = fit(decay_norms=False).engine.optimiser.param_groups
    assert [group["weight_decay"] for group in groups] == [5e-4, 0.0]
    assert all(parameter.ndim > 1 for parameter in groups[0]["params"])
    assert all(parameter.ndim == 1 for parameter in groups[1]["params"])


def test_a_damaged_state_is_explained(tmp_path: Path) -> None:
    job = run(fit())
    job.save(tmp_path)
    tensors = tmp_path / "state.safetensors"
    tensors.write_bytes(tensors.read_bytes()[: tensors.stat().st_size // 2])
    with pytest.raises(RunProblem, match="older checkpoint"):
        fit().load(tmp_path)


def test_the_state_of_another_network_is_refused(tmp_path: Path) -> None:
    run(fit(Toy())).save(tmp_path)
    with pytest.raises(RunProblem, match="another network"):
        fit(Toy(norm="group")).load(tmp_path)


def test_learning_rate_follows_the_schedule(every_step: None) -> None:
    job = fit(lr=0.1, schedule=Schedule(kind="poly", power=1.0))
    rates = [job.rate, *(record.metrics["lr"] for record in job.steps())]
    np.testing.assert_allclose(rates, 0.1 * (1 - np.arange(13) / 12), atol=1e-12)


@pytest.mark.parametrize(
    "wrong", [{"batch": 0}, {"lr": 0.0}, {"ema": 1.0}, {"clip": 0.0}, {"steps": 0}, {"patience": 0}]
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        fit(**wrong)


def test_settings_survive_the_way_through_json() -> None:
    loss = LossSettings(ohem=0.7, class_weights=(1.0, 2.0, 3.0), auxiliary={"aux": 0.2})
    given = settings(loss=loss, distill=DistillSettings(kind="l2"), schedule=Schedule(kind="step"), ema=0.99)
    assert from_json(FitSettings, to_json(given), what="settings") == given


def test_an_absent_device_is_refused() -> None:
    with pytest.raises(Unsupported, match="not available"):
        pick_device("xpu:7")
    assert pick_device("cpu").type == "cpu"


@pytest.mark.slow
def test_a_compiled_run_learns_the_same(tmp_path: Path) -> None:
    plain, compiled = run(fit(Toy(norm="group"))), run(fit(Toy(norm="group"), compile=True))
    for name, value in plain.network.state_dict().items():
        torch.testing.assert_close(compiled.network.state_dict()[name], value, rtol=1e-3, atol=1e-5)
    compiled.save(tmp_path)
    again = fit(Toy(norm="group"))
    again.load(tmp_path)
    assert_equal_weights(again.weights(), compiled.weights())


def test_a_batch_whose_feature_maps_cannot_fit_is_refused_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2 * 2**30))
    network = segtailor.create("bisenetv2", classes=3)
    images = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    made = partial(
        Batches,
        images=images,
        labels=images[..., 0],
        sizes=np.array([[8, 8]]),
        augment=Augment(crop=(64, 64)),
        device=torch.device("cpu"),
    )
    settings = FitSettings(batch=10_000, epochs=1, precision="fp32")
    with pytest.raises(UserError, match=r"training on 10000 crops of 64x64 at a time needs"):
        Fit(
            network=network,
            batches=made,
            settings=settings,
            task=Task(classes=("a", "b", "c")),
            device=torch.device("cpu"),
        )
