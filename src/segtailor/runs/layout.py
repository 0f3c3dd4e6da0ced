"""The only place that knows the file names of a run directory."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from segtailor.core.errors import RunProblem

LOOK = 2**16  # bytes of a file that tell whose it is
FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True)
class Layout:
    """Names inside one run directory.

    The journal is also the metrics file: one JSON object per line. `result.json` exists exactly when the run
    is finished.
    """

    root: Path

    @property
    def recipe(self) -> Path:
        """Everything needed to run again."""
        return self.root / "recipe.json"

    @property
    def environment(self) -> Path:
        """Versions and machine of the first session."""
        return self.root / "environment.json"

    @property
    def journal(self) -> Path:
        """Append-only record of steps and events."""
        return self.root / "journal.jsonl"

    @property
    def result(self) -> Path:
        """Outcome of a finished run."""
        return self.root / "result.json"

    @property
    def lock(self) -> Path:
        """Held by the one process that writes."""
        return self.root / "lock"

    @property
    def checkpoints(self) -> Path:
        """Folders `step-000123`, newest last."""
        return self.root / "checkpoints"

    @property
    def events(self) -> Path:
        """TensorBoard's view of the journal."""
        return self.root / "events"

    @property
    def cost_table(self) -> Path:
        """Measured prices."""
        return self.root / "cost_table.json"

    @property
    def benchmark(self) -> Path:
        """Measured latency."""
        return self.root / "benchmark.json"

    @property
    def architectures(self) -> Path:
        """Found architectures and their plans, by fingerprint."""
        return self.root / "architectures"

    @property
    def supernet(self) -> Path:
        """Trained supernet of a search by gradients."""
        return self.root / "supernet"

    @property
    def weights(self) -> Path:
        """Trained bundles."""
        return self.root / "weights"

    @property
    def deploy(self) -> Path:
        """Exported model and its verification."""
        return self.root / "deploy"

    @property
    def report(self) -> Path:
        """What people read."""
        return self.root / "report"

    @property
    def stages(self) -> Path:
        """Runs within this run, one folder each."""
        return self.root / "stages"

    def architecture(self, fingerprint: str) -> Path:
        """Return the file of one architecture."""
        self._check(fingerprint)
        return self.architectures / f"{fingerprint}.json"

    def plan(self, fingerprint: str) -> Path:
        """Return the file of the plan of one architecture."""
        self._check(fingerprint)
        return self.architectures / f"{fingerprint}.plan.json"

    def refuse_links(self, *places: Path) -> None:
        """Raise where something of the run (or only these places) is a symbolic link: a run writes inside itself alone.

        The run directory itself may be one: its user named it.
        """
        for place in places or self._ours():
            link = next(_links(place), None)
            if link is not None:
                raise RunProblem(
                    f"{link} is a symbolic link, and a run writes nothing outside its own folder. Put what it leads to "
                    "in its place, or remove it."
                )

    def _ours(self) -> list[Path]:
        return [getattr(self, name) for name, kind in vars(Layout).items() if isinstance(kind, property)]

    def _check(self, fingerprint: object) -> None:
        """Refuse what is no fingerprint: it comes from files, and becomes the name of one."""
        if not isinstance(fingerprint, str) or not FINGERPRINT.fullmatch(fingerprint):
            raise RunProblem(
                f"the run {self.root} calls an architecture {str(fingerprint)[:100]!r}, which is no fingerprint. Its "
                "files are damaged or were tampered with; start again in another folder."
            )

    def foreign(self) -> list[str]:
        """Name what lies in a folder without a recipe although no run left it there; hidden files do not count.

        A run that failed before its first step ended leaves lock, journal and environment. Anything else, also under a
        name that a run would use, belongs to somebody.
        """
        if not self.root.is_dir():
            return []
        left = {self.lock: _is_lock, self.journal: _is_journal, self.environment: _is_environment}
        return sorted(
            path.name
            for path in self.root.iterdir()
            if not path.name.startswith(".") and not (path in left and left[path](path))
        )

    def take_back(self) -> None:
        """Remove what a run made in a folder that held nothing, all but what it leaves (see `foreign`)."""
        for path in self._ours():
            if path in (self.root, self.lock, self.journal, self.environment) or path.is_symlink():
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _is_lock(path: Path) -> bool:
    text = _beginning(path)
    return text is not None and (not text or {"pid", "host"} <= _fields(text))


def _is_journal(path: Path) -> bool:
    text = _beginning(path)
    return text is not None and (not text or {"kind", "time"} <= _fields(text.split(b"\n", 1)[0]))


def _is_environment(path: Path) -> bool:
    return {"python", "platform", "packages"} <= _fields(_beginning(path) or b"")


def _beginning(path: Path) -> bytes | None:
    """Return how a file begins, nothing for what is no file."""
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as stream:
        return stream.read(LOOK)


def _fields(text: bytes) -> set[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return set()
    return set(found) if isinstance(found, dict) else set()


def _links(place: Path) -> Iterator[Path]:
    """Yield the symbolic links at and below a place, none of which is followed."""
    if place.is_symlink():
        yield place
    elif place.is_dir():
        for folder, folders, files in os.walk(place):
            for name in sorted([*folders, *files]):
                if (Path(folder) / name).is_symlink():
                    yield Path(folder) / name
