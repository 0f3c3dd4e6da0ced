"""A whole report with made-up but realistic figures: every section is there, and some names are hostile."""

from __future__ import annotations

import math
from functools import cache
from random import Random

import numpy as np

from segtailor.data.synthetic import TASK, Synthetic
from segtailor.report import document as d
from segtailor.report.inspecting import extremes, image_quality, picture
from segtailor.spaces import networks

HOSTILE = "<img src=x onerror=alert(1)> & \"quotes\" 'single'"
BUDGET_MS = 33.3


@cache
def full_report() -> d.Report:
    """Return a report with every section."""
    return d.Report(
        title="A network made to measure for folder:streets",
        subtitle="cpu/onnxruntime/fp32?threads=2 · lpsnet",
        verdict=verdict(),
        front=front(),
        budgets=budgets(),
        networks=(
            d.DrawnNetwork(
                name="tailored network",
                plan=networks.expand("lpsnet-m", image=(256, 512)),
                note="step 7 of 9",
            ),
            d.DrawnNetwork(name="teacher", plan=networks.expand("fasterseg-student", image=(256, 512))),
        ),
        search=search(),
        training=(curve("Loss", "loss", 1.9, 0.42), curve("Quality on the validation split", "%", 8.0, 64.0)),
        layers=layers(),
        quality=quality(),
        trust=trust(),
        int8=int8(),
        data=data(),
        choices=(
            d.ChosenSetting(setting="input size", value="256x512", reason="the median size of the images"),
            d.ChosenSetting(setting="batch", value="8", reason="fits into memory twice"),
            d.ChosenSetting(
                setting="epochs", value="60", reason="what two hours allow at 41 images per second"
            ),
        ),
        stages=(
            d.StageSummary(name="doctor", status="done", seconds=3.2),
            d.StageSummary(name="calibrate", status="skipped", note="the pack was there"),
            d.StageSummary(name="search", status="done", seconds=1680.0),
            d.StageSummary(name="train", status="done", seconds=4210.0),
            d.StageSummary(name="export", status="unfinished", seconds=21.4),
        ),
        conditions=(
            d.FactGroup(
                title="Machine",
                facts=(
                    d.Fact(name="processor", value="two cores at 2.6 GHz"),
                    d.Fact(name="platform", value="Linux-6.1-x86_64"),
                ),
            ),
            d.FactGroup(
                title="Versions",
                facts=(d.Fact(name="torch", value="2.13.0"), d.Fact(name="onnxruntime", value="1.31.1")),
            ),
            d.FactGroup(
                title="Settings of train",
                facts=tuple(d.Fact(name=f"fit.field_{index}", value=str(index / 7)) for index in range(24)),
            ),
        ),
        commands=(
            d.Command(
                text="segtailor tailor --data 'folder:streets' --budget 30fps --seed 0",
                note="The same again:",
            ),
        ),
        missing=(f"stage export: interrupted at {HOSTILE}",),
    )


def budgets() -> d.Budgets:
    """Return networks for other budgets, one of which no budget gets."""
    figures = (
        (HOSTILE, 0.52, 9.1),
        ("lpsnet-s", 0.5, 12.0),
        ("step 4", 0.61, 21.0),
        ("searched", 0.67, 32.5),
    )
    offers = tuple(
        d.Offer(
            name=name,
            quality=quality,
            cost=cost,
            evidence="judged",
            params=int(1e5 * cost),
            macs=int(1e8 * cost),
        )
        for name, quality, cost in figures
    )
    return d.Budgets(
        offers=offers,
        budget=BUDGET_MS,
        before="segtailor export 'my runs/street' --budget",
        after="--target cpu/onnxruntime/fp32 --out street-exported",
        note="Latency of some is expected from that of others.",
    )


def verdict() -> d.Verdict:
    return d.Verdict(
        sentence="The tailored network reaches 63.8 % mIoU and takes 31.2 ms on cpu/onnxruntime/fp32, which keeps the "
        "budget of 33.3 ms; the best ready network within it, Fast-SCNN, reaches 60.1 %.",
        met=True,
        facts=(
            d.Fact(name="mIoU", value="63.8 %", note="+3.7 over Fast-SCNN"),
            d.Fact(name="median latency", value="29.4 ms"),
            d.Fact(name="95 % within", value="31.2 ms"),
            d.Fact(name="budget", value="33.3 ms", note="30 frames per second"),
            d.Fact(name="parameters", value="1.92 M"),
            d.Fact(name="time", value="1 h 39 min"),
        ),
    )


