"""Wrong labels, pictures worth labelling, and learning curves: the arithmetic, and the commands end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segtailor.core.errors import DataProblem
from segtailor.data.cache import open_pixels
from segtailor.data.locate import locate
from segtailor.data.subset import grouped_subset, groups_of, take
from segtailor.recipes.learning_curve import (
    CurvePoint,
    LearningCurve,
    estimates,
    fit_curve,
    largest_subset,
    subset_sizes,
)  # fmt: skip
from segtailor.recipes.suggest import choose_pictures, cross_fitted, examine_labels, ranked
from segtailor.verbs.main import run
from tests.schemas import conforming

CLASSES = ("a", "b", "c")
DATA = "synthetic:train=8,val=2,size=32x64"


def scene(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels of a made-up scene, and the probabilities of a network that is mostly right."""
    rng = np.random.default_rng(seed)
    labels = np.zeros((60, 80), np.uint8)
    labels[30 + rng.integers(-5, 5) :] = 1
    left = rng.integers(10, 50)
    labels[20:50, left : left + 15] = 2
    sure = np.eye(3, dtype=np.float32)[labels].transpose(2, 0, 1) * 0.8 + 0.2 / 3
    return labels, sure + rng.normal(0, 0.02, sure.shape).astype(np.float32)


def test_planted_mistakes_come_first_and_say_why() -> None:
    found = []
    for seed in range(30):
        labels, sure = scene(seed)
        if seed == 3:
            labels = np.where(labels == 2, 0, labels).astype(np.uint8)
        if seed == 7:
            labels = np.roll(labels, 6, axis=1)
        found.append(examine_labels(sure, labels, name=f"s{seed}", classes=CLASSES))
    first, second, third, *_ = ranked(found)
    assert {first.name, second.name} == {"s3", "s7"}
    assert second.score > 3 * third.score
    by_name = {one.name: one for one in (first, second)}
    assert (by_name["s3"].given, by_name["s3"].found) == ("a", "c")
    assert by_name["s7"].shift == (0, -6)


def test_unlabelled_pixels_say_nothing() -> None:
    labels, sure = scene(0)
    nothing = examine_labels(sure, np.full_like(labels, 255), name="x", classes=CLASSES)
    assert (nothing.surprise, nothing.gain, nothing.given) == (0, 0, "")


def test_chosen_pictures_are_uncertain_and_unlike_each_other() -> None:
    features = np.array([[0.0, 0], [10, 0], [10, 0.1], [0, 10], [0.1, 0]])
    chosen = choose_pictures(
        list("vwxyz"), [0.9, 0.5, 0.52, 0.4, 0.9], features, np.array([[0.0, 0.0]]), count=3
    )
    assert [one.name for one in chosen[:2]] == [
        "x",
        "y",
    ]  # w is a twin of x; v and z are like what is labelled
    assert len(choose_pictures(list("vwxyz"), [0.5] * 5, features, np.zeros((0, 2)), count=99)) == 5


def test_groups_follow_names() -> None:
    names = [f"drive{drive}_{frame:03d}" for drive in range(10) for frame in range(6)]
    assert len(set(groups_of(names))) == 10
    assert groups_of([f"{number:04d}" for number in range(9)]) == ["all"] * 9
    small, large = grouped_subset(names, 12, seed=1), grouped_subset(names, 30, seed=1)
    assert set(small) < set(large)
    assert len({names[index].split("_")[0] for index in small}) == 2  # whole drives


def test_a_known_curve_is_found_with_its_range() -> None:
    true = LearningCurve(ceiling=0.8, gap=1.5, rate=0.6)
    rng = np.random.default_rng(0)
    points = [
        CurvePoint(images=count, seed=seed, quality=true.at(count) + rng.normal(0, 0.005))
        for count in (25, 50, 100, 200)
        for seed in range(3)
    ]
    for one in estimates(points, [200, 400, 800]):
        assert one.low <= true.at(one.images) <= one.high
        assert one.low <= one.quality <= one.high
        assert one.high - one.low < 0.15
    flat = fit_curve([CurvePoint(images=count, seed=0, quality=0.5) for count in (10, 20, 40)])
    assert flat.at(10_000) == pytest.approx(0.5)
    with pytest.raises(DataProblem, match="3 or more"):
        fit_curve(points[:3])
    assert subset_sizes(100) == [12, 25, 50, 100]
    with pytest.raises(DataProblem, match="too few"):
        subset_sizes(3)


