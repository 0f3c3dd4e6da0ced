"""Augmentation: exact where it can be, images and labels aligned, independent of how the batch is divided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from segtailor.core.errors import UserError
from segtailor.core.task import Preprocessing
from segtailor.data.augment import LUMA, Augment, colour_matrices, draw, resample

PLAIN = Preprocessing(mean=(0.0, 0.0, 0.0), std=(1 / 255, 1 / 255, 1 / 255))  # pixels stay 0..255
STILL = Augment(crop=(20, 24), scale=(1.0, 1.0), flip=0.0)


def pixels(count: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (count, 3, height, width), dtype=np.uint8)
    return torch.from_numpy(images), torch.from_numpy(
        rng.integers(0, 11, (count, height, width), dtype=np.uint8)
    )


def augmented(
    augment: Augment, images: Tensor, labels: Tensor, sizes: NDArray[np.int64], seed: int = 0
) -> tuple[Tensor, Tensor]:
    drawn = draw(augment, sizes, rng=np.random.default_rng(seed))
    return resample(images, labels, index=np.arange(len(sizes)), drawn=drawn, preprocessing=PLAIN)


def whole(images: Tensor) -> NDArray[np.int64]:
    return np.tile(images.shape[2:], (len(images), 1))


def test_scale_one_is_a_plain_crop_to_the_pixel() -> None:
    images, labels = pixels(6, 33, 41)
    crops, crop_labels = augmented(STILL, images, labels, whole(images))
    drawn = draw(STILL, whole(images), rng=np.random.default_rng(0))
    for k in range(6):
        top, left = int(drawn.rows.low[k, 0]), int(drawn.columns.low[k, 0])
        assert torch.equal(crops[k].round(), images[k, :, top : top + 20, left : left + 24].float())
        assert (crops[k] - crops[k].round()).abs().max() < 1e-4
        assert torch.equal(crop_labels[k], labels[k, top : top + 20, left : left + 24])


def test_crop_as_large_as_the_image_is_the_image() -> None:
    images, labels = pixels(2, 20, 24)
    crops, crop_labels = augmented(STILL, images, labels, whole(images))
    assert torch.equal(crops.round(), images.float())
    assert torch.equal(crop_labels, labels)


def test_flip_mirrors_image_and_labels() -> None:
    images, labels = pixels(2, 20, 24)
    crops, crop_labels = augmented(replace(STILL, flip=1.0), images, labels, whole(images))
    assert torch.equal(crops.round(), images.flip(3).float())
    assert torch.equal(crop_labels, labels.flip(2))


def test_half_scale_averages_two_by_two() -> None:
    images, labels = pixels(2, 40, 48)
    crops, _ = augmented(replace(STILL, scale=(0.5, 0.5)), images, labels, whole(images))
    expected = torch.nn.functional.avg_pool2d(images.float(), 2)
    torch.testing.assert_close(crops, expected, atol=1e-3, rtol=0)


def test_double_scale_equals_bilinear_interpolation() -> None:
    images, labels = pixels(3, 20, 24)
    large = Augment(crop=(40, 48), scale=(2.0, 2.0), flip=0.0)
    crops, _ = augmented(large, images, labels, whole(images))
    expected = torch.nn.functional.interpolate(images.float(), scale_factor=2, mode="bilinear")
    torch.testing.assert_close(crops, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_labels_follow_the_image_to_the_pixel(seed: int) -> None:
    """Red is the column, green the row: the label must be that of the nearest pixel the image shows."""
    height, width = 50, 60
    rows, columns = np.mgrid[:height, :width].astype(np.uint8)
    images = torch.from_numpy(np.stack([columns, rows, rows * 0]))[None].repeat(8, 1, 1, 1)
    labels = torch.from_numpy((rows.astype(int) * 7 + columns * 3) % 250).byte()[None].repeat(8, 1, 1)
    sizes = np.random.default_rng(seed).integers(25, 50, (8, 2))
    crops, crop_labels = augmented(Augment(crop=(40, 36)), images, labels, sizes, seed=seed)
    inside = crop_labels != 255
    seen = crops.double()
    tied = ((seen[:, :2] % 1) - 0.5).abs().amin(1) < 1e-3
    expected = ((seen[:, 1].round() * 7 + seen[:, 0].round() * 3) % 250).byte()
    assert torch.equal(crop_labels[inside & ~tied], expected[inside & ~tied])
    assert inside.float().mean() > 0.2


def test_nothing_beyond_the_valid_extent_is_ever_shown() -> None:
    images, labels = pixels(16, 40, 50)
    images[:, :, 21:], images[:, :, :, 26:] = 255, 255
    images[:, :, :21, :26] = 100
    labels[:, 21:], labels[:, :, 26:] = 77, 77
    sizes = np.tile([21, 26], (16, 1))
    crops, crop_labels = augmented(Augment(crop=(30, 30)), images, labels, sizes)
    assert 77 not in crop_labels
    assert set(crops.round().unique().tolist()) == {0.0, 100.0}
    assert torch.equal(crops[:, 0].round() == 0, crop_labels == 255)


def test_large_images_fill_the_crop_and_small_ones_stay_whole() -> None:
    rng = np.random.default_rng(1)
    sizes = rng.integers(10, 80, (200, 2))
    drawn = draw(Augment(crop=(32, 40)), sizes, rng=rng)
    for taps, axis in ((drawn.rows, 0), (drawn.columns, 1)):
        assert (taps.low >= 0).all()
        assert (taps.high < sizes[:, axis : axis + 1]).all()
        whole_source = np.abs(np.diff(taps.low, axis=1)).sum(1)
        padded = taps.inside.min(1) == 0
        assert (whole_source[padded] >= sizes[padded, axis] - 3).all()  # padded only where the source ran out


def test_small_images_are_enlarged_until_their_shorter_side_is_long_enough() -> None:
    sizes = np.array([[10, 30], [40, 60]])
    grown = draw(replace(STILL, shorter=20), sizes, rng=np.random.default_rng(0))
    step = np.diff(grown.rows.low[0].astype(float)).mean()
    assert step == pytest.approx(0.5, abs=0.05)  # the first is doubled: two output rows per source row
    assert grown.rows.inside.all()
    assert set(np.diff(grown.rows.low[1])) == {1}  # the second is long enough as it is


def test_image_outside_is_the_mean_colour_after_normalising() -> None:
    images, labels = pixels(4, 10, 10)
    drawn = draw(Augment(crop=(40, 40), brightness=0.5, hue=0.2), whole(images), rng=np.random.default_rng(0))
    crops, crop_labels = resample(
        images, labels, index=np.arange(4), drawn=drawn, preprocessing=Preprocessing()
    )
    outside = (crop_labels == 255)[:, None].expand_as(crops)
    assert (crops[outside] == 0).all()
    assert outside.any()


def test_normalisation_is_that_of_the_preprocessing() -> None:
    images, labels = pixels(2, 20, 24)
    drawn = draw(STILL, whole(images), rng=np.random.default_rng(0))
    how = Preprocessing()
    crops, _ = resample(images, labels, index=np.arange(2), drawn=drawn, preprocessing=how)
    mean, std = (torch.tensor(values)[:, None, None] for values in (how.mean, how.std))
    torch.testing.assert_close(crops, (images / 255 - mean) / std, atol=1e-5, rtol=1e-5)


def test_draws_of_a_position_do_not_depend_on_the_batch() -> None:
    augment = Augment(crop=(16, 16), brightness=0.3, contrast=0.3, saturation=0.3, hue=0.1)
    sizes = np.random.default_rng(3).integers(20, 40, (8, 2))
    large = draw(augment, sizes, rng=np.random.default_rng([1, 2]))
    small = draw(augment, sizes[:5], rng=np.random.default_rng([1, 2]))
    part = large.part(slice(0, 5))
    assert np.array_equal(part.colour, small.colour)
    for one, other in zip((*part.rows, *part.columns), (*small.rows, *small.columns), strict=True):
        assert np.array_equal(one, other)


def test_colour_factors_do_what_their_names_say() -> None:
    colour = np.array([0.8, 0.4, 0.2, 1.0])
    high = np.ones((1, 4))

    def apply(**factors: float) -> NDArray[np.float64]:
        return colour_matrices(Augment(crop=(1, 1), **factors), high, grey=0.5)[0] @ colour

    np.testing.assert_allclose(apply(), colour[:3])
    np.testing.assert_allclose(apply(brightness=0.5), 1.5 * colour[:3])
    np.testing.assert_allclose(apply(contrast=0.5), 0.5 + 1.5 * (colour[:3] - 0.5))
    luma = LUMA @ colour[:3]
    np.testing.assert_allclose(apply(saturation=0.5), luma + 1.5 * (colour[:3] - luma))
    turned = apply(hue=0.5)
    np.testing.assert_allclose(LUMA @ turned, luma, atol=1e-9)  # hue keeps the luminance
    np.testing.assert_allclose(
        turned - luma, luma - colour[:3], atol=1e-9
    )  # half a turn: the opposite colour


@pytest.mark.parametrize(
    "wrong",
    [
        {"crop": (0, 4)},
        {"scale": (0.0, 1.0)},
        {"scale": (2.0, 1.0)},
        {"flip": 1.5},
        {"hue": 0.6},
        {"contrast": -0.1},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match="augment"):
        Augment(**{"crop": (4, 4), **wrong})  # type: ignore[arg-type]
