"""A hard limit on latency, checked on what was measured and not on what was predicted."""

from __future__ import annotations

from dataclasses import dataclass

from segtailor.core.errors import UserError
from segtailor.targets.timing import Measurement


@dataclass(frozen=True, kw_only=True)
class ContractResult:
    """Whether a measured network keeps its limit: the 95th percentile must, not only the median."""

    target: str
    includes: str
    limit_ms: float
    p95_ms: float

    @property
    def met(self) -> bool:
        """Whether the limit is kept."""
        return self.p95_ms <= self.limit_ms

    def __str__(self) -> str:
        verdict = "keeps" if self.met else "MISSES"
        share = self.p95_ms / self.limit_ms
        return (
            f"{self.target} {verdict} the limit of {self.limit_ms:g} ms: "
            f"95 % of runs take at most {self.p95_ms:.3f} ms ({share:.0%} of it; {self.includes})"
        )


def check_contract(measurement: Measurement, limit_ms: float) -> ContractResult:
    """Compare a measurement with a limit in milliseconds."""
    if not limit_ms > 0:
        raise UserError(f"a latency limit of {limit_ms} ms cannot be kept; give a positive one, e.g. 12ms.")
    return ContractResult(
        target=measurement.target,
        includes=measurement.includes,
        limit_ms=limit_ms,
        p95_ms=measurement.p95_ms,
    )
