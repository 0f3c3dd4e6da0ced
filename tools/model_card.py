"""What a shipped network says of itself: figures and card, made from its description and the result files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from tools.camvid_results import DRIVES, IMAGE, OFFICIAL, Latency, Results, size

from segtailor.recipes.recipe import recipe_document, set_fields
from segtailor.recipes.train import TrainRecipe, usual_augment

NO_MATTER = ("fit.compile", "fit.seed", "fit.validate_every")  # change how fast, or are told beside a figure
CARD = """\
# {name}

<!-- written by tools/write_results.py: do not edit -->

A {family} network for road scenes: {params:,} parameters, {macs:.3f} G multiply-accumulates at {height}x{width},
{count} classes ({classes}). Use it by name: `segtailor predict --model {name} PICTURES`. Weights are kept in
{precision}.

## Data and licence

CamVid (Brostow et al., 2008) at {height}x{width} with the 11 classes of SegNet, split `{split}`: {images} images, from
random weights, no other data. The data is licensed CC BY-NC 4.0; these weights were learnt from it and are for
research, not for commercial use.

## Figures

All are of other trainings of this network, which did **not** see the images they are scored on; what sets each apart
from the shipped one is told above its table. The shipped weights were trained on `{split}`, so scores on these images
say nothing. mIoU in %, whole images, single scale, no flip.

{scores}

Drives that were left out are what recipe and network were chosen by: val shows the same drive as train and flatters.

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


def numbers(name: str, record: Mapping[str, Any], results: Results) -> dict[str, Any]:
    """Return the figures of a shipped network as plain data; what is not known is left out."""
    row, counted = record["provenance"]["row"], size(name)
    left_out = {drive: figure.mean for drive in DRIVES if (figure := results.score(row, drive))}
    mean, val = results.left_out(row), results.score(row, OFFICIAL)
    found: dict[str, Any] = {"params": counted.params, "macs": counted.macs, "image": list(IMAGE)}
    if left_out:
        found["left_out_miou"] = left_out
    if mean is not None:
        found["left_out_mean_miou"] = mean
    if val is not None:
        found["val_miou"] = {"mean": val.mean, "spread": val.spread, "seeds": list(val.seeds)}
    found["latency_ms"] = {_place(one): one.document["median_ms"] for one in _measured(name, row, results)}
    return found


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
        precision={"fp16": "half precision and computed in single", "fp32": "single precision"}[
            record["precision"]
        ],
        split=origin["train_split"],
        images=origin["train_images"],
        scores="\n\n".join(_scores(row, record, results) for row in _scored(origin)),
        latency=_latency(name, origin["row"], results),
        seed=origin["seed"],
        steps=origin["steps"],
        recipe=json.dumps(origin["recipe"], indent=1),
        commands="\n".join(_commands(name, origin, results)),
    )


def _scored(origin: Mapping[str, Any]) -> list[str]:
    """Return the rows of trainings that say how good a shipped network is, the one with most seeds first."""
    return [origin["row"], *origin.get("also", ())]


def _scores(row: str, record: Mapping[str, Any], results: Results) -> str:
    """Return a row's scores as a table, below what sets its trainings apart from the shipped one."""
    lines = ["| scored on | mIoU | seeds |", "|---|---|---|"]
    folds = [
        *((drive, f"drive {drive}, left out of train and val") for drive in DRIVES),
        (OFFICIAL, "val, trained on train"),
    ]
    for fold, what in folds:
        if figure := results.score(row, fold):
            lines.append(f"| {what} | {figure.told()} | {', '.join(map(str, figure.seeds))} |")
    mean = results.left_out(row)
    if mean is not None:
        lines.append(f"| mean over the drives | {100 * mean:.1f} | |")
    commands = [str(training["command"]) for training in results.outcomes.get(row, ())]
    apart = sorted({change for command in commands for change in _apart(command, record)})
    return "\n".join([f"`{row}` has {', '.join(apart) or 'the same settings'}.", "", *lines])


def _apart(command: str, record: Mapping[str, Any]) -> list[str]:
    """Return the settings that a training command has otherwise than the shipped training, with both values."""
    changes = shlex.split(command.partition(" --set ")[2])
    usual = TrainRecipe(
        architecture=record["architecture"],
        data=record["provenance"]["data"],
        augment=usual_augment("segmentation", IMAGE),
    )
    theirs, ours = _flat(set_fields(recipe_document(usual), changes)), _flat(record["provenance"]["recipe"])
    return [
        f"{key} {json.dumps(value)} instead of {json.dumps(ours[key])}"
        for key, value in theirs.items()
        if key.startswith(("augment.", "fit."))
        and key not in NO_MATTER
        and key in ours
        and ours[key] != value
    ]


def _flat(document: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return plain data with one level: dotted names and their values."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        found |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found


def _latency(name: str, row: str, results: Results) -> str:
    lines = [
        "| target | image | ms | 95th percentile | images | on | versions |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in _measured(name, row, results):
        document, (height, width) = one.document, one.image
        wanted = ("torch",) if str(document["target"]).startswith("cuda") else ("onnxruntime",)
        versions = [
            f"{key} {value}" for key, value in document["machine"]["versions"].items() if key in wanted
        ]
        lines.append(
            f"| `{document['target']}` | {height}x{width} | {document['median_ms']:.3g} | {document['p95_ms']:.3g} | "
            f"{document['runs']} | {one.hardware} | {', '.join(versions)} |"
        )
    return "\n".join(lines)


def _commands(name: str, origin: Mapping[str, Any], results: Results) -> list[str]:
    row = origin["row"]
    trained = [str(record["command"]) for one in _scored(origin) for record in results.outcomes.get(one, ())]
    timed = [
        f"segtailor bench {name} --target '{one.document['target']}' --image {one.image[0]}x{one.image[1]}"
        for one in _measured(name, row, results)
    ]
    return [*trained, f"segtailor eval {name} --data camvid:PATH --split test", *dict.fromkeys(timed)]


def _measured(name: str, row: str, results: Results) -> list[Latency]:
    names = results.names(row, name)
    return [
        one for one in results.latencies if one.network in names and one.document["includes"] == "network"
    ]


def _place(one: Latency) -> str:
    height, width = one.image
    return f"{one.document['target']} at {height}x{width} on {one.hardware}"
