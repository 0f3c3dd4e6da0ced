"""Depth and pose take the same way as segmentation: train, score, predict, export, search, serve, report."""

from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import segtailor
from segtailor.core.errors import DataProblem, Unsupported, UserError
from segtailor.core.task import KIND_FACTS
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.nets.onnx.model import open_onnx_model
from segtailor.recipes.recipe import with_settings
from segtailor.recipes.train import train_recipe
from segtailor.runs import Context
from segtailor.tailoring.facts import usable_data
from segtailor.tasks import TASK_KINDS, kind_of
from segtailor.testing import check_dataset
from segtailor.training.evaluate import score_predictions
from segtailor.verbs.eval import evaluate
from segtailor.verbs.main import run
from segtailor.verbs.report import inspect_run, report
from segtailor.verbs.search import search
from segtailor.verbs.serve import demonstrate
from segtailor.verbs.train import published_training, train

torch.set_num_threads(1)
DATA = {
    "depth": "synthetic:task=depth,size=32x64,train=8,val=4",
    "pose": "synthetic:task=pose,size=48x48,crop=32x32,train=8,val=4",
}
HEADLINE = {"depth": "delta1", "pose": "pose_quality"}
KINDS = list(DATA)
QUICK = ["fit.steps=2", "fit.batch=4", "fit.validate_batch=4"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(request.param) / "run"
    context = Context(cache=cache, device="cpu")
    result = train(
        "lpsnet-step0", folder, data=DATA[request.param], changes=QUICK, check=False, context=context
    )
    return request.param, folder, result


def test_plain_facts_and_behaviour_name_the_same_kinds() -> None:
    assert list(KIND_FACTS) == sorted(TASK_KINDS.names(), key=list(KIND_FACTS).index)


@pytest.mark.parametrize("kind", KINDS)
def test_rendered_datasets_keep_what_a_dataset_promises(kind: str) -> None:
    check_dataset(locate(DATA[kind]), limit=2)


def test_training_reports_the_figures_of_its_task(trained: Any) -> None:
    kind, folder, result = trained
    assert result["best"].keys() == {HEADLINE[kind], "step"}
    known = {figure.name for figure in KIND_FACTS[kind].figures}
    assert {name for name in result if name in known} >= {HEADLINE[kind]}
    assert (folder / "weights/model.json").is_file()


def test_a_bundle_scores_as_at_the_end_of_its_training(trained: Any, cache: Path) -> None:
    kind, folder, result = trained
    scores = evaluate(folder / "weights", DATA[kind], context=Context(cache=cache, device="cpu"))
    for figure in KIND_FACTS[kind].figures:
        if figure.name in result:
            assert scores[figure.name] == pytest.approx(result[figure.name], rel=1e-4, abs=1e-6), figure.name
    assert scores["kind"] == kind


def test_a_model_is_not_scored_on_data_of_another_kind(trained: Any) -> None:
    kind, folder, _ = trained
    with pytest.raises(DataProblem, match=f"the model is for {kind}, the data for segmentation"):
        evaluate(folder / "weights", "synthetic:size=32x64,train=1,val=1")


@pytest.mark.parametrize("form", ["colour", "overlay", "ids"])
def test_predict_writes_one_picture_of_the_same_size(
    trained: Any, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, folder, _ = trained
    picture = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(picture).save(tmp_path / "a.png")
    assert run(
        ["predict", str(folder / "weights"), str(tmp_path / "a.png"), "--out", str(tmp_path / "out"), "--as", form,
         "--device", "cpu", "--json"]
    ) == 0  # fmt: skip
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert Image.open(tmp_path / "out/a.png").size == (50, 40)
    assert KIND_FACTS[kind].described in row


def test_predictions_have_the_form_of_their_kind(trained: Any) -> None:
    kind, folder, _ = trained
    model = segtailor.load(folder / "weights")
    found = model.predict(np.zeros((40, 50, 3), np.uint8))
    assert found.dtype == np.float32
    assert found.shape == {"depth": (40, 50), "pose": (16, 3)}[kind]


def test_the_page_shows_what_was_predicted(trained: Any) -> None:
    kind, folder, _ = trained
    demo, stream = demonstrate(folder / "weights"), BytesIO()
    Image.fromarray(np.full((40, 50, 3), 80, np.uint8)).save(stream, "PNG")
    answer = demo.analyse(stream.getvalue())
    assert demo.document()["kind"] == kind
    assert demo.document()["classes"] == []
    assert isinstance(answer["facts"], dict)
    assert answer["mask"]


def test_the_report_of_a_training_tells_its_headline(trained: Any, tmp_path: Path) -> None:
    kind, folder, _ = trained
    told = report([folder], tmp_path / "page.html")
    assert KIND_FACTS[kind].headline.label in str(told["verdict"])


def test_export_refuses_the_output_of_another_kind(trained: Any) -> None:
    kind, folder, _ = trained
    with pytest.raises(Unsupported, match=f"choose logits or {KIND_FACTS[kind].finished}"):
        segtailor.export(folder / "weights", output="labels")


def test_tailor_says_that_it_needs_classes(trained: Any) -> None:
    kind, _, _ = trained
    with pytest.raises(Unsupported, match=f"tailor works by the classes of pixels, and this task is {kind}"):
        usable_data(DATA[kind])


def test_the_worst_and_best_pictures_are_on_the_page(trained: Any, tmp_path: Path, cache: Path) -> None:
    kind, folder, _ = trained
    quality = inspect_run(folder, context=Context(cache=cache, device="cpu"))
    label = KIND_FACTS[kind].headline.label
    assert (quality.classes, quality.figure) == ((), label)
    facts = {fact.name: fact.value for fact in quality.facts}
    scores = evaluate(folder / "weights", DATA[kind], context=Context(cache=cache, device="cpu"))
    assert facts[label] == KIND_FACTS[kind].headline.told(scores[HEADLINE[kind]])
    worst = [picture.quality for picture in quality.pictures if picture.kind == "worst"]
    best = [picture.quality for picture in quality.pictures if picture.kind == "best"]
    assert worst
    assert best
    assert max(worst) <= min(best)
    report([folder], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "off in the error picture" in page
    assert "Confusion of classes" not in page


@pytest.mark.slow
def test_exported_files_are_the_network_and_score_alike(trained: Any, tmp_path: Path, cache: Path) -> None:
    pytest.importorskip("onnxruntime")
    kind, folder, _ = trained
    for output in ("logits", KIND_FACTS[kind].finished):
        done = segtailor.export(folder / "weights", out=tmp_path / output, output=output, data=DATA[kind])
        assert done.figures["label_agreement"] >= 0.999
        assert abs(float(str(done.figures[f"{HEADLINE[kind]}_drift"]))) <= 1e-3
        model = open_onnx_model(tmp_path / output / "model.onnx")
        assert model.task.kind == kind
        scores = evaluate(model, DATA[kind], context=Context(cache=cache))
        assert 0 <= scores[HEADLINE[kind]] <= 1
        found = model.predict(np.zeros((40, 50, 3), np.uint8))
        assert found.shape == {"depth": (40, 50), "pose": (16, 3)}[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["random", "evolution", "controller"])
def test_any_trial_strategy_searches_by_the_headline_of_the_task(
    kind: str, strategy: str, tmp_path: Path, cache: Path
) -> None:
    from segtailor.verbs.search import SearchChoices, search_recipe

    context = Context(cache=cache, device="cpu")
    choices = SearchChoices(strategy=strategy, trials=2)
    recipe = search_recipe("lpsnet", DATA[kind], choices=choices, context=context)
    quick = replace(recipe.evaluator, fit=replace(recipe.evaluator.fit, steps=2, batch=2))
    result = search(replace(recipe, evaluator=quick), tmp_path / "run", context=context)
    assert result["measure"] == KIND_FACTS[kind].headline.label
    assert 0 <= result["quality"] <= 1


def test_pose_crops_must_have_the_size_of_the_data(tmp_path: Path, cache: Path) -> None:
    context = Context(cache=cache, device="cpu")
    recipe = with_settings(train_recipe("lpsnet-step0", DATA["pose"], crop=(64, 32), context=context), QUICK)
    with pytest.raises(UserError, match="do not fit people of 32x32"):
        train(recipe, tmp_path / "run", check=False, context=context)


@pytest.mark.parametrize(("name", "kind"), [("auxcells-depth", "depth"), ("auxcells-pose", "pose")])
def test_the_papers_settings_are_recipes(name: str, kind: str, cache: Path) -> None:
    context = Context(cache=cache, device="cpu")
    (stage,) = published_training(name, "auxcells-arch0", DATA[kind], scale="paper", context=context).stages
    lengths = {"depth": (300, 32, 7e-3, "sgd"), "pose": (140, 128, 1e-3, "adam")}
    assert (stage.fit.epochs, stage.fit.batch, stage.fit.lr, stage.fit.optimiser) == lengths[kind]
    rates = [
        stage.fit.schedule.factor(epoch, total=stage.fit.epochs, steps_per_epoch=1) for epoch in (0, 100, 130)
    ]
    papers = {"depth": [(1 - epoch / 400) ** 0.9 for epoch in (0, 100, 130)], "pose": [1.0, 0.1, 0.01]}
    assert rates == pytest.approx(papers[kind])
    with pytest.raises(Unsupported):
        published_training(name, "lpsnet-s", DATA[kind], context=context)


def trivial(data: str, cache: Path) -> dict[str, dict[str, float]]:
    """Score predictors that never look at a picture: what a training has to beat."""
    dataset = locate(data)
    _, known = open_pixels(dataset, "train", cache).canvas()
    guesses = {"depth": _trivial_depth, "pose": _mean_pose}[dataset.task.kind](known)
    val = open_pixels(dataset, "val", cache)
    return {
        name: score_predictions(lambda _, guess=guess: guess, val, task=dataset.task).figures()  # type: ignore[misc]
        for name, guess in guesses.items()
    }


def _trivial_depth(known: np.ndarray) -> dict[str, np.ndarray]:
    depth = np.where(known > 0, known, np.nan)
    middle = np.nanmedian(depth)
    with np.errstate(all="ignore"):
        rows = np.nan_to_num(np.array([np.nanmean(row) if np.isfinite(row).any() else middle
                                       for row in np.moveaxis(depth, 1, 0)]))  # fmt: skip
    constant = np.full(known.shape[1:], middle, np.float32)
    return {"median": constant, "row means": np.repeat(rows[:, None], known.shape[2], 1).astype(np.float32)}


def _mean_pose(known: np.ndarray) -> dict[str, np.ndarray]:
    joints, seen = known[:, :-1], known[:, :-1, 2:] > 0
    mean = (joints * seen).sum(0) / np.maximum(seen.sum(0), 1)
    return {"mean pose": np.concatenate([mean[:, :2], np.ones((len(mean), 1))], 1).astype(np.float32)}


def test_trivial_predictors_score_below_the_truth(cache: Path) -> None:
    for kind, data in DATA.items():
        for figures in trivial(data, cache).values():
            assert 0 <= figures[HEADLINE[kind]] < 0.9
        dataset = locate(data)
        val = open_pixels(dataset, "val", cache)
        meter = kind_of(dataset.task).meter(dataset.task, torch.device("cpu"))
        truth = torch.from_numpy(np.array(val.canvas()[1]))
        meter.add(truth[:, : truth.shape[1] - (kind == "pose")], truth)
        assert meter.scores().quality == 1
