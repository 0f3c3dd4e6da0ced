"""Int8: the images that give value ranges, the methods, and the decision whether int8 is kept."""

import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from segtailor.core.codec import from_json, to_json
from segtailor.core.errors import UserError
from segtailor.core.task import Preprocessing, Task
from segtailor.data.synthetic import Synthetic
from segtailor.deploy.quantise import (
    Feeds,
    GraphForm,
    Int8Decision,
    Reading,
    check_method,
    decide_int8,
    sample_images,
    spread,
)

SCENES = Synthetic(size=(24, 32), images={"train": 12, "val": 3})
THREE = Task(classes=("one", "two", "three"))


@pytest.mark.parametrize(("total", "count"), [(400, 64), (10, 10), (7, 3), (1, 1), (5, 64)])
def test_pictures_are_spread_evenly_over_their_split(total: int, count: int) -> None:
    found, wanted = spread(total, count, seed=3), min(total, count)
    assert len(set(found)) == wanted
    assert found == sorted(found)
    assert [index * wanted // total for index in found] == list(range(wanted)) or total % wanted
    assert found == spread(total, count, seed=3)


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


def reading(ms: float, miou: float = 0.7, **changes: Any) -> Reading:
    facts = {"target": "cpu/openvino/int8", "p95_ms": 1.1 * ms, "spread": 0.04} | changes
    return Reading(median_ms=ms, miou=miou, **facts)


@pytest.mark.parametrize(
    ("before", "after", "kept", "says"),
    [
        (reading(10), reading(5), True, "50% of the time"),
        (reading(10), reading(5, 0.691), True, "loses 0.90 points"),
        (reading(10), reading(5, 0.71), True, "gains 1.00 points"),
        (
            reading(10),
            reading(16),
            False,
            "not faster on cpu/openvino/int8 (10.00 ms in fp32, 16.00 ms in int8)",
        ),
        (reading(10), reading(10), False, "not faster"),
        (reading(10), reading(9.7), False, "3.0% faster"),
        (reading(10), reading(9.7), False, "within the measurement's spread of 4.0%"),
        (reading(10), reading(9.5), True, "95% of the time"),
        (reading(10), reading(9.5, spread=0.2), False, "spread of 20.0%"),
        (reading(10, spread=0.2), reading(9.5), False, "spread of 20.0%"),
        (reading(10), reading(5, 0.68), False, "loses 2.00 points of mIoU, 1.00 are allowed"),
        (reading(10), reading(5, float("nan")), False, "points of mIoU"),
    ],
)
def test_int8_is_judged_on_speed_and_quality(before: Reading, after: Reading, kept: bool, says: str) -> None:
    found = decide_int8(before, after)
    assert found.kept is kept
    assert says in found.reason
    assert found.reason.count(".") >= 1
    assert found.reason.endswith(".")


def test_both_reasons_against_it_are_given() -> None:
    found = decide_int8(reading(10), reading(20, 0.5))
    assert "not faster" in found.reason
    assert "loses 20.00 points" in found.reason


def test_the_limit_is_the_users() -> None:
    assert decide_int8(reading(10), reading(5, 0.68), limit=0.03).kept
    assert not decide_int8(reading(10), reading(5, 0.699), limit=0.0).kept


@pytest.mark.parametrize("limit", [-0.1, 1.5, float("nan")])
def test_a_limit_that_is_no_share_is_refused(limit: float) -> None:
    with pytest.raises(UserError, match="fraction from 0 to 1"):
        decide_int8(reading(10), reading(5), limit=limit)


def test_a_decision_is_plain_data() -> None:
    decision = Int8Decision(
        target="cpu/openvino/int8",
        kept=True,
        reason="fast.",
        before=reading(10),
        after=reading(5),
        ratio=0.5,
        miou_change=0.0,
        limit=0.01,
        label_agreement=0.99,
        images=4,
        samples=8,
        method="onnxruntime",
        data="synthetic",
        image=(96, 128),
        includes="network",
        source="00",
        file="model.int8.onnx",
    )
    assert from_json(Int8Decision, to_json(decision), what="decision") == decision
