"""Write the tables of `docs/results-camvid.md` and the cards of the shipped networks from `results/camvid/`.

python -m tools.write_results

Tables are placed between `<!-- begin: NAME -->` and `<!-- end -->`; the text around them is written by hand. A figure
that was not measured is an empty cell. A test checks that the committed pages are up to date.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.camvid_results import (
    DRIVES,
    IMAGE,
    OFFICIAL,
    RESULTS,
    ROOT,
    Latency,
    Results,
    size,
)

from segtailor.core import shipped as home
from segtailor.core.space import parse_architecture
from segtailor.recipes.recipe import recipe_document, set_fields
from segtailor.recipes.train import FINE_TUNING, TrainRecipe, usual_augment, usual_loss

PAGE = ROOT / "docs" / "results-camvid.md"
LARGE_IMAGE = (720, 960)
GPU_TARGET, CPU_TARGET, CPU_THREADS = "cuda/graph/fp16", "cpu/onnxruntime/fp32", 2
BLOCK = re.compile(r"(<!-- begin: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
MAIN_COLUMNS = (
    "network", "parameters", "MACs", "drives left out, mean", "val", "test", "H200 ms", "H200 ms at 720x960", "CPU ms",
    "search, GPU minutes", "search in the paper",
)  # fmt: skip
UNIMPORTANT_SETTINGS = (
    "fit.compile",
    "fit.seconds",
    "fit.seed",
    "fit.validate_every",
)  # not listed as differences
CARD = """\
# {name}

<!-- written by tools/write_results.py: do not edit -->

A {family} network for road scenes: {params:,} parameters, {macs:.3f} G multiply-accumulates at {height}x{width},
{count} classes ({classes}). Use it by name: `segtailor predict --model {name} PICTURES`. Weights are stored in
{precision}.

## Data and licence

CamVid (Brostow et al., 2008) at {height}x{width} with the 11 classes of SegNet, split `{split}`: {images} images, from
{start}, no other data. The data is licensed CC BY-NC 4.0; these weights were learned from it and are for
research, not for commercial use.

## Figures

{test}The tables are of other trainings of this network, which were **not** trained on the images they are scored on;
the text above each table lists the settings in which they differ from the shipped training. The shipped weights were
trained on `{split}`, so scores on these images mean nothing. mIoU in %, whole images, single scale, no flip.

{scores}

{choice}. Val shows the same drive as train, so its scores are
too high.

## Latency

One image at a time, the network alone, median.

{latency}

## Recipe

Seed {seed}, {steps} steps. Every setting (the architecture is in `model.json`):

```json
{recipe}
```

## Commands

