"""How well prices predict whole networks: fitted to a few of them, of a device pack, and multiply-accumulates.

    python -m benchmarks.latency_prices SPACE [--image 128x256] [--target cpu/onnxruntime/fp32] [--seconds 60]
        [--pack FILE]

Networks spread over the space are timed for `--seconds`. Each is then predicted from all others: by the fit, by one
factor on its multiply-accumulates, and by the pack, whose correction is fitted to all others, as calibration does. A
pack of two minutes: `segtailor calibrate --space SPACE --image 128x256 --target ... --minutes 2.25 --networks 12`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from segtailor.core.plan import Plan, Shape
from segtailor.core.space import Architecture, family, fingerprint_of
from segtailor.core.statistics import pearson, spearman
from segtailor.core.target import parse_target
from segtailor.costs import LatencyTable, Macs, read_pack
from segtailor.costs.fitted import fit_latency
from segtailor.costs.pack import Correction, Pack
from segtailor.costs.sampling import spread, time_sample
from segtailor.costs.trust import MeasuredNetwork, with_correction

Predict = Callable[[Sequence[MeasuredNetwork], MeasuredNetwork], float]  # from all others, of one


def by_fit(others: Sequence[MeasuredNetwork], one: MeasuredNetwork) -> float:
    """Fit prices to all others."""
    return fit_latency(others, target="any")[0].of(one.plan)


def by_macs(others: Sequence[MeasuredNetwork], one: MeasuredNetwork) -> float:
    """Scale multiply-accumulates by the median rate of all others."""
    return median(other.low_ms / Macs().of(other.plan) for other in others) * Macs().of(one.plan)


def by_pack(pack: Pack) -> Predict:
    """Return the prices of a pack, corrected by all others."""

    def predict(others: Sequence[MeasuredNetwork], one: MeasuredNetwork) -> float:
        return LatencyTable(pack=with_correction(replace(pack, correction=Correction()), others)).of(one.plan)

    return predict


def figures(predict: Predict, networks: Sequence[MeasuredNetwork]) -> dict[str, float]:
    """Predict each network from all others."""
    predicted = [predict([*networks[:at], *networks[at + 1 :]], one) for at, one in enumerate(networks)]
    measured = [one.low_ms for one in networks]
    errors = np.abs(np.array(predicted) / np.array(measured) - 1)
    return {
        "mean_error": round(float(errors.mean()), 4),
        "largest_error": round(float(errors.max()), 4),
        "pearson": round(pearson(predicted, measured) or 0.0, 4),
        "spearman": round(spearman(predicted, measured) or 0.0, 4),
    }


def main() -> None:
    """Time networks once, and compare all predictions on them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("space")
    parser.add_argument("--image", default="128x256")
    parser.add_argument("--target", default="cpu/onnxruntime/fp32")
    parser.add_argument("--classes", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pack", type=Path)
    chosen = parser.parse_args()
    space, shape = family(chosen.space)(), Shape(3, *map(int, chosen.image.split("x")))

    def plan(arch: Architecture) -> Plan:
        return space.plan(arch, shape, chosen.classes)

    begin = time.monotonic()
    sample = time_sample(
        ((fingerprint_of(arch), plan(arch)) for arch in spread(space, plan, seed=0)),
        parse_target(chosen.target),
        seconds=chosen.seconds,
    )
    networks = [row.measured() for row in sample]
    document: dict[str, object] = {
        "space": chosen.space,
        "image": chosen.image,
        "target": chosen.target,
        "networks": len(networks),
        "seconds": round(time.monotonic() - begin, 1),
        "seconds_per_network": round(median(row.seconds for row in sample), 2),
        "slow_runs": round(median(one.median_ms / one.low_ms for one in networks), 3),
        "fastest_ms": round(min(one.low_ms for one in networks), 4),
        "slowest_ms": round(max(one.low_ms for one in networks), 4),
        "fit": figures(by_fit, networks),
        "macs": figures(by_macs, networks),
    }
    if chosen.pack is not None:
        pack = read_pack(chosen.pack)
        document["pack"] = figures(by_pack(pack), networks)
        document["pack_entries"] = pack.summary()
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
