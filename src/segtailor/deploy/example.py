"""Programs beside an exported file: short Python and C++ programs that read a picture and write its labels.

They hold the preprocessing of the network as constants and need its runtime only, neither torch nor this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from segtailor.core.errors import Unsupported
from segtailor.core.ownership import MARK, IsOurs, contains_mark
from segtailor.deploy.export import Graph
from segtailor.nets.bundle import Model

MAX_CLASSES = 256  # labels are written with 8 bits
OPENVINO_BUILD = "g++ -O2 -std=c++17 NAME.cpp -o NAME -I OPENVINO/include -L OPENVINO/lib -lopenvino"
NCNN_BUILD = "g++ -O2 -std=c++17 -fopenmp NAME.cpp -o NAME -I NCNN/include/ncnn -L NCNN/lib -lncnn"
ONNXRUNTIME_BUILD = (
    "g++ -O2 -std=c++17 NAME.cpp -o NAME -I ONNXRUNTIME/include -L ONNXRUNTIME/lib -lonnxruntime"
)


@dataclass(frozen=True, kw_only=True)
class Programs:
    """What the programs of a format need: the package of the Python one, and how the C++ one is built, if any."""

    package: str
    build: str | None = None


PROGRAMS: Mapping[str, Programs] = {
    "onnx": Programs(package="onnxruntime", build=ONNXRUNTIME_BUILD),
    "openvino": Programs(package="openvino", build=OPENVINO_BUILD),
    "ncnn": Programs(package="ncnn", build=NCNN_BUILD),
    "litert": Programs(package="ai-edge-litert"),
    "executorch": Programs(package="executorch"),
}
is_program: IsOurs = contains_mark(MARK.encode(), within=64)


def program_names(to: str) -> tuple[str, ...]:
    """Return the names of the programs that are written for a format."""
    endings = (".py", ".cpp") if PROGRAMS[to].build else (".py",)
    return tuple(f"example_{to.replace('-', '_')}{ending}" for ending in endings)


def check_example(to: str, model: Model) -> None:
    """Refuse formats and tasks without programs, before any work."""
    if to not in PROGRAMS:
        raise Unsupported(
            f"export --with-example: there are no programs for {to}; leave it out, or choose "
            f"{', '.join(PROGRAMS)}."
        )
    if model.task.kind != "segmentation" or model.task.outputs > MAX_CLASSES:
        raise Unsupported(
            f"export --with-example: the programs write labels of up to {MAX_CLASSES} classes, and this network "
            f"does {model.task.kind} with {model.task.outputs} outputs; leave it out."
        )


def example_programs(to: str, file: str, model: Model, graph: Graph) -> dict[str, str]:
    """Return the programs for a file, by name."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = resources.files("segtailor.deploy") / "programs"
    environment = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        undefined=StrictUndefined,
        trim_blocks=True,
        autoescape=False,  # programs, not pages; values are numbers and quoted names
    )
    programs = PROGRAMS[to]
    texts = {}
    for name in program_names(to):
        stem, _, language = name.partition(".")
        template = environment.get_template(f"program.{language}.j2")
        texts[name] = template.render(
            mark=MARK,
            file=file,
            name=stem,
            part=f"{to}.{language}.j2",
            headers=f"{to}.h.j2",
            package=programs.package,
            build=(programs.build or "").replace("NAME", stem),
            classes=ascii(list(model.task.classes)),
            height=graph.image[0],
            width=graph.image[1],
            dynamic=graph.dynamic,
            pixels=graph.input == "pixels",
            labels=graph.output == "labels",
            output=graph.output,
            mean=[float(value) for value in model.preprocessing.mean],
            std=[float(value) for value in model.preprocessing.std],
            align_corners=model.network.plan.align_corners,
        )
    return texts
