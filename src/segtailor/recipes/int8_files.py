"""The files that int8 is tried on: how those of a runtime are read, rounded, and named beside the fp32 ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import torch
from numpy.typing import NDArray

from segtailor.core.codec import read_json
from segtailor.core.errors import Unsupported, UserError
from segtailor.core.plan import Shape
from segtailor.core.target import Includes, Target
from segtailor.core.text import command, path_argument
from segtailor.deploy.export import IMAGE
from segtailor.deploy.fake_quantise import BYTES_BETWEEN_LAYERS, INPUTS_OF_KERNELS, Rounding
from segtailor.deploy.formats import INT8_FILES, VERIFY_FILE
from segtailor.deploy.quantise import Feeds, GraphForm, SampledImages, check_method, quantise_onnx
from segtailor.deploy.stages import Stages, staged
from segtailor.nets.bundle import Model
from segtailor.nets.mobile.converter import Converter, Int8Converter
from segtailor.nets.network import Network
from segtailor.nets.onnx.graph import onnx_bytes
from segtailor.nets.onnx.int8 import read_fp32, with_metadata_of
from segtailor.targets.benchmark import FilesSubject, OnnxSubject, read_onnx
from segtailor.targets.mobile import MobileRuntime
from segtailor.targets.runtime import runtime_for

FP32_FILE, INT8_FILE = "model.onnx", "model.int8.onnx"

Seen: TypeAlias = Callable[[int], None]
Kind = TypeVar("Kind", OnnxSubject, FilesSubject)


class Int8Files(Protocol[Kind]):
    """The exported files of a bundle for one kind of runtime, in fp32, and ways to write them in int8.

    `to` is their export format, `method` who does the rounding, `rounding` where it rounds.
    """

    to: str
    method: str
    rounding: Rounding
    fp32: Kind
    pixels: bool

    @property
    def fingerprint(self) -> str:
        """A hash of the fp32 files."""

    def with_network(self, model: Model, network: Network) -> Kind:
        """Return the fp32 files with another network of the same form inside."""

    def rounded(self, source: Kind, samples: SampledImages, form: GraphForm, seen: Seen) -> Kind:
        """Return fp32 files in int8, with ranges measured on samples."""

    def contents(self, subject: Kind) -> Mapping[str, bytes]:
        """Return int8 files as they are kept, by name; a runtime opens the first one."""


class OnnxFiles:
    """`model.onnx`, for ONNX Runtime and OpenVINO."""

    to = "onnx"
    rounding = BYTES_BETWEEN_LAYERS

    def __init__(self, folder: Path, image: tuple[int, int] | None, method: str) -> None:
        check_method(method)
        self.method, self._file = method, folder / FP32_FILE
        _need_file(self._file, folder, self.to)
        self.fp32 = read_onnx(self._file, image=image)
        self.pixels = self.fp32.includes == "end-to-end"

    @property
    def fingerprint(self) -> str:
        """A hash of the file."""
        return sha256(self.fp32.data).hexdigest()[:16]

    def with_network(self, model: Model, network: Network) -> OnnxSubject:
        """Return the file with another network of the same form inside."""
        source = read_fp32(self.fp32.data)
        confident = len(source.graph.output) > 1
        module = staged(
            network,
            self.fp32.includes,
            preprocessing=model.preprocessing,
            image=(self.fp32.inputs[0].height, self.fp32.inputs[0].width),
            task=model.task,
            temperature=model.temperature if confident else None,
        ).requires_grad_(False)
        names = [output.name for output in source.graph.output]
        data = onnx_bytes(
            module,
            tuple(map(torch.from_numpy, self.fp32.arrays)),
            names=(IMAGE,),
            output=names if confident else names[0],
        )
        return self._subject(FP32_FILE, with_metadata_of(read_fp32(data), source))

    def rounded(
        self, source: OnnxSubject, samples: SampledImages, form: GraphForm, seen: Seen
    ) -> OnnxSubject:
        """Return a file in int8."""
        feeds = Feeds(samples, form, name=IMAGE, seen=seen)
        data = quantise_onnx(source.data, feeds, method=self.method, what=f"ONNX file {self._file}")
        return self._subject(INT8_FILE, data)

    def contents(self, subject: OnnxSubject) -> Mapping[str, bytes]:
        """Return the file."""
        return {INT8_FILE: subject.data}

    def _subject(self, name: str, data: bytes) -> OnnxSubject:
        fp32 = self.fp32
        return OnnxSubject(
            name=name, data=data, arrays=fp32.arrays, inputs=fp32.inputs, includes=fp32.includes
        )


class ConvertedFiles:
    """The files of a runtime with its own format, such as ncnn's two. Others are written into folders of `scratch`."""

    ROUNDINGS: ClassVar[Mapping[str, Rounding]] = {
        "ncnn": INPUTS_OF_KERNELS,
        "litert": BYTES_BETWEEN_LAYERS,
    }

    def __init__(
        self, folder: Path, image: tuple[int, int] | None, converter: Int8Converter, scratch: Path
    ) -> None:
        self.to, self.method = converter.name, converter.quantiser
        self.rounding = self.ROUNDINGS[converter.name]
        self._converter, self._scratch, self._folder = converter, scratch, folder
        _need_file(folder / converter.files[0], folder, self.to)
        facts = _facts(folder, converter)
        height, width = facts["image"]
        if image not in (None, (height, width)):
            raise Unsupported(
                f"int8: {folder / converter.files[0]} is for images of {height}x{width}, and its size is fixed; "
                "export it again for another one."
            )
        self.pixels, self._facts_inside = facts["input"] == "pixels", facts
        self.fp32 = self._subject(converter.files[0], folder)

    @property
    def fingerprint(self) -> str:
        """A hash of all files."""
        files = [(self._folder / name).read_bytes() for name in self._converter.files]
        return sha256(b"".join(files)).hexdigest()[:16]

    def with_network(self, model: Model, network: Network) -> FilesSubject:
        """Convert another network."""
        facts, place = self._facts_inside, self._new_folder()
        stages = Stages(pixels=self.pixels, finished=facts["output"] != "logits")
        module = staged(
            network,
            stages,
            preprocessing=model.preprocessing,
            image=tuple(facts["image"]),
            task=model.task,
            temperature=model.temperature if facts["confidence"] else None,
            unsure=facts["unsure"],
        ).requires_grad_(False)
        self._converter.convert(module, tuple(map(torch.from_numpy, self.fp32.arrays)), place)
        return self._subject(self.fp32.name, place)

    def rounded(
        self, source: FilesSubject, samples: SampledImages, form: GraphForm, seen: Seen
    ) -> FilesSubject:
        """Return the files in int8."""
        place = self._new_folder()
        self._converter.quantise(source.folder, place, _Inputs(Feeds(samples, form, name=IMAGE, seen=seen)))
        return self._subject(next(iter(INT8_FILES[self.to])), place)

    def contents(self, subject: FilesSubject) -> Mapping[str, bytes]:
        """Return the files under their names in int8."""
        own = self._converter.files
        return {
            name: (subject.folder / each).read_bytes()
            for name, each in zip(INT8_FILES[self.to], own, strict=False)
        }

    def _subject(self, name: str, folder: Path) -> FilesSubject:
        return _files_subject(name, folder, self._facts_inside)

    def _new_folder(self) -> Path:
        return Path(mkdtemp(dir=self._scratch))


