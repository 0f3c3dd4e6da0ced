"""What a long search tells and when: progress about twice a second, each warning once."""

from __future__ import annotations

import math
import time

REPORT_SECONDS = 0.5  # between two progress records, the only moments that wait for the device


class Pace:
    """Says when the next progress record is due, in steps, so that asking waits for nothing."""

    def __init__(self, done: int = 0) -> None:
        self._started, self._since, self._pause = time.perf_counter(), done, 1

    def due(self, done: int) -> bool:
        """Tell whether enough steps were done since the last record."""
        return done >= self._since + self._pause

    def rest(self, done: int) -> None:
        """Count anew, at the speed seen."""
        seconds = time.perf_counter() - self._started
        self._pause = math.ceil(REPORT_SECONDS * (done - self._since) / max(seconds, 1e-9))
        self._started, self._since = time.perf_counter(), done


class Warnings:
    """Warnings of a search in the order they came up; `news` gives those that no progress record has told yet."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._told = 0

    def add(self, text: str | None) -> None:
        """Note what there is to say, if anything. What is said before a colon is said only once."""
        if text and not any(text.partition(":")[0] == known.partition(":")[0] for known in self.all):
            self.all.append(text)

    def news(self) -> str | None:
        """Return what is new since the last call."""
        new, self._told = self.all[self._told :], len(self.all)
        return " ".join(new) or None

    def restore(self, told: list[str]) -> None:
        """Start from warnings that were told before."""
        self.all, self._told = told, len(told)
