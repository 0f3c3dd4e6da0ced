import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import segtailor
from segtailor.core.codec import read_json
from segtailor.core.errors import DataProblem, RunProblem, UserError
from segtailor.core.task import Preprocessing, Task
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.nets.bundle import Model, save_bundle
from segtailor.nets.onnx.graph import onnx_bytes
from segtailor.nets.teacher import Ensemble, renormalised
from segtailor.recipes import train as train_module
from segtailor.recipes.recipe import carry_out, parse_recipe, recipe_document, set_fields, with_settings
from segtailor.recipes.train import TrainRecipe, largest_crop, probe_recipe, train_recipe
from segtailor.runs import Context
from segtailor.tasks.enlarging import enlarge
from segtailor.verbs.eval import _trained_on, evaluate
from segtailor.verbs.resume import resume
from segtailor.verbs.train import train
from tests.data.trees import write_pairs

DATA = "synthetic:size=32x64,train=8,val=4,seed=0"


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(cache=tmp_path / "cache", device="cpu")


def recipe(context: Context, *changes: str, model: str = "lpsnet-step0") -> TrainRecipe:
    basic = ["fit.steps=2", "fit.batch=4"]
    return with_settings(train_recipe(model, DATA, crop=(32, 64), context=context), [*basic, *changes])


def test_a_recipe_survives_its_file(context: Context) -> None:
    made = recipe(context, "fit.schedule.warmup=3", "reparameterise=true")
    again = parse_recipe(json.loads(json.dumps(recipe_document(made))), what="recipe")
    assert again == made
    with pytest.raises(RunProblem, match="kind is 'cook'"):
        parse_recipe({"kind": "cook"}, what="recipe")


def test_the_usual_crop_fits_every_image_in_steps_of_32(context: Context) -> None:
    pixels = open_pixels(locate("synthetic:size=70x150,train=2,val=1"), "train", context.cache_folder)
    assert largest_crop(pixels) == (64, 128)
    tiny = open_pixels(locate("synthetic:size=20x40,train=2,val=1"), "train", context.cache_folder)
    assert largest_crop(tiny) == (20, 32)


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("lpsnet-step0", ["reparameterise=true", "fit.ema=0.5"]),
        pytest.param("fasterseg-student", ["fit.optimiser=adamw"], marks=pytest.mark.slow),
        ("squeezenas-lat-small", ["fit.loss.ohem=0.7"]),
        pytest.param("auxcells-arch0", ["fit.loss.auxiliary_default=0.3"], marks=pytest.mark.slow),
        pytest.param("autortnet-a", ["fit.clip=5"], marks=pytest.mark.slow),
    ],
)
def test_every_family_trains_to_a_bundle(
    model: str, changes: list[str], context: Context, tmp_path: Path
) -> None:
    result = train(recipe(context, *changes, model=model), tmp_path / "run", check=False, context=context)
    bundle = segtailor.load(str(result["model"]))
    scores = evaluate(bundle, DATA, context=context)
    assert scores["miou"] == pytest.approx(result["miou"], abs=1e-6)


def test_a_resumed_finished_run_returns_its_result(context: Context, tmp_path: Path) -> None:
    first = train(recipe(context), tmp_path / "run", context=context)
    assert resume(tmp_path / "run", context=context) == first


def teacher(folder: Path, classes: int) -> str:
    task = locate(DATA).task
    names = task.classes[:classes] if classes <= len(task.classes) else (*task.classes, "more")
    network = segtailor.create("lpsnet-step1", classes=classes)
    save_bundle(folder, Model(network=network, task=type(task)(classes=names)))
    return str(folder)


