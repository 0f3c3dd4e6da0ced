"""Feed damaged and hostile files to every reader, and report every case that is not refused with a clear error.

Valid files are made once. Each case copies them, changes something that its seed decides, and runs the verb that reads
them in a child process with limits. A case fails if the verb ends with the exit code for bugs (2), takes longer than
20 seconds, uses all its memory, kills the process, or writes outside its folder. First, every command must succeed on
the valid files. `make fuzz` runs it for five minutes; `python tools/fuzz.py --case SEED:TARGET:NUMBER` repeats a case.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MAX_CASE_SECONDS = 20.0
MAX_START_SECONDS = 120.0  # for a child to import everything
MAX_MEMORY_BYTES = 6 * 2**30  # address space of a child
MAX_FILE_BYTES = 2**30  # size of a file that a child writes
INSIDE, OUTSIDE = (
    "inside",
    "outside",
)  # the folder that a case may write to, and one beside it that it may not
NESTED_LISTS = 3000  # deeper than the recursion limit of JSON readers
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 10**30, -(10**30), 1e308, 0.5, float("nan"), float("inf"), "", "x", "x" * 100_000,
    "\ud800", "a\0b", "../outside/canary", "../../outside/canary", "/etc/hostname", "<script>", "%s%n", [], {}, [[]],
    [None], {"": None}, {"a": {"b": []}}, [1, "a", None], "nan", "1e999", "2" * 5000,
)  # fmt: skip
LINES = (
    b"../outside/canary ../outside/canary", b"/etc/hostname,/etc/hostname", b"\xff\xfe\x00", b"x" * 100_000, b"\x00",
    b"- &a [*a, *a]", b"!!python/object/apply:os.system ['true']", b"a: b: c", b'"', b"{", b"[" * NESTED_LISTS, b"NaN",
    b"path: /", b"path: ../outside", b"#", b"0 0 0 0", b"999999999999999999999999",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Target:
    """Files that a verb reads: those to change (glob patterns), other files it needs, and command lines."""

    files: tuple[str, ...]
    needs: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...]


TARGETS: dict[str, Target] = {
    "architecture": Target(
        files=("arch.json",), commands=(("show", "arch.json"), ("show", "arch.json", "--svg", "o.svg"))
    ),
    "pack": Target(files=("pack.json",), commands=(("@pack", "pack.json"),)),
    "bundle": Target(files=("bundle/*",), commands=(("predict", "bundle", "a.png", "--out", "o"),)),
    "run": Target(
        files=("run/*", "run/*/*", "run/*/*/*"),
        commands=(("report", "run"), ("report", "run", "--out", "o.html"), ("@recipe", "run")),
    ),
    "report": Target(files=("run/*", "run/*/*"), commands=(("report", "run", "again", "--out", "o.html"),)),
    "onnx": Target(
        files=("model.onnx",), commands=(("predict", "model.onnx", "a.png", "--out", "o"), ("@onnx", "model.onnx"))
    ),
    "checkpoint": Target(
        files=("weights.pth", "older.pth", "weights.safetensors"),
        commands=tuple(
            ("import", name, "--as", "lpsnet-s", "--out", "o")
            for name in ("weights.pth", "older.pth", "weights.safetensors")
        ),
    ),
    "classes": Target(
        files=("classes.yaml", "classes.txt", "palette.json"),
        commands=tuple(
            ("data", "check", f"folder:photos?legend={name}")
            for name in ("classes.yaml", "classes.txt", "palette.json")
        ),
    ),
    "folder": Target(
        files=("lists/*.txt", "lists/*/*", "data.yaml"),
        needs=("photos",),
        commands=(("data", "check", "folder:lists"), ("data", "check", "data.yaml")),
    ),
    "bands": Target(
        files=("bands/images/*",),
        needs=("bands",),
        commands=(("data", "check", "folder:bands?bands=4"),),
    ),
    "layouts": Target(
        files=("voc/**/*", "camvid/**/*", "city/**/*"),
        commands=tuple(("data", "check", name) for name in ("voc:voc", "camvid:camvid", "cityscapes:city")),
    ),
    "depth": Target(files=("nyu.mat",), commands=(("data", "check", "nyudv2:nyu.mat"),)),
    "people": Target(
        files=("coco/annotations/*.json", "mpii/annot/*.json", "coco/train2017/*", "mpii/images/*"),
        commands=(("data", "check", "coco-keypoints:coco"), ("data", "check", "mpii:mpii")),
    ),
    "annotations": Target(
        files=("shapes/**/*",),
        commands=(
            *(
                ("data", "check", f"{kind}:shapes/{place}")
                for kind, place in (
                    ("coco", "coco"), ("coco", "panoptic"), ("cvat", "cvat"), ("labelme", "labelme"), ("yolo", "yolo"),
                    ("labelstudio", "studio"), ("folder", "coco"), ("folder", "cvat"), ("folder", "yolo"),
                )
            ),
            ("data", "convert", "folder:shapes/labelme", "o", "--to", "folder"),
        ),
    ),
    "picture": Target(files=("a.png", "a.jpg"), commands=(("predict", "bundle", "a.png", "a.jpg", "--out", "o"),)),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One change of one target; the three fields reproduce it."""

    seed: int
    target: str
    number: int

    def __str__(self) -> str:
        return f"{self.seed}:{self.target}:{self.number}"

    @property
    def rng(self) -> random.Random:
        """The same numbers for the same case."""
        return random.Random(str(self))


