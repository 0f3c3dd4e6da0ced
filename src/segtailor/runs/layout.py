"""The only place that knows the file names of a run directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
        return self.architectures / f"{fingerprint}.json"

    def plan(self, fingerprint: str) -> Path:
        """Return the file of the plan of one architecture."""
        return self.architectures / f"{fingerprint}.plan.json"

    def foreign(self) -> list[str]:
        """Name what lies in the folder although no run would put it there; hidden files do not count."""
        if not self.root.is_dir():
            return []
        ours = {getattr(self, name).name for name, kind in vars(Layout).items() if isinstance(kind, property)}
        return sorted(
            path.name
            for path in self.root.iterdir()
            if path.name not in ours and not path.name.startswith(".")
        )
