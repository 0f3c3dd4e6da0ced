"""Programs beside an exported file write the labels that `segtailor predict` writes, to the pixel."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segtailor.data.scene import render
from segtailor.deploy.example import PROGRAMS, program_names
from segtailor.deploy.formats import FORMATS
from segtailor.deploy.mobile import MobileFormat
from segtailor.nets.mobile.converter import missing
from segtailor.verbs.main import run

SIZE = (96, 128)
FORMS = {
    "logits": [],
    "labels": ["--output", "labels"],
    "pixels": ["--output", "labels", "--preprocess"],
    "confidence": ["--output", "labels", "--confidence", "--unsure", "0.6"],
}


def skip_without(to: str) -> None:
    """Skip, with the reason, where a format cannot be written."""
    if to in FORMATS and issubclass(FORMATS[to], MobileFormat):
        reason = missing(FORMATS[to].converter)
        if reason is not None:
            pytest.skip(reason)
    elif find_spec(PROGRAMS[to].package) is None:
        pytest.skip(f"the package {PROGRAMS[to].package} is not installed")


def exported(to: str, form: str, folder: Path, *more: str) -> Path:
    words = ["export", "camvid-fast", "--to", to, "--image", "96x128", "--out", str(folder), "--with-example"]
    assert run([*words, *FORMS[form], *more]) == 0
    return folder


def predicted(model: str, picture: Path, out: Path) -> np.ndarray:
    assert run(["predict", model, str(picture), "--out", str(out), "--as", "ids"]) == 0
    return np.asarray(Image.open(out / f"{picture.stem}.png"))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    image = Image.fromarray(render(0, 3, SIZE, split="example").image)
    image.save(tmp_path / "street.ppm")
    image.save(tmp_path / "street.png")
    return tmp_path / "street.png"


def run_python(folder: Path, to: str, picture: Path) -> np.ndarray:
    """Run the program in a bare process, as a user does, away from the folder of the file."""
    labels = picture.with_name("labels.png")
    command = [sys.executable, str(folder / program_names(to)[0]), str(picture), str(labels)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "road" in done.stdout.lower()
    return np.asarray(Image.open(labels))


CASES = [
    ("onnx", "logits"),
    *(
        pytest.param(to, form, marks=pytest.mark.slow)
        for to in PROGRAMS
        for form in FORMS
        if (to, form) != ("onnx", "logits") and (to != "ncnn" or form == "logits")
    ),
]


@pytest.mark.parametrize(("to", "form"), CASES)
def test_the_python_program_gives_the_labels_of_predict(
    to: str, form: str, picture: Path, tmp_path: Path
) -> None:
    skip_without(to)
    folder = exported(to, form, tmp_path / "out")
    text = (folder / program_names(to)[0]).read_text()
    assert "import torch" not in text or to == "executorch"
    assert "import segtailor" not in text
    wanted = predicted("camvid-fast", picture, tmp_path / "wanted")
    assert len(np.unique(wanted)) > 2
    np.testing.assert_array_equal(run_python(folder, to, picture), wanted)


def compiler_words(to: str, folder: Path) -> list[str]:
    """Return the command that builds the program here; skip, with the reason, where something is missing."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    spec = find_spec(PROGRAMS[to].package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {PROGRAMS[to].package} is not installed")
    package = Path(spec.origin).parent
    if to == "ncnn":
        return ncnn_words(folder)
    header = {"openvino": "openvino/openvino.hpp", "onnx": "onnxruntime_cxx_api.h"}[to]
    places = [package / "include"]
    if to == "onnx":  # its wheel holds the library without headers; those of an older version fit, too
        places += [Path(os.environ.get("ONNXRUNTIME_INCLUDE", "/usr/include/onnxruntime"))]
    headers = next((place for place in places if (place / header).is_file()), None)
    if headers is None:
        advice = {
            "openvino": "install the package again",
            "onnx": "install Debian's libonnxruntime-dev, or name the folder of the headers in ONNXRUNTIME_INCLUDE",
        }
        pytest.skip(f"no header {header} in {' or '.join(map(str, places))}: {advice[to]}")
    libraries = package / {"openvino": "libs", "onnx": "capi"}[to]
    library = min(libraries.glob(f"lib{package.name}.so*"), key=lambda file: len(file.name))
    if to == "onnx":  # the wheel lacks the name under which programs look for it
        (folder / "libonnxruntime.so.1").symlink_to(library)
        libraries = folder
    source = folder / program_names(to)[1]
    return [
        "g++", "-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(folder / "program"),
        "-isystem", str(headers), str(library), f"-Wl,-rpath,{libraries}",
    ]  # fmt: skip