def test_distillation_from_a_bundle(context: Context, tmp_path: Path) -> None:
    folder = teacher(tmp_path / "teacher", locate(DATA).task.outputs)
    made = recipe(context, f"teacher={folder}", "fit.distill.kind=kl")
    plain = carry_out(recipe(context), replace(context, folder=tmp_path / "plain"))
    taught = carry_out(made, replace(context, folder=tmp_path / "taught"))
    weights = [segtailor.load(str(result["model"])).network.state_dict() for result in (plain, taught)]
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_several_teachers_are_followed_in_their_mean(context: Context, tmp_path: Path) -> None:
    classes = locate(DATA).task.outputs
    teacher(tmp_path / "several" / "one", classes)
    teacher(tmp_path / "several" / "two" / "weights", classes)
    made = recipe(context, f"teacher={tmp_path / 'several'}", "fit.distill.kind=kl")
    followed = made.job(replace(context, folder=tmp_path / "run")).fit.teacher
    assert isinstance(followed, Ensemble)
    assert len(followed.members) == 2
    image = torch.randn(1, 3, 32, 64)
    one, two = (member(image) for member in followed.members)
    torch.testing.assert_close(followed(image), (one + two) / 2)
    teacher(tmp_path / "several" / "three", 3)
    with pytest.raises(UserError, match="three knows 3 classes"):
        made.job(replace(context, folder=tmp_path / "run"))


def test_members_of_other_strides_meet_at_the_finest(tmp_path: Path) -> None:
    coarse, fine = (segtailor.create(name, classes=4) for name in ("lpsnet-s", "squeezenas-lat-small"))
    image = torch.randn(1, 3, 64, 96)
    together = Ensemble([coarse, fine]).eval()
    with torch.no_grad():
        found, finest = together(image), fine(image)
        assert found.shape == finest.shape
        expected = (enlarge(coarse(image), finest.shape[2:], align_corners=True) + finest) / 2
    torch.testing.assert_close(found, expected)


def test_a_teacher_of_other_classes_is_refused(context: Context, tmp_path: Path) -> None:
    folder = teacher(tmp_path / "teacher", 3)
    with pytest.raises(UserError, match="knows 3 classes"):
        carry_out(
            recipe(context, f"teacher={folder}", "fit.distill.kind=kl"),
            replace(context, folder=tmp_path / "run"),
        )


def test_training_can_start_from_a_bundle_of_another_task(context: Context, tmp_path: Path) -> None:
    folder = tmp_path / "start"
    network = segtailor.create("lpsnet-step0", classes=3, seed=9)
    save_bundle(folder, Model(network=network, task=type(locate(DATA).task)(classes=("a", "b", "c"))))
    built, start, _ = recipe(context, f"start={folder}")._network(
        locate(DATA).task, trusted=True, again=False
    )
    assert start.name == str(folder)
    block = "nodes.path0_stage0_block0.conv.weight"
    torch.testing.assert_close(built.state_dict()[block], network.state_dict()[block])


def test_scores_need_the_same_number_of_classes(context: Context, tmp_path: Path) -> None:
    folder = teacher(tmp_path / "t", 3)
    with pytest.raises(DataProblem, match="3 classes"):
        evaluate(folder, DATA, context=context)


def test_scores_say_where_classes_of_one_number_have_other_names(context: Context, tmp_path: Path) -> None:
    result = train(recipe(context), tmp_path / "run", check=False, context=context)
    model = segtailor.load(str(result["model"]))
    assert evaluate(model, DATA, context=context)["warnings"] == []
    other = replace(model, task=Task(classes=("lane", *model.task.classes[1:])))
    (warning,) = evaluate(other, DATA, context=context)["warnings"]
    assert f"'lane' of the model is '{model.task.classes[0]}' in the data" in warning


@pytest.mark.parametrize("split", ["trainval", "val+train"])
def test_scoring_on_images_that_also_train_is_refused(split: str, context: Context, tmp_path: Path) -> None:
    placed = replace(context, folder=tmp_path)
    with pytest.raises(DataProblem, match=r"share the images of 'val'.*val_split=null"):
        recipe(context, f"train_split={split}").job(placed)
    recipe(context, f"train_split={split}", "val_split=null").job(placed)


def test_a_final_training_uses_every_image_and_its_scores_on_them_are_told_as_seen(
    context: Context, tmp_path: Path
) -> None:
    made = recipe(context, "train_split=train+val", "val_split=null")
    result = train(made, tmp_path / "run", context=context)
    assert "miou" not in result
    model = segtailor.load(str(result["model"]))
    facts = {name: model.provenance[name] for name in ("train_split", "train_images", "val_images")}
    assert facts == {"train_split": "train+val", "train_images": 12, "val_images": 0}
    (warning,) = evaluate(model, DATA, context=context)["warnings"]
    assert "trained on split 'train+val'" in warning
    other = "synthetic:size=32x64,train=8,val=4,seed=1"
    assert evaluate(model, other, context=context)["warnings"] == []