def file_names(target: Target) -> tuple[str, ...]:
    """Return the names that the files of a runtime with its own format have in a bundle; the first one is opened."""
    converter = _converter(target)
    int8 = INT8_FILES.get(converter.name, {}) if target.precision == "int8" else {}
    return tuple(int8)[: len(converter.files)] or converter.files


@contextmanager
def exported_files(folder: Path, target: Target) -> Iterator[FilesSubject]:
    """Yield the files that a bundle holds for a target whose runtime has its own format, as it opens them."""
    converter, names = _converter(target), file_names(target)
    with TemporaryDirectory() as place:
        for name, usual in zip(names, converter.files, strict=True):
            shutil.copyfile(folder / name, Path(place) / usual)
        yield _files_subject(names[0], Path(place), _facts(folder, converter))


def _converter(target: Target) -> Converter:
    runtime = runtime_for(target)
    if not isinstance(runtime, MobileRuntime):
        raise Unsupported(f"target {target}: {target.runtime} has no files of its own; it runs ONNX files.")
    return runtime.converter()


def _facts(folder: Path, converter: Converter) -> dict[str, Any]:
    """Return what `verify.json` says of the fp32 file: the file itself does not tell its size."""
    document, name = read_json(folder / VERIFY_FILE, what="figures of the export"), converter.files[0]
    found = document if isinstance(document, dict) else {}
    found = found if found.get("file") == name else found.get("others", {}).get(name, {})
    facts: dict[str, Any] = found.get("conditions", {})
    if facts.get("precision") != "fp32":
        raise UserError(
            f"int8: {folder / VERIFY_FILE} does not say that {name} was exported in fp32; export it again: "
            + command("segtailor", "export", path_argument(folder), "--to", converter.name)
        )
    return facts


def _files_subject(name: str, folder: Path, facts: Mapping[str, Any]) -> FilesSubject:
    height, width = facts["image"]
    pixels = facts["input"] == "pixels"
    labels: Includes = "network" if facts["output"] == "logits" else "network+resize+argmax"
    return FilesSubject(
        name=name,
        folder=folder,
        inputs=(Shape(facts["channels"], height, width),),
        includes="end-to-end" if pixels else labels,
    )


class _Inputs:
    """Feeds as sequences of inputs, which is what converters read."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds

    def __len__(self) -> int:
        return len(self._feeds)

    def __iter__(self) -> Iterator[Sequence[NDArray[Any]]]:
        for feed in self._feeds:
            yield list(feed.values())


def _need_file(file: Path, folder: Path, to: str) -> None:
    if not file.is_file():
        raise UserError(
            f"{folder} holds no {file.name} to quantise; export it first: "
            + command("segtailor", "export", path_argument(folder), "--to", to)
        )
