"""Time ONNX operators on this machine; needs only numpy and onnxruntime (Python 3.10 or newer).

Each file holds one operator between two light convolutions, `before_*` and `after_*`, which give it neighbours: the
runtime keeps feature maps in a layout of its own between convolutions, and an operator alone would pay for entering and
leaving it. Times are those that the runtime's own profiler takes of each kernel, so neither starting a session nor the
neighbours count. Of many runs the fastest counts: other programs only ever add time. The same code calibrates the
machine that segtailor itself runs on.

Usage: python board_runner.py [--threads N] [--seconds S], in the folder of manifest.json; writes results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

BEFORE, AFTER = "before_", "after_"
SUFFIX = "_kernel_time"
SETTLE = 2  # runs dropped at the start of each burst: caches and threads belong to another operator then
RESOLUTION_US = 0.5  # the profiler cuts off fractions of a microsecond
ROUNDS = 4
NETWORK_RUNS = 25  # of a whole network at least; the first fifth warms up
CHUNK = 32  # operators timed in turns


class Probe:
    """One operator in a session that profiles; bursts of several probes are meant to alternate."""

    def __init__(self, model: bytes | str, *, threads: int | None, spin: bool, prefix: str) -> None:
        options = session_options(threads, spin=spin)
        options.enable_profiling = True
        options.profile_file_prefix = prefix
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        rng = np.random.default_rng(0)
        self._feeds = {
            value.name: rng.standard_normal(value.shape, dtype=np.float32)
            for value in self._session.get_inputs()
        }
        self._kept: list[bool] = []

    def burst(self, seconds: float, *, runs: int = 4) -> None:
        """Run for `seconds`, at least `runs` times."""
        start, count = time.perf_counter(), 0
        while count < runs + SETTLE or time.perf_counter() - start < seconds:
            self._session.run(None, self._feeds)
            self._kept.append(count >= SETTLE)
            count += 1

    def reading(self) -> dict[str, Any]:
        """End the session and return microseconds, spread, number of runs and of kernels."""
        path = Path(self._session.end_profiling())
        events = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        times = operator_kernels(events)
        kept = np.array(self._kept)
        us = spread = middle = 0.0
        for durations in times.values():
            low, first, half, third = np.quantile(np.array(durations)[kept], [0, 0.25, 0.5, 0.75])
            us += low + RESOLUTION_US
            middle += half
            spread += third - first
        return {
            "us": round(float(us), 3),
            "spread": round(float(spread / middle), 4) if middle else 0.0,
            "runs": int(kept.sum()),
            "kernels": len(times),
        }


def session_options(threads: int | None, *, spin: bool) -> onnxruntime.SessionOptions:
    """Return the options that networks are deployed with; `spin` lets threads wait busily between kernels."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads or 0
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    return options


def operator_kernels(events: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the durations per run of each kernel between the neighbours, re-ordering of layouts included."""
    inside: dict[str, list[int]] = {}
    finished = False
    for event in events:
        name = event.get("name", "")
        if event.get("cat") != "Node" or not name.endswith(SUFFIX):
            finished = finished and name != "model_run"
            continue
        if name.startswith(AFTER):
            finished = True
        elif not name.startswith(BEFORE) and not finished:  # what follows `after` leaves the graph
            inside.setdefault(f"{event['args']['node_index']} {name}", []).append(event["dur"])
    return inside


def time_models(
    models: Sequence[bytes | str], *, threads: int | None, seconds: float, spin: bool = True
) -> list[dict[str, Any]]:
    """Time several operators in turns, about `seconds` each."""
    with tempfile.TemporaryDirectory() as folder:
        probes = [
            Probe(
                model, threads=threads, spin=spin, prefix=str(Path(folder) / f"{index}_")
            )  # or profiles get one name
            for index, model in enumerate(models)
        ]
        for _ in range(ROUNDS):
            for probe in probes:
                probe.burst(seconds / ROUNDS)
        return [probe.reading() for probe in probes]


def machine() -> dict[str, Any]:
    """Describe this machine as segtailor does."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip().lower() in ("model name", "hardware", "model"):
                cpu = value.strip() or cpu
                if name.strip() == "model name":
                    break
    return {
        "cpu": cpu,
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "gpus": [],
        "driver": None,
        "versions": {"python": platform.python_version(), "onnxruntime": metadata.version("onnxruntime")},
    }


def time_network(model: str, *, threads: int | None, seconds: float, spin: bool) -> dict[str, float]:
    """Time a whole network: milliseconds undisturbed, and the median."""
    options = session_options(threads, spin=spin)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {value.name: rng.standard_normal(value.shape, dtype=np.float32) for value in session.get_inputs()}
    times: list[float] = []
    while len(times) < NETWORK_RUNS or sum(times) < seconds:
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    steady = np.array(times[NETWORK_RUNS // 5 :]) * 1000
    return {"low_ms": float(steady.min()), "median_ms": float(np.median(steady))}


def main() -> None:
    """Time all files of the manifest, most used first, and write results.json as they come."""
    parser = argparse.ArgumentParser(description="Time the operators of manifest.json on this machine.")
    parser.add_argument(
        "--threads", type=int, help="threads to use; those asked for when the bundle was made"
    )
    parser.add_argument("--seconds", type=float, default=0.15, help="time per operator")
    chosen = parser.parse_args()
    folder = Path(__file__).resolve().parent
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    threads, spin = chosen.threads or manifest["threads"], manifest["spin"]
    document: dict[str, Any] = {
        "format": 1,
        "manifest": manifest,
        "threads": threads,
        "machine": machine(),
        "conditions": {"date": time.strftime("%Y-%m-%d"), "seconds_per_entry": chosen.seconds},
        "operators": {},
        "networks": {},
    }
    files = list(dict.fromkeys(manifest["calls"].values()))
    for first in range(0, len(files), CHUNK):
        chunk = files[first : first + CHUNK]
        paths = [str(folder / name) for name in chunk]
        readings = time_models(paths, threads=threads, seconds=chosen.seconds, spin=spin)
        document["operators"].update(zip(chunk, readings, strict=True))
        _report(folder, document, f"{first + len(chunk)} of {len(files)} operators timed")
    for count, name in enumerate(manifest["networks"], start=1):
        document["networks"][name] = time_network(
            str(folder / name), threads=threads, seconds=10 * chosen.seconds, spin=spin
        )
        _report(folder, document, f"{count} of {len(manifest['networks'])} networks timed")
    print("done: take results.json back and run `segtailor calibrate --import results.json`")  # noqa: T201


def _report(folder: Path, document: dict[str, Any], message: str) -> None:
    (folder / "results.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    print(message, flush=True)  # noqa: T201 - a script of its own


if __name__ == "__main__":
    main()
