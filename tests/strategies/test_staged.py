"""Two stages: maps that equal the encoder's, the published loss, averaging, teachers, early stop, rewards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import segtailor
from segtailor.core.codec import from_json, to_json
from segtailor.core.errors import DataProblem, Diverged, UserError
from segtailor.core.plan import IMAGE, MAIN
from segtailor.core.space import architecture_document
from segtailor.core.strategy import Trial
from segtailor.core.task import Preprocessing, Task
from segtailor.data.augment import Augment
from segtailor.data.cache import Pixels
from segtailor.nets.teacher import Teacher, teacher_of
from segtailor.recipes.evaluators import halved_pixels, open_encoder
from segtailor.spaces.decoder_cell import decode
from segtailor.spaces.decoder_cell.encoder_weights import taps
from segtailor.spaces.decoder_cell.encoders import ENCODERS
from segtailor.strategies.evaluators import staged as staged_module
from segtailor.strategies.evaluators.features import FixedEncoder, central, crops
from segtailor.strategies.evaluators.first_stage import DecoderLearner, FirstStage, Maps
from segtailor.strategies.evaluators.staged import STAGE1, STAGE2, EarlyStop, StagedEvaluator
from segtailor.strategies.halves import HalvedPixels
from segtailor.tasks.segmentation.metrics import reward
from segtailor.training.device import CapturedStep
from tests.strategies.tiny_encoder import TINY
from tests.support import deterministic_state, fixture, noise

CPU = torch.device("cpu")
DATA = "synthetic:size=32x64,train=10,val=2"
SEQUENCE = [[[3, 3], [3, 2], [3, 0]], [0, [0, 0, 1, 2], [0, 2, 0, 9], [0, 5, 1, 4]]]
CUT = Augment(crop=(32, 64), scale=(0.8, 1.2))
SETTINGS = StagedEvaluator(
    features=CUT,
    augment=CUT,
    judge=(32, 48),
    images=7,
    stage1=replace(STAGE1, epochs=2, batch=3),
    stage2=replace(STAGE2, steps=2, batch=2),
)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODERS, "tiny", TINY)


@pytest.fixture
def data(tmp_path: Path) -> HalvedPixels:
    return halved_pixels(DATA, str(tmp_path / "cache"), 0.5)


@pytest.fixture
def encoder(data: HalvedPixels) -> FixedEncoder:
    return open_encoder("tiny", SETTINGS, data.fit)


def trial(**changes: Any) -> Trial:
    frame = {"encoder": "tiny", "channels": 4, "repeats": 1}
    return Trial(id=0, architecture=architecture_document(decode(SEQUENCE, **frame)), seed=5, **changes)


def opened(
    settings: StagedEvaluator,
    encoder: FixedEncoder,
    data: HalvedPixels,
    root: Path,
    teacher: Teacher | None = None,
) -> Maps:
    files = settings.stores(root, encoder, data, teacher)
    return settings.open(files, encoder, data, device=CPU, teacher=teacher)


def test_cached_maps_are_those_of_the_encoder(
    data: HalvedPixels, encoder: FixedEncoder, tmp_path: Path
) -> None:
    maps = opened(SETTINGS, encoder, data, tmp_path)
    images = torch.cat(
        [batch for batch, _ in crops(data.fit, SETTINGS._crop_settings, encoder.preprocessing, device=CPU)]
    )
    with torch.no_grad():
        found = encoder.part.eval()({IMAGE: images})
    assert len(images) == len(maps.fit["labels"]) == 7  # more than the five pictures: two come twice
    for level, name in enumerate(encoder.taps(encoder.network.plan)):
        torch.testing.assert_close(torch.from_numpy(np.array(maps.fit[f"tap{level}"])), found[name])
    assert maps.fit["labels"].shape == (7, 8, 16)
    assert maps.judge["labels"].shape == maps.judge["images"].shape[:3] == (5, 32, 48)


def test_maps_are_made_once_per_data_encoder_and_size(
    data: HalvedPixels, encoder: FixedEncoder, tmp_path: Path
) -> None:
    def folders(
        settings: StagedEvaluator, own: FixedEncoder = encoder, given: HalvedPixels = data
    ) -> list[Path]:
        return [store.folder for store in settings.stores(tmp_path, own, given, None).all()]

    first = folders(SETTINGS)
    assert folders(replace(SETTINGS, stage1=STAGE1, stage2=None, early_stop=None)) == first
    assert folders(replace(SETTINGS, features=replace(CUT, crop=(16, 32))))[0] != first[0]
    assert folders(replace(SETTINGS, judge=(16, 16)))[1] != first[1]
    assert folders(SETTINGS, replace(encoder, fingerprint="another"))[0] != first[0]
    other = HalvedPixels(data.task, data.judge, data.fit)
    assert folders(SETTINGS, encoder, other)[0] != first[0]
    assert open_encoder("tiny", replace(SETTINGS, seed=1), data.fit).fingerprint != encoder.fingerprint
    assert open_encoder("tiny", SETTINGS, data.fit).fingerprint == encoder.fingerprint


def test_a_cache_of_other_data_is_refused(data: HalvedPixels, encoder: FixedEncoder, tmp_path: Path) -> None:
    opened(SETTINGS, encoder, data, tmp_path)
    files = SETTINGS.stores(tmp_path, encoder, HalvedPixels(data.task, data.judge, data.fit), None)
    misplaced = replace(files.fit, folder=SETTINGS.stores(tmp_path, encoder, data, None).fit.folder)
    with pytest.raises(DataProblem, match="made from other data: its data is"):
        misplaced.open(lambda: iter(()))


def test_a_trial_repeats_and_tells_both_stages(
    data: HalvedPixels, encoder: FixedEncoder, tmp_path: Path
) -> None:
    maps = opened(SETTINGS, encoder, data, tmp_path)
    first, second = (
        SETTINGS.run(trial(), data=data, encoder=encoder, maps=maps, device=CPU) for _ in range(2)
    )
    assert first == second
    assert first.status == "done"
    assert first.quality == first.metrics["stage2"]
    assert first.metrics["stage1"] != first.metrics["stage2"]
    figures = [first.metrics[name] for name in ("miou", "fwiou", "mean_accuracy")]
    assert first.quality == pytest.approx(np.prod(figures) ** (1 / 3))
    alone = replace(SETTINGS, stage2=None).run(trial(), data=data, encoder=encoder, maps=maps, device=CPU)
    assert alone.quality == alone.metrics["stage1"] == first.metrics["stage1"]


@pytest.mark.slow
def test_a_weak_trial_is_stopped_by_chance_and_keeps_its_first_reward(
    data: HalvedPixels, encoder: FixedEncoder, tmp_path: Path
) -> None:
    maps = opened(SETTINGS, encoder, data, tmp_path)
    strict = replace(SETTINGS, early_stop=EarlyStop(start=0.0))

    def judged(settings: StagedEvaluator, **changes: Any) -> Any:
        return settings.run(trial(**changes), data=data, encoder=encoder, maps=maps, device=CPU)

    weak = judged(strict, context={"mean": 0.99, "count": 3})
    assert (weak.status, set(weak.metrics)) == ("stopped", {"stage1"})
    assert weak.quality == weak.metrics["stage1"]
    assert "running mean" in weak.reason
    assert judged(strict, context={"mean": 0.0, "count": 3}).status == "done"
    assert (
        judged(strict, context={"mean": 0.99, "count": 3}, budget=0.5).status == "done"
    )  # a rung of halving
    assert judged(SETTINGS, context=EarlyStop().begin()).status == "done"


def first_stage(
    settings: StagedEvaluator, encoder: FixedEncoder, data: HalvedPixels, maps: Maps
) -> tuple[FirstStage, Any]:
    network = settings._network(trial(), encoder, data.task.outputs)
    return FirstStage(settings, network, encoder, data.task, maps, CPU), network


def test_the_first_stage_trains_the_decoder_alone(
    data: HalvedPixels, encoder: FixedEncoder, tmp_path: Path
) -> None:
    stage, network = first_stage(SETTINGS, encoder, data, opened(SETTINGS, encoder, data, tmp_path))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    stage.train(trial())
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert not any(name.startswith("nodes.encoder") for name in changed)
    assert "nodes.aux0.conv1.weight" in changed
    assert set(network.plan.select((MAIN,)).outputs) == {MAIN}  # gone at inference


@pytest.mark.slow
def test_averaging_ends_between_the_start_and_the_last_weights(
    data: HalvedPixels, encoder: FixedEncoder, tmp_path: Path
) -> None:
    maps = opened(SETTINGS, encoder, data, tmp_path)
    key = "nodes.head.conv1.weight"

    def trained(**changes: Any) -> torch.Tensor:
        settings = replace(SETTINGS, stage1=replace(SETTINGS.stage1, epochs=1, **changes))
        stage, network = first_stage(settings, encoder, data, maps)
        start = network.state_dict()[key].clone()
        stage.train(trial())
        return network.state_dict()[key] - start

    plain, averaged = trained(ema=None), trained(ema=0.9)
    assert 0 < float(averaged.norm()) < 0.5 * float(plain.norm())  # two steps: 0.1 + 0.09 of the way at most


@pytest.mark.slow
def test_averages_of_each_epoch_are_trained_on_where_asked(
    data: HalvedPixels, encoder: FixedEncoder, tmp_path: Path
) -> None:
    maps = opened(SETTINGS, encoder, data, tmp_path)
    rewards = []
    for each in (False, True):
        stage, network = first_stage(replace(SETTINGS, average_each_epoch=each), encoder, data, maps)
        stage.train(trial())
        rewards.append(network.state_dict()["nodes.head.conv1.weight"])
    assert not torch.equal(*rewards)


def test_without_auxiliary_coefficients_no_auxiliary_part_is_built(
    data: HalvedPixels, encoder: FixedEncoder, tmp_path: Path
) -> None:
    bare = replace(
        SETTINGS, stage1=replace(SETTINGS.stage1, loss=replace(SETTINGS.stage1.loss, auxiliary_default=0.0))
    )
    stage, network = first_stage(bare, encoder, data, opened(bare, encoder, data, tmp_path))
    assert set(stage.decoder.outputs) == {MAIN}
    assert not any("aux" in name for name in network.state_dict())


class Constant(torch.nn.Module):
    """Logits that are the mean colour of each place, repeated."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        small = functional.avg_pool2d(image, 16)
        return small.mean(1, keepdim=True).expand(-1, 11, -1, -1)