def parse_case(text: str) -> Case:
    """Read a case from its text, SEED:TARGET:NUMBER."""
    seed, target, number = text.split(":")
    return Case(int(seed), target, int(number))


# --- valid files -------------------------------------------------------------------------------------------------


def make_files(place: Path) -> None:
    """Write a small valid example of every kind of file that is read; takes some seconds."""
    import numpy as np
    import torch
    from PIL import Image
    from safetensors.torch import save_file

    import segtailor
    from segtailor.core.shipped import bundle_folder
    from segtailor.core.space import family
    from segtailor.verbs.main import run

    place.mkdir(parents=True)
    rng = np.random.default_rng(0)

    def picture(path: Path, mode: str = "RGB", ids: tuple[int, int] = (0, 3)) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        shape, (low, high) = ((16, 24, 3), (0, 256)) if mode == "RGB" else ((16, 24), ids)
        Image.fromarray(rng.integers(low, high, shape, dtype=np.uint8)).save(path)

    for name in ("a.png", "a.jpg"):
        picture(place / name)
    shutil.copytree(bundle_folder("camvid-fast"), place / "bundle")
    document = json.loads((place / "bundle" / "model.json").read_text())["architecture"]
    (place / "arch.json").write_text(json.dumps(document))
    shutil.copy(ROOT / "src/segtailor/costs/packs/fasterseg-1080ti.json", place / "pack.json")
    network = segtailor.create("lpsnet-s", classes=19)
    published = family("scalable_path").published_names(network, network.architecture).names  # type: ignore[attr-defined]
    state = {name: value.clone() for key, value in network.state_dict().items() for name in published[key]}
    torch.save(state, place / "weights.pth")
    torch.save(state, place / "older.pth", _use_new_zipfile_serialization=False)
    save_file(state, place / "weights.safetensors")
    training = ("--data", "synthetic:train=2,val=2,size=32x64", "--set", "fit.steps=2", "fit.batch=2")
    with (
        contextlib.chdir(place),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        for command in (
            ("train", "lpsnet-s", "--out", "run", "--device", "cpu", "--cache", "cache", *training),
            ("export", "bundle", "--image", "32x48", "--out", "exported"),
        ):
            if run(command) != 0:
                raise RuntimeError(f"the valid files cannot be made: segtailor {' '.join(command)} failed")
    shutil.copytree(place / "run", place / "again")
    shutil.move(place / "exported" / "model.onnx", place / "model.onnx")
    _make_datasets(place, picture)


def _make_bands(place: Path, picture: Callable[..., None]) -> None:
    """Write pictures of four bands: TIFF files with and without compression, and arrays."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(1)
    (place / "images").mkdir(parents=True)
    for index, compression in enumerate((None, "tiff_lzw", "tiff_adobe_deflate", "packbits")):
        values = rng.integers(0, 256, (16, 24, 4), dtype=np.uint8)
        Image.fromarray(values, "RGBA").save(place / "images" / f"{index}.tif", compression=compression)
    for index in (4, 5):
        np.save(place / "images" / f"{index}.npy", rng.integers(0, 4000, (16, 24, 4), dtype=np.uint16))
    for index in range(6):
        picture(place / "masks" / f"{index}.png", "L")


def _make_datasets(place: Path, picture: Callable[..., None]) -> None:
    import numpy as np

    for index in range(4):
        for folder, mode in (("images", "RGB"), ("masks", "L")):
            picture(place / "photos" / folder / f"{index}.png", mode)
            picture(place / "lists" / folder / f"{index}.png", mode)
        split = ("train", "val")[index % 2]
        picture(place / "camvid" / split / f"{index}.png")
        picture(place / "camvid" / f"{split}annot" / f"{index}.png", "L")
        picture(place / "city/leftImg8bit" / split / "ulm" / f"ulm_{index}_leftImg8bit.png")
        picture(place / "city/gtFine" / split / "ulm" / f"ulm_{index}_gtFine_labelIds.png", "L", (7, 9))
        picture(place / "voc/JPEGImages" / f"{index}.jpg")
        picture(place / "voc/SegmentationClass" / f"{index}.png", "L")
        picture(place / "coco/train2017" / f"{index}.png")
        picture(place / "mpii/images" / f"{index}.png")
    _make_bands(place / "bands", picture)
    for split, numbers in (("train", (0, 1, 2)), ("val", (3,))):
        rows = "".join(f"images/{number}.png masks/{number}.png\n" for number in numbers)
        (place / "lists" / f"{split}.txt").write_text(rows)
        listed = place / "voc/ImageSets/Segmentation" / f"{split}.txt"
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("".join(f"{number}\n" for number in numbers))
    (place / "data.yaml").write_text("dataset: folder\npath: photos\nclasses: [sky, road, car]\nval: 0.25\n")
    (place / "classes.yaml").write_text("classes:\n  - sky\n  - road\n  - car\n")
    (place / "classes.txt").write_text("sky\nroad\ncar\n")
    (place / "palette.json").write_text(json.dumps({"sky": [1, 2, 3], "road": [4, 5, 6], "car": [7, 8, 9]}))
    joints = [[float(4 + index), 5.0, 2.0] for index in range(17)]
    images = [{"id": index, "file_name": f"{index}.png", "height": 16, "width": 24} for index in range(4)]
    people = [
        {"id": index, "image_id": index, "bbox": [1, 1, 14, 12], "area": 100, "iscrowd": 0, "num_keypoints": 17,
         "keypoints": [value for joint in joints for value in joint], "category_id": 1}
        for index in range(4)
    ]  # fmt: skip
    rows = [
        {"image": f"{index}.png", "joints": [joint[:2] for joint in joints[:16]], "joints_vis": [1] * 16,
         "center": [8, 8], "scale": 0.1}
        for index in range(4)
    ]  # fmt: skip
    for path, content in (
        ("coco/annotations/person_keypoints_train2017.json", {"images": images, "annotations": people}),
        ("mpii/annot/train.json", rows),
    ):
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(json.dumps(content))
    _make_annotations(place / "shapes", picture)
    with contextlib.suppress(ImportError):
        import h5py

        with h5py.File(place / "nyu.mat", "w") as content:
            content.create_dataset("images", data=np.ones((4, 3, 24, 16), dtype=np.uint8))
            content.create_dataset("depths", data=np.ones((4, 24, 16), dtype=np.float32))


def _make_annotations(place: Path, picture: Callable[..., None]) -> None:
    """Write four pictures of 24x16 pixels in every annotation format."""
    names = [f"{index}.png" for index in range(4)]
    folders = ("coco", "panoptic", "cvat/images", "labelme", "yolo/images", "studio")
    for folder in folders:
        for name in names:
            picture(place / folder / name)
    for name in names:
        picture(place / "panoptic/panoptic_all" / name, "L")
    ring = [[2, 3], [12, 3], [12, 9], [2, 9]]
    flat = [value for point in ring for value in point]
    images = [{"id": at, "file_name": name, "height": 16, "width": 24} for at, name in enumerate(names)]
    kinds = [{"id": 3, "name": "car"}, {"id": 7, "name": "road"}]
    parts = (
        [flat],
        {"size": [16, 24], "counts": [40, 60, 284]},
        {"size": [16, 24], "counts": "X1l1l8"},
        [flat, flat],
    )
    rows = [
        {"id": at, "image_id": at, "category_id": 3 + 4 * (at % 2), "segmentation": part, "iscrowd": at % 2}
        for at, part in enumerate(parts)
    ]
    segments = [
        {
            "image_id": at,
            "file_name": name,
            "segments_info": [{"id": one, "category_id": 3} for one in range(1, 4)],
        }
        for at, name in enumerate(names)
    ]
    shapes = [
        {"label": "car", "shape_type": "polygon", "points": ring},
        {"label": "road", "shape_type": "rectangle", "points": ring[::2]},
        {"label": "road", "shape_type": "circle", "points": ring[:2]},
    ]
    regions = [
        {"id": "a", "type": "polygonlabels", "original_width": 24, "original_height": 16,
         "value": {"points": ring, "polygonlabels": ["car"]}},
        {"id": "b", "type": "rectanglelabels", "original_width": 24, "original_height": 16,
         "value": {"x": 5, "y": 5, "width": 30, "height": 20, "rotation": 4, "rectanglelabels": ["road"]}},
        {"id": "c", "type": "brushlabels", "original_width": 24, "original_height": 16,
         "value": {"format": "rle", "rle": [0, 0, 6, 0, 63, 255, 252, 5, 255, 255], "brushlabels": ["road"]}},
    ]  # fmt: skip
    tasks = [
        {"id": at, "data": {"image": f"/data/upload/1/{name}"}, "annotations": [{"result": regions}]}
        for at, name in enumerate(names)
    ]
    inner = (
        '<polygon label="car" points="2,3;12,3;12,9" z_order="1"/><box label="road" xtl="1" ytl="1" xbr="9" ybr="9" '
        'rotation="5"/><mask label="car" rle="3, 4, 5" left="2" top="2" width="4" height="3"/>'
        '<ellipse label="car" cx="9" cy="8" rx="3" ry="2"/><polyline label="car" points="1,1;2,2"/>'
    )
    pictures = "".join(
        f'<image id="{at}" name="{name}" width="24" height="16">{inner}</image>'
        for at, name in enumerate(names)
    )
    labels = "<label><name>car</name></label><label><name>road</name></label>"
    files: dict[str, object] = {
        "coco/instances_all.json": {"images": images, "annotations": rows, "categories": kinds},
        "panoptic/panoptic_all.json": {"images": images, "annotations": segments, "categories": kinds},
        "studio/export.json": tasks,
        "cvat/annotations.xml": f"<annotations><meta><labels>{labels}</labels></meta>{pictures}</annotations>",
        "yolo/data.yaml": "train: images\nnames: [car, road]\n",
    }
    for name in names:
        stem = name.removesuffix(".png")
        files[f"labelme/{stem}.json"] = {
            "shapes": shapes,
            "imagePath": name,
            "imageHeight": 16,
            "imageWidth": 24,
        }
        files[f"yolo/labels/{stem}.txt"] = "0 0.1 0.1 0.9 0.1 0.9 0.9\n1 0.5 0.5 0.2 0.2\n"
    for path, content in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(content if isinstance(content, str) else json.dumps(content))


# --- changes -----------------------------------------------------------------------------------------------------


def change(folder: Path, target: Target, rng: random.Random) -> str:
    """Change one to three files of a target; return a description of the changes."""
    found = sorted({path for pattern in target.files for path in folder.glob(pattern) if path.is_file()})
    if not found:
        return "nothing to change"
    return "; ".join(_change_file(rng.choice(found), folder, rng) for _ in range(rng.choice((1, 1, 1, 2, 3))))


def _change_file(path: Path, folder: Path, rng: random.Random) -> str:
    name = path.relative_to(folder).as_posix()
    if not path.is_file() or path.is_symlink():
        return f"{name}: already replaced"
    if rng.random() < 0.08:
        return f"{name}: {_replace(path, rng)}"
    data = path.read_bytes()
    if path.suffix in (".json", ".jsonl") and rng.random() < 0.7:
        with contextlib.suppress(ValueError, RecursionError):
            changed, done = _changed_json(data, rng)
            path.write_bytes(changed)
            return f"{name}: {done}"
    if path.suffix in (".txt", ".yaml", ".json", ".jsonl") and rng.random() < 0.5:
        lines = data.split(b"\n")
        line, at = rng.choice(LINES), rng.randrange(len(lines) + 1)
        path.write_bytes(b"\n".join((*lines[:at], line, *lines[at:])))
        return f"{name}: line {at} is {line[:30]!r}"
    changed, done = _changed_bytes(data, rng)
    path.write_bytes(changed)
    return f"{name}: {done}"


def _replace(path: Path, rng: random.Random) -> str:
    """Replace a file by something else; return its kind."""
    kind = rng.choice(("gone", "empty", "folder", "link outside", "link to itself", "pipe"))
    path.unlink()
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "link outside":
        path.symlink_to(path.parents[len(path.parents) - 1 - _depth(path)] / OUTSIDE / "canary")
    elif kind == "link to itself":
        path.symlink_to(path)
    elif kind == "pipe" and hasattr(os, "mkfifo"):
        os.mkfifo(path)
    return kind


def _depth(path: Path) -> int:
    """Return the number of folders above the one called `inside`."""
    return len(path.parts) - 2 - path.parts[::-1].index(INSIDE) if INSIDE in path.parts else 0


def _changed_json(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Change one value of a JSON document, or of one line of a JSON lines file."""
    lines = data.split(b"\n")
    try:
        document, at = json.loads(data), None
    except ValueError:
        at = rng.randrange(len(lines))
        document = json.loads(lines[at])
    holder: dict[str, Any] = {"root": document}
    places = list(_places(holder, []))
    steps = rng.choice(places)
    inside: Any = holder
    for step in steps[:-1]:
        inside = inside[step]
    kind = rng.choice(("value", "value", "value", "delete", "add", "deep", "repeat"))
    last = steps[-1]
    shown = ".".join(map(str, steps[1:])) or "all of it"
    if kind == "delete" and len(steps) > 1:
        del inside[last]
    elif kind == "add" and isinstance(inside[last], dict):
        inside[last][rng.choice(("extra", "", "__class__", "../x"))] = rng.choice(HOSTILE)
    elif kind == "repeat" and isinstance(inside[last], list):
        inside[last] = inside[last] * rng.choice((2, 50))
    elif kind == "deep":
        text = json.dumps(holder["root"] if len(steps) > 1 else None)
        inside[last] = "DEEP"
        text = json.dumps(holder["root"]).replace('"DEEP"', "[" * NESTED_LISTS + "]" * NESTED_LISTS)
        return _joined(lines, at, text), f"{shown} is {NESTED_LISTS} nested lists"
    else:
        inside[last] = rng.choice(HOSTILE)
        kind = f"is {inside[last]!r:.60}"
    return _joined(lines, at, json.dumps(holder["root"])), f"{shown} {kind}"


def _joined(lines: list[bytes], at: int | None, text: str) -> bytes:
    if at is None:
        return text.encode()
    return b"\n".join((*lines[:at], text.encode(), *lines[at + 1 :]))


def _places(value: Any, steps: list[Any]) -> Iterator[list[Any]]:
    entries: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in entries:
        yield [*steps, key]
        yield from _places(inner, [*steps, key])


def _changed_bytes(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    kind = rng.choice(("flip", "flip", "cut", "zeros", "insert", "swap", "grow"))
    size = len(data)
    at = rng.randrange(
        min(size, rng.choice((64, 4096, size or 1))) or 1
    )  # the start of a file has most of its structure
    if kind == "flip":
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 9)):
            place = rng.randrange(min(size, rng.choice((64, 4096, size or 1))) or 1)
            if place < size:
                changed[place] ^= 1 << rng.randrange(8)
        return bytes(changed), "some bits flipped"
    if kind == "cut":
        return data[: rng.randrange(size + 1)], "cut short"
    if kind == "zeros":
        return data[:at] + bytes(min(16, size - at)) + data[at + 16 :], f"zeros at {at}"
    if kind == "insert":
        return data[:at] + rng.randbytes(rng.randrange(1, 64)) + data[at:], f"bytes inserted at {at}"
    if kind == "swap":
        other = rng.randrange(size + 1)
        return data[other:] + data[:other], f"rotated by {other} bytes"
    return data + rng.randbytes(1000), "bytes appended"


