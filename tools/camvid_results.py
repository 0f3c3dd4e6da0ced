"""Read the tables of results on CamVid (`results/camvid/`): trainings, latencies, searches, published figures."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import segtailor
from segtailor.core.plan import Count

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "camvid"
OUTCOMES, LATENCY, SEARCHES = "outcomes.jsonl", "latency.jsonl", "searches.jsonl"  # one JSON record per line
ROWS, LITERATURE, TEST_SCORES = "rows.json", "literature.json", "test_scores.json"
IMAGE, CLASSES = (360, 480), 11
DRIVES = ("0001TP", "0006R0", "0016E5")  # drives of train and val, each left out once
OFFICIAL = ""  # fold of the official split: trained on train, scored on val


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A mean over seeds; `spread` is the standard deviation, None for a single seed."""

    mean: float
    spread: float | None
    seeds: tuple[int, ...]

    def percent(self) -> str:
        spread = f" ± {100 * self.spread:.1f}" if self.spread is not None else ""
        return f"{100 * self.mean:.1f}{spread}"


@dataclass(frozen=True, kw_only=True)
class Latency:
    """One measurement of a network, as `segtailor bench --json` printed it."""

    network: str
    document: Mapping[str, Any]

    @property
    def image(self) -> tuple[int, int]:
        _, height, width = self.document["inputs"][0]
        return height, width

    @property
    def hardware(self) -> str:
        machine = self.document["machine"]
        if str(self.document["target"]).startswith("cuda"):
            return str(machine["gpus"][0])
        return f"{machine['cpu']}, {self.document['threads'] or machine['cores']} cores"

    def fits(self, target: str, image: tuple[int, int], *, threads: int | None = None) -> bool:
        """Tell whether the network alone was measured on a target, at an image size, with a number of threads."""
        document = self.document
        return (
            str(document["target"]).partition("?")[0] == target
            and self.image == image
            and document["includes"] == "network"
            and (threads is None or document["threads"] == threads)
        )


@dataclass(frozen=True, kw_only=True)
class Results:
    """All records of a folder."""

    folder: Path

    @cached_property
    def outcomes(self) -> Mapping[str, tuple[dict[str, Any], ...]]:
        """Trainings by row, which is called `STUDY/NAME`."""
        trainings: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for record in read_lines(self.folder / OUTCOMES):
            trainings[f"{record['study']}/{record['name']}"].append(record)
        return {row: tuple(records) for row, records in trainings.items()}

    @cached_property
    def latencies(self) -> tuple[Latency, ...]:
        """All measurements; `name` says which network was measured, without it `network` does."""
        return tuple(
            Latency(network=document.get("name") or _stem(document["network"]), document=document)
            for document in read_lines(self.folder / LATENCY)
        )

    @cached_property
    def searches(self) -> dict[str, dict[str, Any]]:
        """Searches by name."""
        return {record["name"]: record for record in read_lines(self.folder / SEARCHES)}

    @cached_property
    def literature(self) -> dict[str, Any]:
        return _read(self.folder / LITERATURE)

    @cached_property
    def test_scores(self) -> dict[str, Any]:
        """Scores of shipped weights on the official test split, by name, and where they come from."""
        return _read(self.folder / TEST_SCORES)

    @cached_property
    def rows(self) -> dict[str, Any]:
        return _read(self.folder / ROWS)

    def names_of(self, study: str) -> list[str]:
        """Return the names of the rows of a study."""
        return [row.partition("/")[2] for row in self.outcomes if row.partition("/")[0] == study]

    def score(self, row: str, fold: str) -> Figure | None:
        """Return the mIoU of a row on a drive that was left out, or on val."""
        by_seed = self._by_seed(row, fold)
        if not by_seed:
            return None
        spread = statistics.stdev(by_seed.values()) if len(by_seed) > 1 else None
        return Figure(mean=statistics.mean(by_seed.values()), spread=spread, seeds=tuple(sorted(by_seed)))

    def left_out(self, row: str) -> float | None:
        """Return the mean over all drives, or None if one is missing."""
        figures = [self.score(row, drive) for drive in DRIVES]
        means = [figure.mean for figure in figures if figure is not None]
        return statistics.mean(means) if len(means) == len(DRIVES) else None

    def gain(self, row: str, base: str) -> float | None:
        """Return the mean gain of a row over another one; only drives and seeds that both rows have count."""
        gains = []
        for drive in DRIVES:
            changed, unchanged = self._by_seed(row, drive), self._by_seed(base, drive)
            if seeds := changed.keys() & unchanged.keys():
                gains.append(statistics.mean(changed[seed] - unchanged[seed] for seed in seeds))
        return statistics.mean(gains) if gains else None

    def _by_seed(self, row: str, fold: str) -> dict[int, float]:
        return {
            record["seed"]: record["result"]["miou"]
            for record in self.outcomes.get(row, ())
            if record["fold"] == fold and "miou" in record["result"]
        }

    def network(self, row: str) -> str | None:
        """Return the network of a row: a registered name, or the path of an architecture file."""
        records = self.outcomes.get(row, ())
        return network_path(records[0]["network"]) if records else None

    def names(self, row: str, *others: str) -> frozenset[str]:
        """Return every name under which the latency of a row's network may be recorded."""
        known = (row, row.rpartition("/")[2], self.network(row) or row, *others)
        return frozenset([*known, *(Path(name).stem for name in known)])

    def milliseconds(
        self, names: frozenset[str], target: str, image: tuple[int, int], *, threads: int | None = None
    ) -> float | None:
        """Return the median latency of a network with any of the names; the median of several measurements."""
        medians = [
            float(latency.document["median_ms"])
            for latency in self.latencies
            if latency.network in names and latency.fits(target, image, threads=threads)
        ]
        return statistics.median(medians) if medians else None


def network_path(network: str) -> str:
    """Return a network as `segtailor` takes it; files are named relative to the repository."""
    file = ROOT / network
    return str(file) if file.is_file() else network


def size(network: str) -> Count:
    """Count a network at the image size and number of classes of CamVid."""
    return segtailor.count(network, image=IMAGE, classes=CLASSES)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Read a file of JSON records, one per line."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _stem(network: str) -> str:
    path = Path(network)
    return path.stem if path.suffix == ".json" else path.name


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