```
{commands}
```
"""


def main() -> None:
    for path, text in pages(Results(folder=RESULTS)).items():
        path.write_text(text, encoding="utf-8")


def pages(results: Results, page: Path = PAGE) -> dict[Path, str]:
    """Return every generated file with its text."""
    files = {page: filled(page.read_text(encoding="utf-8"), results)}
    for name in home.shipped():
        file = home.SHIPPED / name / home.DESCRIPTION
        record = json.loads(file.read_text(encoding="utf-8"))
        record["numbers"] = numbers(name, record, results)
        files[file] = json.dumps(record, indent=2) + "\n"
        files[file.with_name(home.CARD)] = card(name, record, results)
    return files


def filled(text: str, results: Results) -> str:
    """Return a page with every table replaced; an unknown table raises `KeyError`."""
    return BLOCK.sub(lambda block: f"{block[1]}{TABLES[block[2]](results)}\n{block[4]}", text)


def main_table(results: Results) -> str:
    """Return all networks: shipped, of the five systems, baselines, literature."""
    rows = [_main_row(entry, results) for entry in [*_shipped_rows(), *results.rows["main"]]]
    rows += [_paper_row(entry) for entry in results.literature["networks"]]
    return table(MAIN_COLUMNS, rows)


def ablation_table(results: Results, entry_name: str = "ablation") -> str:
    """Return one row per change of the recipe: each drive left out, their mean, and the difference to the base.

    The base comes first, then the rows with a label in the order of the labels, then the others.
    """
    entry = results.rows[entry_name]
    study, base = entry["study"], f"{entry['study']}/{entry['base']}"
    rank = {entry["base"]: -1} | {name: place for place, name in enumerate(entry["labels"])}
    names = sorted(results.names_of(study), key=lambda name: (rank.get(name, len(rank)), name))
    drives = [drive for drive in DRIVES if any(results.score(f"{study}/{name}", drive) for name in names)]
    complete = len(drives) == len(DRIVES)  # means over different drives cannot be compared
    rows = []
    for name in names:
        row = f"{study}/{name}"
        mean = [_percent(results.left_out(row))] if complete else []
        gain = results.gain(row, base) if row != base else None
        label = entry["labels"].get(name, name)
        rows.append([label, *_drives(row, results, drives), *mean, _points(gain)])
    return table(["recipe", *drives, *(["mean"] if complete else []), "difference"], rows)


def third_table(results: Results) -> str:
    """Return the ablation at a third of the image size, on a CPU."""
    return ablation_table(results, "third")


def networks_table(results: Results, entry_name: str = "networks") -> str:
    """Return networks trained with one recipe: the rows of a study and those listed in `also`.

    The column of val is left out if no row has it.
    """
    entry = results.rows[entry_name]
    study = entry["study"]
    listed = [f"{study}/{name}" for name in results.names_of(study)] + entry.get("also", [])
    val = [OFFICIAL] if any(results.score(row, OFFICIAL) for row in listed) else []
    rows = []
    for row in sorted(listed, key=lambda row: _rank(row, results)):
        name, mean = row.rpartition("/")[2], _percent(results.left_out(row))
        cells = [*_size(results.network(row)), *_drives(row, results), mean, *_drives(row, results, val)]
        rows.append([entry["labels"].get(name, name), *cells])
    return table(["network", "parameters", "MACs", *DRIVES, "mean", *("val" for _ in val)], rows)


def candidates_table(results: Results) -> str:
    """Return the candidates for shipping, trained with the best recipe."""
    return networks_table(results, "candidates")


def searches_table(results: Results) -> str:
    """Return every search: time, device, command."""
    rows = []
    for name, record in results.searches.items():
        minutes = f"{record['seconds'] / 60:.1f}"
        rows.append([name, minutes, str(record["device"]), str(record["seed"]), f"`{record['command']}`"])
    return table(["search", "GPU minutes", "device", "seed", "command"], rows)


def expansion_table(results: Results, search: str = "lpsnet", device: str = "H200") -> str:
    """Return the steps of LPS-Net's expansion (Figure 7 of the paper)."""
    record = results.searches.get(search, {"result": {"family": []}})
    rows = []
    for member in record["result"]["family"]:
        moved = f"{member['direction']} x {member['k']}" if "direction" in member else "start"
        rows.append([str(member["step"]), moved, _percent(member["quality"]), _ms(member["cost"])])
    return table(["step", "direction", "mIoU on the held-out half", f"{device} ms by the table"], rows)


def expansion_cpu_table(results: Results) -> str:
    """Return the steps of the expansion for a CPU."""
    return expansion_table(results, "lpsnet-cpu", "CPU")


def papers_table(results: Results) -> str:
    """Return the sources of published figures."""
    rows = [[entry["name"], entry["paper"]] for entry in results.literature["networks"]]
    rows += [[f"search of {name}", entry["source"]] for name, entry in results.literature["searches"].items()]
    return table(["what", "source"], rows)


