"""A whole tailoring in small, from scenes to an exported network: interrupted at a boundary or not, one result."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from segtailor.api.training import Surroundings
from segtailor.cli.main import run
from segtailor.recipes.recipe import Place
from segtailor.tailoring.job import STAGES, Tailoring
from segtailor.tailoring.run import carry_out
from segtailor.tailoring.settings import Effort, TailorRecipe
from tests.schemas import conforming
from tests.tailoring.test_job import recipe

DATA = "synthetic:size=64x96,train=12,val=4,seed=0"
TINY = Effort(
    candidates=2,
    candidate_steps=2,
    teacher_steps=2,
    train_steps=4,
    baselines=1,
    baseline_steps=2,
    pack_minutes=0.0,
    pack_networks=0,
    training_seconds=10.0,
    closing_seconds=10.0,
)


def tiny(budget_ms: float = 1000.0) -> TailorRecipe:
    plan = recipe()
    request = replace(plan.request, data=DATA, budget_ms=budget_ms)
    return replace(
        plan,
        request=request,
        data=DATA,
        image=(64, 96),
        crop=(64, 96),
        batch=4,
        workers=1,
        effort=TINY,
        search_limit_ms=budget_ms,
        search_limit_macs=2e8,
        quantise=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stopped_at_a_boundary_and_gone_on_with_it_ends_with_the_same_network(tmp_path: Path) -> None:
    around = Surroundings(cache=tmp_path / "cache", device="cpu")
    whole = carry_out(tiny(), tmp_path / "whole", around)
    assert whole["met"]
    page = Path(str(whole["report"])).read_text(encoding="utf-8")
    assert "not finished" not in page
    assert all(
        f'id="{part}"' in page for part in ("verdict", "front", "network", "layers", "classes", "pictures")
    )
    parts = tmp_path / "parts"
    first = Tailoring(
        recipe=tiny(), place=Place(folder=parts, cache=around.cache), around=around, stages=STAGES[:5]
    )
    list(first.steps())
    again = Tailoring(recipe=tiny(), place=Place(folder=parts, cache=around.cache), around=around)
    list(again.steps())
    for stage in ("search", "train", "recommend"):
        one, other = (
            json.loads((folder / "stages" / f"{stage}.json").read_text())
            for folder in (tmp_path / "whole", parts)
        )
        assert one.get("miou") == other.get("miou")
    weights = [
        (folder / "stages" / "train" / "weights" / "model.safetensors").read_bytes()
        for folder in (tmp_path / "whole", parts)
    ]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_an_impossible_budget_ends_early_with_the_fastest_network_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tailor", "--data", DATA, "--budget", "0.001ms", "--out", str(tmp_path / "run")]
    assert run([*words, "--cache", str(tmp_path / "cache"), "--json"]) == 1
    told = conforming("tailor", capsys.readouterr().out)
    assert told["met"] is False
    assert told["model"] is None
    assert told["latency_ms"] > 0.001
    assert told["network"] in str(told["verdict"])
    assert not (tmp_path / "run" / "stages" / "search").exists()
    assert Path(told["report"]).is_file()