# --- the child: runs cases -----------------------------------------------------------------------------------------


class Outside(Exception):
    """Something was written outside the folder of a case."""


WRITES = {"os.remove": 0, "os.rename": 1, "os.mkdir": 0, "os.rmdir": 0, "os.symlink": 1, "os.link": 1, "os.truncate": 0,
          "os.chmod": 0, "os.chown": 0, "shutil.rmtree": 0}  # fmt: skip


class Guard:
    """Watches what this process writes, by an audit hook, which cannot be removed again."""

    def __init__(self) -> None:
        self.allowed: Path | None = None
        self.found: list[str] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.allowed is None:
            return
        if event == "open":
            path, mode, flags = arguments[:3]
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            writes = writes or (isinstance(mode, str) and set(mode) & set("wax+"))
        elif event in WRITES:
            path, writes = arguments[WRITES[event]], True
        else:
            return
        if not writes or not isinstance(path, str | bytes | os.PathLike):
            return
        allowed, self.allowed = self.allowed, None  # resolving a path is not audited
        try:
            real = Path(os.path.realpath(os.fsdecode(path)))
            if not real.is_relative_to(allowed) and not real.is_relative_to("/dev"):
                self.found.append(f"{event} {real}")
        finally:
            self.allowed = allowed


def serve() -> None:
    """Run the cases that the parent sends, one per line, and answer each with a line of JSON."""
    import resource

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import segtailor.recipes.train  # torch and the readers: imported before the limits
    import segtailor.verbs.main  # noqa: F401

    for kind, value in (
        (resource.RLIMIT_AS, MAX_MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))
    guard = Guard()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        case, files, place = json.loads(line)
        outcome = carry_out(parse_case(case), Path(files), Path(place), guard)
        print(json.dumps(outcome), file=answers, flush=True)


