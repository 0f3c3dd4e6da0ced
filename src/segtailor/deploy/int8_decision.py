"""Whether an int8 network is worth keeping: arithmetic on what was measured, and one sentence that says why."""

from __future__ import annotations

from dataclasses import dataclass

from segtailor.core.errors import UserError
from segtailor.core.target import Includes

MIOU_LIMIT = 0.01  # mIoU that int8 may lose, as a fraction


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One network, measured: latency with its spread (interquartile range over median), and quality."""

    target: str
    median_ms: float
    p95_ms: float
    spread: float
    miou: float


@dataclass(frozen=True, kw_only=True)
class Int8Verdict:
    """Whether int8 is kept, and why or why not."""

    kept: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Int8Decision:
    """All that was measured before (fp32) and after (int8) in one run on one runtime, and what follows from it.

    `ratio` is the median latency after over before, `label_agreement` the share of pixels on which both give the same
    label. `samples` were used for calibration, `images` for scoring. `source` is the digest of the
    fp32 file. `file` is None unless int8 is kept.
    """

    target: str
    kept: bool
    reason: str
    before: Reading
    after: Reading
    ratio: float
    miou_change: float
    limit: float
    label_agreement: float
    images: int
    samples: int
    method: str
    data: str
    image: tuple[int, int]
    includes: Includes
    source: str
    file: str | None
    warnings: tuple[str, ...] = ()


def decide_int8(before: Reading, after: Reading, *, limit: float = MIOU_LIMIT) -> Int8Verdict:
    """Keep int8 if it is faster by more than the spread of the measurement, and loses at most `limit` of mIoU."""
    check_limit(limit)
    ratio, noise = after.median_ms / before.median_ms, max(before.spread, after.spread)
    loss = before.miou - after.miou
    times = f"{before.median_ms:.2f} ms in fp32, {after.median_ms:.2f} ms in int8"
    against = []
    if ratio >= 1:
        against.append(f"int8 is not faster on {after.target} ({times})")
    elif 1 - ratio <= noise:
        against.append(
            f"int8 is {1 - ratio:.1%} faster on {after.target} ({times}), "
            f"within the measurement's spread of {noise:.1%}"
        )
    if not loss <= limit:
        against.append(f"int8 loses {100 * loss:.2f} points of mIoU, {100 * limit:.2f} are allowed")
    if against:
        return Int8Verdict(kept=False, reason="; ".join(against) + ".")
    change = f"loses {100 * loss:.2f}" if loss > 0 else f"gains {-100 * loss:.2f}"
    return Int8Verdict(
        kept=True,
        reason=f"int8 takes {ratio:.0%} of the time on {after.target} ({times}) and {change} points of mIoU.",
    )


def check_limit(limit: float) -> None:
    """Refuse a limit that is no share of mIoU."""
    if not 0 <= limit <= 1:
        raise UserError(f"a mIoU loss of {limit} cannot be a limit; give a fraction from 0 to 1, e.g. 0.01.")
