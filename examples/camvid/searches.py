"""Run the searches of the five systems on CamVid for one device, and record what the tables need.

    python examples/camvid/searches.py PATH --out runs/searches
    python examples/camvid/searches.py PATH --out runs/one --only lpsnet --target 'cpu/onnxruntime/fp32?threads=2'

The plan (`plans/searches.json`) has for each system the name of its search, its settings and its budget on an H200.
First every space is calibrated on the target, one after the other, so that no measurement is disturbed; then the
searches run, `--jobs` at a time. Each finished search adds a line to `OUT/searches.jsonl` (seconds, device, command,
result) and writes the network that it found to `OUT/networks/NAME.json` (`NAME-ROLE.json` for other roles). Copied to
`results/camvid`, they appear in the tables of `make results`, and `plans/found.json` trains the networks. Called again,
the program skips finished searches and resumes interrupted ones. A row with its own `target` searches for that target;
its latency table may come from another machine (`OUT/packs`).
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

from study import add_line, anywhere, read_lines

from segtailor.report.folder import open_run

SEED = 0
SEARCHES = "searches.jsonl"
INTERRUPTED = 130  # exit code after Ctrl-C, of a shell and of segtailor
PLAN = Path(__file__).parent / "plans" / "searches.json"


def run(words: list[str]) -> tuple[dict[str, Any] | None, float]:
    """Call segtailor; return the document it prints (None if it failed) and the seconds it took."""
    started = time.monotonic()
    command = [sys.executable, "-m", "segtailor", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == INTERRUPTED:
        print(f"interrupted: segtailor {shlex.join(words[:2])}; call again to resume", flush=True)
        return None, time.monotonic() - started
    if done.returncode:
        print(f"failed: segtailor {shlex.join(words)}\n{done.stderr.strip()[-600:]}", flush=True)
        return None, time.monotonic() - started
    return json.loads(done.stdout), time.monotonic() - started


def calibrate(row: dict[str, Any], options: argparse.Namespace) -> None:
    """Time the operators of a system's space, unless the pack exists."""
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
    """Return the target of a system's networks; the search itself always runs on this machine."""
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
    space = [f"space.{setting}" for setting in row.get("space_set", [])]
    settings = [*space, *row.get("set", []), *options.set]
    return [*words, "--set", *settings] if settings else words


def search(row: dict[str, Any], options: argparse.Namespace) -> None:
    """Search, or resume; write record and network."""
    if not pack_of(row, options).exists():
        return
    command, folder = command_of(row, options), options.out / row["name"]
    words = ["resume", str(folder)] if (folder / "recipe.json").exists() else command
    result, _ = run(words)
    if result is None:
        return
    (options.out / "networks").mkdir(parents=True, exist_ok=True)
    roles = {f"-{role}": other for role, other in result.get("roles", {}).items()}
    for suffix, outcome in {"": result, **roles}.items():  # FasterSeg finds a teacher, too
        architecture = anywhere(Path(outcome["architecture"]).read_text(), options)
        (options.out / "networks" / f"{row['name']}{suffix}.json").write_text(architecture)
    seconds = open_run(folder).seconds or 0.0
    summary = {
        name: result[name] for name in ("quality", "cost", "unit", "warnings", "family") if name in result
    }
    record = {
        "name": row["name"],
        "seconds": round(seconds, 1),  # sum over all sessions
        "device": options.device_name,
        "target": target_of(row, options),
        "seed": SEED,
        "command": anywhere(shlex.join(["segtailor", *command]), options),
        "result": summary,
    }
    add_line(options.out / SEARCHES, record)
    print(f"{row['name']}: {json.dumps(summary)[:200]} in {seconds:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", type=Path, help="folder of CamVid")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="cuda/graph/fp16?tune=0")
    parser.add_argument("--device-name", default="NVIDIA H200", help="name of the device in the tables")
    parser.add_argument("--image", default="360x480")
    parser.add_argument("--calibrate", type=float, default=1.0, help="minutes for each space")
    parser.add_argument("--networks", type=int, default=2, help="whole networks timed for each trust report")
    parser.add_argument("--jobs", type=int, default=5, help="searches at a time; 0 only calibrates")
    parser.add_argument("--budget", help="instead of the plan's, e.g. 30ms")
    parser.add_argument("--only", nargs="+", help="names of searches")
    parser.add_argument("--set", nargs="+", default=[], help="settings for all of them, on top of the plan's")
    options = parser.parse_args()
    done = {record["name"] for record in read_lines(options.out / SEARCHES)}
    rows = [
        row
        for row in json.loads(PLAN.read_text())["rows"]
        if row["name"] not in done and (not options.only or row["name"] in options.only)
    ]
    for row in rows:
        calibrate(row, options)
    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        running = [pool.submit(search, row, options) for row in rows if options.jobs]
        try:
            wait(running)
        except KeyboardInterrupt:  # each search gets the signal, too, and saves its state
            pool.shutdown(cancel_futures=True)
            sys.exit(INTERRUPTED)
        for future in running:
            future.result()  # raises the exception of a failed thread


if __name__ == "__main__":
    main()
