"""The functions that take a network's name, image size, classes and outputs: wrong values are explained."""

from __future__ import annotations

import pytest

import segtailor
from segtailor.core.errors import InvalidArchitecture, UserError
from segtailor.spaces.scalable_path import ScalablePathArchitecture


@pytest.mark.parametrize("classes", [0, -1, 1.5, "19", None, True, 10**9, float("nan")])
def test_a_wrong_number_of_classes_is_refused(classes: object) -> None:
    for call in (segtailor.create, segtailor.count):
        with pytest.raises(InvalidArchitecture, match=r"classes: .*allowed: 1 to 65536"):
            call("lpsnet-step0", classes=classes)


@pytest.mark.parametrize(
    "image",
    [
        (0, 5),
        (-1, 4),
        (5,),
        (1, 2, 3),
        "64x64",
        None,
        512,
        (64.0, 64.0),
        ("a", "b"),
        (10**9, 64),
        (True, True),
    ],
)
def test_a_wrong_image_size_is_refused(image: object) -> None:
    with pytest.raises(InvalidArchitecture, match=r"image: .*\(height, width\).*32768"):
        segtailor.count("lpsnet-step0", image=image)  # type: ignore[arg-type]


@pytest.mark.parametrize("outputs", ["aux9", ("main", "nope"), (), None, 3, "aux0", [["main"]]])
def test_wrong_outputs_are_refused(outputs: object) -> None:
    with pytest.raises(InvalidArchitecture, match=r"outputs: .*main, aux0, aux1, aux2"):
        segtailor.create("auxcells-arch0", outputs=outputs)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", [None, 3, [], b"lpsnet-s", "", "fasterseg", "x\0.json", "none.json"])
def test_a_wrong_source_is_refused(source: object) -> None:
    for call in (segtailor.create, segtailor.count):
        with pytest.raises(UserError):
            call(source)


def test_an_architecture_that_would_fill_the_memory_is_refused_before_allocating() -> None:
    wide = ScalablePathArchitecture(depth=(256,) * 5, width=(8192,) * 5, resolution=(1,))
    with pytest.raises(InvalidArchitecture, match="at most 1,000,000,000"):
        segtailor.create(wide)
