"""Checkpoints of a job: folders `step-000123`, each complete or absent, of which the newest few are kept.

The manifest (size and SHA-256 of every file) is written last, and the folder is renamed when it is complete, so that
a crash leaves the earlier checkpoints as they were. A file that was cut or changed later is detected on loading;
then the checkpoint before is used.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segtailor.core.atomic import new_folder, write_json
from segtailor.core.codec import read_json
from segtailor.core.errors import RunProblem, UserError
from segtailor.core.job import Job

MANIFEST = "manifest.json"
FORMAT = 1  # of the manifest
FOLDER_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """The checkpoints of one run; the newest `keep` are kept."""

    folder: Path
    keep: int = 2

    def save(self, job: Job, step: int) -> None:
        """Save the state after step number `step`; a failure leaves the earlier checkpoints as they were."""
        with new_folder(self.folder / f"step-{step:06d}", what="checkpoint") as folder:
            job.save(folder)
            files = {name: _describe(folder / name) for name in _files(folder)}
            write_json(
                folder / MANIFEST,
                {"format": FORMAT, "step": step, "files": files},
                what="checkpoint manifest",
            )
        kept = [number for number in self.steps() if number <= step][-self.keep :]
        for number in self.steps():
            if number not in kept:  # too old, or ahead of a step that is repeated after damage
                shutil.rmtree(self._path(number), ignore_errors=True)

    def load(self, job: Job, *, warn: Callable[[str], None], expected: bool = False) -> int:
        """Restore the newest sound checkpoint into the job and return its step number; 0 when there was none.

        Damaged checkpoints without a sound one are an error, and so are none at all where the journal says that one
        was saved (`expected`): starting again would silently lose work.
        """
        faults: list[str] = []
        for step in reversed(self.steps()):
            fault = self._fault(self._path(step))
            if fault is None:
                for problem in faults:
                    warn(f"{problem}; going on from step {step} instead.")
                _restore(job, self._path(step))
                return step
            faults.append(fault)
        if not faults and not expected:
            return 0
        raise RunProblem(
            f"no usable checkpoint in {self.folder} ({'; '.join(faults) or 'the folder has none'}), "
            "although the run had saved one. Restore the files, or start again in another folder."
        )

    def steps(self) -> list[int]:
        """Return the step numbers of all checkpoints, oldest first."""
        return sorted(self._folders())

    def _path(self, step: int) -> Path:
        return self._folders()[step]

    def _folders(self) -> dict[int, Path]:
        if not self.folder.is_dir():
            return {}
        names = ((FOLDER_NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return {int(match[1]): path for match, path in names if match}

    def _fault(self, folder: Path) -> str | None:
        """Say what is wrong with a checkpoint, None if it is sound."""
        try:
            manifest = read_json(folder / MANIFEST, what="checkpoint manifest")
            files = dict(manifest["files"])
        except (UserError, KeyError, TypeError, ValueError):
            return f"checkpoint {folder.name} is damaged (no valid {MANIFEST})"
        for name, expected in files.items():
            path = folder / name
            if not path.is_file() or _describe(path) != expected:
                return f"checkpoint {folder.name} is damaged ({name} is missing, cut or changed)"
        return None


def _restore(job: Job, folder: Path) -> None:
    """Let the job read a checkpoint that is complete but may belong to another run."""
    try:
        job.load(folder)
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, OSError) as problem:
        if "memory" in str(problem).lower():
            raise
        reason = " ".join(str(problem).split())[:200]
        raise RunProblem(
            f"checkpoint {folder} is not one of this run ({type(problem).__name__}: {reason}). "
            "Restore the checkpoints of this run, or start again in another folder."
        ) from problem


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