def ncnn_words(folder: Path) -> list[str]:
    """Return the command for ncnn, whose wheel holds neither headers nor a library to link with."""
    place = Path(os.environ.get("NCNN_INSTALL", "/usr"))
    if not (place / "include/ncnn/net.h").is_file():
        pytest.skip(f"no ncnn/net.h below {place}/include: build ncnn, and name its folder in NCNN_INSTALL")
    source = folder / program_names("ncnn")[1]
    return [
        "g++", "-O1", "-std=c++17", "-fopenmp", "-Wall", "-Wextra", "-Werror", str(source), "-o",
        str(folder / "program"), "-isystem", str(place / "include/ncnn"), f"-L{place / 'lib'}", "-lncnn",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "form"),
    [
        (to, form)
        for to, programs in PROGRAMS.items()
        for form in FORMS
        if programs.build and (to != "ncnn" or form == "logits")
    ],
)
def test_the_cpp_program_gives_the_labels_of_predict(
    to: str, form: str, picture: Path, tmp_path: Path
) -> None:
    folder = exported(to, form, tmp_path / "out")
    built = subprocess.run(compiler_words(to, folder), capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-3000:]
    first = next(
        path for path in folder.iterdir() if path.name in ("model.xml", "model.onnx", "model.ncnn.param")
    )
    labels = tmp_path / "labels.pgm"
    command = [str(folder / "program"), str(first), str(picture.with_suffix(".ppm")), str(labels)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wanted = predicted("camvid-fast", picture, tmp_path / "wanted")
    np.testing.assert_array_equal(np.asarray(Image.open(labels)), wanted)

    damaged = tmp_path / "damaged.ppm"
    damaged.write_bytes(b"P6 128 96 255\n" + bytes(10))
    broken = subprocess.run(
        [*command[:2], str(damaged), str(labels)], capture_output=True, text=True, check=False
    )
    assert broken.returncode == 1
    assert "shorter" in broken.stderr


@pytest.mark.slow
def test_a_picture_of_another_size_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = exported("onnx", "labels", tmp_path / "out")
    Image.new("RGB", (40, 30)).save(tmp_path / "small.png")
    command = [
        sys.executable,
        str(folder / "example_onnx.py"),
        str(tmp_path / "small.png"),
        str(tmp_path / "a.png"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "128x96" in done.stderr
    assert not (tmp_path / "a.png").exists()


@pytest.mark.slow
def test_programs_are_told_and_foreign_ones_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = exported("onnx", "logits", tmp_path / "out", "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["programs"] == [str(folder / "example_onnx.py"), str(folder / "example_onnx.cpp")]
    exported("onnx", "logits", folder, "--dry-run")  # our own may be replaced
    (folder / "example_onnx.py").write_text("print('mine')\n")
    words = ["export", "camvid-fast", "--image", "96x128", "--out", str(folder), "--with-example"]
    assert run(words) == 1
    assert (folder / "example_onnx.py").read_text() == "print('mine')\n"
    assert "--force" in capsys.readouterr().err


def test_formats_without_programs_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", "camvid-fast", "--to", "torchscript", "--out", str(tmp_path / "out"), "--with-example"]
    assert run(words) == 1
    assert "onnx" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