TABLES: dict[str, Callable[[Results], str]] = {
    "main": main_table,
    "ablation": ablation_table,
    "third": third_table,
    "networks": networks_table,
    "candidates": candidates_table,
    "searches": searches_table,
    "expansion": expansion_table,
    "expansion-cpu": expansion_cpu_table,
    "papers": papers_table,
}


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [list(columns), ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _shipped_rows() -> list[dict[str, str]]:
    entries = []
    for name in home.shipped():
        record = json.loads((home.SHIPPED / name / home.DESCRIPTION).read_text(encoding="utf-8"))
        origin = {
            key: record["provenance"][key]
            for key in ("row", "search", "system")
            if key in record["provenance"]
        }
        entries.append({"label": f"**{name}**", "network": name, **origin})
    return entries


def _main_row(entry: dict[str, str], results: Results) -> list[str]:
    row = entry["row"]
    network = entry.get("network") or results.network(row)
    names = results.names(row, network or row, entry.get("network", row))
    val = results.score(row, OFFICIAL)
    search = results.searches.get(entry.get("search", ""))
    paper = results.literature["searches"].get(entry.get("system", ""), {})
    return [
        entry["label"],
        *_size(network),
        _percent(results.left_out(row)),
        val.percent() if val else "",
        _percent(results.test_scores["miou"].get(entry.get("network", ""))),
        _ms(results.milliseconds(names, GPU_TARGET, IMAGE)),
        _ms(results.milliseconds(names, GPU_TARGET, LARGE_IMAGE)),
        _ms(results.milliseconds(names, CPU_TARGET, IMAGE, threads=CPU_THREADS)),
        f"{search['seconds'] / 60:.1f}" if search else "",
        paper.get("time", ""),
    ]


def _paper_row(entry: dict[str, Any]) -> list[str]:
    params = f"{entry['params'] / 1e6:.2f} M" if "params" in entry else ""
    return [entry["name"], params, "", "", "", _percent(entry["test_miou"]), *[""] * (len(MAIN_COLUMNS) - 6)]


def _size(network: str | None) -> list[str]:
    if network is None:
        return ["", ""]
    counted = size(network)
    return [f"{counted.params / 1e6:.2f} M", f"{counted.macs / 1e9:.2f} G"]


def _drives(row: str, results: Results, drives: Sequence[str] = DRIVES) -> list[str]:
    figures = [results.score(row, drive) for drive in drives]
    return [figure.percent() if figure else "" for figure in figures]


def _rank(row: str, results: Results) -> float:
    return -(results.left_out(row) or 0.0)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _points(gain: float | None) -> str:
    return "" if gain is None else f"{round(100 * gain, 1) + 0.0:+.1f}"  # + 0.0 turns -0.0 into 0.0


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def numbers(name: str, record: Mapping[str, Any], results: Results) -> dict[str, Any]:
    """Return the figures of a shipped network as plain data; figures that were not measured are left out."""
    row, counted = record["provenance"]["row"], size(name)
    left_out = {drive: figure.mean for drive in DRIVES if (figure := results.score(row, drive))}
    mean, val = results.left_out(row), results.score(row, OFFICIAL)
    figures: dict[str, Any] = {"params": counted.params, "macs": counted.macs, "image": list(IMAGE)}
    if left_out:
        figures["left_out_miou"] = left_out
    if mean is not None:
        figures["left_out_mean_miou"] = mean
    if val is not None:
        figures["val_miou"] = {"mean": val.mean, "spread": val.spread, "seeds": list(val.seeds)}
    figures["latency_ms"] = {
        _setting(latency): latency.document["median_ms"] for latency in _measured(name, row, results)
    }
    return figures


def card(name: str, record: Mapping[str, Any], results: Results) -> str:
    """Return the card of a shipped network."""
    origin, counted = record["provenance"], size(name)
    classes, (height, width) = record["task"]["classes"], IMAGE
    return CARD.format(
        name=name,
        family=record["architecture"]["family"],
        params=counted.params,
        macs=counted.macs / 1e9,
        height=height,
        width=width,
        count=len(classes),
        classes=", ".join(classes),
        precision={"fp16": "half precision; inference is in single precision", "fp32": "single precision"}[
            record["precision"]
        ],
        split=origin["train_split"],
        images=origin["train_images"],
        start=_start(origin),
        test=_test_score(name, results),
        scores="\n\n".join(_scores(row, record, results) for row in _scored_rows(origin)),
        choice=_choice(origin, results),
        latency=_latency_table(name, origin["row"], results),
        seed=origin["seed"],
        steps=origin["steps"],
        recipe=json.dumps(origin["recipe"], indent=1),
        commands="\n".join(_commands(name, origin, results)),
    )


def _start(origin: Mapping[str, Any]) -> str:
    """Say where the weights began."""
    start = origin.get("start") or {}
    if not start.get("carried"):
        return "random weights"
    return f"weights trained on {start['learnt_from']} under {start['licence']}"


def _choice(origin: Mapping[str, Any], results: Results) -> str:
    """Say what the network and its recipe were chosen by."""
    if any(results.left_out(row) is not None for row in _scored_rows(origin)):
        return "Recipe and network were chosen by the drives that were left out"
    return "The network was designed for its latency, and the recipe is that of every training"


def _test_score(name: str, results: Results) -> str:
    """Return the score of the shipped weights themselves, where there is one."""
    score = results.test_scores["miou"].get(name)
    if score is None:
        return ""
    return (
        f"**{100 * score:.1f} % mIoU on CamVid's official test split**: {results.test_scores['source']}.\n\n"
    )


def _scored_rows(origin: Mapping[str, Any]) -> list[str]:
    """Return the rows of trainings that show the quality of a shipped network, the one with most seeds first."""
    return [origin["row"], *origin.get("also", ())]


def _scores(row: str, record: Mapping[str, Any], results: Results) -> str:
    """Return a row's scores as a table, below the settings in which its trainings differ from the shipped one."""
    lines = ["| scored on | mIoU | seeds |", "|---|---|---|"]
    folds = [
        *((drive, f"drive {drive}, left out of train and val") for drive in DRIVES),
        (OFFICIAL, "val, trained on train"),
    ]
    for fold, what in folds:
        if figure := results.score(row, fold):
            lines.append(f"| {what} | {figure.percent()} | {', '.join(map(str, figure.seeds))} |")
    mean = results.left_out(row)
    if mean is not None:
        lines.append(f"| mean over the drives | {100 * mean:.1f} | |")
    commands = [str(training["command"]) for training in results.outcomes.get(row, ())]
    differences = sorted({change for command in commands for change in _differences(command, record)})
    return "\n".join([f"`{row}` has {', '.join(differences) or 'the same settings'}.", "", *lines])


def _differences(command: str, record: Mapping[str, Any]) -> list[str]:
    """Return the settings in which a training command differs from the shipped training, with both values."""
    changes = shlex.split(command.partition(" --set ")[2])
    defaults = TrainRecipe(
        architecture=parse_architecture(record["architecture"]),
        data=record["provenance"]["data"],
        augment=usual_augment("segmentation", IMAGE),
    )
    if (record["provenance"].get("start") or {}).get("carried"):
        defaults = replace(defaults, fit=replace(FINE_TUNING, loss=usual_loss("segmentation")))
    scored = _flat(set_fields(recipe_document(defaults), changes))
    shipped = _flat(record["provenance"]["recipe"])
    return [
        f"{key} {json.dumps(value)} instead of {json.dumps(shipped[key])}"
        for key, value in scored.items()
        if key.startswith(("augment.", "fit."))
        and key not in UNIMPORTANT_SETTINGS
        and key in shipped
        and shipped[key] != value
    ]


def _flat(document: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested plain data as one level: dotted names and their values."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return flat


def _latency_table(name: str, row: str, results: Results) -> str:
    lines = [
        "| target | image | ms | 95th percentile | images | on | versions |",
        "|---|---|---|---|---|---|---|",
    ]
    for latency in _measured(name, row, results):
        document, (height, width) = latency.document, latency.image
        package = "torch" if str(document["target"]).startswith("cuda") else "onnxruntime"
        versions = document["machine"]["versions"]
        version = f"{package} {versions[package]}" if package in versions else ""
        lines.append(
            f"| `{document['target']}` | {height}x{width} | {document['median_ms']:.3g} | {document['p95_ms']:.3g} | "
            f"{document['runs']} | {latency.hardware} | {version} |"
        )
    return "\n".join(lines)


def _commands(name: str, origin: Mapping[str, Any], results: Results) -> list[str]:
    train = [
        str(record["command"]) for row in _scored_rows(origin) for record in results.outcomes.get(row, ())
    ]
    bench = [
        f"segtailor bench {name} --target '{latency.document['target']}' "
        f"--image {latency.image[0]}x{latency.image[1]}"
        for latency in _measured(name, origin["row"], results)
    ]
    return [*train, f"segtailor eval {name} --data camvid:PATH --split test", *dict.fromkeys(bench)]


def _measured(name: str, row: str, results: Results) -> list[Latency]:
    names = results.names(row, name)
    return [
        latency
        for latency in results.latencies
        if latency.network in names and latency.document["includes"] == "network"
    ]


def _setting(latency: Latency) -> str:
    height, width = latency.image
    return f"{latency.document['target']} at {height}x{width} on {latency.hardware}"


if __name__ == "__main__":
    main()
