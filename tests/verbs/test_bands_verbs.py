"""Pictures of four 16-bit bands from training to an exported file, and what refuses them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import segtailor
from segtailor.core.errors import UserError
from segtailor.data.bands import read_bands
from segtailor.data.locate import locate
from segtailor.nets.onnx.model import open_onnx_model
from segtailor.spaces.starts import imagenet_at_hand
from segtailor.verbs.main import run
from tests.data.test_bands import tiff

SIZE = (64, 96)


def write_scenes(root: Path, *, count: int = 10) -> Path:
    """Write pictures in which the third of four bands alone tells the class."""
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True)
    for index in range(count):
        rng = np.random.default_rng(index)
        labels = np.kron(rng.integers(0, 2, (4, 6)), np.ones((16, 16), int)).astype(np.uint8)
        values = rng.integers(500, 1500, (*SIZE, 4))
        values[:, :, 2] += 6000 * labels.astype(int)
        (root / "images" / f"{index}.tif").write_bytes(tiff(values.astype(np.uint16), compressed=True))
        Image.fromarray(labels).save(root / "masks" / f"{index}.png")
    return root


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def data(tmp_path: Path) -> str:
    return f"folder:{write_scenes(tmp_path / 'set')}?bands=4&classes=low,high&val=0.3"


def train(
    data: str, out: Path, *, start: str = "none", steps: int = 2, network: str = "lpsnet-step0"
) -> list[str]:
    words = ["train", network, "--data", data, "--out", str(out), "--start", start, "--crop", "64x96"]
    return [
        *words,
        "--set",
        f"fit.steps={steps}",
        "--set",
        "fit.batch=4",
        "--set",
        "fit.lr=0.005",
        "--set",
        "fit.optimiser=adamw",
    ]


@pytest.mark.parametrize(
    ("network", "steps"), [("lpsnet-step0", 2), pytest.param("fast-scnn", 150, marks=pytest.mark.slow)]
)
def test_from_training_to_an_exported_file(
    network: str, steps: int, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    bundle = told(capsys, *train(data, out, steps=steps, network=network))["model"]
    described = json.loads((Path(bundle) / "model.json").read_text())["preprocessing"]
    assert [len(described[name]) for name in ("mean", "std", "ranges")] == [4, 4, 4]
    assert 400 < described["ranges"][0][0] < 600
    scored = told(capsys, "eval", bundle, "--data", data)
    if steps > 2:
        assert scored["miou"] > 0.7  # by chance it would be a third
    exported = told(
        capsys, "export", bundle, "--image", "64x96", "--data", data, "--output", "labels", "--preprocess"
    )
    assert exported["label_agreement"] > 0.99
    assert told(capsys, "eval", str(Path(bundle) / "model.onnx"), "--data", data)["miou"] == pytest.approx(
        scored["miou"], abs=0.02
    )
    picture = tmp_path / "set" / "images" / "0.tif"
    told(capsys, "predict", bundle, str(picture), "--out", str(tmp_path / "found"), "--as", "ids")
    found = np.asarray(Image.open(tmp_path / "found" / "0.png"))
    model, raw = segtailor.load(bundle), read_bands(picture, bands=4)
    np.testing.assert_array_equal(model.predict(raw), found)
    agree = open_onnx_model(Path(bundle) / "model.onnx").predict(raw) == found
    assert agree.mean() > 0.99
    told(capsys, "predict", bundle, str(picture), "--out", str(tmp_path / "tiled"), "--tile", "128x128")
    told(capsys, "predict", bundle, str(picture), "--out", str(tmp_path / "overlay"), "--as", "overlay")
    timed = told(
        capsys, "bench", bundle, "--target", "cpu/eager/fp32", "--image", "64x96", "--seconds", "0.05"
    )
    assert timed["median_ms"] > 0


@pytest.mark.slow
def test_a_start_from_colour_pictures_is_adapted(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not imagenet_at_hand():
        pytest.skip("the package of ImageNet weights is not installed")
    words = train(data, tmp_path / "run", start="imagenet", network="lr-aspp-mobilenetv3-large")
    found = told(capsys, *words)
    assert found["start"]["carried"] > 0.3


@pytest.mark.parametrize(
    "words",
    [
        ["tailor", "--budget", "5ms", "--recipe", "squeezenas", "--out", "x"],
        ["search", "squeezenas", "--scale", "small", "--out", "x"],
        ["search", "auxcells", "--scale", "small", "--out", "x"],
    ],
)
def test_verbs_for_colour_pictures_say_so(
    words: list[str],
    data: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    place = {"tailor": [*words, "--data", data], "search": [*words, "--data", data]}.get(
        words[0], [*words[:2], data, *words[2:]]
    )
    assert run(place) == 1
    assert "colour images" in capsys.readouterr().err


def test_pictures_of_bands_are_converted_to_the_same_samples(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "set/images/0.npy", read_bands(tmp_path / "set/images/0.tif", bands=4))
    (tmp_path / "set/images/0.tif").unlink()
    found = told(capsys, "data", "convert", data, str(tmp_path / "out"), "--to", "folder")
    assert found["dataset"] == f"folder:{tmp_path / 'out'}?bands=4"
    old, new = locate(data), locate(found["dataset"])
    for split in ("train", "val"):
        theirs = {sample.name: sample.read() for sample in new.samples(split)}
        for sample in old.samples(split):
            pair = theirs[f"{split}/{sample.name}"]
            np.testing.assert_array_equal(pair.image, sample.read().image)
            np.testing.assert_array_equal(pair.labels, sample.read().labels)
    assert run(["data", "convert", f"{data}&size=32x48", str(tmp_path / "small"), "--to", "folder"]) == 1
    assert "leave out size=" in capsys.readouterr().err


def test_labels_of_pictures_of_bands_are_examined_and_unlabelled_ones_ranked(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--steps", "2", "--network", "lpsnet-step0"]
    more = write_scenes(tmp_path / "more", count=3) / "images"
    words = ["data", "suggest", data, "--out", str(tmp_path / "found"), "--folds", "2", *short]
    found = told(capsys, *words, "--unlabelled", str(more), "--count", "2")
    assert len(found["labels"]) == found["images"] == 7
    assert len(found["unlabelled"]) == 2
    assert (tmp_path / "found/labels.png").is_file()
    bundle = told(capsys, *train(data, tmp_path / "run"))["model"]
    again = told(capsys, "data", "suggest", data, "--out", str(tmp_path / "own"), "--model", bundle)
    assert len(again["labels"]) == 7
    assert run(["data", "suggest", data, "--out", str(tmp_path / "x"), "--model", "camvid-fast"]) == 1
    assert "bands" in capsys.readouterr().err


def test_a_learning_curve_of_pictures_of_bands(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "data",
        "curve",
        data,
        "--out",
        str(tmp_path / "curve"),
        "--steps",
        "2",
        "--network",
        "lpsnet-step0",
    ]
    found = told(capsys, *words)
    assert len(found["points"]) > 1
    assert all(0 <= point["quality"] <= 1 for point in found["points"])


SHORT = ["evaluator.fit.steps=1", "evaluator.fit.batch=2", "evaluator.reparameterise=false"]
ONE_SHOT = [
    "strategy.fit.steps=2",
    "strategy.fit.batch=2",
    "strategy.choice.images=2",
    "strategy.population=2",
]


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("lpsnet", ["--steps", "1", "--set", *SHORT]),
        ("dilated", ["--trials", "2", "--start", "none", "--set", *SHORT, "strategy.population=2"]),
        pytest.param(
            "dilated",
            ["--trials", "2", "--executor", "processes", "--start", "none", "--set", *SHORT],
            marks=pytest.mark.slow,
        ),
        pytest.param("elastic", ["--trials", "2", "--set", *ONE_SHOT], marks=pytest.mark.slow),
    ],
)
def test_a_search_on_pictures_of_bands(
    recipe: str, words: list[str], data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = ["--cache", str(tmp_path / "cache"), "--device", "cpu"]
    out = tmp_path / "run"
    asked = ["search", recipe, "--scale", "small", "--data", data, "--out", str(out), *cache, *words]
    found = told(capsys, *asked)
    assert found["quality"] >= 0
    written = json.loads((out / "recipe.json").read_text())
    part = written["strategy"] if recipe == "elastic" else written["evaluator"]
    assert len(part["preprocessing"]["ranges"]) == 4
    if recipe == "elastic":
        (front,) = list((out / "front").iterdir())[:1]
        assert segtailor.load(front).network.plan.image.channels == 4
    trained = told(capsys, *train(data, tmp_path / "trained", network=found["architecture"]), *cache)
    assert Path(trained["model"]).is_dir()


def test_a_model_for_bands_refuses_colour_pictures(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = told(capsys, *train(data, tmp_path / "run"))["model"]
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    assert run(["predict", bundle, str(tmp_path / "a.png"), "--out", str(tmp_path / "out")]) == 1
    assert "3 bands, not 4" in capsys.readouterr().err
    assert run(["serve", bundle, "--dry-run", "--port", "0"]) == 0
    assert run(["eval", bundle, "--data", "synthetic:size=64x96,train=4,val=2"]) == 1
    with pytest.raises(UserError, match="4"):
        segtailor.load(bundle).predict(np.zeros((8, 8, 3), np.uint8))
