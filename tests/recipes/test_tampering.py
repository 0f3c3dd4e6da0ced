"""A run directory whose files were changed by somebody: nothing outside of it is written."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from segtailor.recipes.systems import Occasion

from segtailor.core.errors import Interrupted, RunProblem
from segtailor.core.job import Step
from segtailor.core.registry import SYSTEMS
from segtailor.recipes.search import SearchRecipe
from segtailor.runs import Context, Layout, Policy, Quiet
from segtailor.spaces.decoder_cell.encoders import ENCODERS
from segtailor.tailoring.context import Context
from segtailor.tailoring.delivering import export, int8
from segtailor.verbs.report import report
from segtailor.verbs.resume import resume
from segtailor.verbs.search import search
from tests.strategies.tiny_encoder import TINY
from tests.tailoring.test_job import recipe as tailor_recipe

OCCASION = Occasion(data="synthetic:size=32x64,train=10,val=2", size=(32, 64), crop=(32, 64))
POLICY = Policy(tensorboard=False, every_steps=1)


class Impatient(Quiet):
    """Stops a run after some steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def step(self, step: Step) -> None:  # noqa: ARG002 - the form of a display
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


def controller() -> SearchRecipe:
    """Return a search by a strategy that keeps a state of its own, whose trials take a step or two."""
    recipe = SYSTEMS.get("auxcells")("small", OCCASION)
    assert recipe.staged is not None
    assert recipe.staged.stage2 is not None
    short = replace(
        recipe.staged,
        images=4,
        stage1=replace(recipe.staged.stage1, epochs=1, batch=2),
        stage2=replace(recipe.staged.stage2, steps=1, batch=2),
    )
    plain = {**recipe.strategy.settings, "trials": 4, "batch": 2, "hidden": 8, "layers": 1}
    space = replace(recipe.space, settings={**recipe.space.settings, "encoder": "tiny", "channels": 4})
    return replace(recipe, space=space, staged=short, strategy=replace(recipe.strategy, settings=plain))


def tampered(run: Path, fingerprint: str) -> None:
    """Give every saved trial another fingerprint, in journal and checkpoints, whose sums are right again."""
    journal = Layout(run).journal
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    for record in (record for row in rows for record in row.get("records", ()) if "fingerprint" in record):
        record["fingerprint"] = fingerprint
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for file in Layout(run).checkpoints.glob("*/trials.json"):
        document = json.loads(file.read_text())
        for record in document["trials"]:
            record["fingerprint"] = fingerprint
        file.write_text(json.dumps(document))
        manifest = json.loads((file.parent / "manifest.json").read_text())
        data = file.read_bytes()
        manifest["files"]["trials.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (file.parent / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("steps", [3, 5])  # nothing was told yet, or the strategy kept its state
def test_a_fingerprint_that_is_a_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setitem(ENCODERS, "tiny", TINY)
    around = Context(cache=tmp_path / "cache", device="cpu", policy=POLICY)
    with pytest.raises(Interrupted):
        search(controller(), tmp_path / "a" / "run", context=replace(around, display=Impatient(steps)))
    tampered(tmp_path / "a" / "run", "../../x")
    with pytest.raises(RunProblem):
        resume(tmp_path / "a" / "run", context=around)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "cache"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["run"]


@pytest.mark.parametrize(
    "name", ["../../x", "/etc/x", "..", "", "0123456789abcdef/x", "ABCDEF0123456789", "0123456789abcde\n", 7]
)
def test_only_fingerprints_become_names_of_files(tmp_path: Path, name: Any) -> None:
    for file in (Layout(tmp_path).architecture, Layout(tmp_path).plan):
        with pytest.raises(RunProblem, match="no fingerprint"):
            file(name)
    assert Layout(tmp_path).plan("0123456789abcdef").parent == tmp_path / "architectures"


def test_what_a_run_directory_tells_does_not_enter_the_cache_that_all_searches_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENCODERS, "tiny", TINY)
    around = Context(cache=tmp_path / "theirs", device="cpu", policy=POLICY)
    with pytest.raises(Interrupted):
        search(controller(), tmp_path / "run", context=replace(around, display=Impatient(5)))
    told = len(list((tmp_path / "theirs" / "trials").iterdir()))
    resume(tmp_path / "run", context=replace(around, cache=tmp_path / "mine"))
    assert told >= 2
    assert len(list((tmp_path / "mine" / "trials").iterdir())) <= 4 - told


def stage(folder: Path, **outcomes: Any) -> Context:
    around = Context(cache=folder / "cache", device="cpu")
    folder.mkdir(exist_ok=True)
    return Context(recipe=tailor_recipe(), folder=folder, around=around, outcomes=outcomes)


@pytest.mark.parametrize("where", ["elsewhere", "run/../elsewhere", "run/link"])
def test_a_tailoring_exports_into_itself_alone(tmp_path: Path, where: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "elsewhere")
    found = stage(tmp_path / "run", recommend={"model": str(tmp_path / where)})
    for work in (export, int8):
        with pytest.raises(RunProblem, match="outside of itself"):
            work(found)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("name", ["../../../x", "a/b", "/x", "..", ".hidden", "a\nb"])
def test_names_of_networks_in_files_of_a_tailoring_stay_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunProblem, match="no plain name"):
        stage(tmp_path / "run").run_folder(name)
    assert stage(tmp_path / "run").run_folder("baseline-stdc1-seg").parent.name == "stages"


def test_a_report_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text('{"kind": "train"}')
    (tmp_path / "run" / "report").symlink_to(tmp_path / "outside")
    with pytest.raises(RunProblem, match="symbolic link"):
        report([tmp_path / "run"])
    assert list((tmp_path / "outside").iterdir()) == []
