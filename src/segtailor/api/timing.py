"""Time networks on targets: the function behind `segtailor bench`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from segtailor.api.models import model_place
from segtailor.api.networks import create, plan, published_classes
from segtailor.core.plan import MAIN, Shape
from segtailor.core.shipped import is_shipped
from segtailor.core.space import Architecture, family_of
from segtailor.core.target import Includes, Target, parse_target
from segtailor.core.task import Preprocessing
from segtailor.deploy.fold import inference_form
from segtailor.deploy.stages import staged
from segtailor.nets.bundle import load_bundle
from segtailor.nets.network import Network
from segtailor.spaces import is_published
from segtailor.targets.benchmark import OnnxSubject, Subject, benchmark, check_memory, read_onnx
from segtailor.targets.runtime import runtime_for
from segtailor.targets.timing import Measurement, TimingSettings

TIMING_SIZE = (512, 1024)  # the size that networks are timed at unless told otherwise


def bench(
    models: Sequence[str | Path | Architecture | Network],
    targets: Sequence[str | Target],
    *,
    image: tuple[int, int] | None = None,
    includes: Includes = "network",
    classes: int | None = None,
    settings: TimingSettings | None = None,
) -> list[Measurement]:
    """Measure networks on targets in the form that is deployed, in turns; one row per network and target.

    A model is a published or shipped name, an architecture (file), a bundle folder, an ONNX file, or a built network.
    """
    places = [parse_target(target) if isinstance(target, str) else target for target in targets]
    for place in places:
        runtime_for(place)  # refuses what cannot run before any network is built
    subjects = [_subject(model, image=image, includes=includes, classes=classes) for model in models]
    return benchmark(subjects, places, settings)


def _subject(
    model: str | Path | Architecture | Network,
    *,
    image: tuple[int, int] | None,
    includes: Includes,
    classes: int | None,
) -> Subject | OnnxSubject:
    """Turn what a user names into what can be timed."""
    if isinstance(model, str | Path) and str(model).endswith(".onnx"):
        return read_onnx(Path(model), image=image, includes=includes)
    size, preprocessing, task = image or TIMING_SIZE, Preprocessing(), None
    if isinstance(model, Network):
        network, name = model, family_of(model.architecture)
    elif isinstance(model, str | Path) and not is_published(str(model)) and _is_bundle(model):
        bundle = load_bundle(model_place(model))
        network, preprocessing, name = bundle.network, bundle.preprocessing, Path(model).resolve().name
        task = bundle.task
    else:
        network = create(model, classes=published_classes(model) if classes is None else classes)
        name = str(model) if isinstance(model, str | Path) else family_of(model)
    outputs = network.plan.shape(network.plan.outputs[MAIN]).channels
    check_memory(plan(network.architecture, image=size, classes=outputs).deployed())
    module = staged(inference_form(network), includes, preprocessing=preprocessing, image=size, task=task)
    return Subject(name=name, module=module, inputs=(Shape(3, *size),), includes=includes)


def _is_bundle(model: str | Path) -> bool:
    return is_shipped(model) or Path(model).is_dir()
