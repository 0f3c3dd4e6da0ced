"""Tiles: they cover a picture, their weights add up to 1, and blended labels equal those of the whole picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

import segtailor
from segtailor.core.errors import Interrupted, Unsupported
from segtailor.data import tiles as tiles_module
from segtailor.data.parts import WholeRows
from segtailor.data.scene import render
from segtailor.data.tiles import ALIGNMENT, Tiling, label_bands, label_in_tiles, spans
from segtailor.predicting import Failure, Progress, Result, Settings, destinations, expand, predict_all
from segtailor.predicting.labelling import scores_of
from segtailor.tasks import Form, Look
from tests.predicting.models import TASK, Threshold

NOISE = np.random.default_rng(3).integers(0, 256, (416, 544, 3), dtype=np.uint8)


class Local:
    """A network of stride 4 and a receptive field of 29 pixels, as a predictor that gives probabilities."""

    task = TASK
    confident = True

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.network = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(8, 8, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(8, 3, 3, padding=1),
        )  # fmt: skip

    def probabilities(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        with torch.no_grad():
            pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float() / 255
            full = nn.functional.interpolate(self.network(pixels), image.shape[:2], mode="bilinear")
            found: NDArray[np.float32] = full.softmax(1)[0].numpy()
            return found

    def predict(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return self.probabilities(image).argmax(0).astype(np.uint8)

    def predict_with_confidence(
        self, image: NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        found = self.probabilities(image)
        return found.argmax(0).astype(np.uint8), found.max(0)


@pytest.mark.parametrize("side", [1, 100, 128, 129, 160, 223, 224, 225, 320, 321, 1000, 4097])
@pytest.mark.parametrize("tile", [128, 256])
def test_tiles_cover_a_side_and_weights_add_up_to_one(side: int, tile: int) -> None:
    total = np.zeros(side, np.float64)
    found = spans(side, tile)
    for span in found:
        assert span.begin % ALIGNMENT == 0
        assert span.begin <= span.start < span.stop <= span.end <= side
        assert span.end - span.begin <= tile + ALIGNMENT
        assert span.weights.min() > 0
        total[span.start : span.stop] += span.weights
    np.testing.assert_allclose(total, 1, atol=1e-6)
    for one, other in zip(found, found[2:], strict=False):
        assert one.stop <= other.start  # never more than two at a pixel


def test_weights_change_smoothly_at_seams() -> None:
    first, second, *_ = spans(4096, 1024)
    steps = np.abs(np.diff(first.weights))
    assert steps.max() < 0.02
    assert first.weights[-1] < 0.001
    assert second.weights[0] < 0.001


def test_a_prediction_in_tiles_equals_the_whole_one() -> None:
    """The receptive field ends within the unused border of a tile, so all pixels are equal, seams included."""
    model = Local()
    whole = model.probabilities(NOISE)
    bands = list(
        label_bands(WholeRows(pixels=NOISE), model.probabilities, Tiling(tile=(256, 256)), classes=3)
    )
    assert len(bands) > 1
    assert [band.top for band in bands] == list(np.cumsum([0] + [len(band.labels) for band in bands[:-1]]))
    labels = np.concatenate([band.labels for band in bands])
    confidence = np.concatenate([band.confidence for band in bands])
    np.testing.assert_allclose(confidence, whole.max(0), atol=1e-5)
    np.testing.assert_array_equal(np.concatenate([band.pixels for band in bands]), NOISE)
    clear = np.sort(whole, axis=0)[-1] - np.sort(whole, axis=0)[-2] > 1e-5  # no ties
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(labels[clear], whole.argmax(0)[clear])


def test_a_trained_network_in_tiles_agrees_with_the_whole() -> None:
    """Its receptive field is larger than the unused border, so some labels differ."""
    model, image = segtailor.load("camvid-fast"), render(0, 0, (416, 544), split="verify").image
    tiled = label_in_tiles(
        WholeRows(pixels=image), model.probabilities, Tiling(tile=(256, 256)), classes=model.task.outputs
    )
    assert np.mean(tiled == model.predict(image)) > 0.93


def test_kept_rows_may_lie_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Local()
    tiling = Tiling(tile=(128, 160))
    in_memory = label_in_tiles(WholeRows(pixels=NOISE), model.probabilities, tiling, classes=3)
    monkeypatch.setattr(tiles_module, "MAX_KEPT_BYTES", 100)
    on_disk = label_in_tiles(WholeRows(pixels=NOISE), model.probabilities, tiling, classes=3)
    np.testing.assert_array_equal(in_memory, on_disk)


def test_a_model_of_bare_labels_meets_in_the_middle_of_the_overlap() -> None:
    tiled = label_in_tiles(
        WholeRows(pixels=NOISE), scores_of(Threshold()), Tiling(tile=(128, 128)), classes=3
    )
    np.testing.assert_array_equal(tiled, Threshold().predict(NOISE))


@pytest.mark.parametrize("tile", [(64, 512), (8192, 8192), (0, 0)])
def test_a_tile_has_bounds(tile: tuple[int, int]) -> None:
    with pytest.raises(Unsupported, match="too small or too large"):
        Settings(tile=tile)


@pytest.mark.parametrize("form", ["colour", "ids", "overlay"])
def test_files_in_tiles_equal_files_of_the_whole(tmp_path: Path, form: Form) -> None:
    Image.fromarray(NOISE).save(tmp_path / "a.png")
    for name, tile in (("whole", None), ("tiled", (256, 256))):
        settings = Settings(look=Look(form=form), tile=tile, confidence=True, unsure=0.5)
        inputs, _ = expand([str(tmp_path / "a.png")], out=tmp_path / name)
        paths = destinations(inputs, tmp_path / name, form)
        events = list(predict_all(Local(), list(zip(inputs, paths, strict=True)), settings))
        result = events[-1]
        assert isinstance(result, Result)
        assert result.tiles == (6 if tile else 1)
        assert all(isinstance(event, Progress) and not event.frame for event in events[:-1])
        assert sum(result.facts.values()) == pytest.approx(1)
    for file, most in (("a.png", 0.001), ("a.confidence.png", 0.02), ("a.unsure.png", 0.001)):
        with Image.open(tmp_path / "whole" / file) as one, Image.open(tmp_path / "tiled" / file) as other:
            assert (one.mode, one.size) == (other.mode, other.size)
            assert other.info["Software"] == "made by segtailor"
            if one.mode == "P":
                assert one.getpalette()[:9] == other.getpalette()[:9]  # type: ignore[index]
            assert np.mean(np.asarray(one) != np.asarray(other)) <= most, file
    confidence = np.asarray(Image.open(tmp_path / "whole" / "a.confidence.png"))
    np.testing.assert_allclose(confidence, Local().probabilities(NOISE).max(0) * 255, atol=0.51)
    unsure = np.asarray(Image.open(tmp_path / "whole" / "a.unsure.png"))
    np.testing.assert_array_equal(unsure == 255, Local().probabilities(NOISE).max(0) < 0.5)


def test_a_large_picture_is_labelled_in_tiles_without_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segtailor.predicting.batch.NETWORK_PIXELS", 100_000)
    Image.fromarray(NOISE).save(tmp_path / "a.tif", tile=(64, 64))
    work = (expand([str(tmp_path / "a.tif")], out=tmp_path / "out")[0][0], tmp_path / "out" / "a.png")
    monkeypatch.setattr("segtailor.predicting.labelling.DEFAULT_TILE", (256, 256))
    *_, result = predict_all(Local(), [work], Settings())
    assert isinstance(result, Result)
    assert result.note is not None
    assert "in 6 tiles of 256x256" in result.note
    *_, result = predict_all(Local(), [work], Settings(size=(100, 100)))
    assert isinstance(result, Result)
    assert (result.tiles, result.network_size) == (1, (100, 100))


def test_interrupting_tiles_keeps_no_file(tmp_path: Path) -> None:
    Image.fromarray(NOISE).save(tmp_path / "a.png")
    work = (expand([str(tmp_path / "a.png")], out=tmp_path / "out")[0][0], tmp_path / "out" / "a.png")
    calls = iter([False, False, True])
    with pytest.raises(Interrupted, match="nothing was kept"):
        list(predict_all(Local(), [work], Settings(tile=(128, 128)), stop=lambda: next(calls, True)))
    assert list((tmp_path / "out").iterdir()) == []


def test_confidence_needs_a_model_that_has_it(tmp_path: Path) -> None:
    Image.fromarray(NOISE).save(tmp_path / "a.png")
    work = (expand([str(tmp_path / "a.png")], out=tmp_path / "out")[0][0], tmp_path / "out" / "a.png")
    for tile in (None, (128, 128)):
        (failure,) = predict_all(Threshold(), [work], Settings(confidence=True, tile=tile))
        assert isinstance(failure, Failure)
        assert "without confidence" in failure.problem
