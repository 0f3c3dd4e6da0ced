"""Run directories as the recipes write them, made in milliseconds: the documents are real, the figures invented."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from segtailor.core.plan import Shape
from segtailor.core.space import architecture_document, fingerprint_of
from segtailor.core.target import parse_target
from segtailor.core.variation import sample
from segtailor.costs.pack import Checked, Pack
from segtailor.costs.trust import judge
from segtailor.data.synthetic import TASK
from segtailor.runs import Layout
from segtailor.spaces import published
from segtailor.spaces.scalable_path import ScalablePath

IMAGE = (128, 256)


def write(folder: Path, name: str, data: Any) -> None:
    """Write one JSON file of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(data))


def journal(folder: Path, entries: list[Mapping[str, Any]]) -> None:
    """Write the journal, one entry a second."""
    lines = [json.dumps({"time": 1000.0 + second, **entry}) for second, entry in enumerate(entries)]
    (folder / "journal.jsonl").write_text("".join(line + "\n" for line in lines))


def steps(count: int, phase: str, **metrics: float) -> list[dict[str, Any]]:
    """Return the entries of a session that took so many steps; metrics shrink with the steps."""
    rows: list[dict[str, Any]] = [{"kind": "start", "step": 0, "pid": 1}]
    for number in range(1, count + 1):
        values = {name: value / number for name, value in metrics.items()}
        rows.append(
            {
                "kind": "step",
                "step": number,
                "phase": phase,
                "done": number,
                "total": count,
                "metrics": values,
            }
        )
    return rows


def environment(folder: Path) -> None:
    """Write versions and machine."""
    write(
        folder,
        "environment.json",
        {"python": "3.11.7", "cpus": 2, "packages": {"torch": "2.13.0", "numpy": "2.4.6"}},
    )


def train_run(folder: Path, *, seed: int = 0, miou: float = 0.41, finished: bool = True) -> Path:
    """Make a training run."""
    recipe = {
        "kind": "train",
        "architecture": architecture_document(published("lpsnet-step0")),
        "data": "synthetic:size=128x256",
        "augment": {"crop": list(IMAGE), "flip": 0.5},
        "fit": {"seed": seed, "lr": 0.01, "epochs": 3},
        "val_split": "val",
    }
    write(folder, "recipe.json", recipe)
    environment(folder)
    rows = steps(8, "train", loss=2.0, lr=0.01, miou=miou)
    journal(
        folder,
        [*rows, {"kind": "end", "step": 8}]
        if finished
        else [*rows, {"kind": "interrupt", "message": "stopped"}],
    )
    if finished:
        per_class = {
            name: {"iou": 0.05 * index, "accuracy": 0.06 * index} for index, name in enumerate(TASK.classes)
        }
        figures = {"miou": miou, "fwiou": 0.5, "mean_accuracy": 0.5, "pixel_accuracy": 0.7}
        write(
            folder, "result.json", {"steps": 8, "skipped": 0, **figures, "per_class": per_class, "images": 4}
        )
        task = {"classes": list(TASK.classes), "palette": [list(colour) for colour in TASK.palette]}
        write(folder / "weights", "model.json", {"format": 1, "task": task})
    return folder


