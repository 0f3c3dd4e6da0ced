"""Export a trained network and prove the written file equal before it gets its name: behind `segtailor export`."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import ClassVar, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from segtailor.core.atomic import sync_folder, sync_tree, temporary_name, write_bytes, write_json, writing
from segtailor.core.codec import Json, read_json
from segtailor.core.errors import DataProblem, Unsupported, UserError
from segtailor.core.ownership import refuse_overwrite
from segtailor.core.shipped import VERSION, is_shipped
from segtailor.core.task import KIND_FACTS, Figure, needs_classes
from segtailor.core.text import require_utf8
from segtailor.data.dataset import Pair, scaled_as
from segtailor.data.locate import locate
from segtailor.data.scene import render
from segtailor.deploy.example import check_example, example_programs, is_program, program_names
from segtailor.deploy.export import Graph, Precision
from segtailor.deploy.formats import (
    INT8_FILES,
    VERIFY_FILE,
    Format,
    Runner,
    format_for,
    onnx_graph,
    recognised_by,
)
from segtailor.deploy.verify import (
    LIMITS,
    ExportMismatch,
    ParityLimits,
    VerifiedOutputs,
    confidence_difference,
    verify_file,
)
from segtailor.nets.bundle import Model
from segtailor.nets.models import load, model_place
from segtailor.nets.onnx.metadata import OutputKind
from segtailor.targets.tensorrt import EngineFile
from segtailor.tasks import Targets, kind_of
from segtailor.tasks.bands import resized_picture
from segtailor.tasks.segmentation.kind import Labels

DEFAULT_SIZE = (512, 1024)  # height and width, where a bundle does not tell its own
DATA_SAMPLES = 8  # pictures of a data set that a file is checked on
SCENES, NOISE = 3, 1  # and without a data set
PACKAGES = {  # of runtimes that are not named as their package
    "ncnn": ("ncnn", "pnnx"),
    "litert": ("litert-torch", "ai-edge-litert"),
    "coreml": ("coremltools",),
}


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Where a file is, and how equal it is to its network: what `verify.json` holds."""

    files: tuple[Path, ...]
    verify: Path
    figures: Mapping[str, Json]
    programs: tuple[Path, ...] = ()

    def document(self) -> dict[str, Json]:
        """Return the JSON form."""
        programs: dict[str, Json] = (
            {"programs": [str(file) for file in self.programs]} if self.programs else {}
        )
        files: list[Json] = [str(file) for file in self.files]
        return {"files": files, **programs, "verify": str(self.verify), **self.figures}


class ExportOptions(TypedDict, total=False):
    """What can be asked of an export.

    `to` is `onnx` (the default), `openvino`, `torchscript`, `exported-program`, `ncnn`, `litert`, `executorch`,
    `coreml` or `tensorrt`. `image` is (height, width), by default that of the data the network was trained on; a
    `dynamic` file takes others too. `output` is `logits` at the network's own stride, or what is finished (`labels` or
    `depth` at image size, `heatmaps`); with `preprocess` the file reads uint8 pixels (1, height, width, 3) instead of
    normalised images. `data` is a data set to check the file on, `out` the folder (the bundle itself by default).
    `force` replaces files there that are no exports of ours. With `example` programs are written beside the file that
    read a picture and write its labels. `confidence` adds a second output to a file of labels: how likely each label
    is; `unsure`, a probability, also a third one: 255 where a label is less likely.
    """

    to: str
    image: tuple[int, int] | None
    dynamic: bool
    precision: Precision
    output: OutputKind
    preprocess: bool
    confidence: bool
    unsure: float | None
    data: str | None
    out: str | Path | None
    force: bool
    example: bool


