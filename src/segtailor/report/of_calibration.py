"""The report of a calibration: a device pack, and how far to trust it."""

from __future__ import annotations

from pathlib import Path

from segtailor.core.errors import UserError
from segtailor.costs.pack import Pack, read_pack
from segtailor.report.document import Fact, FactGroup, Report, TableTrust, TrustPoint, Verdict
from segtailor.report.fields import at, flat, text
from segtailor.report.folder import RunFolder, commands, conditions
from segtailor.report.numbers import duration, percent


def calibration_report(run: RunFolder) -> Report:
    """Return what a calibration measured; an unfinished one has no table yet."""
    missing = list(run.missing)
    pack = _pack(run.layout.cost_table, missing) if run.finished else None
    image = at(run.recipe, "image")
    size = "x".join(str(side) for side in image) if isinstance(image, list) else ""
    return Report(
        title=f"Calibration of {text(run.recipe, 'space', 'kind') or text(run.recipe, 'space')}",
        subtitle=f"on {text(run.recipe, 'target')} at {size}",
        verdict=_verdict(run, pack),
        trust=trust_of(pack) if pack else None,
        conditions=(*(_measured(pack) if pack else ()), *conditions(run)),
        commands=commands(run),
        missing=tuple(missing),
    )


def trust_of(pack: Pack) -> TableTrust | None:
    """Return how the prices of a pack compare with whole networks; None where that was not measured."""
    if pack.trust is None:
        return None
    summary = pack.summary()
    points = tuple(
        TrustPoint(
            name=network.fingerprint,
            predicted_ms=network.predicted_ms,
            measured_ms=network.measured_ms,
            disturbed=network.disturbed,
        )
        for network in pack.trust.networks
    )
    entries = Fact(
        name="table entries", value=f"{summary['entries']:,}", note=f"{summary['estimated']} estimated"
    )
    return TableTrust(
        points=points,
        pearson=pack.trust.pearson,
        spearman=pack.trust.spearman,
        mape=pack.trust.mape,
        facts=(entries,),
    )


def _verdict(run: RunFolder, pack: Pack | None) -> Verdict:
    time = Fact(name="time", value=duration(run.seconds))
    if pack is None:
        return Verdict(sentence=f"The calibration is not finished: {run.progress}.", facts=(time,))
    summary = pack.summary()
    entries = f"The latency table of {pack.space} on {pack.target} has {summary['entries']:,} entries"
    if pack.trust is None:
        return Verdict(sentence=f"{entries}; it was not checked on whole networks.", facts=(time,))
    sentence = (
        f"{entries} and predicts whole networks with a mean error of {percent(pack.trust.mape)} "
        f"(Pearson {pack.trust.pearson:.3f} over {len(pack.trust.networks)} networks)."
    )
    measured = int(str(summary["entries"])) - int(str(summary["estimated"]))
    facts = (
        Fact(name="mean error", value=percent(pack.trust.mape)),
        Fact(name="entries measured", value=f"{measured:,}"),
        Fact(name="entries estimated", value=f"{summary['estimated']:,}"),
        Fact(name="networks disturbed", value=str(summary["disturbed"])),
        time,
    )
    return Verdict(sentence=sentence, facts=facts)


def _measured(pack: Pack) -> tuple[FactGroup, ...]:
    groups = (("Device that was measured", dict(pack.machine)), ("While measuring", dict(pack.conditions)))
    return tuple(
        FactGroup(title=title, facts=tuple(Fact(name=name, value=value) for name, value in flat(facts)))
        for title, facts in groups
        if facts
    )


def _pack(file: Path, missing: list[str]) -> Pack | None:
    try:
        return read_pack(file)
    except UserError as problem:
        missing.append(str(problem))
        return None
