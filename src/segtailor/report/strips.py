"""Probabilities of decisions as bands over time: how a search by gradients made up its mind."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from segtailor.report.document import DecisionStory
from segtailor.report.numbers import percent
from segtailor.report.plotting import path, stretched

STRIPS = 6  # options that get a colour of their own; the others share one


def option_colours(stories: Sequence[DecisionStory]) -> dict[str, str]:
    """Give the options that ended likeliest a colour each; an option has one colour in all decisions."""
    last: dict[str, float] = {}
    for story in stories:
        for option, share in zip(story.options, story.shares[-1] if story.shares else (), strict=False):
            last[option] = last.get(option, 0.0) + share
    ranked = sorted(last, key=lambda option: (-last[option], option))
    return {option: f"s{index}" for index, option in enumerate(ranked[:STRIPS])}


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
    return f'<svg class="strip" role="img" aria-label="{escape(alt)}">{stretched(bands)}</svg>'


def means(stories: Sequence[DecisionStory]) -> list[DecisionStory]:
    """Average the decisions that offer the same options."""
    alike: dict[tuple[tuple[str, ...], tuple[float, ...]], list[DecisionStory]] = {}
    for story in stories:
        alike.setdefault((story.options, story.at), []).append(story)
    found = []
    for (options, at), group in alike.items():
        rows = tuple(
            tuple(
                sum(story.shares[time][option] for story in group) / len(group)
                for option in range(len(options))
            )
            for time in range(len(at))
        )
        name = f"mean of {len(group)} decisions" if len(group) > 1 else group[0].name
        found.append(DecisionStory(name=name, options=options, at=at, shares=rows))
    return found


def _band(outline: Sequence[tuple[float, float]], kind: str, tip: str) -> str:
    return f"<g><title>{escape(tip)}</title>{path(outline, kind=f'band {kind}', closed=True)}</g>"
