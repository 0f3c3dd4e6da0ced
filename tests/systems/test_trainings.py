"""The published trainings: every value of a dry run at the paper's scale beside the specification's, and short runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import segtailor
from segtailor.core.errors import Unsupported
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.verbs.main import run
from segtailor.verbs.train import published_training, train
from tests.data.trees import write_image, write_mask
from tests.systems.tiny import DATA, context_in


def cityscapes(root: Path, *, coarse: bool = True) -> str:
    """A Cityscapes folder of three small frames, with coarse masks of two of them."""
    for split, city in (("train", "ulm"), ("val", "bonn"), ("train_extra", "lyon")):
        stem = f"{city}/{city}_000000_000019"
        write_image(root / "leftImg8bit" / split / f"{stem}_leftImg8bit.png")
        for kind, here in (("gtFine", split != "train_extra"), ("gtCoarse", split != "val" and coarse)):
            if here:
                write_mask(root / kind / split / f"{stem}_{kind}_labelIds.png", (7, 33, 0, 9))
    return f"cityscapes:{root}"


def dry_run(capsys: pytest.CaptureFixture[str], model: str, recipe: str, data: str, *flags: str) -> Any:
    """The stages that the command line prints at the paper's scale."""
    command = ["train", model, "--data", data, "--recipe", recipe, "--scale", "paper", "--dry-run", "--json"]
    assert run([*command, "--out", "unused", *flags]) == 0
    return json.loads(capsys.readouterr().out)["recipe"]["stages"]


def assert_values(found: Any, wanted: dict[str, Any]) -> None:
    """Compare dotted names with a document."""
    for name, value in wanted.items():
        held = found
        for part in name.split("."):
            held = held[part]
        assert held == pytest.approx(value) if isinstance(value, float) else held == value, name


SGD = {"fit.optimiser": "sgd", "fit.momentum": 0.9}
OHEM = {"fit.loss.ohem": 0.7, "fit.loss.ohem_keep": 1 / 16}  # fasterseg.md (d); autortnet.md 9 [choice]
POLY = {"fit.schedule.kind": "poly", "fit.schedule.power": 0.9, "fit.schedule.reach": 1.0}


def test_fasterseg_trains_as_specified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = cityscapes(tmp_path)
    specified = {  # fasterseg.md (d) losses, (e) optimisation, column "training", (g) from scratch
        **SGD,
        **OHEM,
        "data": data,
        "augment.crop": [512, 1024],
        "augment.scales": [0.75, 1.0, 1.25],
        "augment.flip": 0.5,
        "fit.steps": 600_000,
        "fit.batch": 12,
        "fit.lr": 0.01,
        "fit.weight_decay": 5e-4,
        "fit.decay_norms": True,
        "fit.schedule.kind": "exponential",
        "fit.schedule.gamma": 0.992,
        "fit.schedule.epoch_steps": 1000,
        "fit.clip": None,
        "fit.loss.auxiliary_default": 0.2,
        "fit.loss.resize": "logits",
        "start": "none",
    }
    (stage,) = dry_run(capsys, "fasterseg-teacher", "fasterseg", data)
    assert_values(stage, {**specified, "fit.distill": None, "teacher": None})
    (stage,) = dry_run(capsys, "fasterseg-student", "fasterseg", data, "--teacher", "bundle")
    distilled = {  # (d) KD: mean over all elements, no temperature, weight 1
        "kind": "kl",
        "weight": 1.0,
        "temperature": 1.0,
        "mean_over_classes": True,
    }
    assert_values(stage, {**specified, "fit.distill": distilled, "teacher": "bundle"})


def test_the_rate_of_fasterseg_ends_where_the_specification_says(tmp_path: Path) -> None:
    recipe = published_training(
        "fasterseg", "fasterseg-student", cityscapes(tmp_path), scale="paper", context=context_in(tmp_path)
    )
    fit = recipe.stages[0].fit
    # (e): 8.1e-5 at the end, whatever number of images the data has
    factor = fit.schedule.factor(600_000, total=600_000, steps_per_epoch=247)
    assert fit.lr * factor == pytest.approx(8.1e-5, rel=0.01)