def export(model: str | Path | Model, **options: Unpack[ExportOptions]) -> Exported:
    """Export a bundle (or a loaded one) as a file, e.g. `export("bundle", to="onnx", image=(512, 1024))`.

    The file is run by its runtime beside the network; if they differ beyond the limits, `ExportMismatch` is raised and
    nothing is kept. See `ExportOptions` for what can be asked.
    """
    return plan_export(model, **options).carry_out()


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """An export that has been checked and can be carried out."""

    model: Model
    to: str
    graph: Graph
    out: Path
    data: str | None = None
    assumed: bool = False
    example: bool = False

    @property
    def programs(self) -> tuple[Path, ...]:
        """The programs that will be written beside the file."""
        return tuple(self.out / name for name in program_names(self.to)) if self.example else ()

    @property
    def files(self) -> tuple[Path, ...]:
        """What will be written, besides `verify.json`."""
        return tuple(self.out / name for name in _format(self.to, self.graph).files)

    def carry_out(self) -> Exported:
        """Write, run, compare; only then give the files their names."""
        kind, samples = _format(self.to, self.graph), self._samples()
        with _staging(self.out, self.files[0].name) as folder:
            kind.write(self.model, self.graph, folder)
            figures = self._compared(folder, samples, kind)
            sync_tree(folder)
            for file in self.files:
                (folder / file.name).replace(file)
            stale = [
                self.out / name for name, ours in INT8_FILES.get(self.to, {}).items() if ours(self.out / name)
            ]
            for path in stale:  # made from the file that was here before
                path.unlink()
            sync_folder(self.out)
        write_json(self.out / VERIFY_FILE, self._with_others(figures), what="figures of the export")
        if self.example:
            texts = example_programs(self.to, kind.files[0], self.model, self.graph)
            for name, text in texts.items():
                write_bytes(self.out / name, text.encode(), what="example program")
        return Exported(
            files=self.files, verify=self.out / VERIFY_FILE, figures=figures, programs=self.programs
        )

    def _compared(self, folder: Path, samples: Sequence[Pair], kind: Format) -> dict[str, Json]:
        """Open the written files and compare them with the network, as far as that is possible here."""
        stand_in = getattr(kind, "stand_in", None)
        try:
            run = kind.open(folder)
        except Unsupported as problem:
            if stand_in is None:
                raise
            return self._unverified(f"{stand_in}; {problem}", kind)
        figures = self._verified(run, samples, kind)
        if self.graph.confidence:
            figures |= self._verified_confidence(run, samples)
        return figures if stand_in is None else {**figures, "ran": False, "reason": stand_in}

    def _verified(self, run: Runner, samples: Sequence[Pair], kind: Format) -> dict[str, Json]:
        limits = LIMITS[self.graph.precision]
        answers = verify_file(run, self.model, self.graph, [pair.image for pair in samples])
        for size in other_sizes(self.graph):
            self._check(
                verify_file(run, self.model, replace(self.graph, image=size), [self._noise(size)]),
                limits,
            )
        drift = self._drift(answers, samples) if self.data is not None else None
        self._check(answers, limits, drift)
        parity = answers.parity
        return {
            "file": kind.files[0],
            "ran": True,
            "equal": True,
            "max_logit_difference": parity.max_abs_difference,
            "max_relative_logit_difference": parity.max_rel_difference,
            "label_agreement": parity.label_agreement,
            "headline": self._headline.name,
            f"{self._headline.name}_drift": drift,
            "limits": dict(asdict(limits)),
            "conditions": {
                **_plain(self.graph),
                "other_sizes": [list(size) for size in other_sizes(self.graph)],
                "images": parity.images,
                "pixels": parity.pixels,
                "samples": self.data or f"{SCENES} rendered street scenes and {NOISE} of noise",
                "runtime": kind.runtime,
                "versions": _versions("torch", "numpy", "onnx", *packages_of(kind)),
            },
        }

    def _unverified(self, reason: str, kind: Format) -> dict[str, Json]:
        """Return the figures of a file that cannot be run here: nothing is known of its outputs."""
        return {
            "file": kind.files[0],
            "ran": False,
            "reason": reason,
            "equal": None,
            "max_logit_difference": None,
            "max_relative_logit_difference": None,
            "label_agreement": None,
            "headline": self._headline.name,
            f"{self._headline.name}_drift": None,
            "limits": dict(asdict(LIMITS[self.graph.precision])),
            "conditions": {
                **_plain(self.graph),
                "images": 0,
                "runtime": kind.runtime,
                "versions": _versions("torch", "numpy", *packages_of(kind)),
            },
        }

    def _verified_confidence(self, run: Runner, samples: Sequence[Pair]) -> dict[str, Json]:
        most = LIMITS[self.graph.precision].confidence_difference
        pictures = [pair.image for pair in samples]
        worst = confidence_difference(run, self.model, self.graph, pictures)
        for size in other_sizes(self.graph):
            worst = max(
                worst,
                confidence_difference(run, self.model, self.graph, [self._noise(size)]),
            )
        if not worst <= most:
            raise ExportMismatch(
                f"export --to {self.to}: the confidence of the written file is {worst:.2g} from that of the network "
                f"(at most {most:g}). Nothing was kept. {self._advice}, and report it if it stays."
            )
        return {"max_confidence_difference": worst}

    def _noise(self, size: tuple[int, int]) -> NDArray[np.uint8]:
        return noise(size, 1, self.graph.channels)

    @property
    def _headline(self) -> Figure:
        return KIND_FACTS[self.model.task.kind].headline

    def _check(self, answers: VerifiedOutputs, limits: ParityLimits, drift: float | None = None) -> None:
        if answers.parity.within(limits) and (drift is None or abs(drift) <= limits.quality_drift):
            return
        parity = answers.parity
        moved = (
            ""
            if drift is None
            else f", {self._headline.label} moved by {drift:+.4f} (at most {limits.quality_drift:g})"
        )
        largest = (
            "" if parity.max_rel_difference is None else f", logits {parity.max_rel_difference:.2g} apart"
        )
        raise ExportMismatch(
            f"export --to {self.to}: the written file is not the network: {parity.label_agreement:.4%} of labels agree "
            f"(at least {limits.label_agreement:.2%}){largest} (at most {limits.max_rel_difference:g}){moved}. Nothing "
            f"was kept. {self._advice}, and report it if it stays."
        )

    @property
    def _advice(self) -> str:
        if self.graph.dynamic:  # layers may depend on the size in a way that a graph of open size cannot hold
            return "Leave out --dynamic and give --image HxW, or try another format"
        return (
            "Try another format"
            if self.graph.precision == "fp32"
            else "Try --precision fp32, or another format"
        )

    def _drift(self, answers: VerifiedOutputs, samples: Sequence[Pair]) -> float:
        """Return the change of the headline figure from the network to the file, on the samples."""
        task, quality = self.model.task, []
        for maps in (answers.wanted, answers.given):
            meter = kind_of(task).meter(task, torch.device("cpu"))
            for found, pair in zip(maps, samples, strict=True):
                meter.add(
                    torch.from_numpy(np.array(found))[None], torch.from_numpy(np.array(pair.labels))[None]
                )
            quality.append(meter.scores().quality)
        return quality[1] - quality[0]

    def _samples(self) -> list[Pair]:
        if self.data is not None:
            return data_samples(self.data, self.graph.image, self.model)
        return synthetic_samples(self.graph.image, self.graph.channels)

    def _with_others(self, figures: Mapping[str, Json]) -> dict[str, Json]:
        """Return the figures of this export, and those of files that earlier exports left beside it."""
        file, others = self.out / VERIFY_FILE, {}
        if file.is_file():
            before = read_json(file, what="figures of the export")
            known = (
                {**before.pop("others", {}), str(before.get("file")): before}
                if isinstance(before, dict)
                else {}
            )
            others = {
                name: facts
                for name, facts in known.items()
                if name != figures["file"] and (self.out / Path(name).name).is_file()
            }
        return {**figures, "others": others}


