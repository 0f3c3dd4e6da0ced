"""What predictions of one picture are worth saying about it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import segtailor
from segtailor.core.task import Task
from segtailor.nets.bundle import Model, save_bundle
from segtailor.predicting.labelling import scale_advice
from segtailor.verbs.main import run


def test_images_of_the_size_of_the_training_get_no_advice() -> None:
    assert scale_advice((360, 480), (360, 480), (360, 480)) is None
    assert scale_advice((360, 480), (500, 700), (500, 700)) is None
    assert scale_advice((360, 480), (3000, 4000), (360, 480)) is None  # reduced for the network


@pytest.mark.parametrize(
    ("image", "size"), [((2160, 2880), "360x480"), ((4000, 3000), "480x360"), ((1080, 1920), "312x552")]
)
def test_the_proposed_size_keeps_the_aspect_ratio_and_the_area(image: tuple[int, int], size: str) -> None:
    advice = scale_advice((360, 480), image, image)
    assert advice is not None
    assert f"--size {size} " in advice


def test_advice_is_given_once_and_not_where_a_size_was_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = segtailor.create("lpsnet-step0", classes=2, seed=0)
    model = Model(network=network, task=Task(classes=("a", "b")), provenance={"image": [32, 48]})
    save_bundle(tmp_path / "bundle", model)
    for name in "ab":
        Image.fromarray(np.zeros((96, 144, 3), np.uint8)).save(tmp_path / f"{name}.png")
    words = [
        "predict",
        str(tmp_path / "bundle"),
        str(tmp_path / "*.png"),
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    assert run(words) == 0
    notes = [row["note"] for row in json.loads(capsys.readouterr().out)["results"]]
    assert "3.0 times" in notes[0]
    assert "--size 32x48" in notes[0]
    assert notes[1] is None
    assert run([*words, "--size", "96x144"]) == 0
    assert all(row["note"] is None for row in json.loads(capsys.readouterr().out)["results"])
