"""Pasting classes of a neighbour: what is pasted, what stays, and that processes agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from segtailor.core.errors import UserError
from segtailor.core.task import IGNORE
from segtailor.data.augment import Augment, draw_classes, paste
from tests.data.test_batches import batches


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
