"""Made-up people and findings, and what pycocotools says of them.

`python -m tests.tasks.pose.made_up` writes the golden file anew where pycocotools is installed.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from segtailor.tasks.pose import Found
from segtailor.tasks.pose.persons import Person
from tests.support import FIXTURES

GOLDEN = FIXTURES / "coco_keypoints_golden.json"
NAMES = ("ap", "ap50", "ap75", "ap_medium", "ap_large", "ar", "ar50", "ar75", "ar_medium", "ar_large")


def crowd_of(seed: int, pictures: int = 24) -> tuple[list[Person], list[Found]]:
    """Draw pictures with groups, people without joints, small and large ones; findings good, bad and doubled."""
    rng = np.random.default_rng(seed)
    people: list[Person] = []
    found: list[Found] = []
    for index in range(pictures):
        name = f"{index:04d}"
        for _ in range(rng.integers(0, 4)):
            person = _person(rng, name, len(people))
            people.append(person)
            for _ in range(rng.integers(0, 3)):
                away = rng.normal(0, rng.choice([0.02, 0.06, 0.15]) * person.box[3], (17, 2))
                found.append(_found(rng, name, person.joints[:, :2] + away))
        for _ in range(25 if index == 5 else rng.integers(0, 2)):
            found.append(_found(rng, name, rng.uniform(0, 200, (17, 2))))
    return people, found


def _person(rng: np.random.Generator, picture: str, number: int) -> Person:
    size = rng.choice([20, 60, 90, 200]) * rng.uniform(0.8, 1.2)
    corner = np.round(rng.uniform(0, 200, 2))
    joints = np.column_stack((rng.uniform(corner, corner + size, (17, 2)), rng.integers(0, 3, 17))).round()
    crowd = bool(rng.random() < 0.12)
    if crowd or rng.random() < 0.1:
        joints[:] = 0
    box = (float(corner[0]), float(corner[1]), float(round(size)), float(round(size)))
    area = float(round(size * size * rng.uniform(0.4, 0.8)))
    return Person(
        id=str(number), picture=picture, box=box, joints=joints.astype(np.float32), area=area, crowd=crowd
    )


def _found(rng: np.random.Generator, picture: str, places: np.ndarray) -> Found:
    return Found(picture=picture, joints=places.round(), score=float(rng.random().__round__(2)))


def coco_figures(people: Sequence[Person], found: Sequence[Found]) -> dict[str, float | None]:
    """Ask pycocotools; its -1 (nobody counts) becomes None."""
    from pycocotools.coco import COCO as Index  # noqa: N811
    from pycocotools.cocoeval import COCOeval

    pictures = sorted({one.picture for one in (*people, *found)})
    index = Index()
    index.dataset = {
        "images": [{"id": int(name)} for name in pictures],
        "categories": [{"id": 1, "name": "person"}],
        "annotations": [
            {
                "id": number + 1,
                "image_id": int(person.picture),
                "category_id": 1,
                "bbox": list(person.box),
                "area": person.area,
                "iscrowd": int(person.crowd),
                "keypoints": person.joints.reshape(-1).tolist(),
                "num_keypoints": int(person.labelled.sum()),
            }
            for number, person in enumerate(people)
        ],
    }
    rows = [
        {
            "image_id": int(one.picture),
            "category_id": 1,
            "keypoints": np.column_stack((one.joints, np.ones(17))).reshape(-1).tolist(),
            "score": one.score,
        }
        for one in found
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        index.createIndex()
        judge = COCOeval(index, index.loadRes(rows), "keypoints")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return {name: None if value < 0 else float(value) for name, value in zip(NAMES, judge.stats, strict=True)}


def load(path: Path) -> tuple[list[Person], list[Found], dict[str, float | None]]:
    """Read the golden file."""
    document: dict[str, Any] = json.loads(path.read_text())
    people = [
        Person(
            id=str(number),
            picture=row["picture"],
            box=tuple(row["box"]),
            joints=np.array(row["joints"], np.float32).reshape(17, 3),
            area=row["area"],
            crowd=row["crowd"],
        )
        for number, row in enumerate(document["people"])
    ]
    found = [
        Found(
            picture=row["picture"], joints=np.array(row["joints"], float).reshape(17, 2), score=row["score"]
        )
        for row in document["found"]
    ]
    return people, found, document["expected"]


def write(path: Path, seed: int = 12) -> None:
    """Write the golden file: the made-up people of a seed and pycocotools' figures for them."""
    people, found = crowd_of(seed)
    document = {
        "about": f"made-up people (seed {seed}) and the figures of pycocotools for them",
        "expected": coco_figures(people, found),
        "people": [
            {
                "picture": one.picture,
                "box": [int(value) for value in one.box],
                "joints": one.joints.astype(int).reshape(-1).tolist(),
                "area": one.area,
                "crowd": one.crowd,
            }
            for one in people
        ],
        "found": [
            {
                "picture": one.picture,
                "joints": one.joints.astype(int).reshape(-1).tolist(),
                "score": one.score,
            }
            for one in found
        ],
    }
    path.write_text(json.dumps(document, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    write(GOLDEN)
