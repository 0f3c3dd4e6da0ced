"""Sizes that users write."""

from __future__ import annotations

import pytest

from segtailor.core.errors import DataProblem, UserError
from segtailor.core.ranges import MAX_SIDE_PIXELS, parse_size


@pytest.mark.parametrize("text", ["360x480", " 360X480 ", "360×480"])
def test_a_size_is_height_then_width(text: str) -> None:
    assert parse_size(text) == (360, 480)


@pytest.mark.parametrize(
    "text", ["360", "360x", "x480", "a360x480", "-1x4", "360x480x3", "", "0x480", "360x0", "1.5x4"]
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match="not HEIGHTxWIDTH in pixels; write for example 360x480"):
        parse_size(text)


def test_sides_have_a_limit() -> None:
    assert parse_size(f"1x{MAX_SIDE_PIXELS}") == (1, MAX_SIDE_PIXELS)
    for text in (f"{MAX_SIDE_PIXELS + 1}x1", "99999x480", "480x999999"):
        with pytest.raises(UserError, match=f"larger than any picture; give sides of 1 to {MAX_SIDE_PIXELS}"):
            parse_size(text)
    with pytest.raises(UserError, match="give sides of 1 to 100 pixels"):
        parse_size("101x10", most=100)


def test_a_message_names_the_option_and_has_the_callers_type() -> None:
    with pytest.raises(DataProblem, match=r"^synthetic: size 'big' is not"):
        parse_size("big", name="synthetic: size", error=DataProblem)