def front() -> d.Front:
    rng = Random(3)
    rows: list[d.Point] = []
    for step in range(10):
        cost = 4.0 * 1.33**step
        quality = 0.36 + 0.31 * (1 - math.exp(-cost / 17)) + rng.uniform(-0.006, 0.006)
        group = "winner" if step == 7 else "teacher" if step == 9 else "searched family"
        rows.append(_point(f"step {step}", group, quality, cost, rng))
    for name, quality, cost in (
        ("Fast-SCNN", 0.601, 24.1), ("BiSeNetV2", 0.633, 71.9), ("DDRNet-23-slim", 0.648, 64.0),
        ("STDC1-Seg", 0.641, 83.0), ("LR-ASPP MobileNetV3-Large", 0.612, 38.2), ("PIDNet-S", 0.655, 79.1),
    ):  # fmt: skip
        rows.append(_point(name, "baseline", quality, cost, rng))
    for name, quality, cost in (("lpsnet-s", 0.597, 30.6), ("squeezenas-lat-small", 0.588, 47.4)):
        rows.append(_point(name, "published", quality, cost, rng))
    rows += [
        _point(f"trial {n}", "trial", 0.3 + 0.3 * rng.random(), 4 * 20 ** rng.random(), rng)
        for n in range(60)
    ]
    path = tuple(f"step {step}" for step in range(10))
    return d.Front(
        points=tuple(rows),
        budget=BUDGET_MS,
        path=path,
        note="All trained with one recipe and measured in turns.",
    )


def search() -> d.SearchStory:
    steps = tuple(float(step) for step in range(0, 301, 15))
    options = (
        "zero",
        "conv 3x3",
        "conv 5x5",
        "zoomed conv",
        "separable 3x3",
        "separable 5x5",
        "pool",
        "identity",
    )
    stories = []
    for index in range(10):
        rng = Random(index)
        wish = [rng.uniform(-2, 2) for _ in options]
        rows = []
        for step in steps:
            weights = [math.exp(value * step / 120) for value in wish]
            rows.append(tuple(weight / sum(weights) for weight in weights))
        stories.append(
            d.DecisionStory(
                name=f"cell {index // 5} edge {index % 5}", options=options, at=steps, shares=tuple(rows)
            )
        )
    depths = tuple(
        d.Series(name=f"depth {n}", x=steps, y=tuple(2 + n * (1 - math.exp(-step / 90)) for step in steps))
        for n in (1, 2, 3)
    )
    return d.SearchStory(
        summary="A small network was grown step by step. 94 networks were judged in full in 28 min 00 s.",
        charts=(
            d.Chart(title="Expected depth", x_name="step", y_name="blocks", series=depths),
            curve("Reward", "mIoU in %", 11.0, 31.0),
        ),
        decisions=tuple(stories),
        path=(
            d.ExpansionStep(step=0, direction="start", quality=0.211, cost=4.2),
            d.ExpansionStep(step=1, direction="width × 2", quality=0.262, cost=6.0, gain=0.0283),
            d.ExpansionStep(step=2, direction="depth", quality=0.294, cost=8.3, gain=0.0139),
            d.ExpansionStep(step=3, direction="resolution", quality=0.313, cost=11.2, gain=0.0065),
        ),
        warnings=("the search collapsed in 2 of 10 decisions; lower cost.weight.",),
    )


def curve(title: str, unit: str, start: float, end: float) -> d.Chart:
    rng = Random(1)
    steps = tuple(float(step) for step in range(0, 900, 30))
    values = tuple(
        end + (start - end) * math.exp(-step / 200) + rng.uniform(-0.02, 0.02) * abs(end) for step in steps
    )
    return d.Chart(title=title, x_name="step", y_name=unit, series=(d.Series(name=unit, x=steps, y=values),))


