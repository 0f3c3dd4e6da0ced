"""A training killed with SIGKILL at random moments and resumed ends with the very same weights."""

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from segtailor.recipes.recipe import with_settings
from segtailor.recipes.train import train_recipe
from segtailor.runs import Context, Layout
from segtailor.verbs.train import train

DATA = "synthetic:size=32x64,train=12,val=4,seed=0"
SETTINGS = [
    "fit.steps=60",
    "fit.batch=4",
    "fit.optimiser=adamw",
    "fit.lr=0.002",
    "fit.ema=0.9",
    "fit.validate_every=2",
]
PROGRAM = """
import sys, torch
from pathlib import Path
from segtailor.runs import Context, Policy
from segtailor.verbs.resume import resume
torch.set_num_threads(1)
context = Context(cache=Path(sys.argv[2]), device="cpu", policy=Policy(every_steps=1, tensorboard=False))
resume(sys.argv[1], context=context)
"""


def digest(folder: Path) -> str:
    return hashlib.sha256((Layout(folder).weights / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_kills_change_no_bit_of_the_weights(tmp_path: Path) -> None:
    context = Context(cache=tmp_path / "cache", device="cpu")
    recipe = with_settings(train_recipe("lpsnet-step0", DATA, crop=(32, 64), context=context), SETTINGS)
    train(recipe, tmp_path / "whole", context=context)
    folder = tmp_path / "killed"
    folder.mkdir()
    Layout(folder).recipe.write_text(Layout(tmp_path / "whole").recipe.read_text())
    rng, kills = random.Random(0), 0
    command = [sys.executable, "-c", PROGRAM, str(folder), str(tmp_path / "cache")]
    while kills < 10 and not Layout(folder).result.exists():
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        begin = size(folder)
        while size(folder) <= begin and child.poll() is None:
            time.sleep(0.002)  # until the session has done something
        time.sleep(rng.uniform(0, 0.05))
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            kills += 1
        child.wait()
    assert kills >= 5, "the run ended before it was killed often enough to prove anything"
    subprocess.run(command, check=True)
    assert digest(folder) == digest(tmp_path / "whole")
    assert (
        json.loads(Layout(folder).result.read_text())["miou"]
        == json.loads(Layout(tmp_path / "whole").result.read_text())["miou"]
    )


def size(folder: Path) -> int:
    journal = Layout(folder).journal
    return journal.stat().st_size if journal.exists() else 0
