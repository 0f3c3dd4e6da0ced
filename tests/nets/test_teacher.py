"""Teachers of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import segtailor
from segtailor.core.errors import UserError
from segtailor.core.task import Preprocessing, Task
from segtailor.nets.bundle import Model, save_bundle
from segtailor.nets.onnx.graph import onnx_bytes
from segtailor.nets.teacher import open_teacher, renormalised, teacher_of

CPU = torch.device("cpu")
HALF = Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


class Logits(nn.Module):
    """Gives the image's first channels as logits; remembers what it read."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.point = nn.Conv2d(3, classes, 1, stride=4)

    def forward(self, image: Tensor) -> Tensor:
        return self.point(image)


def three() -> nn.Module:
    torch.manual_seed(0)
    return Logits()


def labels() -> nn.Module:
    class Labels(Logits):
        def forward(self, image: Tensor) -> Tensor:
            return super().forward(image).argmax(1)

    return Labels()


def nothing() -> Any:
    return 3


HERE = "tests.nets.test_teacher"


def test_a_module_teaches_by_its_name() -> None:
    teacher = open_teacher(f"{HERE}:three", 3, device=CPU)
    images = torch.randn(2, 3, 8, 12)
    with torch.no_grad():
        assert torch.equal(teacher(images, Preprocessing()), three()(images))
    assert teacher.fingerprint == open_teacher(f"{HERE}:three", 3, device=CPU).fingerprint
    torch.manual_seed(1)
    assert teacher_of(Logits(), Preprocessing(), device=CPU).fingerprint != teacher.fingerprint


def test_a_bundle_teaches_and_reads_images_in_its_own_way(tmp_path: Path) -> None:
    network = segtailor.create("lpsnet-step0", classes=2)
    save_bundle(tmp_path, Model(network=network, task=Task(classes=("a", "b")), preprocessing=HALF))
    teacher = open_teacher(str(tmp_path), 2, device=CPU)
    pixels = torch.rand(1, 3, 32, 64)
    given = renormalised(pixels, Preprocessing(mean=(0, 0, 0), std=(1, 1, 1)), Preprocessing())
    with torch.no_grad():
        torch.testing.assert_close(teacher(given, Preprocessing()), network((pixels - 0.5) / 0.5))


@pytest.mark.parametrize(
    ("name", "classes", "words"),
    [
        (f"{HERE}:three", 4, "knows 3 classes, the data has 4"),
        (f"{HERE}:labels", 3, "not logits"),
        (f"{HERE}:nothing", 3, "returns a int, not a torch module"),
        (f"{HERE}:absent", 3, "cannot be imported"),
        ("no_such_module:f", 3, "cannot be imported"),
        ("nowhere", 3, "no such file or folder; give a bundle folder"),
        ("nowhere.onnx", 3, "does not exist"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused(name: str, classes: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        open_teacher(name, classes, device=CPU)


@pytest.mark.slow
def test_an_onnx_file_teaches_also_images_of_another_size(tmp_path: Path) -> None:
    file = tmp_path / "teacher.onnx"
    file.write_bytes(
        onnx_bytes(three().eval(), (torch.zeros(1, 3, 16, 32),), names=("image",), output="logits")
    )
    teacher = open_teacher(str(file), 3, device=CPU)
    images = torch.randn(2, 3, 16, 32)
    with torch.no_grad():
        torch.testing.assert_close(teacher(images, Preprocessing()), three()(images), rtol=1e-4, atol=1e-5)
    assert teacher(torch.randn(3, 3, 20, 20), Preprocessing()).shape == (3, 3, 4, 8)
    with pytest.raises(UserError, match="knows 3 classes, the data has 2"):
        open_teacher(str(file), 2, device=CPU)