@pytest.mark.parametrize(("layout", "crop"), [("cityscapes", [768, 768]), ("camvid", [720, 720])])
def test_autortnet_trains_as_specified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str, crop: list[int]
) -> None:
    data = cityscapes(tmp_path) if layout == "cityscapes" else camvid(tmp_path)
    (stage,) = dry_run(capsys, "autortnet-a", "autortnet", data)
    assert_values(
        stage,
        {  # autortnet.md 9
            **SGD,
            **OHEM,
            **POLY,
            "augment.crop": crop,
            "augment.scale": [0.5, 2.0],
            "augment.flip": 0.5,
            "fit.epochs": 200,
            "fit.steps": None,
            "fit.batch": 16,
            "fit.lr": 0.01,
            "fit.weight_decay": 5e-4,
            "train_split": "train+val" if layout == "camvid" else "train",
            "val_split": "test" if layout == "camvid" else "val",
        },
    )


@pytest.mark.parametrize(
    ("layout", "crop", "steps", "batch", "lr"),
    [
        ("cityscapes", [768, 1536], 180_000, 16, 0.01),
        ("camvid", [720, 960], 40_000, 12, 0.03),
        ("bdd100k", [720, 1280], 180_000, 16, 0.01),
    ],
)
def test_lpsnet_trains_as_specified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str, crop: list[int], steps: int, batch: int, lr: float
) -> None:  # fmt: skip
    data = {"cityscapes": cityscapes, "camvid": camvid, "bdd100k": bdd100k}[layout](tmp_path)
    (stage,) = dry_run(capsys, "lpsnet-s", "lpsnet", data)
    assert_values(
        stage,
        {  # lps-net.md 6, "full recipe", BDD100K, CamVid
            **SGD,
            **OHEM,
            **POLY,
            "augment.crop": crop,
            "augment.scale": [0.5, 2.0],
            "augment.flip": 0.5,
            "fit.steps": steps,
            "fit.batch": batch,
            "fit.lr": lr,
            "fit.weight_decay": 5e-4,
            "reparameterise": True,
            "train_split": "train+val" if layout == "camvid" else "train",
        },
    )
    assert stage["augment"]["brightness"] > 0  # colour jitter, of a strength that the paper does not give


def test_squeezenas_trains_as_specified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = cityscapes(tmp_path)
    stages = dry_run(capsys, "squeezenas-lat-small", "squeezenas", data, "--start", "none")
    shared = {  # squeezenas.md 8
        **SGD,
        "augment.crop": [768, 768],
        "fit.lr": 0.05,
        "fit.weight_decay": 1e-5,
        "fit.precision": "bf16",
        "fit.loss.ohem": None,
    }
    coarse, fine = stages
    assert_values(
        coarse, {**shared, "fit.epochs": 40, "data": data.replace("cityscapes:", "cityscapes-coarse:")}
    )
    drops = {
        "fit.epochs": 100,
        "fit.schedule.kind": "step",
        "fit.schedule.gamma": 0.1,
        "fit.schedule.milestones": [0.5, 0.75],
        "data": data,
        "val_split": "val",
    }
    assert_values(fine, {**shared, **drops})


def test_auxcells_trains_on_cityscapes_as_specified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = cityscapes(tmp_path)
    (stage,) = dry_run(capsys, "auxcells-arch0", "auxcells", data, "--start", "none")
    assert_values(
        stage,
        {  # auxiliary-cells.md 11, "CityScapes, ResNet-50"
            **SGD,
            **POLY,
            "augment.crop": [800, 800],
            "augment.scale": [0.5, 2.0],
            "augment.flip": 0.5,
            "fit.epochs": 500,
            "fit.steps": None,
            "fit.batch": 20,
            "fit.lr": 0.05,
            "fit.encoder.lr": 0.01,
            "fit.encoder.optimiser": "sgd",
            "fit.encoder.momentum": 0.9,
            "fit.loss.ohem": None,
            "fit.loss.resize": "logits",
            "fit.distill": None,
            "fit.ema": None,
            "auxiliary": True,
            "architecture.architecture.channels": 64,
            "architecture.architecture.repeats": 2,
        },
    )


