"""Probabilities of decisions as bands over time: how a search by gradients made up its mind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from segtailor.core.text import escaped
from segtailor.report.document import DecisionStory
from segtailor.report.numbers import percent
from segtailor.report.plotting import path, stretched

STRIPS = 6  # options that get a colour of their own; the others share one


class Alike(NamedTuple):
    """Decisions that offer the same options: their mean, each of them, and the colours of their options."""

    mean: DecisionStory
    members: list[DecisionStory]
    colours: dict[str, str]

    @property
    def others(self) -> bool:
        """Whether some options have no colour of their own."""
        return len(self.colours) < len(self.mean.options)


def alike(stories: Sequence[DecisionStory]) -> list[Alike]:
    """Group decisions by their options."""
    groups: dict[tuple[tuple[str, ...], tuple[float, ...]], list[DecisionStory]] = {}
    for story in stories:
        groups.setdefault((story.options, story.at), []).append(story)
    return [
        Alike(mean, members, _colours(mean)) for members in groups.values() if (mean := _mean(members)).at
    ]


def strip(story: DecisionStory, colours: dict[str, str]) -> str:
    """Draw the probabilities of one decision as bands over time; the bands of all other options are grey."""
    if len(story.at) < 2:
        return ""
    low, high = story.at[0], story.at[-1]
    places = [100 * (at - low) / ((high - low) or 1.0) for at in story.at]
    floor = [0.0] * len(places)
    bands = []
    for index, option in enumerate(story.options):
        roof = [base + row[index] for base, row in zip(floor, story.shares, strict=True)]
        outline = [(x, 100 - 100 * y) for x, y in zip(places, roof, strict=True)]
        outline += [(x, 100 - 100 * y) for x, y in zip(places[::-1], floor[::-1], strict=True)]
        tip = f"{option}: {percent(story.shares[0][index], 0)} → {percent(story.shares[-1][index], 0)}"
        bands.append(_band(outline, colours.get(option, "s-other"), tip))
        floor = roof
    winner = max(range(len(story.options)), key=lambda index: story.shares[-1][index])
    alt = f"{story.name}: ends with {story.options[winner]} at {percent(story.shares[-1][winner], 0)}"
    return f'<svg class="strip" role="img" aria-label="{escaped(alt)}">{stretched(bands)}</svg>'


def _mean(stories: Sequence[DecisionStory]) -> DecisionStory:
    first = stories[0]
    rows = tuple(
        tuple(sum(values) / len(stories) for values in zip(*shares, strict=True))
        for shares in zip(*(story.shares for story in stories), strict=True)
    )
    name = f"mean of {len(stories)} decisions" if len(stories) > 1 else first.name
    return DecisionStory(name=name, options=first.options, at=first.at, shares=rows)


def _colours(mean: DecisionStory) -> dict[str, str]:
    """Give the options that ended likeliest a colour each, in their own order."""
    last = dict(zip(mean.options, mean.shares[-1], strict=True)) if mean.shares else {}
    likeliest = sorted(last, key=lambda option: -last[option])[:STRIPS]
    return {
        option: f"s{index}"
        for index, option in enumerate(option for option in mean.options if option in likeliest)
    }


def _band(outline: Sequence[tuple[float, float]], kind: str, tip: str) -> str:
    return f"<g><title>{escaped(tip)}</title>{path(outline, kind=f'band {kind}', closed=True)}</g>"