def carry_out(case: Case, files: Path, place: Path, guard: Guard) -> dict[str, Any]:
    """Copy, change, run; return the change, the command and the problem, if there was one."""
    target, rng = TARGETS[case.target], case.rng
    inside = place / INSIDE
    inside.mkdir(parents=True)
    named = " ".join(
        (*target.files, *target.needs, *(word for command in target.commands for word in command))
    )
    for entry in (
        files.iterdir()
    ):  # only files that the commands name: copying all of them would take most of the time
        if entry.name in named and entry.is_dir():
            shutil.copytree(entry, inside / entry.name)
        elif entry.name in named:
            shutil.copy(entry, inside / entry.name)
    (place / OUTSIDE).mkdir()
    (place / OUTSIDE / "canary").write_text("unharmed")
    valid = case.number < 0  # each command once, on unchanged files
    command = target.commands[-case.number - 1] if valid else rng.choice(target.commands)
    done = "nothing" if valid else change(inside, target, rng)
    (place / "case.json").write_text(json.dumps({"case": str(case), "change": done, "command": command}))
    (inside / "tmp").mkdir()
    tempfile.tempdir = str(inside / "tmp")
    guard.found.clear()
    guard.allowed = Path(os.path.realpath(inside))
    try:
        with contextlib.chdir(inside):
            problem = _run(command, allowed=(0,) if valid else (0, 1, 130))
    finally:
        guard.allowed = None
    if guard.found:
        problem = f"wrote outside its folder: {', '.join(guard.found[:3])}"
    if (place / OUTSIDE / "canary").read_text() != "unharmed" or len(list((place / OUTSIDE).iterdir())) > 1:
        problem = "changed the folder beside its own"
    return {"change": done, "command": command, "problem": problem}


