"""One image in the light of another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from segtailor.core.errors import UserError
from segtailor.core.task import Preprocessing
from segtailor.data.augment import STYLE_STEP_PIXELS, Augment, image_styles, restyle
from segtailor.data.batches import Batches

IDENTITY = np.tile(np.eye(3, 4), (2, 1, 1))


def two_looks() -> np.ndarray:
    """A dim blueish image and a bright reddish one."""
    noise = np.random.default_rng(0).random((2, 32, 48, 3))
    look = np.array([[[0.2, 0.25, 0.4], [0.1, 0.1, 0.2]], [[0.7, 0.5, 0.45], [0.25, 0.2, 0.15]]])
    return np.rint(
        255 * np.clip(look[:, 0, None, None] + look[:, 1, None, None] * (noise - 0.5), 0, 1)
    ).astype(np.uint8)


def painted(images: np.ndarray, colour: np.ndarray) -> np.ndarray:
    return np.einsum("nij,nhwj->nhwi", colour[:, :, :3], images / 255) + colour[:, None, None, :, 3]


def test_at_full_strength_an_image_gets_the_other_ones_mean_and_spread() -> None:
    images = two_looks()
    found = image_styles(images, np.array([[32, 48]] * 2))
    other = found.of(np.array([1, 0]))
    result = painted(images, restyle(IDENTITY, found, other, strength=np.ones(2)))[
        :, ::STYLE_STEP_PIXELS, ::STYLE_STEP_PIXELS
    ]
    np.testing.assert_allclose(result.mean(axis=(1, 2)), other.mean, atol=1e-12)
    np.testing.assert_allclose(result.std(axis=(1, 2)), other.spread, atol=1e-12)


def test_no_strength_changes_nothing_and_half_goes_half_the_way() -> None:
    images = two_looks()
    found = image_styles(images, np.array([[32, 48]] * 2))
    other = found.of(np.array([1, 0]))
    np.testing.assert_array_equal(restyle(IDENTITY, found, other, strength=np.zeros(2)), IDENTITY)
    half = painted(images, restyle(IDENTITY, found, other, strength=np.full(2, 0.5)))[
        :, ::STYLE_STEP_PIXELS, ::STYLE_STEP_PIXELS
    ]
    np.testing.assert_allclose(half.mean(axis=(1, 2)), (found.mean + other.mean) / 2, atol=1e-12)


def test_the_style_is_changed_before_other_colours() -> None:
    images = two_looks()
    found = image_styles(images, np.array([[32, 48]] * 2))
    other = found.of(np.array([1, 0]))
    jitter = np.random.default_rng(1).normal(size=(2, 3, 4))
    first = painted(images, restyle(IDENTITY, found, other, strength=np.ones(2)))
    wanted = np.einsum("nij,nhwj->nhwi", jitter[:, :, :3], first) + jitter[:, None, None, :, 3]
    np.testing.assert_allclose(
        painted(images, restyle(jitter, found, other, strength=np.ones(2))), wanted, atol=1e-12
    )


def test_what_lies_beyond_an_image_does_not_count_and_plain_images_stay_finite() -> None:
    images = np.zeros((1, 16, 16, 3), dtype=np.uint8)
    images[:, :8, :8] = 200
    found = image_styles(images, np.array([[8, 8]]))
    np.testing.assert_allclose(found.mean, 200 / 255)
    assert np.isfinite(restyle(IDENTITY[:1], found, found, strength=np.ones(1))).all()


def batches(**changes: object) -> Batches:
    augment = replace(Augment(crop=(16, 16), scale=(1.0, 1.0), flip=0.0), **changes)  # type: ignore[arg-type]
    images = two_looks()
    return Batches(
        images=images,
        labels=np.zeros(images.shape[:3], dtype=np.uint8),
        sizes=np.array([[32, 48]] * 2),
        augment=augment,
        preprocessing=Preprocessing(),
        batch=4,
        seed=3,
        device=torch.device("cpu"),
    )


def test_batches_are_restyled_the_same_way_each_time_and_keep_their_geometry() -> None:
    plain, styled = batches().at(5), batches(restyle=1.0).at(5)
    assert torch.equal(styled.images, batches(restyle=1.0).at(5).images)
    assert torch.equal(styled.labels, plain.labels)
    assert not torch.equal(styled.images, plain.images)
    for before, after in zip(plain.images.flatten(0, 1), styled.images.flatten(0, 1), strict=True):
        joint = torch.stack([before.flatten(), after.flatten()])
        assert torch.corrcoef(joint)[0, 1] > 0.9999  # an affine change of each channel


def test_more_than_all_the_way_is_refused() -> None:
    with pytest.raises(UserError, match=r"augment.restyle: 1.5 is out of range; give a value from 0 to 1.0"):
        Augment(crop=(8, 8), restyle=1.5)