@pytest.mark.slow
def test_half_precision_hardly_changes_the_scores_of_a_trained_network(
    context: Context, tmp_path: Path
) -> None:
    data = "synthetic:size=64x128,train=32,val=16,seed=0"
    changes = ["fit.steps=60", "fit.batch=8", "fit.optimiser=adamw", "fit.lr=0.004"]
    made = with_settings(train_recipe("lpsnet-step3", data, crop=(64, 128), context=context), changes)
    model = segtailor.load(str(train(made, tmp_path / "run", check=False, context=context)["model"]))
    save_bundle(tmp_path / "half", model, precision="fp16")
    whole, half = (evaluate(one, data, context=context)["miou"] for one in (model, tmp_path / "half"))
    assert whole > 0.1
    assert half == pytest.approx(whole, abs=0.001)


@pytest.mark.parametrize(
    ("data", "split", "seen"),
    [
        ("camvid:/somewhere", "val", True),
        ("camvid:/somewhere", "train", True),
        ("camvid:/somewhere", "test", False),
        ("camvid:/somewhere?fold=0006R0", "val", False),
        ("cityscapes:/somewhere", "val", False),
    ],
)
def test_what_is_shipped_knows_its_data_wherever_they_are(data: str, split: str, seen: bool) -> None:
    assert bool(_trained_on({"data": "camvid:PATH", "train_split": "trainval"}, data, split)) is seen


def test_overrides_reach_into_optional_parts() -> None:
    base = {"fit": {"lr": 1, "distill": None}, "list": [1]}
    assert set_fields(base, ["fit.distill.kind=l2", "fit.lr=0.5"])["fit"] == {
        "lr": 0.5,
        "distill": {"kind": "l2"},
    }
    assert base["fit"] == {"lr": 1, "distill": None}
    with pytest.raises(UserError, match="single value"):
        set_fields(base, ["list.x=1"])
    both = set_fields(base, ["fit.distill.kind=l2", "fit.distill.weight=3"])
    assert both["fit"]["distill"] == {"kind": "l2", "weight": 3}


def test_a_run_does_not_go_on_with_other_data(context: Context, tmp_path: Path) -> None:
    photos = write_pairs(tmp_path / "photos", [f"{index}" for index in range(6)])
    usual = train_recipe("lpsnet-step0", f"folder:{photos}", crop=(32, 32), context=context)
    made = with_settings(usual, ["fit.steps=2", "fit.batch=2"])
    placed = replace(context, folder=tmp_path / "run")
    state = tmp_path / "state"
    state.mkdir()
    made.job(placed).save(state)
    made.job(placed).load(state)
    write_pairs(photos, ["new", "newer"])
    with pytest.raises(
        RunProblem, match=r"has changed since this run began \(5 training images.*6 training images"
    ):
        made.job(placed).load(state)


def test_a_coefficient_for_an_output_that_is_not_there_is_refused(context: Context, tmp_path: Path) -> None:
    made = recipe(context, 'fit.loss.auxiliary={"aux9": 0.3}', model="auxcells-arch0")
    with pytest.raises(UserError, match="no output of this network is called 'aux9'"):
        train(made, tmp_path / "run", check=False, context=context)


def followed(context: Context, tmp_path: Path, name: str) -> torch.nn.Module:
    made = recipe(context, f"teacher={name}", "fit.distill.kind=kl").job(
        replace(context, folder=tmp_path / "run")
    )
    for _ in made.steps():
        pass
    assert made.fit.teacher is not None
    return made.fit.teacher


