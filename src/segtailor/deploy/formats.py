"""Kinds of files that a graph can be written as: how each is written, which runtime opens it, how it is recognised.

A file of an earlier export may be replaced; recognising it keeps files of other programs from being overwritten.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from numpy.typing import NDArray

from segtailor.core.codec import read_json, to_json
from segtailor.core.errors import Unsupported, UserError, unknown
from segtailor.core.ownership import IsOurs, contains_mark, has_fields, has_marked_neighbour
from segtailor.deploy.export import IMAGE, ChannelsLast, Graph, graph_module, metadata_of
from segtailor.deploy.export import Runner as Runner
from segtailor.deploy.mobile import CoreMlFormat, ExecuTorchFormat, LiteRtFormat, NcnnFormat
from segtailor.nets.bundle import Model
from segtailor.nets.onnx.graph import onnx_bytes, onnx_session
from segtailor.nets.onnx.metadata import KEY, with_metadata

METADATA_FILE = "segtailor.json"  # inside files that are archives
VERIFY_FILE, DECISION_FILE = "verify.json", "int8.json"


class Format(Protocol):
    """A kind of file. `files` are the names it writes; a runtime opens the first one.

    A format whose runtime cannot be here says in `stand_in` why, and what opens its files instead.
    """

    files: ClassVar[tuple[str, ...]]
    runtime: ClassVar[str]

    def check(self, graph: Graph) -> None:
        """Raise `Unsupported`, before any work, if this graph cannot be written on this machine."""

    def write(self, model: Model, graph: Graph, folder: Path) -> None:
        """Write the files into a folder."""

    def open(self, folder: Path) -> Runner:
        """Open the files with their runtime; return a function from an input array to the output arrays."""


class OnnxFormat:
    """ONNX, run by ONNX Runtime."""

    files: ClassVar[tuple[str, ...]] = ("model.onnx",)
    runtime: ClassVar[str] = "onnxruntime"

    def check(self, graph: Graph) -> None:
        """Accept every graph."""

    def write(self, model: Model, graph: Graph, folder: Path) -> None:
        """Write one file, weights and metadata included."""
        (folder / self.files[0]).write_bytes(
            with_metadata(onnx_graph(model, graph), metadata_of(model, graph))
        )

    def open(self, folder: Path) -> Runner:
        """Open a session."""
        session = onnx_session(folder / self.files[0])
        return lambda array: session.run(None, {IMAGE: array})


class OpenVinoFormat:
    """OpenVINO's own format. Half precision applies to stored weights; the processor chooses how to compute."""

    files: ClassVar[tuple[str, ...]] = ("model.xml", "model.bin")
    runtime: ClassVar[str] = "openvino"

    def check(self, graph: Graph) -> None:  # noqa: ARG002 - the form of the protocol
        """Refuse if the package is missing."""
        if find_spec("openvino") is None:
            raise Unsupported(
                "export --to openvino needs the package openvino, which is not installed: `pip install openvino`."
            )

    def write(self, model: Model, graph: Graph, folder: Path) -> None:
        """Convert the single-precision ONNX graph."""
        import openvino

        single = replace(graph, precision="fp32")
        converted = openvino.Core().read_model(model=onnx_graph(model, single))
        converted.set_rt_info(_metadata_text(model, graph), KEY)
        half = graph.precision == "fp16"
        openvino.save_model(converted, str(folder / self.files[0]), compress_to_fp16=half)

    def open(self, folder: Path) -> Runner:
        """Compile for the CPU, in single precision."""
        import openvino

        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        compiled = openvino.Core().compile_model(str(folder / self.files[0]), "CPU", settings)
        return lambda array: list(compiled([array]).values())


class TorchScriptFormat:
    """TorchScript of one size, for C++ and mobile programs built on torch."""

    files: ClassVar[tuple[str, ...]] = ("model.ts",)
    runtime: ClassVar[str] = "torch"

    def check(self, graph: Graph) -> None:
        """Refuse open sizes: a trace has the size of its example."""
        if graph.dynamic:
            raise Unsupported("export --to torchscript records one size; leave out --dynamic, or use onnx.")

    def write(self, model: Model, graph: Graph, folder: Path) -> None:
        """Trace."""
        module = ChannelsLast(graph_module(model, graph)).eval()
        with torch.no_grad(), _silent_torch():
            traced: Any = torch.jit.trace(module, (graph.example,), check_trace=False)  # type: ignore[no-untyped-call]
        traced.save(str(folder / self.files[0]), _extra_files={METADATA_FILE: _metadata_text(model, graph)})

    def open(self, folder: Path) -> Runner:
        """Load what was just written."""
        with _silent_torch():
            module: Any = torch.jit.load(str(folder / self.files[0]))  # type: ignore[no-untyped-call]
        return _torch_runner(module)


class ExportedProgramFormat:
    """A program of torch.export, for torch itself and its compilers."""

    files: ClassVar[tuple[str, ...]] = ("model.pt2",)
    runtime: ClassVar[str] = "torch"

    def check(self, graph: Graph) -> None:
        """Accept every graph."""

    def write(self, model: Model, graph: Graph, folder: Path) -> None:
        """Export."""
        module = ChannelsLast(graph_module(model, graph)).eval()
        with torch.no_grad(), _silent_torch(), _explain_open_sizes(graph):
            program = torch.export.export(module, (graph.example,), dynamic_shapes=graph.open_sides)
        torch.export.save(
            program, folder / self.files[0], extra_files={METADATA_FILE: _metadata_text(model, graph)}
        )

    def open(self, folder: Path) -> Runner:
        """Load what was just written."""
        with _silent_torch():
            return _torch_runner(torch.export.load(folder / self.files[0]).module())


