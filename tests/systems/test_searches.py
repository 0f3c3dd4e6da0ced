"""The published searches: every value that `search --scale paper --dry-run` prints beside the specification's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from segtailor.recipes.recipe import recipe_document
from segtailor.runs import Context
from segtailor.verbs.search import SearchChoices, search_recipe
from tests.systems.test_trainings import POLY, SGD, assert_values, camvid
from tests.systems.tiny import DATA

FLIP = {"flip": 0.5}


def paper_search(name: str, tmp_path: Any, data: str = DATA, **choices: Any) -> Any:
    """The document of a paper's search, which a dry run prints."""
    recipe = search_recipe(
        name, data, SearchChoices(scale="paper", **choices), context=Context(cache=tmp_path / "cache")
    )
    return json.loads(json.dumps(recipe_document(recipe)))


def below(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """The same values under a dotted prefix."""
    return {f"{prefix}.{name}": value for name, value in values.items()}


def test_fasterseg_searches_as_specified(tmp_path: Any) -> None:
    weights = {  # fasterseg.md (e) optimisation, (d) losses
        "optimiser": "sgd",
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "decay_norms": True,
        "clip": 5.0,
        "schedule.kind": "exponential",
        "schedule.gamma": 0.978,
        "schedule.epoch_steps": None,
        "loss.ohem": 0.7,
        "loss.ohem_keep": 1 / 16,
        "loss.auxiliary_default": 1.0,  # the losses of all five outputs are added
        "loss.resize": "labels",
    }
    assert_values(
        paper_search("fasterseg", tmp_path),
        {
            **below("strategy.pretraining.fit", {**weights, "epochs": 20, "batch": 3, "lr": 0.02}),
            **below("strategy.fit", {**weights, "epochs": 30, "batch": 2, "lr": 0.01}),
            "strategy.pretraining.augment.crop": [256, 512],
            "strategy.pretraining.augment.scales": [0.375, 0.5, 0.625],  # 0.75, 1, 1.25 of half-size images
            "strategy.pretraining.augment.flip": 0.5,
            "strategy.pretraining.widths": ["most", "least", "random", "random"],  # (b) passes
            "strategy.augment.crop": [224, 448],
            "strategy.augment.scales": [0.375, 0.5, 0.625],
            "strategy.augment.flip": 0.5,
            "strategy.updates": "alternating",
            "strategy.logits": {"lr": 3e-4, "betas": [0.5, 0.999], "weight_decay": 0.0, "spread": 0.0},
            "strategy.temperature.start": 1.0,
            "strategy.temperature.end": 1.0,
            "strategy.groups.op.relaxation": "softmax",
            "strategy.groups.path.relaxation": "softmax",
            "strategy.groups.width.relaxation": "gumbel",
            "strategy.groups.width.hard": True,
            "strategy.groups.op.cost": 0.002,  # (c) three granularities; used with shares=given
            "strategy.groups.path.cost": 0.994,
            "strategy.groups.width.cost": 0.004,
            "strategy.cost.weight": 0.01,  # (d) lambda
            "strategy.cost.form": "absolute",
            "strategy.cost.window": [155 / 175, 1.0],
            "strategy.cost.others": "neutral",
            "strategy.passes": [
                {"role": "teacher", "widths": "own"},
                {"role": "student", "widths": "own"},
                {"role": "student", "widths": "most"},
                {"role": "student", "widths": "least"},
            ],
            "strategy.choice.scale": 0.5,  # (g) at half size
            "space.layers": 16,
            "space.ratios": [4, 6, 8, 10, 12],
            "space.stem_ratios": [8, 12],
            "space.head_ratios": [8, 12],
            "space.ends": [[32], [8, 16]],
            "space.path16": "release",
            "judging": 0.5,
            "image": [1024, 2048],
            "limit": 1000 / 155,
            "objective": {"kind": "power", "limit": 8.3, "exponent": -0.07},  # (f) 4
            "cost.pack": "fasterseg-1080ti",
            "seed": 12345,
            "start": "none",
        },
    )


@pytest.mark.parametrize("layout", ["cityscapes", "camvid"])
def test_autortnet_searches_as_specified(tmp_path: Any, layout: str) -> None:
    on_camvid = layout == "camvid"
    assert_values(
        paper_search("autortnet", tmp_path, camvid(tmp_path) if on_camvid else DATA),
        {  # autortnet.md 8.1 and 8.2
            **below("strategy.fit", {"optimiser": "sgd", "momentum": 0.9, "weight_decay": 1e-3, "lr": 0.025}),
            **below("strategy.fit", {"epochs": 150, "steps": None, "batch": 16, "clip": 5.0}),
            **below("strategy.fit.schedule", {"kind": "cosine", "final": 0.001 / 0.025}),
            "strategy.fit.loss.ohem": None,
            "strategy.logits": {"lr": 1e-3, "betas": [0.5, 0.999], "weight_decay": 1e-4, "spread": 0.01},
            "strategy.temperature": {"start": 3.0, "end": 0.03, "shape": "linear", "per": "epoch"},
            "strategy.groups.depth.warmup": 50 / 150,
            "strategy.learn.warmup": 0.0,
            "strategy.groups.depth.frozen": "drawn",
            "strategy.updates": "joint",
            "strategy.mode": "soft",
            "strategy.per_image": False,
            "strategy.supernet.affine": False,
            "strategy.cost.weight": 0.1 if on_camvid else 0.01,  # networks C and A
            "strategy.cost.form": "log",
            "strategy.cost.of": "sampled",
            "strategy.cost.whole": False,
            "strategy.augment.crop": [360, 480] if on_camvid else [512, 1024],
            "image": [720, 960] if on_camvid else [768, 1536],
            "space.depths": [5, 10, 10],
            "space.widths": [8, 24, 72],
            "space.stem": 8,
            "space.wiring.width": 72,
            "space.context": {"branch": 256, "output": 128, "rates": [6, 12, 18]},
            "start": "none",
        },
    )


def test_squeezenas_searches_as_specified(tmp_path: Any) -> None:
    assert_values(
        paper_search("squeezenas", tmp_path),
        {  # squeezenas.md 7; rates, batch and length are not published
            "strategy.updates": "joint",
            "strategy.mode": "soft",
            "strategy.per_image": True,
            "strategy.temperature": {"start": 5.0, "end": 1.0, "shape": "geometric", "per": "step"},
            "strategy.cost.of": "probabilities",
            "strategy.cost.form": "linear",
            "strategy.remove_below": 0.005,
            "strategy.choice.samples": 200,
            "strategy.learn.warmup": 0.1,
            **below("strategy.logits", {"lr": 0.01, "weight_decay": 5e-4, "spread": 0.0}),
            **below("strategy.fit", {"optimiser": "sgd", "momentum": 0.9, "schedule.kind": "cosine"}),
            "image": [1024, 2048],
            "start": "none",  # networks are pre-trained after the search
        },
    )


def test_lpsnet_expands_as_specified(tmp_path: Any) -> None:
    found = paper_search("lpsnet", tmp_path)
    assert_values(
        found,
        {  # lps-net.md 6, "short recipe"
            **below("evaluator", {**SGD, **POLY}),
            **below("evaluator.fit", {"steps": 90_000, "batch": 16, "lr": 0.01, "weight_decay": 5e-4}),
            "evaluator.fit.loss.ohem": None,
            "evaluator.augment.crop": [768, 768],
            "evaluator.augment.scale": [0.5, 2.0],
            "evaluator.augment.flip": 0.5,
            "evaluator.reparameterise": True,
            "strategy.steps": 14,
            "strategy.directions": [],
            "space.interaction": "bilateral_b",
            "space.paths": 3,
            "image": [1024, 2048],
            "judging": 0.1,
            "start": "none",
        },
    )
    assert found["evaluator"]["augment"]["brightness"] > 0


def test_auxcells_searches_as_specified(tmp_path: Any) -> None:
    adam = {"optimiser": "adam", "betas": [0.9, 0.999], "eps": 1e-8, "lr": 3e-3, "weight_decay": 1e-5}
    assert_values(
        paper_search("auxcells", tmp_path, start="none"),
        {  # auxiliary-cells.md 1, 8, 9
            **below("space", {"encoder": "mobilenet_v2", "channels": 48, "repeats": 1, "auxiliary": "cell"}),
            **below("strategy", {"trials": 20_000, "lr": 1e-4, "clip": 0.1, "buffer": 100, "minibatch": 1}),
            **below("strategy", {"epochs": 1, "baseline_decay": 0.95, "entropy": 0.0, "gradient_clip": 2.0}),
            **below("strategy", {"hidden": 100, "layers": 2, "warmup": 4, "feedback": False, "batch": 1}),
            **below("evaluator.features", {"crop": [256, 256], "scale": [0.7, 1.4], "shorter": 300, **FLIP}),
            **below("evaluator.augment", {"crop": [350, 350], "scale": [0.7, 1.4], "shorter": 400, **FLIP}),
            **below("evaluator.stage1", {**adam, "epochs": 5, "batch": 64, "clip": 3.0, "ema": 0.9}),
            **below("evaluator.stage1", {"ema_warmup": False, "ema_norms": False, "freeze_norms": False}),
            **below("evaluator.stage1", {"distill.kind": "l2", "distill.weight": 0.3}),
            **below("evaluator.stage1.loss", {"auxiliary_default": 0.15, "resize": "logits"}),
            **below("evaluator.stage2", {**adam, "epochs": 1, "batch": 32, "clip": 3.0, "ema": 0.99}),
            **below("evaluator.stage2.encoder", {"optimiser": "sgd", "lr": 1e-3, "momentum": 0.9}),
            **below("evaluator.stage2", {"distill": None, "encoder.weight_decay": 1e-5}),
            **below("evaluator.stage2.loss", {"auxiliary_default": 0.15, "resize": "labels"}),
            **below("evaluator.early_stop", {"rule": "probability", "start": 0.9, "decay": 0.99}),
            **below("evaluator.early_stop", {"milestones": [100, 200, 300, 400], "every": 1}),
            "evaluator.early_stop.factors": [0.9, 0.8, 0.7, 0.6],
            "evaluator.images": 4000,
            "evaluator.judge": [400, 400],
            "evaluator.average_each_epoch": False,
            "judging": 0.1,
            "seed": 9314,
        },
    )


def test_a_search_of_the_paper_takes_weights_where_they_are_asked_for(tmp_path: Any) -> None:
    assert paper_search("lpsnet", tmp_path, start="none")["start"] == "none"
    assert paper_search("squeezenas", tmp_path, start="imagenet")["start"] == "imagenet"