@pytest.mark.slow
def test_the_teachers_logits_are_kept_and_followed(
    data: HalvedPixels, encoder: FixedEncoder, tmp_path: Path
) -> None:
    classes = data.task.outputs
    module = torch.nn.Sequential(Constant(), torch.nn.Conv2d(11, classes, 1))
    teacher = teacher_of(module, Preprocessing(), device=CPU)
    maps = opened(SETTINGS, encoder, data, tmp_path, teacher)
    assert maps.logits is not None
    assert maps.logits.shape == (7, classes, 8, 16)
    again = opened(SETTINGS, encoder, data, tmp_path, teacher)
    assert np.array_equal(maps.logits, again.logits)
    taught, _ = first_stage(SETTINGS, encoder, data, maps)
    alone, _ = first_stage(SETTINGS, encoder, data, maps._replace(logits=None))
    rows = np.arange(3)
    taught.decoder.train()
    alone.decoder.train()
    with torch.no_grad():
        outputs = taught.decoder(taught._values(maps.fit, rows))
        gap = functional.interpolate(outputs[MAIN], size=(8, 16), mode="bilinear") - torch.from_numpy(
            maps.logits[rows]
        )
        extra = taught.loss(rows) - alone.loss(rows)
    assert float(extra) == pytest.approx(0.3 * float((gap**2).mean()), rel=1e-4)