def plan_export(model: str | Path | Model, **options: Unpack[ExportOptions]) -> ExportPlan:
    """Check an export before any work, and say what it would do."""
    loaded = load(model) if isinstance(model, str | Path) else model
    if not isinstance(loaded, Model):
        raise Unsupported(f"export: {model} is an exported file already; give the bundle that it came from.")
    to, out, image = options.get("to", "onnx"), options.get("out"), options.get("image")
    if out is None and isinstance(model, Model):
        raise UserError("export: a loaded model has no folder of its own; say where to with out=FOLDER.")
    if out is None and isinstance(model, str | Path) and is_shipped(model):
        raise UserError(f"export: {model} comes with the package, which stays as it is; give --out FOLDER.")
    output, finished = options.get("output", "logits"), KIND_FACTS[loaded.task.kind].finished
    if output not in ("logits", finished):
        raise Unsupported(
            f"export: output '{output}' is not what a network for {loaded.task.kind} gives; choose "
            f"logits or {finished}."
        )
    known = image or known_size(loaded)
    graph = Graph(
        image=known or DEFAULT_SIZE,
        input="pixels" if options.get("preprocess") else "image",
        output=output,
        precision=options.get("precision", "fp32"),
        dynamic=options.get("dynamic", False),
        confidence=options.get("confidence", False) or options.get("unsure") is not None,
        unsure=options.get("unsure"),
        channels=loaded.preprocessing.channels,
    )
    if graph.confidence:
        needs_classes(loaded.task, "confidence")
    _format(to, graph).check(graph)
    example = options.get("example", False)
    if example:
        check_example(to, loaded)
        if loaded.preprocessing.ranges is not None:
            raise Unsupported("export --with-example writes programs for colour images; leave it out.")
    folder = Path(out) if out is not None else model_place(str(model))
    require_utf8(folder, what="folder")
    plan = ExportPlan(
        model=loaded,
        to=to,
        graph=graph,
        out=folder,
        data=options.get("data"),
        assumed=known is None,
        example=example,
    )
    places = [(path, recognised_by(path.name)) for path in (*plan.files, folder / VERIFY_FILE)]
    places += [(path, is_program) for path in plan.programs]
    refuse_overwrite(places, force=options.get("force", False))
    return plan


def packages_of(kind: Format) -> tuple[str, ...]:
    """Return the packages that write and run a format's files."""
    return PACKAGES.get(kind.runtime, (kind.runtime,))


