"""A short training on rendered scenes and people beats every predictor that never looks at a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import segtailor
from segtailor.runs import Context
from segtailor.verbs.train import train
from tests.tasks.test_end_to_end import trivial

torch.set_num_threads(1)


def learnt(network: str, data: str, folder: Path, *changes: str) -> dict[str, float]:
    usual = ("fit.batch=16", "fit.optimiser=adamw", "fit.weight_decay=0.0001", "fit.validate_batch=20")
    context = Context(cache=folder / "cache", device="cpu")
    result = train(
        network, folder / "run", data=data, changes=[*usual, *changes], check=False, context=context
    )
    return {name: value for name, value in result.items() if isinstance(value, float)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_depth_is_learnt_far_beyond_constants_and_row_means(tmp_path: Path) -> None:
    data = "synthetic:task=depth,size=64x128,train=400,val=60"
    changes = ("fit.steps=500", "fit.lr=0.01", "augment.scale=[1.0,1.0]")
    found = learnt("fast-scnn", data, tmp_path, *changes)
    guesses = trivial(data, tmp_path / "cache")
    for name, least in (("median", 0.35), ("row means", 0.2)):
        for figure in ("rmse", "abs_rel", "rmse_log"):
            assert found[figure] < (1 - least) * guesses[name][figure], (name, figure)
        assert found["delta1"] > guesses[name]["delta1"] + 0.05


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_people_are_found_far_better_than_by_the_mean_pose(tmp_path: Path) -> None:
    data = "synthetic:task=pose,size=96x96,crop=96x96,train=500,val=60"
    changes = ("fit.steps=1200", "fit.optimiser=adam", "fit.lr=0.004", "fit.weight_decay=0")
    found = learnt("ddrnet-23-slim", data, tmp_path, *changes, "augment.scale=[0.9,1.1]", "augment.rotate=15")
    (mean_pose,) = trivial(data, tmp_path / "cache").values()
    assert found["pckh"] > mean_pose["pckh"] + 0.2
    pytest.importorskip("onnxruntime")
    done = segtailor.export(tmp_path / "run" / "weights", output="heatmaps", data=data)
    assert done.figures["label_agreement"] >= 0.999
