"""Train many variants on CamVid, several at once on one device, and print a table of their scores.

    python examples/camvid/study.py PATH --out runs/camvid --plan examples/camvid/plans/recipe.json --jobs 4 --minutes 9

A plan is a JSON file: `common` has settings for all rows (as after `segtailor train --set`), `size` (optional) an image
size such as 120x160 to which all images are resized first. Each of `rows` has a `name`, a `network` (a name, or a file
relative to the repository), `set`, `folds` (drives to leave out; "" is the official split, "train+val" trains on both
and validates on nothing), `seeds`, and `teachers`: names of other rows, whose networks of the same fold and seed 0 are
the teachers of a distillation.

Each finished training adds a line to `OUT/outcomes.jsonl`; `cat` it to `results/camvid/outcomes.jsonl` to have it in
the tables of `make results`. Called again, the program skips finished trainings and resumes interrupted ones. Several
processes share a GPU well when CUDA's multi-process service is on (`nvidia-cuda-mps-control -d`).
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from segtailor.report.folder import open_run

ROOT = Path(__file__).resolve().parents[2]
OUTCOMES = "outcomes.jsonl"
MIN_SECONDS_LEFT = 45.0  # with less time left, no run is started
CHECKPOINT_SECONDS = 15.0  # time for an interrupted run to write its checkpoint
WRITING = threading.Lock()  # held while a line is added to a file


class Training(NamedTuple):
    """One run of a plan."""

    study: str  # name of the plan
    row: dict[str, Any]
    common: list[str]
    fold: str
    seed: int
    size: str | None = None

    @property
    def name(self) -> str:
        return run_name(self.row["name"], self.fold, self.seed)

    def command(self, options: argparse.Namespace) -> list[str]:
        """Return what a user would type."""
        joined = "+" in self.fold
        query = [f"fold={self.fold}"] if self.fold and not joined else []
        query += [f"size={self.size}"] if self.size else []
        data = f"camvid:{options.path}" + ("?" + "&".join(query) if query else "")
        words = ["train", self.network(), "--data", data, "--seed", str(self.seed)]
        words += ["--out", str(options.out / self.name), "--no-check", "--json"]
        if self.row.get("teachers"):
            words += ["--teacher", str(self.teachers(options.out))]
        splits = [f"train_split={self.fold}", "val_split=null"] if joined else []
        return [*words, "--set", *self.common, *self.row.get("set", []), *splits]

    def network(self) -> str:
        """Return the network as `segtailor train` takes it."""
        file = ROOT / self.row["network"]
        return str(file if file.is_file() else self.row["network"])

    def teachers(self, out: Path) -> Path:
        """Return a folder with links to the runs of the teachers, and nothing else."""
        folder = out / "teachers" / self.name
        folder.mkdir(parents=True, exist_ok=True)
        for name in (run_name(row, self.fold, 0) for row in self.row["teachers"]):
            if not (folder / name).exists():
                (folder / name).symlink_to((out / name).resolve(), target_is_directory=True)
        return folder


def run_name(row: str, fold: str, seed: int) -> str:
    return f"{row}-{fold or 'official'}-{seed}"


def trainings(plan: Path) -> list[Training]:
    """Return the runs of a plan: teachers first, then seed by seed, fold by fold: all rows are scored early."""
    document = json.loads(plan.read_text())
    runs = [
        Training(plan.stem, row, document["common"], fold, seed, document.get("size"))
        for row in document["rows"]
        for fold in row["folds"]
        for seed in row.get("seeds", [0])
    ]
    order = {fold: index for row in document["rows"] for index, fold in enumerate(row["folds"])}
    return sorted(runs, key=lambda run: (bool(run.row.get("teachers")), run.seed, order[run.fold]))


def carry_out(run: Training, options: argparse.Namespace, *, ends: float) -> None:
    """Train, or resume; add the outcome to the file of outcomes."""
    left = ends - time.monotonic()
    if left < MIN_SECONDS_LEFT:
        return
    folder = options.out / run.name
    command = run.command(options)
    words = ["resume", str(folder), "--json"] if (folder / "recipe.json").exists() else command
    done = _within(left, words)
    if done is None:
        print(f"{run.name}: not done; call again to resume", flush=True)
        return
    if done.returncode:
        print(f"{run.name}: failed: {done.stderr.strip()[-400:]}", flush=True)
        return
    result = json.loads(anywhere(done.stdout, options))
    record = {
        "study": run.study,
        "name": run.row["name"],
        "network": run.row["network"],
        "fold": run.fold,
        "seed": run.seed,
        "seconds": round(open_run(folder).seconds or 0.0, 1),  # sum over all sessions
        "command": anywhere(shlex.join(["segtailor", *command]), options),
        "result": result,
    }
    add_line(options.out / OUTCOMES, record)
    score = f"{100 * result['miou']:.1f} in " if "miou" in result else ""
    print(f"{run.name}: {score}{record['seconds']} s", flush=True)


def _within(seconds: float, words: list[str]) -> subprocess.CompletedProcess[str] | None:
    """Run segtailor; when time is up, interrupt it as Ctrl-C does, so that it writes a checkpoint."""
    command = [sys.executable, "-m", "segtailor", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            output, errors = running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            try:
                running.communicate(timeout=CHECKPOINT_SECONDS)
            except subprocess.TimeoutExpired:
                running.kill()
            return None
    return subprocess.CompletedProcess(command, running.returncode, output, errors)


def anywhere(text: str, options: argparse.Namespace) -> str:
    """Replace the folders of this machine by RUNS and PATH; files of the repository are named relative to it."""
    for folder, name in ((options.out, "RUNS"), (options.path, "PATH")):
        for spelling in (str(folder.resolve()), str(folder)):
            text = text.replace(spelling, name)
    return text.replace(f"{ROOT}/", "")


def add_line(file: Path, record: dict[str, Any]) -> None:
    """Add a record to a file that has one JSON record per line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with WRITING, file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Read a file that has one JSON record per line; none if there is no file yet."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def finished(out: Path) -> set[str]:
    """Return the names of the runs whose outcomes are recorded."""
    return {run_name(record["name"], record["fold"], record["seed"]) for record in read_lines(out / OUTCOMES)}