def _run(command: Sequence[str], *, allowed: Sequence[int]) -> str | None:
    """Run a verb, or a reader that no verb calls alone; return the problem, if there was one."""
    from segtailor.core.errors import UserError
    from segtailor.verbs.main import NO_MEMORY, run

    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(io.StringIO()):
        if command[0].startswith("@"):
            try:
                _read(command[0], Path(command[1]))
                code = 0
            except UserError as problem:
                output.write(str(problem))
                code = 1
            except Exception:  # noqa: BLE001 - any exception is a finding
                output.write(traceback.format_exc())
                code = 2
        else:
            code = run([*command, *(("--device", "cpu") if command[0] == "predict" else ())])
    text = output.getvalue()
    if code not in allowed:
        return f"exit code {code}\n{text[-3000:]}"
    return "used all its memory" if NO_MEMORY in text else None


def _read(reader: str, path: Path) -> None:
    if reader == "@pack":
        from segtailor.costs.pack import read_pack

        read_pack(path)
    elif reader == "@onnx":
        from segtailor.targets.benchmark import read_onnx

        read_onnx(path)
    else:
        from segtailor.runs.journal import read_history
        from segtailor.runs.layout import read_recipe, read_result

        read_recipe(path)
        read_result(path)
        read_history(path)


# --- the parent: limits and the report -----------------------------------------------------------------------------


