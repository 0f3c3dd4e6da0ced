"""Read the result files of CamVid (`results/camvid/`): trainings, latencies, searches, what papers say."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import segtailor
from segtailor.core.plan import Count

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "camvid"
IMAGE, CLASSES = (360, 480), 11
DRIVES = ("0001TP", "0006R0", "0016E5")  # of train and val: what can be left out
OFFICIAL, WHOLE = "", "train+val"  # folds of the study besides drives


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A mean over seeds; the spread is their standard deviation, where there are several."""

    mean: float
    spread: float | None
    seeds: tuple[int, ...]

    def told(self) -> str:
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
        here = self.document
        return (
            str(here["target"]).partition("?")[0] == target
            and self.image == image
            and here["includes"] == "network"
            and (threads is None or here["threads"] == threads)
        )


@dataclass(frozen=True, kw_only=True)
class Results:
    """All records below a folder."""

    folder: Path

    @cached_property
    def outcomes(self) -> Mapping[str, tuple[dict[str, Any], ...]]:
        """Trainings by row: `ROW`, or `STUDY/ROW` where they lie in a folder of their own."""
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for file in sorted((self.folder / "outcomes").rglob("*.json")):
            record = _read(file)
            place = file.parent.relative_to(self.folder / "outcomes")
            found[(place / record["name"]).as_posix()].append(record)
        return {row: tuple(records) for row, records in found.items()}

    @cached_property
    def latencies(self) -> tuple[Latency, ...]:
        return tuple(self._latencies())

    @cached_property
    def literature(self) -> dict[str, Any]:
        return _read(self.folder / "literature.json")

    @cached_property
    def rows(self) -> dict[str, Any]:
        return _read(self.folder / "rows.json")

    def study(self, folder: str) -> list[str]:
        """Return the names of the rows of a study."""
        return [row.partition("/")[2] for row in self.outcomes if row.partition("/")[0] == folder]

    def score(self, row: str, fold: str) -> Figure | None:
        """Return the mIoU of a row on a drive that was left out, or on val."""
        found = self._by_seed(row, fold)
        if not found:
            return None
        spread = statistics.stdev(found.values()) if len(found) > 1 else None
        return Figure(mean=statistics.mean(found.values()), spread=spread, seeds=tuple(sorted(found)))

    def left_out(self, row: str) -> float | None:
        """Return the mean over all drives; none while one is missing."""
        found = [self.score(row, drive) for drive in DRIVES]
        means = [figure.mean for figure in found if figure is not None]
        return statistics.mean(means) if len(means) == len(DRIVES) else None

    def gain(self, row: str, base: str) -> float | None:
        """Return by how much a row is better than another one, over the drives and seeds that both were scored on."""
        gains = []
        for drive in DRIVES:
            mine, theirs = self._by_seed(row, drive), self._by_seed(base, drive)
            if seeds := mine.keys() & theirs.keys():
                gains.append(statistics.mean(mine[seed] - theirs[seed] for seed in seeds))
        return statistics.mean(gains) if gains else None

    def _by_seed(self, row: str, fold: str) -> dict[int, float]:
        return {
            record["seed"]: record["result"]["miou"]
            for record in self.outcomes.get(row, ())
            if record["fold"] == fold and "miou" in record["result"]
        }

    def network(self, row: str) -> str | None:
        """Return the network of a row: a name, or the file of an architecture."""
        records = self.outcomes.get(row, ())
        return self.found(records[0]["network"]) if records else None

    def names(self, row: str, *others: str) -> frozenset[str]:
        """Return every name under which the network of a row may have been timed."""
        known = (row, row.rpartition("/")[2], self.network(row) or row, *others)
        return frozenset([*known, *(Path(name).stem for name in known)])

    def found(self, network: str) -> str:
        """Return a network as `segtailor` takes it; files lie among the results or beside the plans."""
        places = (self.folder / "networks", ROOT / "examples" / "camvid" / "plans")
        return next((str(place / network) for place in places if (place / network).is_file()), network)

    def milliseconds(
        self, names: frozenset[str], target: str, image: tuple[int, int], *, threads: int | None = None
    ) -> float | None:
        """Return the median latency of a network that has any of the names; of several runs, their median."""
        found = [
            float(one.document["median_ms"])
            for one in self.latencies
            if one.network in names and one.fits(target, image, threads=threads)
        ]
        return statistics.median(found) if found else None

    def search(self, name: str) -> dict[str, Any] | None:
        file = self.folder / "searches" / f"{name}.json"
        return _read(file) if file.is_file() else None

    def _latencies(self) -> Iterator[Latency]:
        for file in sorted((self.folder / "latency").glob("*.json")):
            content = _read(file)
            name, told, _ = file.stem.partition("@")
            for document in content if isinstance(content, list) else [content]:
                network = Path(document["network"])
                own = network.stem if network.suffix == ".json" else network.name
                yield Latency(network=name if told else own, document=document)


def size(network: str) -> Count:
    """Count a network at the size and classes of CamVid."""
    return segtailor.count(network, image=IMAGE, classes=CLASSES)


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