def test_the_loss_of_the_first_stage_equals_the_reference() -> None:
    facts, _ = fixture("aux_arch0_search_parity")
    arch = decode(facts["genotype_paper_form"], channels=48, repeats=1)
    network = segtailor.create(arch, classes=21, outputs="all")
    segtailor.load_published(network, deterministic_state(facts["state"]))
    names = taps(network.plan)
    probe = FixedEncoder(taps=taps, network=network, fingerprint="", about="", preprocessing=Preprocessing())
    with torch.no_grad():
        found = probe.part.eval()({IMAGE: noise(1, 3, 256, 256)})
    target = np.random.default_rng(1).integers(0, 22, (1, 64, 64))
    arrays = {f"tap{level}": found[name].numpy() for level, name in enumerate(names)}
    arrays["labels"] = np.where(target == 21, 255, target).astype(np.uint8)
    logits = np.random.default_rng(2).standard_normal((1, 21, 64, 64)).astype(np.float32)
    task = Task(classes=tuple(f"class {index}" for index in range(21)))
    stage = FirstStage(SETTINGS, network, probe, task, Maps(arrays, arrays, logits), CPU)
    stage.decoder.eval()
    with torch.no_grad():
        loss = float(stage.loss(np.array([0])))
    wanted = facts["loss_check"]["total = ce_main + 0.3*kd + 0.15*sum(ce_aux)"]
    assert loss == pytest.approx(wanted, rel=1e-5)


MATRIX = np.array(
    [[900, 20, 10, 70, 0], [30, 160, 0, 10, 0], [20, 5, 75, 0, 0], [40, 0, 10, 250, 0], [0] * 5]
)


def test_the_reward_leaves_the_background_out_and_pays_nothing_for_false_positives() -> None:
    assert reward(MATRIX) == pytest.approx(0.707317, abs=1e-6)
    wrong = MATRIX.copy()
    wrong[0, 0] -= 10
    wrong[0, 4] += 10
    assert reward(wrong) == pytest.approx(0.642640, abs=1e-6)


def test_only_a_class_called_background_is_left_out() -> None:
    assert SETTINGS.without(Task(classes=("background", "cat"))) == (0,)
    assert SETTINGS.without(Task(classes=("road", "background"))) == (1,)
    assert SETTINGS.without(Task(classes=("road", "car"))) == ()