class Child:
    """A process that runs cases; a new one is started after a case that killed or blocked it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, case: Case, files: Path, place: Path) -> dict[str, Any]:
        """Run one case; a child that does not answer in time is killed."""
        process = self._started()
        assert process.stdin is not None
        process.stdin.write(json.dumps([str(case), str(files), str(place)]) + "\n")
        process.stdin.flush()
        answer = self._answer(process, MAX_CASE_SECONDS)
        if isinstance(answer, dict):
            return answer
        self.close()
        note = place / "case.json"
        known = json.loads(note.read_text()) if note.exists() else {"change": "?", "command": "?"}
        return {**known, "problem": answer}

    def close(self) -> None:
        """Kill the child."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            home = tempfile.gettempdir()
            environment = {**os.environ, "HOME": home, "MPLCONFIGDIR": home, "OMP_NUM_THREADS": "1"}
            environment["SEGTAILOR_CACHE"] = "cache"  # below the folder of the case
            command = [sys.executable, str(Path(__file__)), "--child"]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
            if not isinstance(self._answer(self._process, MAX_START_SECONDS), dict):
                raise RuntimeError(
                    "the child that runs the cases does not start; run it with --child to see why"
                )
        return self._process

    @staticmethod
    def _answer(process: subprocess.Popen[str], seconds: float) -> dict[str, Any] | str:
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        if not ready:
            return f"took more than {seconds:g} s"
        assert process.stdout is not None
        line = process.stdout.readline()
        found: dict[str, Any] | str = (
            json.loads(line) if line else f"ended the process (code {process.wait()})"
        )
        return found