def layers() -> d.LayerTimes:
    rng = Random(5)
    rows = []
    for index in range(52):
        guess = rng.uniform(0.05, 1.6)
        name = HOSTILE if index == 3 else f"path{index % 3}.block{index}"
        rows.append(
            d.LayerTime(
                name=name,
                operator="rep conv 3x3",
                estimated_ms=guess,
                measured_ms=guess * rng.uniform(0.85, 1.2),
            )
        )
    whole = sum(row.measured_ms or 0 for row in rows)
    return d.LayerTimes(
        layers=tuple(rows), estimated_ms=0.97 * whole, measured_ms=whole, note="Median of 50 runs."
    )


@cache
def quality() -> d.Quality:
    rng = np.random.default_rng(0)
    names = [*TASK.classes[:-1], HOSTILE]
    samples = Synthetic(images={"val": 6}, size=(96, 192)).samples("val")
    pairs = [sample.read() for sample in samples]
    guesses = []
    for index, pair in enumerate(pairs):
        guess = np.roll(pair.labels, index - 2, axis=1)
        guess[rng.random(guess.shape) < 0.03 * index] = 0
        guesses.append(guess)
    scores = [image_quality(pair.labels, guess) for pair, guess in zip(pairs, guesses, strict=True)]
    worst, best = extremes(scores, 2)
    pictures = tuple(
        picture(
            samples[index].name, kind, image=pairs[index].image, labels=pairs[index].labels, predicted=guesses[index],
            palette=TASK.palette, quality=scores[index],
        )
        for kind, indices in (("worst", worst), ("best", best))
        for index in indices
    )  # fmt: skip
    matrix = rng.integers(0, 900, (len(names), len(names))) + np.diag(rng.integers(4_000, 90_000, len(names)))
    classes = tuple(
        d.ClassQuality(
            name=name, iou=None if index == 2 else float(rng.uniform(0.3, 0.97)),
            accuracy=float(rng.uniform(0.5, 0.99)), share=float(rng.uniform(0, 0.3)), colour=TASK.palette[index],
        )
        for index, name in enumerate(names)
    )  # fmt: skip
    return d.Quality(
        classes=classes,
        miou=0.638,
        facts=(
            d.Fact(name="mIoU", value="63.8 %"),
            d.Fact(name="pixel accuracy", value="91.2 %"),
            d.Fact(name="images", value="100"),
        ),
        confusion=tuple(tuple(int(value) for value in row) for row in matrix),
        pictures=pictures,
    )


def trust() -> d.TableTrust:
    rng = Random(8)
    points = []
    for index in range(30):
        true = rng.uniform(6, 60)
        points.append(
            d.TrustPoint(
                name=f"{index:016x}",
                predicted_ms=true * rng.uniform(0.94, 1.05),
                measured_ms=true,
                disturbed=index % 9 == 0,
            )
        )
    return d.TableTrust(points=tuple(points), pearson=0.991, spearman=0.984, mape=0.029)


def int8() -> d.Int8:
    return d.Int8(
        decision="Eight bits do not pay here: the network would lose 1.9 points of mIoU and be 1.3 times slower.",
        chosen="fp32",
        rows=(
            d.Precision(name="fp32", latency_ms=29.4, p95_ms=31.2, quality=0.638, size_bytes=7_700_000),
            d.Precision(name="int8", latency_ms=38.1, p95_ms=41.0, quality=0.619, size_bytes=2_050_000),
        ),
    )


def data() -> d.DataFindings:
    shares = tuple((name, 1 / len(TASK.classes)) for name in TASK.classes)
    return d.DataFindings(
        name="folder:streets",
        findings=(
            d.DataFinding(
                severity="error",
                kind="corrupt",
                file="images/0013.png",
                message="the image is cut short",
                fix="Copy it again.",
            ),
            d.DataFinding(
                severity="warning",
                kind="missing",
                message=f"class {HOSTILE} is missing in val",
                fix="Move an image.",
            ),
            d.DataFinding(severity="info", kind="sizes", message="the images have 3 sizes"),
        ),
        splits=(
            d.Split(name="train", images=320, shares=shares),
            d.Split(name="val", images=80, shares=(*shares[:-1], (shares[-1][0], 0.0))),
        ),
    )


def _point(name: str, group: str, quality: float, cost: float, rng: Random) -> d.Point:
    return d.Point(
        name=name, group=group, quality=quality, cost=cost, p95=cost * 1.06, params=int(cost * 64_000),
        macs=int(cost * 3.1e7 * rng.uniform(0.8, 1.2)), note="our own training" if group == "baseline" else "",
    )  # fmt: skip
