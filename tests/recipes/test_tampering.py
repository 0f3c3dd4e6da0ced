"""A run directory whose files were changed by somebody: nothing outside of it is written."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.errors import Interrupted, RunProblem
from segtailor.core.job import Step
from segtailor.runs import Context, Layout, Policy, Quiet
from segtailor.spaces.decoder_cell.encoders import ENCODERS
from segtailor.verbs.report import report
from segtailor.verbs.resume import resume
from segtailor.verbs.search import search
from tests.strategies.tiny_encoder import TINY
from tests.systems.tiny import tiny_auxcells

POLICY = Policy(tensorboard=False, every_steps=1)


class Impatient(Quiet):
    """Stops a run after some steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def step(self, step: Step) -> None:  # noqa: ARG002 - the form of a display
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


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
    context = Context(cache=tmp_path / "cache", device="cpu", policy=POLICY)
    with pytest.raises(Interrupted):
        search(tiny_auxcells(), tmp_path / "a" / "run", context=replace(context, display=Impatient(steps)))
    tampered(tmp_path / "a" / "run", "../../x")
    with pytest.raises(RunProblem):
        resume(tmp_path / "a" / "run", context=context)
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


@pytest.mark.slow
def test_what_a_run_directory_tells_does_not_enter_the_cache_that_all_searches_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENCODERS, "tiny", TINY)
    context = Context(cache=tmp_path / "theirs", device="cpu", policy=POLICY)
    with pytest.raises(Interrupted):
        search(tiny_auxcells(), tmp_path / "run", context=replace(context, display=Impatient(5)))
    told = len(list((tmp_path / "theirs" / "trials").iterdir()))
    resume(tmp_path / "run", context=replace(context, cache=tmp_path / "mine"))
    assert told >= 2
    assert len(list((tmp_path / "mine" / "trials").iterdir())) <= 4 - told


def test_a_report_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text('{"kind": "train"}')
    (tmp_path / "run" / "report").symlink_to(tmp_path / "outside")
    with pytest.raises(RunProblem, match="symbolic link"):
        report([tmp_path / "run"])
    assert list((tmp_path / "outside").iterdir()) == []
