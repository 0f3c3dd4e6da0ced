"""Runs a piece of a comparison in this process, as its command line would."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.comparing import parse_flags

TINY = "--data synthetic:size=32x64,train=8,val=4 --image 32x64 --batch 2 --training 1 --repeats 2 --seeds 1"


def options_of(
    parser: argparse.ArgumentParser, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> argparse.Namespace:
    """Return the options of a tiny comparison in a folder."""
    given = f"{TINY} {words} --cache {folder} --out {folder / 'out'}"
    monkeypatch.setattr(sys, "argv", ["program", *given.split()])
    return parse_flags(parser)


def record_of(
    run_piece: Callable[[str, argparse.Namespace], None], options: argparse.Namespace
) -> dict[str, Any]:
    """Carry out the first seed twice; the second time nothing is done again. Return its record."""
    file = options.out / "seed-0.json"
    run_piece("seed-0", options)
    record = file.read_text()
    run_piece("seed-0", options)
    assert file.read_text() == record
    found: dict[str, Any] = json.loads(record)
    return found
