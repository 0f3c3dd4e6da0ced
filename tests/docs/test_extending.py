"""The examples of extensions pass the conformance kits, in a separate process because they register names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.docs.markdown import ROOT, python_blocks

CHECKS = """
import sys
from pathlib import Path

import segtailor.testing as kits
from segtailor.core.plan import OpCall, Shape
from segtailor.data.locate import locate

for options in ("", "?night=true"):
    kits.check_dataset(locate(f"shots:{sys.argv[1]}{options}"))
kits.check_operator(OpCall(op=Gated(), inputs=(Shape(6, 9, 11),), channels=6))
"""


@pytest.mark.slow
def test_the_examples_pass_the_conformance_kits(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name in ("day/train", "day/val", "night/train", "night/val"):
        (tmp_path / name).mkdir(parents=True)
        pixels = random.integers(0, 256, (8, 12, 3), dtype=np.uint8)
        np.savez(tmp_path / name / "a.npz", image=pixels, labels=pixels[..., 0] // 128)
    blocks = [block for block in python_blocks(ROOT / "docs" / "extending.md") if "my_package" not in block]
    assert len(blocks) == 2
    script = tmp_path / "extension.py"
    script.write_text("\n".join([*blocks, CHECKS]), encoding="utf-8")
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
