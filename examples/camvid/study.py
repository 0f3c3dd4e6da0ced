"""Train many variants on CamVid, several at once on one device, and print what pays.

    python examples/camvid/study.py PATH --out runs/camvid --plan examples/camvid/plans/recipe.json --jobs 4 --minutes 9

A plan is JSON: `common` settings (as after `segtailor train --set`), where images are to be brought to one first their
`size`, and `rows` with `name`, `network` (a name or a file beside the plan), `set`, `folds` (drives to leave out; "" is
the official split, "train+val" trains on both and scores on nothing), `seeds`, and `teachers`: names of other rows,
whose networks of the same fold and seed 0 are distilled from. What has ended is not repeated, what was interrupted goes
on. Each run's outcome is one small JSON file below `OUT/outcomes`, the table is printed last.
Several processes share a GPU well when CUDA's multi-process service is on (`nvidia-cuda-mps-control -d`).
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from segtailor.report.folder import open_run

LEAST_SECONDS = 45.0  # less is not worth starting a run for
LAST_WORDS = 15.0  # seconds for an interrupted run to write its checkpoint


class Training(NamedTuple):
    """One run of a plan."""

    row: dict[str, Any]
    common: list[str]
    fold: str
    seed: int
    place: Path  # of the plan: networks lie beside it
    size: str | None = None

    @property
    def name(self) -> str:
        return run_name(self.row["name"], self.fold, self.seed)

    def command(self, options: argparse.Namespace) -> list[str]:
        """Return what a user would type."""
        network = self.row["network"]
        file = self.place / network
        joined = "+" in self.fold
        wanted = [f"fold={self.fold}"] if self.fold and not joined else []
        wanted += [f"size={self.size}"] if self.size else []
        data = f"camvid:{options.path}" + ("?" + "&".join(wanted) if wanted else "")
        words = ["train", str(file) if file.exists() else network, "--data", data, "--seed", str(self.seed)]
        words += ["--out", str(options.out / self.name), "--no-check", "--json"]
        if self.row.get("teachers"):
            words += ["--teacher", str(self.teachers(options.out))]
        whole = [f"train_split={self.fold}", "val_split=null"] if joined else []
        return [*words, "--set", *self.common, *self.row.get("set", []), *whole]

    def teachers(self, out: Path) -> Path:
        """Return a folder that holds nothing but the runs of the teachers, as links."""
        folder = out / "teachers" / self.name
        folder.mkdir(parents=True, exist_ok=True)
        for name in (run_name(row, self.fold, 0) for row in self.row["teachers"]):
            if not (folder / name).exists():
                (folder / name).symlink_to((out / name).resolve(), target_is_directory=True)
        return folder


def run_name(row: str, fold: str, seed: int) -> str:
    return f"{row}-{fold or 'official'}-{seed}"


def trainings(plan: Path) -> list[Training]:
    """Return the runs of a plan, one fold after the other, so that every row has a figure early."""
    document = json.loads(plan.read_text())
    found = [
        Training(row, document["common"], fold, seed, plan.parent, document.get("size"))
        for row in document["rows"]
        for fold in row["folds"]
        for seed in row.get("seeds", [0])
    ]
    order = {fold: place for row in document["rows"] for place, fold in enumerate(row["folds"])}
    return sorted(found, key=lambda run: (bool(run.row.get("teachers")), run.seed, order[run.fold]))


def carry_out(run: Training, options: argparse.Namespace, *, ends: float) -> None:
    """Train, or go on with it; leave the outcome as a file."""
    outcome = options.out / "outcomes" / f"{run.name}.json"
    left = ends - time.monotonic()
    if outcome.exists() or left < LEAST_SECONDS:
        return
    folder = options.out / run.name
    command = run.command(options)
    words = ["resume", str(folder), "--json"] if (folder / "recipe.json").exists() else command
    done = _within(left, words)
    if done is None:
        print(f"{run.name}: not done; call again to go on", flush=True)
        return
    if done.returncode:
        print(f"{run.name}: failed: {done.stderr.strip()[-400:]}", flush=True)
        return
    result = json.loads(anywhere(done.stdout, options))
    record = {
        "name": run.row["name"],
        "network": run.row["network"],
        "fold": run.fold,
        "seed": run.seed,
        "seconds": round(open_run(folder).seconds or 0.0, 1),  # of all sessions
        "command": anywhere(shlex.join(["segtailor", *command]), options),
        "result": result,
    }
    outcome.parent.mkdir(parents=True, exist_ok=True)
    outcome.write_text(json.dumps(record, indent=1))
    score = f"{100 * result['miou']:.1f} in " if "miou" in result else ""
    print(f"{run.name}: {score}{record['seconds']} s", flush=True)


def _within(seconds: float, words: list[str]) -> subprocess.CompletedProcess[str] | None:
    """Run segtailor; when time is up, interrupt it as a user would, so that it keeps what it has."""
    command = [sys.executable, "-m", "segtailor", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            output, errors = running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            try:
                running.communicate(timeout=LAST_WORDS)
            except subprocess.TimeoutExpired:
                running.kill()
            return None
    return subprocess.CompletedProcess(command, running.returncode, output, errors)


def anywhere(text: str, options: argparse.Namespace) -> str:
    """Leave out where this machine keeps its files."""
    here = Path(__file__).parent
    for place, name in ((options.out, "RUNS"), (options.path, "PATH"), (here, "examples/camvid")):
        for spelling in (str(place.resolve()), str(place)):
            text = text.replace(spelling, name)
    return text


def table(out: Path) -> str:
    """Return a row for each name: mean IoU per fold (and spread over seeds), and the mean of the folds."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted((out / "outcomes").glob("*.json")):
        record = json.loads(file.read_text())
        if "miou" in record["result"]:  # final trainings have nothing left to score on
            found[record["name"]][record["fold"]].append(100 * record["result"]["miou"])
    folds = sorted({fold for row in found.values() for fold in row})
    lines = ["| row | " + " | ".join(fold or "val" for fold in folds) + " | mean over drives |"]
    lines.append("|---" * (len(folds) + 2) + "|")
    for name, row in found.items():
        cells = [_cell(row.get(fold, [])) for fold in folds]
        drives = [statistics.mean(row[fold]) for fold in folds if fold and fold in row]
        whole = len(drives) == len([fold for fold in folds if fold]) and drives
        lines.append(f"| {name} | {' | '.join(cells)} | {statistics.mean(drives):.1f} |" if whole else
                     f"| {name} | {' | '.join(cells)} | |")  # fmt: skip
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", type=Path, help="folder of CamVid")
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.minutes
    runs = trainings(options.plan)
    for late in (False, True):  # students wait for their teachers
        with ThreadPoolExecutor(options.jobs) as pool:
            for run in runs:
                if bool(run.row.get("teachers")) is late:
                    pool.submit(carry_out, run, options, ends=ends)
    print(table(options.out))


if __name__ == "__main__":
    main()