def test_auxcells_trains_for_voc_as_specified(capsys: pytest.CaptureFixture[str]) -> None:
    stages = dry_run(capsys, "auxcells-arch1", "auxcells", DATA, "--start", "none")
    for number, (epochs, auxiliary) in enumerate(((30, 0.3), (50, 0.25), (50, 0.2), (50, 0.15))):
        assert_values(
            stages[number],
            {  # auxiliary-cells.md 11, "VOC"; the last 100 epochs are two halves
                "augment.crop": [450, 450],
                "augment.scale": [0.5, 2.0],
                "augment.flip": 0.5,
                "fit.epochs": epochs,
                "fit.batch": 64,
                "fit.optimiser": "adam",
                "fit.betas": [0.9, 0.99],
                "fit.eps": 1e-3,
                "fit.lr": 3e-3 / 2**number,
                "fit.encoder.lr": 1e-3 / 2**number,
                "fit.encoder.optimiser": "sgd",
                "fit.encoder.momentum": 0.9,
                "fit.schedule.kind": "constant",
                "fit.loss.auxiliary_default": auxiliary,
                "fit.loss.ohem": None,
                "fit.loss.resize": "logits",
                "fit.freeze_norms": number == 3,
                "fit.distill": None,
                "fit.ema": None,
                "architecture.architecture.channels": 64,
                "architecture.architecture.repeats": 2,
            },
        )
    assert len(stages) == 4


def test_squeezenas_without_coarse_masks_has_the_fine_stage_alone(tmp_path: Path) -> None:
    found = published_training(
        "squeezenas",
        "squeezenas-lat-small",
        cityscapes(tmp_path, coarse=False),
        scale="paper",
        start="none",
        context=context_in(tmp_path),
    )
    assert [stage.fit.epochs for stage in found.stages] == [100]


FAMILIES = {
    "fasterseg": "fasterseg-student",
    "autortnet": "autortnet-a",
    "squeezenas": "squeezenas-mac-small",
    "lpsnet": "lpsnet-step0",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_small_trainings_survive_a_file_and_refuse_other_families(tmp_path: Path, name: str) -> None:
    found = published_training(
        name, FAMILIES[name], DATA, crop=(32, 64), start="none", context=context_in(tmp_path)
    )
    assert parse_recipe(json.loads(json.dumps(recipe_document(found))), what="recipe") == found
    other = "lpsnet-step0" if name != "lpsnet" else "autortnet-a"
    with pytest.raises(Unsupported, match=f"'{name}' is for networks of the family"):
        published_training(name, other, DATA, crop=(32, 64), context=context_in(tmp_path))
    if name != "fasterseg":
        with pytest.raises(Unsupported, match="has no distillation"):
            published_training(
                name, FAMILIES[name], DATA, crop=(32, 64), teacher="t", context=context_in(tmp_path)
            )


@pytest.mark.slow
def test_a_published_training_runs_to_a_bundle(tmp_path: Path) -> None:
    from dataclasses import replace

    found = published_training(
        "lpsnet", "lpsnet-step0", DATA, crop=(32, 64), start="none", context=context_in(tmp_path)
    )
    (stage,) = found.stages
    short = replace(found, stages=(replace(stage, fit=replace(stage.fit, steps=3, batch=2)),))
    result: Any = train(short, tmp_path / "run", check=False, context=context_in(tmp_path))
    assert segtailor.load(result["model"]).task.outputs > 1


def camvid(root: Path) -> str:
    """A CamVid folder of a few frames."""
    for split in ("train", "train", "val", "test"):
        name = f"0001TP_00{len(list(root.rglob('*.png')))}.png"
        write_image(root / "images" / split / name)
        write_mask(root / "masks" / split / name, (0, 1))
    return f"camvid:{root}"


def bdd100k(root: Path) -> str:
    """A BDD100K folder of two frames."""
    for split in ("train", "val"):
        write_image(root / "images" / "10k" / split / f"{split}.png")
        write_mask(root / "labels" / "sem_seg" / "masks" / split / f"{split}.png", (0, 1))
    return f"bdd100k:{root}"