def picture(height: int, width: int) -> Pixels:
    image = np.arange(height * width * 3, dtype=np.uint64).astype(np.uint8)
    return Pixels(
        task=Task(classes=("a", "b")),
        names=("one",),
        sizes=np.array([[height, width]]),
        fingerprint="",
        images=image,
        labels=(np.arange(height * width) % 2).astype(np.uint8),
    )


def test_central_crops_cut_large_pictures_and_enlarge_small_ones() -> None:
    large = picture(8, 10)
    image, labels = central(large, 0, (4, 6))
    assert np.array_equal(image, large.pair(0).image[2:6, 2:8])
    assert np.array_equal(labels, large.pair(0).labels[2:6, 2:8])
    image, labels = central(picture(3, 10), 0, (6, 6))
    assert image.shape == (6, 6, 3)
    assert labels.shape == (6, 6)
    assert set(np.unique(labels)) <= {0, 1}


@pytest.mark.slow
def test_a_first_stage_that_diverges_says_so(
    data: HalvedPixels, encoder: FixedEncoder, tmp_path: Path
) -> None:
    wild = replace(SETTINGS, stage1=replace(SETTINGS.stage1, lr=1e30, clip=None))
    maps = opened(wild, encoder, data, tmp_path)
    with pytest.raises(Diverged, match="first stage diverged"):
        wild.run(trial(), data=data, encoder=encoder, maps=maps, device=CPU)


def test_settings_survive_json_and_impossible_ones_are_refused() -> None:
    assert from_json(StagedEvaluator, to_json(SETTINGS), what="staged") == SETTINGS
    assert staged_module.STAGE2.encoder is not None
    with pytest.raises(UserError, match="norms need at least 2"):
        replace(SETTINGS, images=1)
    with pytest.raises(UserError, match=r"staged\.judge"):
        replace(SETTINGS, judge=(0, 4))


def trained_on(
    settings: StagedEvaluator, encoder: FixedEncoder, data: HalvedPixels, maps: Maps
) -> dict[str, Any]:
    stage, network = first_stage(settings, encoder, data, maps)
    stage.train(trial())
    return {name: value.clone() for name, value in network.state_dict().items()}


@pytest.mark.parametrize("channels_last", [True, False])
def test_maps_kept_on_a_device_teach_the_same(
    data: HalvedPixels, encoder: FixedEncoder, tmp_path: Path, channels_last: bool
) -> None:
    settings = replace(SETTINGS, stage1=replace(SETTINGS.stage1, epochs=1, channels_last=channels_last))
    maps = opened(settings, encoder, data, tmp_path)
    maps = maps._replace(
        logits=np.random.default_rng(0).random((7, data.task.outputs, 8, 16), dtype=np.float32)
    )
    assert maps.on(CPU) is maps  # files are mapped as they are
    kept = maps.copied(CPU)
    assert all(isinstance(value, torch.Tensor) for value in (*kept.fit.values(), kept.logits))
    one, other = (trained_on(settings, encoder, data, own) for own in (maps, kept))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_the_precision_of_the_first_stage_counts(
    data: HalvedPixels, encoder: FixedEncoder, tmp_path: Path
) -> None:
    maps = opened(SETTINGS, encoder, data, tmp_path)
    losses = []
    for precision in ("fp32", "bf16"):
        settings = replace(SETTINGS, stage1=replace(SETTINGS.stage1, precision=precision))
        stage, _ = first_stage(settings, encoder, data, maps)
        losses.append(float(stage.loss(np.arange(3)).detach()))
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    with pytest.raises(UserError, match="use bf16"):
        replace(SETTINGS, stage1=replace(SETTINGS.stage1, precision="fp16"))


@pytest.mark.device
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recorded_steps_of_the_first_stage_learn_what_plain_ones_do(
    data: HalvedPixels, encoder: FixedEncoder, tmp_path: Path
) -> None:
    device = torch.device("cuda")
    maps = opened(SETTINGS, encoder, data, tmp_path).on(device)
    assert isinstance(maps.fit["tap0"], torch.Tensor)
    found = []
    for record in (True, False):
        network = SETTINGS._network(trial(), encoder, data.task.outputs).to(device)
        stage = FirstStage(SETTINGS, network, encoder, data.task, maps, device)
        stage.decoder.train()
        learner = DecoderLearner(stage)
        learner._step = CapturedStep(learner._learn, device, record=record)
        for step in range(8):
            learner(stage.batch(np.arange(3) + step % 4))
        assert learner._step.recorded is record
        learner.take_average()
        found.append((float(learner.loss), network.state_dict()))
    assert found[0][0] == pytest.approx(found[1][0], rel=0.02)
    for name, value in found[0][1].items():
        torch.testing.assert_close(value, found[1][1][name], rtol=0.05, atol=5e-3)