def table(out: Path) -> str:
    """Return a row for each name: mean IoU per fold (and spread over seeds), and the mean of the folds."""
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in read_lines(out / OUTCOMES):
        if "miou" in record["result"]:  # trainings on train+val have no score
            scores[record["name"]][record["fold"]].append(100 * record["result"]["miou"])
    folds = sorted({fold for row in scores.values() for fold in row})
    lines = ["| row | " + " | ".join(fold or "val" for fold in folds) + " | mean over drives |"]
    lines.append("|---" * (len(folds) + 2) + "|")
    for name, row in sorted(scores.items()):
        cells = [_cell(row.get(fold, [])) for fold in folds]
        drives = [statistics.mean(row[fold]) for fold in folds if fold and fold in row]
        complete = drives and len(drives) == len([fold for fold in folds if fold])
        mean = f" {statistics.mean(drives):.1f} |" if complete else " |"
        lines.append(f"| {name} | {' | '.join(cells)} |{mean}")
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
    parser.add_argument("--minutes", type=float, default=60.0, help="when to stop; the next call resumes")
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.minutes
    done = finished(options.out)
    runs = [run for run in trainings(options.plan) if run.name not in done]
    for late in (False, True):  # students wait for their teachers
        with ThreadPoolExecutor(options.jobs) as pool:
            for run in runs:
                if bool(run.row.get("teachers")) is late:
                    pool.submit(carry_out, run, options, ends=ends)
    print(table(options.out))


if __name__ == "__main__":
    main()
