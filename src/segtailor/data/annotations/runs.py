"""Run-length encodings of masks: COCO's counts and their text form, and the bit stream of Label Studio's brush.

All are from untrusted files: every function bounds what it allocates by the size that its caller has checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_RUNS = 2**24
MAX_TEXT_GROUPS = 7  # characters of one number in COCO's text: 35 bits
BRUSH_CHANNELS = 4  # Label Studio encodes red, green, blue and alpha; alpha holds the mask
OPAQUE = 128  # alpha from which a pixel counts as painted


class BrokenRuns(Exception):
    """Runs that do not describe a mask; the message says why."""


def mask_of_counts(counts: Sequence[int], length: int) -> NDArray[np.bool_]:
    """Return `length` pixels from the lengths of alternating runs, the first one of unset pixels."""
    if len(counts) > MAX_RUNS:
        raise BrokenRuns(f"it has {len(counts)} runs, over the limit of {MAX_RUNS}")
    runs = np.asarray(counts, dtype=np.int64) if counts else np.zeros(0, np.int64)
    if (runs < 0).any() or (runs > length).any():
        raise BrokenRuns(f"a run is negative or longer than its {length} pixels")
    total = int(runs.sum())
    if total != length:
        raise BrokenRuns(f"its runs cover {total} pixels instead of {length}")
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs)


def counts_of_text(text: str) -> list[int]:
    """Decode COCO's text: five bits per character, lowest first; from the fourth run on, changes to two before."""
    counts: list[int] = []
    value = shift = 0
    for sign in text:
        code = ord(sign) - 48
        if not 0 <= code < 64:
            raise BrokenRuns(f"character {sign!a} does not occur in run lengths")
        value |= (code & 31) << shift
        shift += 5
        if shift > 5 * MAX_TEXT_GROUPS:
            raise BrokenRuns("a number in it has no end")
        if code & 32:  # more characters of this number follow
            continue
        if code & 16:  # negative
            value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = shift = 0
    if shift:
        raise BrokenRuns("its last number is cut off")
    return counts


def mask_of_brush(data: bytes, length: int) -> NDArray[np.bool_]:
    """Decode the brush of Label Studio to `length` pixels.

    A header (32 bits: number of values; 5: bits per value - 1; 4 times 4: widths of run lengths - 1) is followed by
    runs: 1 bit whether one value repeats, 2 bits which width, the length - 1, then one value or as many as the run is
    long. Values are the channels of a pixel in turn.
    """
    stream = _Bits(data)
    total, bits = stream.read(32), stream.read(5) + 1
    widths = [stream.read(4) + 1 for _ in range(4)]
    if total != length * BRUSH_CHANNELS:
        raise BrokenRuns(f"it holds {total} values instead of {length} pixels of {BRUSH_CHANNELS} channels")
    if bits != 8:
        raise BrokenRuns(f"its values have {bits} bits instead of 8")
    values = np.zeros(total, np.uint8)
    at = 0
    while at < total:
        repeats = stream.read(1)
        end = at + 1 + stream.read(widths[stream.read(2)])
        if end > total:
            raise BrokenRuns(f"a run ends at value {end} of {total}")
        if repeats:
            values[at:end] = stream.read(bits)
        else:
            values[at:end] = [stream.read(bits) for _ in range(end - at)]
        at = end
    return values[BRUSH_CHANNELS - 1 :: BRUSH_CHANNELS] >= OPAQUE


class _Bits:
    """Numbers of any width from bytes, highest bit first."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def read(self, width: int) -> int:
        end = self._at + width
        first, last = self._at // 8, -(-end // 8)
        if last > len(self._data):
            raise BrokenRuns("it is cut off")
        self._at = end
        window = int.from_bytes(self._data[first:last], "big")
        return (window >> (8 * last - end)) & ((1 << width) - 1)
