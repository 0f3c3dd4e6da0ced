"""The files of a run directory: their names, the JSON documents among them, and which files belong to a run."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from segtailor.core.codec import Json, canonical, read_json
from segtailor.core.errors import RunProblem

HEAD_BYTES = 2**16  # read from the beginning of a file to recognise it
FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")
FRONTS = "front"  # folder of the networks that a search kept with their weights
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # without any part that leads elsewhere


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
    def fronts(self) -> Path:
        """Bundles of the networks on the front of a search whose networks share weights, one folder each."""
        return self.root / FRONTS

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

    def front(self, fingerprint: str) -> Path:
        """Return the bundle of one network on the front of a search whose networks share weights."""
        self._check(fingerprint)
        return self.fronts / fingerprint

    def stage(self, name: str) -> Path:
        """Return the run directory of a stage, or of one of its parts."""
        if not PLAIN_NAME.fullmatch(name):  # names of networks come from files of the run
            raise RunProblem(
                f"a stage of {self.root} asks for a folder called {name[:100]!r}, which is no plain name. Its files "
                "are damaged or were tampered with; start again in another folder."
            )
        return self.stages / name

    def own(self, path: Path) -> Path:
        """Return a path below the run directory; `RunProblem` if it, or a folder on the way to it, is a link.

        What a link leads to may lie outside. The run directory itself may be a link, because the user named it.
        """
        place = self.root
        for part in path.relative_to(self.root).parts:
            place /= part
            if place.is_symlink():
                raise RunProblem(
                    f"{place} is a symbolic link, and of a run only its own files are read. Put what it leads to in "
                    "its place, or remove it."
                )
        return path

    def refuse_links(self, *paths: Path) -> None:
        """Raise `RunProblem` if a file of the run, or one of `paths`, is a symbolic link: nothing outside may change.

        The run directory itself may be a link, because the user named it.
        """
        for path in paths or self._all_paths():
            link = next(_links(path), None)
            if link is not None:
                raise RunProblem(
                    f"{link} is a symbolic link, and a run writes nothing outside its own folder. Put what it leads to "
                    "in its place, or remove it."
                )

    def foreign(self) -> list[str]:
        """Name the files in a folder without a recipe that no run wrote; hidden files are ignored.

        A run that failed before the end of its first step leaves lock, journal and environment. Every other file is
        foreign, even if its name is one that a run uses.
        """
        if not self.root.is_dir():
            return []
        leftovers = {self.lock: _is_lock, self.journal: _is_journal, self.environment: _is_environment}
        return sorted(
            path.name
            for path in self.root.iterdir()
            if not path.name.startswith(".") and not (path in leftovers and leftovers[path](path))
        )

    def remove_failed_start(self) -> None:
        """Remove the files of a run that failed at its start, except lock, journal and environment."""
        for path in self._all_paths():
            if path in (self.root, self.lock, self.journal, self.environment) or path.is_symlink():
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _all_paths(self) -> list[Path]:
        return [getattr(self, name) for name, kind in vars(Layout).items() if isinstance(kind, property)]

    def _check(self, fingerprint: object) -> None:
        """Refuse text that is no fingerprint: it is read from files and becomes a file name."""
        if not isinstance(fingerprint, str) or not FINGERPRINT.fullmatch(fingerprint):
            raise RunProblem(
                f"the run {self.root} calls an architecture {str(fingerprint)[:100]!r}, which is no fingerprint. Its "
                "files are damaged or were tampered with; start again in another folder."
            )


def read_recipe(folder: Path) -> dict[str, Json]:
    """Return the recipe of a run."""
    return _read_object(Layout(folder).recipe, what="recipe")


def read_result(folder: Path) -> dict[str, Json] | None:
    """Return the result of a finished run, None for one that is not finished."""
    path = Layout(folder).result
    return _read_object(path, what="result") if path.exists() else None


def read_environment(folder: Path) -> dict[str, Json]:
    """Return the environment of the first session of a run."""
    return _read_object(Layout(folder).environment, what="environment")


def _read_object(path: Path, *, what: str) -> dict[str, Json]:
    data = read_json(path, what=what, error=RunProblem)
    if not isinstance(data, dict):
        raise RunProblem(f"{what} {path} is no JSON object; restore the file or start in another folder.")
    try:
        canonical(data)
    except ValueError:
        raise RunProblem(
            f"{what} {path} holds numbers that are not finite; restore the file or start in another folder."
        ) from None
    return data


def _is_lock(path: Path) -> bool:
    text = _beginning(path)
    return text is not None and (not text or {"pid", "host"} <= _fields(text))


def _is_journal(path: Path) -> bool:
    text = _beginning(path)
    return text is not None and (not text or {"kind", "time"} <= _fields(text.split(b"\n", 1)[0]))


def _is_environment(path: Path) -> bool:
    return {"python", "platform", "packages"} <= _fields(_beginning(path) or b"")


def _beginning(path: Path) -> bytes | None:
    """Return the first bytes of a regular file, None for anything else."""
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as stream:
        return stream.read(HEAD_BYTES)


def _fields(text: bytes) -> set[str]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return set()
    return set(document) if isinstance(document, dict) else set()


def _links(path: Path) -> Iterator[Path]:
    """Yield the symbolic links at and below a path; links are not followed."""
    if path.is_symlink():
        yield path
    elif path.is_dir():
        for folder, folders, files in os.walk(path):
            for name in sorted([*folders, *files]):
                if (Path(folder) / name).is_symlink():
                    yield Path(folder) / name