@pytest.mark.slow
def test_an_onnx_file_and_a_function_teach(context: Context, tmp_path: Path) -> None:
    classes = locate(DATA).task.outputs
    network = segtailor.create("lpsnet-step0", classes=classes, seed=9)
    image = torch.randn(1, 3, 32, 64)
    (tmp_path / "teacher.onnx").write_bytes(onnx_bytes(network, [image], names=["image"], output="logits"))
    with torch.no_grad():
        expected = network(image)
    file = followed(context, tmp_path, str(tmp_path / "teacher.onnx"))
    torch.testing.assert_close(file(image), expected, atol=1e-4, rtol=1e-4)
    function = followed(context, tmp_path, "tests.recipes.test_train:outside_teacher")
    torch.testing.assert_close(function(image), expected)


def outside_teacher() -> torch.nn.Module:
    return segtailor.create("lpsnet-step0", classes=locate(DATA).task.outputs, seed=9)


def test_a_teacher_sees_images_normalised_as_it_expects(context: Context, tmp_path: Path) -> None:
    task = locate(DATA).task
    network = segtailor.create("lpsnet-step0", classes=task.outputs, seed=9)
    half = Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    save_bundle(tmp_path / "other", Model(network=network, task=task, preprocessing=half))
    teacher = followed(context, tmp_path, str(tmp_path / "other"))
    image = torch.randn(1, 3, 32, 64)
    with torch.no_grad():
        expected = network(renormalised(image, Preprocessing(), half))
    torch.testing.assert_close(teacher(image), expected, atol=1e-5, rtol=1e-5)


def test_an_encoder_that_teaches_learns_the_classes_first(context: Context, tmp_path: Path) -> None:
    given = recipe(context, "teacher=imagenet", "fit.distill.kind=kl")
    probe = probe_recipe(given)
    assert (probe.fit.carried_lr, probe.fit.freeze_norms, probe.start) == (0.0, True, "imagenet")
    job = replace(probe, fit=replace(probe.fit, steps=2, batch=2)).job(replace(context, folder=tmp_path))
    before = {name: value.clone() for name, value in job.network.state_dict().items()}
    for _ in job.steps():
        pass
    encoder = [name for name in before if name.startswith("nodes.encoder")]
    after = job.network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in encoder)
    assert not torch.equal(before["nodes.head.conv1.weight"], after["nodes.head.conv1.weight"])
    with pytest.raises(UserError, match="first has to learn"):
        given.job(replace(context, folder=tmp_path / "run"))


def test_training_makes_the_teacher_beside_its_run(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_module, "PROBE_STEPS", 1)
    given = recipe(context, "teacher=imagenet", "fit.distill.kind=kl")
    segtailor.train(given, tmp_path / "run", check=False, context=context)
    assert segtailor.load(tmp_path / "run-teacher" / "weights").task == locate(DATA).task
    stored = read_json(tmp_path / "run" / "recipe.json", what="recipe")
    assert stored["teacher"] == str(tmp_path / "run-teacher" / "weights")


class TimmOffline(ModuleType):
    """Stands in for timm on a machine without network: it knows one model, and cannot fetch its weights."""

    def is_model(self, name: str) -> bool:
        return name == "resnet18"

    def create_model(self, name: str, **_: Any) -> torch.nn.Module:
        raise OSError(f"cannot reach the weights of {name}")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("timm:resnet18", "cannot reach the weights of resnet18"),
        ("timm:nothing", "no such model"),
        ("nowhere", "nowhere is no bundle"),
    ],
)
def test_a_teacher_that_cannot_be_had_leaves_no_run_behind(
    name: str, says: str, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", TimmOffline("timm"))
    made = recipe(context, f"teacher={name}", "fit.distill.kind=kl")
    for _ in range(2):  # the second try meets no trace of the first
        with pytest.raises(UserError, match=says):
            train(made, tmp_path / "new" / "run", check=False, context=context)
        assert not (tmp_path / "new").exists()


def test_what_lies_in_the_folder_of_a_run_that_cannot_begin_is_kept(context: Context, tmp_path: Path) -> None:
    made = recipe(context, "teacher=nowhere", "fit.distill.kind=kl")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".gitignore").write_text("mine")
    with pytest.raises(UserError, match="nowhere"):
        train(made, tmp_path / "run", check=False, context=context)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".gitignore"]
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    with pytest.raises(RunProblem, match="thesis"):  # before the teacher is looked for
        train(made, tmp_path / "run", check=False, context=context)
