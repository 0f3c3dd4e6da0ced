"""Parts of different papers put together with `replace`, as the architecture page shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.cost import Power
from segtailor.core.plan import Shape
from segtailor.core.space import read_architecture
from segtailor.core.strategy import SearchProblem
from segtailor.costs import Macs
from segtailor.costs.keys import key_of
from segtailor.costs.latency import PackLatency
from segtailor.costs.pack import Entry, Pack
from segtailor.data.synthetic import TASK
from segtailor.recipes.search import SearchRecipe
from segtailor.runs import Layout
from segtailor.spaces.decoder_cell.encoders import ENCODERS
from segtailor.spaces.inverted_residual import InvertedResidual, InvertedResidualArchitecture
from segtailor.strategies import Evolution
from segtailor.strategies.evaluators.shared import SharedEvaluator
from segtailor.strategies.evaluators.train import TrainEvaluator
from segtailor.strategies.gradient_settings import Choice, Gradient
from segtailor.systems import auxcells, fasterseg, lpsnet, squeezenas
from segtailor.systems.system import with_crops
from segtailor.verbs.search import preview, search
from tests.strategies.tiny_encoder import TINY
from tests.systems.tiny import DATA, context_in, tiny_auxcells

SIZE = (32, 64)


def tiny(recipe: SearchRecipe) -> SearchRecipe:
    """Return a recipe for tiny images whose candidates train for one step."""
    recipe = with_crops(replace(recipe, data=DATA, image=SIZE), lambda _: SIZE)
    if isinstance(recipe.evaluator, TrainEvaluator):
        fit = replace(recipe.evaluator.fit, steps=1, batch=2)
        recipe = replace(recipe, evaluator=replace(recipe.evaluator, fit=fit))
    return recipe


def test_evolution_searches_the_space_of_squeezenas(tmp_path: Path) -> None:
    recipe = replace(tiny(squeezenas.SMALL), strategy=Evolution(trials=3, population=2))
    found: Any = search(recipe, tmp_path / "run", context=context_in(tmp_path))
    assert (found["failed"], len(found["trials"])) == (0, 3)
    assert isinstance(read_architecture(Path(found["architecture"])), InvertedResidualArchitecture)


@pytest.mark.slow
def test_evolution_judges_by_the_weights_of_a_search_by_gradients(tmp_path: Path) -> None:
    base = tiny(squeezenas.SMALL)
    assert isinstance(base.strategy, Gradient)
    short = replace(
        base.strategy,
        fit=replace(base.strategy.fit, steps=2, batch=2),
        choice=Choice(samples=1, recalibrate=1, images=2),
    )
    search(replace(base, strategy=short), tmp_path / "sq", context=context_in(tmp_path))
    supernet = str(Layout(tmp_path / "sq").supernet)
    recipe = replace(
        base, strategy=Evolution(trials=3, population=2), evaluator=SharedEvaluator(supernet=supernet)
    )
    found: Any = search(recipe, tmp_path / "run", context=context_in(tmp_path))
    assert (found["failed"], len(found["trials"])) == (0, 3)


def test_auxiliary_cells_are_searched_for_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODERS, "tiny", TINY)
    base = tiny_auxcells(trials=2)
    calls = base.space.calls(Shape(3, *SIZE), TASK.outputs)
    pack = Pack(
        space="decoder_cell",
        settings={},
        image=SIZE,
        classes=TASK.outputs,
        target="cpu/onnxruntime/fp32",
        machine={},
        entries={key_of(call): Entry(us=1 + call.macs() / 1000) for call in calls},
    )
    pack.write(tmp_path / "jetson.json")
    recipe = replace(
        base,
        cost=PackLatency(pack=str(tmp_path / "jetson.json")),
        objective=Power(limit=12.0, exponent=-0.07),
    )
    found: Any = search(recipe, tmp_path / "run", context=context_in(tmp_path))
    assert (found["unit"], found["failed"]) == ("ms", 0)
    assert auxcells.SMALL.cost.unit == "params"


@pytest.mark.slow
def test_fasterseg_counts_operations_instead_of_milliseconds(tmp_path: Path) -> None:
    recipe = replace(tiny(fasterseg.SMALL), cost=Macs())
    assert recipe.job(context_in(tmp_path)).problem.cost.unit == "MACs"
    assert preview(recipe, context=context_in(tmp_path)) == {}  # gradients begin with all networks at once
    paper = replace(tiny(fasterseg.PAPER), cost=Macs())  # whose budget is in milliseconds
    with pytest.raises(SearchProblem, match=r"budget of 6\.45161 MACs is below the cheapest network"):
        paper.job(context_in(tmp_path))
    replace(paper, limit=None).job(context_in(tmp_path))


def test_inverted_residuals_grow_step_by_step(tmp_path: Path) -> None:
    recipe = replace(tiny(lpsnet.SMALL), space=InvertedResidual(frame="small"))
    first = preview(recipe, context=context_in(tmp_path))
    assert (first["first"], first["unit"]) == (1, "MACs")
    assert float(str(first["cheapest"])) > 0
