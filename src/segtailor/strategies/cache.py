"""Results by what they depend on, so that no architecture is trained twice the same way; optionally on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from segtailor.core.atomic import write_json
from segtailor.core.codec import fingerprint, from_json, read_json, to_json
from segtailor.core.errors import UserError
from segtailor.core.strategy import Evaluator, Trial, TrialResult


class Cache:
    """Finished results by (architecture, evaluator settings, data, budget), shared between searches by a folder."""

    def __init__(self, evaluator: Evaluator, folder: Path | None = None) -> None:
        self._evaluator = evaluator
        self._folder = folder
        self._known: dict[str, TrialResult] = {}

    def get(self, trial: Trial) -> TrialResult | None:
        """Return the result of an equal trial under this trial's id."""
        key = self._key(trial)
        found = self._known.get(key) or self._read(key)
        return replace(found, id=trial.id, cached=True) if found else None

    def put(self, trial: Trial, result: TrialResult, *, told: bool = False) -> None:
        """Keep a result; failures are not kept, they may have outside reasons.

        One that a run directory `told` stays in memory: it may be somebody else's word, and the folder is for all.
        """
        if result.status != "done":
            return
        key = self._key(trial)
        self._known[key] = result
        if self._folder is not None and not result.cached and not told:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_json(self._folder / f"{key}.json", to_json(result), what="trial cache")

    def _key(self, trial: Trial) -> str:
        identity = {name: trial.architecture[name] for name in ("family", "architecture")}
        how = {"work": self._evaluator.work, "settings": dict(trial.evaluator), "data": self._evaluator.data}
        return fingerprint({**identity, **how, "budget": trial.budget})

    def _read(self, key: str) -> TrialResult | None:
        if self._folder is None or not (self._folder / f"{key}.json").exists():
            return None
        try:
            document = read_json(self._folder / f"{key}.json", what="trial cache")
            return from_json(TrialResult, document, what="trial cache")
        except UserError:
            return None  # damaged: the trial runs again and replaces the file