def test_folds_are_judged_by_networks_that_have_not_seen_them(tmp_path: Path) -> None:
    pixels = open_pixels(locate(DATA), "train", tmp_path)
    seen: list[set[str]] = []

    class Flat:
        def probabilities(self, image: np.ndarray) -> np.ndarray:
            assert all(
                not np.array_equal(image, pixels.pair(pixels.names.index(name)).image) for name in seen[-1]
            )
            return np.full((pixels.task.outputs, *image.shape[:2]), 1 / pixels.task.outputs, np.float32)

    def train(part: object, fold: int) -> Flat:
        del fold
        seen.append(set(part.names))  # type: ignore[attr-defined]
        return Flat()

    found = cross_fitted(pixels, train, folds=2, max_pixels=10**6)
    assert sorted(one.name for one in found) == sorted(pixels.names)
    assert len(seen) == 2
    with pytest.raises(DataProblem, match="too few"):
        cross_fitted(take(pixels, [0, 1]), train, folds=2, max_pixels=10**6)


@pytest.mark.slow
def test_the_commands_write_lists_sheets_and_curves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for seed in range(3):
        noise = np.random.default_rng(seed).integers(0, 256, (32, 48, 3), dtype=np.uint8)
        Image.fromarray(noise).save(pictures / f"{seed}.png")
    cache = ["--cache", str(tmp_path / "cache"), "--json"]
    words = ["data", "suggest", DATA, "--folds", "2", "--steps", "1", "--network", "lpsnet-step0"]
    words += ["--unlabelled", str(pictures), "--out", str(tmp_path / "out"), *cache]
    assert run([*words, "--dry-run"]) == 0
    assert not (tmp_path / "out").exists()
    capsys.readouterr()
    assert run(words) == 0
    facts = conforming("data suggest", capsys.readouterr().out)
    assert facts["out_of_sample"]
    assert len(facts["labels"]) == facts["images"] == 8
    assert sorted(row["name"] for row in facts["unlabelled"]) == ["0.png", "1.png", "2.png"]
    assert all(Path(file).is_file() for file in facts["files"])
    assert len((tmp_path / "out" / "labels.csv").read_text().splitlines()) == 2 + 8
    assert run(words) == 0  # replaces its own files
    (tmp_path / "out" / "labels.csv").write_text("mine")
    assert run(words) == 1
    assert "not written by segtailor" in capsys.readouterr().err
    words = ["data", "curve", "synthetic:train=16,val=2,size=32x64", "--steps", "1", "--repeats", "1"]
    words += ["--network", "lpsnet-step0", "--out", str(tmp_path / "curve"), *cache]
    assert run(words) == 0
    facts = conforming("data curve", capsys.readouterr().out)
    assert [point["images"] for point in facts["points"]] == [2, 4, 8, 16]
    assert [row["images"] for row in facts["estimates"]] == [16, 32, 64]
    assert (tmp_path / "curve" / "curve.svg").read_text().startswith("<svg ")
    assert json.loads((tmp_path / "curve" / "curve.json").read_text()) == facts
    assert run(words) == 0


@pytest.mark.parametrize(
    ("images", "steps", "wanted"),
    [(367, 120, 120), (100, 120, 100), (367, 1, 16), (8, 1, 8), (367, 400, 367)],
)
def test_the_largest_subset_is_what_the_steps_can_make_use_of(images: int, steps: int, wanted: int) -> None:
    assert largest_subset(images, steps=steps, batch=8) == wanted


def test_unlabelled_pictures_that_cannot_be_read_are_named_and_tiny_ones_ranked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = tmp_path / "new pictures"
    pictures.mkdir()
    (pictures / "broken.png").write_bytes(b"no picture")
    (pictures / "notes.txt").write_text("no picture either")
    for name, size in (("one", (1, 1)), ("wide", (300, 3)), ("usual", (64, 32))):
        Image.new("RGB", size, (90, 80, 70)).save(pictures / f"{name}.png")
    words = ["data", "suggest", DATA, "--steps", "1", "--folds", "2", "--network", "lpsnet-step0"]
    words += ["--unlabelled", str(pictures), "--out", str(tmp_path / "out"), "--json"]
    assert run(words) == 0
    told = capsys.readouterr()
    ranked_names = {row["name"] for row in json.loads(told.out)["unlabelled"]}
    assert ranked_names == {"one.png", "wide.png", "usual.png"}
    assert "left out" in told.err
    assert "broken.png" in told.err


def test_a_folder_without_pictures_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    words = ["data", "suggest", DATA, "--unlabelled", str(tmp_path / "empty"), "--out", str(tmp_path / "out")]
    assert run(words) == 1
    told = capsys.readouterr().err
    assert "holds no pictures" in told
    assert "training" not in told
