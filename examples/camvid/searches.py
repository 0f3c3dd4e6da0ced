"""Run the five systems' searches on CamVid for one device, each as a user would, and keep what the tables need.

    python examples/camvid/searches.py PATH --out runs/searches
    python examples/camvid/searches.py PATH --out runs/one --only lpsnet --target 'cpu/onnxruntime/fp32?threads=2'

The plan (`plans/searches.json`) says for each system what its search is called, its settings and its budget on an H200.
First every space is calibrated on the target, one after the other, for nothing may disturb a measurement; then searches
run, `--jobs` at a time. Each leaves `OUT/searches/NAME.json` (seconds, device, command, result) and the network that it
found, `OUT/networks/NAME.json` (`NAME-ROLE.json` for those of other roles): copied to `results/camvid`, `make results`
shows them, `plans/found.json` and `plans/combined.json` train them.
What has ended is not repeated, what was interrupted goes on. A row with a `target` of its own is for that one: its
latency table may come from another machine (`OUT/packs`).
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from study import anywhere

from segtailor.report.folder import open_run

SEED = 0
INTERRUPTED = 130  # what a shell says of a program that was stopped by Ctrl-C, and segtailor too
PLAN = Path(__file__).parent / "plans" / "searches.json"


def run(words: list[str]) -> tuple[dict[str, Any] | None, float]:
    """Call segtailor; return the document it prints, none where it failed, and the seconds it took."""
    started = time.monotonic()
    command = [sys.executable, "-m", "segtailor", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == INTERRUPTED:
        print(f"interrupted: segtailor {shlex.join(words[:2])}; call again to go on", flush=True)
        return None, time.monotonic() - started
    if done.returncode:
        print(f"failed: segtailor {shlex.join(words)}\n{done.stderr.strip()[-600:]}", flush=True)
        return None, time.monotonic() - started
    return json.loads(done.stdout), time.monotonic() - started


def calibrated(row: dict[str, Any], options: argparse.Namespace) -> None:
    """Time the operators of a system's space, unless that was done."""
    pack = pack_of(row, options)
    if pack.exists():
        return
    pack.parent.mkdir(parents=True, exist_ok=True)
    target = target_of(row, options)
    words = ["calibrate", "--space", row["space"], "--target", target, "--image", options.image]
    words += ["--classes", "11", "--minutes", str(options.calibrate), "--networks", str(options.networks)]
    settings = ["--set", *row["space_set"]] if "space_set" in row else []
    document, seconds = run([*words, "--out", str(pack), *settings])
    if document is not None:
        print(f"{row['name']}: calibrated in {seconds:.0f} s", flush=True)


def pack_of(row: dict[str, Any], options: argparse.Namespace) -> Path:
    return Path(options.out / "packs" / f"{row.get('pack', row['space'])}.json")


def target_of(row: dict[str, Any], options: argparse.Namespace) -> str:
    """Return what a system's networks are for; its search runs where this program runs all the same."""
    return str(row.get("target", options.target))


def command_of(row: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """Return what a user would type."""
    words = ["search", row["recipe"], "--data", f"camvid:{options.path}", "--image", options.image]
    words += [
        "--pack",
        str(pack_of(row, options)),
        "--budget",
        options.budget or row["budget"],
        "--seed",
        str(SEED),
    ]
    words += ["--out", str(options.out / row["name"]), *row.get("options", [])]
    space = [f"space.settings.{setting}" for setting in row.get("space_set", [])]
    settings = [*space, *row.get("set", []), *options.set]
    return [*words, "--set", *settings] if settings else words


def searched(row: dict[str, Any], options: argparse.Namespace) -> None:
    """Search, or go on with it; leave record and network."""
    record = options.out / "searches" / f"{row['name']}.json"
    if record.exists() or not pack_of(row, options).exists():
        return
    command, folder = command_of(row, options), options.out / row["name"]
    words = ["resume", str(folder)] if (folder / "recipe.json").exists() else command
    result, _ = run(words)
    if result is None:
        return
    for place in ("networks", "searches"):
        (options.out / place).mkdir(parents=True, exist_ok=True)
    roles = {f"-{role}": other for role, other in result.get("roles", {}).items()}
    for suffix, outcome in {"": result, **roles}.items():  # FasterSeg finds a teacher, too
        found = anywhere(Path(outcome["architecture"]).read_text(), options)
        (options.out / "networks" / f"{row['name']}{suffix}.json").write_text(found)
    seconds = open_run(folder).seconds or 0.0
    kept = {
        name: result[name] for name in ("quality", "cost", "unit", "warnings", "family") if name in result
    }
    told = {
        "name": row["name"],
        "seconds": round(seconds, 1),  # of all sessions
        "device": options.device_name,
        "target": target_of(row, options),
        "seed": SEED,
        "command": anywhere(shlex.join(["segtailor", *command]), options),
        "result": kept,
    }
    record.write_text(json.dumps(told, indent=1) + "\n")
    print(f"{row['name']}: {json.dumps(kept)[:200]} in {seconds:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", type=Path, help="folder of CamVid")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="cuda/graph/fp16?tune=0")
    parser.add_argument("--device-name", default="NVIDIA H200", help="what the tables call it")
    parser.add_argument("--image", default="360x480")
    parser.add_argument("--calibrate", type=float, default=1.0, help="minutes for each space")
    parser.add_argument("--networks", type=int, default=2, help="whole networks timed for each trust report")
    parser.add_argument("--jobs", type=int, default=5, help="searches at a time; 0 only calibrates")
    parser.add_argument("--budget", help="instead of the plan's, e.g. 30ms")
    parser.add_argument("--only", nargs="+", help="names of searches")
    parser.add_argument("--set", nargs="+", default=[], help="settings for all of them, on top of the plan's")
    options = parser.parse_args()
    rows = [
        row for row in json.loads(PLAN.read_text())["rows"] if not options.only or row["name"] in options.only
    ]
    for row in rows:
        calibrated(row, options)
    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        running = [pool.submit(searched, row, options) for row in rows if options.jobs]
        try:
            wait(running)
        except KeyboardInterrupt:  # each search was told, too, and saves what it has
            pool.shutdown(cancel_futures=True)
            sys.exit(INTERRUPTED)
        for search in running:
            search.result()  # raises what went wrong


if __name__ == "__main__":
    main()
