"""Augmentation: geometry and colours against plain formulas, pasted classes, and styles of other images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from segtailor.core.errors import UserError
from segtailor.core.task import IGNORE, Preprocessing
from segtailor.data.augment import (
    LUMA,
    STYLE_STEP_PIXELS,
    Augment,
    colour_matrices,
    draw,
    draw_classes,
    image_styles,
    paste,
    resample,
    restyle,
)
from segtailor.data.batches import Batches
from tests.data.test_batches import batches

PLAIN = Preprocessing(mean=(0.0, 0.0, 0.0), std=(1 / 255, 1 / 255, 1 / 255))  # pixels stay 0..255
STILL = Augment(crop=(20, 24), scale=(1.0, 1.0), flip=0.0)
IDENTITY = np.tile(np.eye(3, 4), (2, 1, 1))


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


def pictures(count: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (count, 6, 8), generator=generator, dtype=torch.uint8)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = IGNORE
    return torch.randn(count, 3, 6, 8, generator=generator), labels


def test_exactly_the_pixels_of_the_chosen_classes_are_taken_from_the_neighbour() -> None:
    images, labels = pictures()
    classes = np.zeros((4, 256), dtype=bool)
    classes[0, [0, 2]] = classes[3, 1] = True
    found, found_labels = paste(images, labels, classes=classes)
    for index, neighbour in enumerate((1, 0, 3, 2)):
        for row in range(6):
            for column in range(8):
                taken = classes[index, int(labels[neighbour, row, column])]
                source = neighbour if taken else index
                assert torch.equal(found[index, :, row, column], images[source, :, row, column])
                assert found_labels[index, row, column] == labels[source, row, column]


def test_an_image_without_a_neighbour_stays_as_it_is() -> None:
    images, labels = pictures(3)
    found, found_labels = paste(images, labels, classes=np.ones((3, 256), dtype=bool))
    assert torch.equal(found[2], images[2])
    assert torch.equal(found_labels[2], labels[2])
    assert torch.equal(found[0], images[1])


def test_the_share_says_how_many_images_take_part_and_unknown_pixels_never_do() -> None:
    chosen = draw_classes(4000, share=0.25, rng=np.random.default_rng(0))
    assert 0.22 < chosen.any(1).mean() < 0.28
    assert not chosen[:, IGNORE].any()
    assert 0.45 < chosen[chosen.any(1)][:, :IGNORE].mean() < 0.55
    assert not draw_classes(50, share=0.0, rng=np.random.default_rng(0)).any()


def test_mixed_batches_depend_on_seed_and_step_alone_and_processes_share_them() -> None:
    augment = Augment(crop=(16, 20), mix=1.0)
    alone = batches(augment=augment).at(3)
    assert torch.equal(alone.images, batches(augment=augment).at(3).images)
    assert not torch.equal(alone.labels, batches(augment=Augment(crop=(16, 20))).at(3).labels)
    shares = [batches(augment=augment, rank=rank, world=2).at(3) for rank in range(2)]
    assert torch.equal(torch.cat([share.labels for share in shares]), alone.labels)
    assert torch.equal(torch.cat([share.images for share in shares]), alone.images)


def test_an_odd_share_per_process_cannot_be_mixed() -> None:
    with pytest.raises(UserError, match="multiple of 8"):
        batches(augment=Augment(crop=(16, 20), mix=0.5), world=4)


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(UserError, match=r"augment\.mix"):
        Augment(crop=(8, 8), mix=1.5)


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


def styled_batches(**changes: object) -> Batches:
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
    plain, styled = styled_batches().at(5), styled_batches(restyle=1.0).at(5)
    assert torch.equal(styled.images, styled_batches(restyle=1.0).at(5).images)
    assert torch.equal(styled.labels, plain.labels)
    assert not torch.equal(styled.images, plain.images)
    for before, after in zip(plain.images.flatten(0, 1), styled.images.flatten(0, 1), strict=True):
        joint = torch.stack([before.flatten(), after.flatten()])
        assert torch.corrcoef(joint)[0, 1] > 0.9999  # an affine change of each channel


def test_more_than_all_the_way_is_refused() -> None:
    with pytest.raises(UserError, match=r"augment.restyle: 1.5 is out of range; give a value from 0 to 1.0"):
        Augment(crop=(8, 8), restyle=1.5)


def test_scales_are_drawn_from_the_given_values_alone() -> None:
    sizes = np.full((200, 2), (40, 80))
    augment = Augment(crop=(8, 8), scales=(0.75, 1.0, 1.25), flip=0.0)
    drawn = draw(augment, sizes, rng=np.random.default_rng(0))
    steps = sorted(set(drawn.lines[:, 1].tolist()))
    assert steps == pytest.approx([1 / 1.25, 1.0, 1 / 0.75])
    with pytest.raises(UserError, match=r"augment\.scales"):
        Augment(crop=(8, 8), scales=(0.0,))
