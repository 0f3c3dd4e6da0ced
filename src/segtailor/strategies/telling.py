"""What a long search has to say: each warning once."""

from __future__ import annotations


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
