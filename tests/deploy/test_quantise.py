"""Calibration pictures: which ones, in which form; and which ways to quantise there are."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest

from segtailor.core.errors import UserError
from segtailor.core.task import Preprocessing, Task
from segtailor.data.synthetic import Synthetic
from segtailor.deploy.calibration_images import Feeds, GraphForm, sample_images, spread
from segtailor.deploy.quantise import check_method

SCENES = Synthetic(size=(24, 32), images={"train": 12, "val": 3})


@pytest.mark.parametrize(("total", "count"), [(400, 64), (10, 10), (7, 3), (1, 1), (5, 64)])
def test_pictures_are_spread_evenly_over_their_split(total: int, count: int) -> None:
    found, wanted = spread(total, count, seed=3), min(total, count)
    assert len(set(found)) == wanted
    assert found == sorted(found)
    assert [index * wanted // total for index in found] == list(range(wanted)) or total % wanted
    assert found == spread(total, count, seed=3)


THREE = Task(classes=("one", "two", "three"))


def test_another_seed_gives_other_pictures() -> None:
    assert spread(400, 8, seed=0) != spread(400, 8, seed=1)


def test_no_pictures_at_all_are_refused() -> None:
    with pytest.raises(UserError, match="too few"):
        spread(10, 0, seed=0)
    with pytest.raises(UserError, match="split"):
        sample_images(SCENES, "test")


def test_a_picture_is_normalised_as_the_bundle_says() -> None:
    chosen = Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    image = SCENES.samples("train")[0].read().image
    found = GraphForm(image=(24, 32), preprocessing=chosen).read(image)
    wanted = (image / 255 - np.array(chosen.mean)) / np.array(chosen.std)
    assert found.dtype == np.float32
    assert np.allclose(found, wanted.transpose(2, 0, 1)[None], atol=1e-5)


def test_a_graph_that_reads_pixels_gets_pixels() -> None:
    image = SCENES.samples("train")[0].read().image
    found = GraphForm(image=(24, 32), pixels=True).read(image)
    assert found.dtype == np.uint8
    assert np.array_equal(found, image[None])


def test_a_picture_of_another_size_is_resized() -> None:
    image = SCENES.samples("train")[0].read().image
    assert GraphForm(image=(48, 40)).read(image).shape == (1, 3, 48, 40)
    assert GraphForm(image=(48, 40), pixels=True).read(image).shape == (1, 48, 40, 3)


def test_logits_and_labels_become_labels_of_the_pictures_size() -> None:
    logits = np.zeros((1, 3, 2, 2), np.float32)
    logits[0, :, :, 1] = [[0], [0], [1]]
    logits[0, 0, :, 0] = 1
    form = GraphForm(image=(8, 8))
    wanted = np.array([[0, 0, 2, 2]] * 4)
    assert np.array_equal(form.found(logits, (4, 4), THREE), wanted)
    assert np.array_equal(form.found(logits.argmax(1).astype(np.uint8), (4, 4), THREE), wanted)
    assert np.array_equal(form.found(wanted[None].astype(np.uint8), (4, 4), THREE), wanted)


def test_feeds_can_be_gone_through_twice_and_are_counted() -> None:
    counted: list[int] = []
    feeds = Feeds(
        sample_images(SCENES, "train", count=3), GraphForm(image=(24, 32)), name="image", seen=counted.append
    )
    first, second = list(feeds), list(feeds)
    assert len(feeds) == len(first) == 3
    assert all(np.array_equal(one["image"], other["image"]) for one, other in zip(first, second, strict=True))
    assert counted == [1, 2, 3, 1, 2, 3]


def test_an_unknown_way_to_quantise_is_told_with_near_matches() -> None:
    with pytest.raises(UserError, match="did you mean 'onnxruntime'"):
        check_method("onnxruntim")


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nncf", None)
    assert find_spec("nncf") is None
    with pytest.raises(UserError, match="pip install nncf"):
        check_method("nncf")
    check_method("onnxruntime")