def search_run(
    folder: Path, *, trials: int = 12, seed: int = 0, finished: bool = True, limit: float | None = None
) -> Path:
    """Make a search by trials."""
    space, rng = ScalablePath(), Random(seed)
    recipe = {
        "kind": "search",
        "name": "lpsnet",
        "space": {"kind": "scalable_path", "settings": {}},
        "strategy": {"kind": "expansion", "settings": {"steps": 3}},
        "data": "synthetic",
        "image": list(IMAGE),
        "cost": {"kind": "macs", "target": None, "pack": None},
        "limit": limit,
        "seed": seed,
    }
    write(folder, "recipe.json", recipe)
    environment(folder)
    records: list[dict[str, Any]] = []
    layout = Layout(folder)
    for number in range(trials):
        arch = sample(space, rng)
        cost = float(space.plan(arch, Shape(3, *IMAGE), TASK.outputs).macs())
        result = {
            "id": number,
            "status": "done",
            "quality": rng.uniform(0.1, 0.5),
            "cost": cost,
            "seconds": 1.0,
        }
        origin = {"step": number // 4, "direction": "width", "k": 2} if number else {"step": 0}
        document = architecture_document(arch)
        records.append(
            {"id": number, "fingerprint": fingerprint_of(arch), "budget": 1, "seed": 7, "origin": origin,
             "result": result, "architecture": document["architecture"]}
        )  # fmt: skip
        write(layout.architectures, f"{fingerprint_of(arch)}.json", document)
        last = {"name": "head", "shape": [TASK.outputs, 4, 8]}
        write(
            layout.architectures,
            f"{fingerprint_of(arch)}.plan.json",
            {"nodes": [last], "outputs": {"main": "head"}},
        )
    best = max(records, key=lambda record: record["result"]["quality"])
    rows = steps(trials, "search", quality=0.4, cost=1e8)
    for row, record in zip(rows[1:], records, strict=True):
        row |= {"records": [record], "best": {"trial": best["id"]}}
    journal(folder, rows)
    if finished:
        family = [
            {
                "step": step,
                "trial": record["id"],
                **_figures(record),
                **({"direction": "depth", "k": 2} if step else {}),
            }
            for step, record in enumerate(records[:3])
        ]
        found = {
            "trial": best["id"],
            "fingerprint": best["fingerprint"],
            **_figures(best),
            "unit": "MACs",
            "failed": 1,
        }
        write(folder, "result.json", {**found, "front": [], "trials": records, "family": family})
    return folder


def gradient_run(folder: Path, *, marks: int = 5) -> Path:
    """Make a search by gradients out of a search by trials."""
    search_run(folder, trials=3)
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe |= {"name": "squeezenas", "strategy": {"kind": "gradient", "settings": {"seed": 3}}}
    recipe["space"] = {"kind": "inverted_residual", "settings": {}}
    write(folder, "recipe.json", recipe)
    rows = steps(10, "search", loss=3.0, entropy_op=1.0, expected_depth1=2.0, cost=9.0)
    choose = {"kind": "step", "step": 11, "phase": "choose", "done": 1, "total": 1, "metrics": {"cost": 5e9}}
    journal(folder, [*rows, choose])
    result = json.loads((folder / "result.json").read_text())
    del result["family"]
    shares = [[0.5 + 0.05 * mark, 0.5 - 0.05 * mark] for mark in range(marks)]
    result["trajectory"] = [
        {
            "step": mark,
            "roles": {"student": {"cost": 1.0, "probabilities": {"block0": row, "block1": row[::-1]}}},
        }
        for mark, row in enumerate(shares)
    ]
    result["warnings"] = ["the search collapsed"]
    write(folder, "result.json", result)
    return folder


def calibrate_run(folder: Path, *, finished: bool = True) -> Path:
    """Make a calibration."""
    target = str(parse_target("cpu/onnxruntime/fp32?threads=2"))
    recipe = {
        "kind": "calibrate",
        "space": "scalable_path",
        "target": target,
        "image": list(IMAGE),
        "seed": 4,
    }
    write(folder, "recipe.json", recipe)
    environment(folder)
    journal(folder, steps(4, "operators", timed=3.0))
    if finished:
        checked = [
            Checked(
                fingerprint=f"{n:016x}",
                predicted_ms=n + 1.1,
                measured_ms=n + 1.0,
                median_ms=(n + 1.0) * (1.5 if n == 2 else 1),
            )
            for n in range(6)
        ]
        pack = Pack(
            space="scalable_path", settings={}, image=IMAGE, classes=10, target=target, machine={"cpu": "two cores"},
            entries={}, trust=judge(checked),
        )  # fmt: skip
        pack.write(folder / "cost_table.json")
        write(folder, "result.json", {"pack": str(folder / "cost_table.json"), **pack.summary()})
    return folder


def tailor_run(folder: Path, *, finished: bool = True) -> Path:
    """Make a tailoring with its stages in subfolders."""
    write(
        folder,
        "recipe.json",
        {
            "kind": "tailor",
            "request": {"data": "synthetic", "target": "cpu/onnxruntime/fp32", "seed": 0},
            "system": "lpsnet",
        },
    )
    environment(folder)
    journal(folder, steps(3, "stages"))
    calibrate_run(folder / "stages" / "1-calibrate")
    search_run(folder / "stages" / "2-search")
    train_run(folder / "stages" / "3-train", finished=finished)
    if finished:
        write(
            folder,
            "result.json",
            {"miou": 0.41, "latency_ms": 12.0, "p95_ms": 12.5, "budget_ms": 15.0, "met": True},
        )
    return folder


def _figures(record: Mapping[str, Any]) -> dict[str, float]:
    return {"quality": record["result"]["quality"], "cost": record["result"]["cost"]}