def other_sizes(graph: Graph) -> tuple[tuple[int, int], ...]:
    """Return sizes besides its own that a dynamic file is checked at: one larger, one smaller and odd."""
    if not graph.dynamic:
        return ()
    height, width = graph.image
    return (height + 32, width + 64), (height * 3 // 4 | 1, width * 3 // 4 | 1)


def _format(to: str, graph: Graph) -> Format:
    if to == "tensorrt":
        return EngineKind(graph)
    return format_for(to)


class EngineKind:
    """TensorRT: an engine for the GPU of this machine, built from the ONNX graph."""

    files: ClassVar[tuple[str, ...]] = ("model.engine",)
    runtime: ClassVar[str] = "tensorrt"

    def __init__(self, graph: Graph) -> None:
        self.engine = EngineFile(precision=graph.precision)

    def check(self, graph: Graph) -> None:
        """Need a GPU, the package, and one size."""
        if graph.dynamic:
            raise Unsupported("export --to tensorrt builds an engine for one size; leave out --dynamic.")
        self.engine.check()

    def write(self, model: Model, graph: Graph, folder: Path) -> None:
        """Build and write the engine; the graph's own types say where to compute in half precision."""
        self.engine.write(onnx_graph(model, graph), folder / self.files[0])

    def open(self, folder: Path) -> Runner:
        """Load the engine."""
        return self.engine.open(folder / self.files[0])


@contextmanager
def _staging(out: Path, name: str) -> Iterator[Path]:
    """Yield a folder inside `out` for files that have no right to their names yet; it is gone afterwards."""
    with writing(out / name, what="exported file"):
        out.mkdir(parents=True, exist_ok=True)
        folder = temporary_name(out / "export")
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def known_size(model: Model) -> tuple[int, int] | None:
    """Return the image size that a bundle tells, or that of the data it was trained on, if that data is here."""
    if model.trained_size is not None:
        return model.trained_size
    data = model.provenance.get("data")
    if not isinstance(data, str):
        return None
    try:
        dataset = locate(data)
        split = "val" if "val" in dataset.splits else dataset.splits[0]
        height, width = dataset.samples(split)[0].read().image.shape[:2]
    except (UserError, OSError, IndexError):  # the data is elsewhere
        return None
    return height, width


def data_samples(data: str, size: tuple[int, int], model: Model) -> list[Pair]:
    """Return samples spread over the validation split (or what there is), resized to the file's size."""
    dataset = scaled_as(locate(data), model.preprocessing)
    if dataset.task.outputs != model.task.outputs:
        raise DataProblem(
            f"the model knows {model.task.outputs} classes, the data has {dataset.task.outputs}; "
            "check it on data with the same classes."
        )
    split = next((name for name in ("val", "test") if name in dataset.splits), dataset.splits[0])
    samples = dataset.samples(split)
    chosen = sorted({round(at) for at in np.linspace(0, len(samples) - 1, DATA_SAMPLES)})
    targets = kind_of(dataset.task).targets(dataset.task)
    return [_at_size(samples[index].read(), size, targets) for index in chosen]


def synthetic_samples(size: tuple[int, int], channels: int = 3) -> list[Pair]:
    """Return rendered street scenes and noise of a size; noise alone for images that are not RGB."""
    if channels != 3:
        seeds = range(SCENES + NOISE)
        return [Pair(noise(size, seed, channels), np.zeros(size, np.uint8)) for seed in seeds]
    rendered = max(size[0], 16), max(size[1], 16)  # nothing smaller can be rendered
    scenes = [render(0, index, rendered, split="verify") for index in range(SCENES)]
    pairs = [_at_size(Pair(scene.image, scene.labels), size, Labels()) for scene in scenes]
    return pairs + [Pair(noise(size, seed), np.zeros(size, np.uint8)) for seed in range(NOISE)]


def noise(size: tuple[int, int], seed: int, channels: int = 3) -> NDArray[np.uint8]:
    """Return a picture of noise."""
    return np.random.default_rng(seed).integers(0, 256, (*size, channels), dtype=np.uint8)


def _at_size(pair: Pair, size: tuple[int, int], targets: Targets) -> Pair:
    own = (pair.image.shape[0], pair.image.shape[1])
    if own == size:
        return pair
    return Pair(resized_picture(pair.image, size), targets.resized(pair.labels, own, size))


def _plain(graph: Graph) -> dict[str, Json]:
    return {**asdict(graph), "image": list(graph.image)}


def _versions(*packages: str) -> dict[str, Json]:
    found: dict[str, Json] = {"segtailor": VERSION, "python": platform.python_version()}
    for name in sorted(set(packages)):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