def cases(seed: int, targets: Sequence[str]) -> Iterator[Case]:
    """Yield every command on valid files, then an endless sequence of cases, the targets in turn."""
    for target in targets:
        yield from (Case(seed, target, -1 - index) for index in range(len(TARGETS[target].commands)))
    number = 0
    while True:
        for target in targets:
            yield Case(seed, target, number)
        number += 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run cases until the time is over, or the one given by `--case`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="how long to run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="only these targets")
    parser.add_argument("--case", help="replay one case, SEED:TARGET:NUMBER")
    parser.add_argument("--keep", type=Path, help="with --case: keep its files in this folder")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.child:
        serve()
        return 0
    chosen = [parse_case(asked.case)] if asked.case else cases(asked.seed, asked.target or list(TARGETS))
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        files = Path(folder) / "valid"
        make_files(files)
        return _report(_judged(iter(chosen), files, Path(folder), asked.seconds, asked.keep))


def _judged(
    chosen: Iterator[Case], files: Path, folder: Path, seconds: float, keep: Path | None
) -> Iterator[tuple[Case, dict[str, Any]]]:
    child, end = Child(), time.monotonic() + seconds
    try:
        for case in chosen:
            if time.monotonic() > end:
                return
            place = folder / "case"
            yield case, child.ask(case, files, place)
            if keep is not None:
                shutil.move(place, keep)
            shutil.rmtree(place, ignore_errors=True)
    finally:
        child.close()


def _report(judged: Iterator[tuple[Case, dict[str, Any]]]) -> int:
    count, failed = 0, 0
    for case, outcome in judged:
        count += 1
        if outcome["problem"] is not None:
            failed += 1
            print(f"FAILED --case {case}\n  {outcome['change']}\n  segtailor {' '.join(outcome['command'])}")
            print("  " + str(outcome["problem"]).strip().replace("\n", "\n  "), flush=True)
    print(f"fuzz: {count} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
