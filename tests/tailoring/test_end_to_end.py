"""A whole tailoring in small, from scenes to an exported network, with every system."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import segtailor
from segtailor.core.codec import read_json
from segtailor.core.space import family_of
from segtailor.data.bands import read_bands
from segtailor.nets.onnx.model import open_onnx_model
from segtailor.recipes.front import kept_front
from segtailor.report.numbers import amount
from segtailor.runs import Context
from segtailor.spaces.networks import count
from segtailor.tailoring.choosing import SYSTEMS
from segtailor.tailoring.recipe import Effort, TailorRecipe
from segtailor.tailoring.tailor import parse_request, plan
from segtailor.verbs.main import run
from tests.schemas import conforming
from tests.verbs.test_bands_verbs import write_scenes

DATA = "synthetic:size=64x96,train=16,val=4,seed=1"
BUDGET_MS = 100.0
TINY = Effort(
    candidates=4,
    candidate_steps=4,
    teacher_steps=2,
    train_steps=4,
    baselines=1,
    training_seconds=10.0,
    closing_seconds=10.0,
    supernet_steps=4,
    fit_seconds=3.0,
)


def tiny(
    context: Context,
    *,
    data: str = DATA,
    system: str = "auto",
    runtime: str = "onnxruntime",
    budget_ms: float = BUDGET_MS,
) -> TailorRecipe:
    """Plan a tailoring as ever, then do the least of everything."""
    request = parse_request(data, f"cpu/{runtime}/fp32", budget_ms, recipe=system)
    return replace(
        plan(request, context), batch=4, workers=1, effort=TINY, timing_seconds=0.05, least_gain=None
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_ends_with_an_exported_network_that_keeps_the_budget(
    tmp_path: Path, system: str
) -> None:
    torch.set_num_threads(1)
    folder = tmp_path / "run"
    context = Context(cache=tmp_path / "cache", device="cpu", folder=folder)
    recipe = tiny(context, system=system)
    assert recipe.system == system
    found = recipe.carry_out(context)
    stage = {
        name: read_json(folder / "stages" / f"{name}.json", what=name, error=ValueError)
        for name in ("search", "choose", "teacher", "train", "contract")
    }
    assert found["met"]
    assert stage["contract"]["p95_ms"] <= BUDGET_MS
    assert Path(str(found["file"])).is_file()
    assert found["file"] == stage["contract"]["file"]
    model, picture = segtailor.load(str(found["model"])), torch.zeros(64, 96, 3, dtype=torch.uint8).numpy()
    assert model.predict(picture).shape == (64, 96)
    assert stage["choose"]["fingerprint"] in {member["fingerprint"] for member in stage["search"]["found"]}
    own = segtailor.load(stage["train"]["model"]).network.architecture
    weights = folder / "stages" / "teacher" / "weights"
    if not weights.exists():  # nothing in these spaces need be 1.5 times as large
        assert system in ("autortnet", "elastic")
        assert stage["teacher"]["reason"] == "the family has no network of a fitting size"
    else:
        assert stage["teacher"]["model"] or "by more than the noise" in stage["teacher"]["reason"]
        teacher = segtailor.load(weights).network.architecture
        assert family_of(own) == family_of(teacher)
        assert count(teacher, image=(64, 96)).macs >= 1.5 * count(own, image=(64, 96)).macs
    if system == "elastic":  # it goes on from what it learned in the search
        start = segtailor.load(stage["train"]["model"]).provenance["start"]
        assert Path(start["name"]).parent == folder / "stages" / "search" / "front"  # type: ignore[index, call-overload]
        assert start["carried"] == 1.0  # type: ignore[index, call-overload]
        assert "Apache-2.0" in str(start["licence"])  # type: ignore[index, call-overload]
        assert stage["search"]["shared_steps"] > 0
    page = Path(str(found["report"])).read_text(encoding="utf-8")
    assert "not finished" not in page
    size = count(model.architecture, image=recipe.image, classes=model.task.outputs)
    # In its row among the others, and under the drawing.
    assert len(re.findall(rf">\s*{amount(size.params)}\s*<", page)) >= 2
    assert all(
        f'id="{part}"' in page for part in ("verdict", "front", "network", "layers", "classes", "pictures")
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("system", ["elastic", "lpsnet"])
def test_a_tailoring_for_pictures_of_bands(tmp_path: Path, system: str) -> None:
    torch.set_num_threads(1)
    root = write_scenes(tmp_path / "set", count=16)
    folder = tmp_path / "run"
    context = Context(cache=tmp_path / "cache", device="cpu", folder=folder)
    data = f"folder:{root}?bands=4&classes=low,high&val=0.3"
    recipe = tiny(context, data=data, system=system)
    found = recipe.carry_out(context)
    assert found["met"]
    model = segtailor.load(str(found["model"]))
    assert model.network.plan.image.channels == 4
    assert model.preprocessing.ranges is not None
    raw = read_bands(root / "images" / "0.tif", bands=4)
    assert (open_onnx_model(Path(str(found["file"]))).predict(raw) == model.predict(raw)).mean() > 0.95
    page = Path(str(found["report"])).read_text(encoding="utf-8")
    assert 'id="pictures"' in page
    trained = read_json(folder / "stages" / "search" / "recipe.json", what="recipe", error=ValueError)
    part = trained["strategy"] if system == "elastic" else trained["evaluator"]
    assert len(part["preprocessing"]["ranges"]) == 4


@pytest.mark.slow
def test_an_impossible_budget_ends_early_with_the_fastest_network_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tailor", "--data", DATA, "--budget", "0.001ms", "--out", str(tmp_path / "run")]
    where = ["--cache", str(tmp_path / "cache"), "--json"]
    assert run([*words, *where]) == 1
    told = conforming("tailor", capsys.readouterr().out)
    assert told["met"] is False
    assert told["model"] is None
    assert told["latency_ms"] > 0.001
    assert told["network"] in str(told["verdict"])
    assert not (tmp_path / "run" / "stages" / "search").exists()
    assert Path(told["report"]).is_file()
    assert run(["resume", str(tmp_path / "run"), *where]) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_other_budgets_are_served_later_from_what_a_tailoring_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    folder, out = tmp_path / "run", tmp_path / "other"
    context = Context(cache=tmp_path / "cache", device="cpu", folder=folder)
    found = tiny(context, system="elastic").carry_out(context)
    front = kept_front(folder)
    assert front.target == "cpu/onnxruntime/fp32"
    assert {row.evidence for row in front.networks} == {"trained", "judged"}
    assert {row.network for row in front.networks if row.evidence == "trained"} >= {"searched"}
    page = Path(str(found["report"])).read_text(encoding="utf-8")
    assert 'id="budgets"' in page
    assert f"segtailor export {folder} --budget" in page
    for row in front.networks:
        assert row.network in page
    capsys.readouterr()
    assert run(["export", str(folder), "--budget", "200ms", "--out", str(out), "--json"]) == 0
    told = conforming("export within", capsys.readouterr().out)
    assert told["met"]
    assert told["quality"] == front.networks[0].quality
    assert told["file"] == "model.onnx"
    picture = torch.zeros(64, 96, 3, dtype=torch.uint8).numpy()
    assert segtailor.load(out).predict(picture).shape == (64, 96)
    assert (
        run(["export", str(folder), "--budget", "0.0001ms", "--out", str(tmp_path / "none"), "--json"]) == 1
    )
    assert not (tmp_path / "none").exists()