FORMATS: dict[str, type[Format]] = {
    "onnx": OnnxFormat,
    "openvino": OpenVinoFormat,
    "torchscript": TorchScriptFormat,
    "exported-program": ExportedProgramFormat,
    "ncnn": NcnnFormat,
    "litert": LiteRtFormat,
    "executorch": ExecuTorchFormat,
    "coreml": CoreMlFormat,
}


def format_for(name: str) -> Format:
    """Return the format of a name; an unknown one is refused."""
    if name not in FORMATS:
        raise unknown("export format", name, FORMATS)
    return FORMATS[name]()


def onnx_graph(model: Model, graph: Graph) -> bytes:
    """Return the serialised ONNX model of a graph."""
    with _explain_open_sizes(graph):
        return onnx_bytes(
            graph_module(model, graph),
            (graph.example,),
            names=(IMAGE,),
            output=graph.outputs,
            dynamic=graph.open_sides,
        )


@contextmanager
def _explain_open_sizes(graph: Graph) -> Iterator[None]:
    """Turn an exporter error about open sizes into one that says what to do."""
    try:
        yield
    except (RuntimeError, ValueError, NotImplementedError, torch.onnx.OnnxExporterError) as problem:
        if not graph.dynamic:
            raise
        raise Unsupported(
            "export --dynamic: layers of this network depend on the image size in a way that a graph of open size "
            f"cannot hold ({type(problem).__name__}). Leave out --dynamic and give --image HxW."
        ) from problem


@contextmanager
def _silent_torch() -> Iterator[None]:
    """Hide torch's warnings to programmers: that sizes become constants in a trace is wanted, and it is checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _torch_runner(module: Any) -> Runner:
    def run(array: NDArray[Any]) -> list[NDArray[Any]]:
        with torch.no_grad():
            output = module(torch.from_numpy(array))
        return [part.numpy() for part in (output if isinstance(output, tuple) else (output,))]

    return run


def _metadata_text(model: Model, graph: Graph) -> str:
    return json.dumps(to_json(metadata_of(model, graph)))


# Recognising files of earlier exports.

is_onnx = contains_mark(
    b"\n%c%s\x12" % (len(KEY), KEY.encode())
)  # the metadata key, as encoded in ONNX files
is_archive = contains_mark(METADATA_FILE.encode())
is_figures = has_fields("file", "equal", "label_agreement")
is_decision = has_fields("kept", "reason", "label_agreement")
_is_xml = contains_mark(f"<{KEY} ".encode(), begins=b"<?xml")


def _is_int8_onnx(path: Path) -> bool:
    """Recognise by metadata, or by the decision that names the file: quantising a bare file adds no metadata."""
    return is_onnx(path) or _is_named_by(DECISION_FILE)(path)


def _is_named_by(decision: str) -> IsOurs:
    """Return a check that a decision beside a file names it."""
    return lambda path: path.is_file() and _read_object(path.with_name(decision)).get("file") == path.name


def _is_named_by_figures(path: Path) -> bool:
    """Recognise by verify.json, which names it: engines and files for phones hold no metadata."""
    verified = _read_object(path.with_name(VERIFY_FILE))
    return path.is_file() and path.name in (verified.get("file"), *verified.get("others", ()))


EXPORTED_FILES: Mapping[str, IsOurs] = {
    "model.onnx": is_onnx,
    "model.xml": _is_xml,
    "model.bin": has_marked_neighbour("model.xml", _is_xml),
    "model.ts": is_archive,
    "model.pt2": is_archive,
    "model.engine": _is_named_by_figures,
    "model.ncnn.param": _is_named_by_figures,
    "model.ncnn.bin": has_marked_neighbour("model.ncnn.param", _is_named_by_figures),
    "model.tflite": _is_named_by_figures,
    "model.pte": _is_named_by_figures,
    "model.mlpackage.zip": _is_named_by_figures,
    VERIFY_FILE: is_figures,
}
INT8_FILES: Mapping[str, Mapping[str, IsOurs]] = {  # by the format that they are made from
    "onnx": {"model.int8.onnx": _is_int8_onnx, DECISION_FILE: is_decision},
    "ncnn": {
        "model.int8.ncnn.param": _is_named_by("int8.ncnn.json"),
        "model.int8.ncnn.bin": has_marked_neighbour("model.int8.ncnn.param", _is_named_by("int8.ncnn.json")),
        "int8.ncnn.json": is_decision,
    },
    "litert": {
        "model.int8.tflite": _is_named_by("int8.litert.json"),
        "int8.litert.json": is_decision,
    },
}


def decision_file(to: str) -> str:
    """Return the name of the file that tells the decision on int8 for a format: the last one of its files."""
    return list(INT8_FILES[to])[-1]


def recognised_by(name: str) -> IsOurs:
    """Return the check that recognises an exported file of this name; an unknown name is never recognised."""
    return EXPORTED_FILES.get(name, lambda _: False)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        document = read_json(path, what="file")
    except UserError:
        return {}
    return document if isinstance(document, dict) else {}
