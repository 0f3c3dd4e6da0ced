"""Networks by name: expand, count, describe, build, and load published weights into them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segtailor.core.codec import read_json, short, to_json
from segtailor.core.errors import InvalidArchitecture, Unsupported, UserError, unknown
from segtailor.core.plan import MAIN, Count, Plan, Shape, receptive_field
from segtailor.core.plan import count as count_plan
from segtailor.core.ranges import MAX_SIDE_PIXELS
from segtailor.core.registry import SPACES
from segtailor.core.shipped import DESCRIPTION, bundle_folder, is_shipped, shipped
from segtailor.core.space import (
    Architecture,
    SearchSpace,
    family,
    family_of,
    fingerprint_of,
    is_integer,
    parse_architecture,
    plan_of,
    read_architecture,
)
from segtailor.spaces.published import (
    architectures,
    baselines,
    is_published,
    on_lite0,
    published,
    published_record,
)

if TYPE_CHECKING:
    from torch import Tensor

    from segtailor.nets.network import Network

COUNTING_SIZE = (1024, 2048)  # the size that published figures are counted at
CLASSES = 19  # Cityscapes


def resolve(source: str | Path | Architecture) -> Architecture:
    """Return an architecture from a published, baseline or shipped name, a path to its JSON, or one itself."""
    if isinstance(source, str) and is_published(source):
        return published(source)
    if isinstance(source, str) and is_shipped(source):
        return parse_architecture(shipped_record(source)["architecture"], what=f"shipped network {source}")
    if isinstance(source, str | Path):
        if isinstance(source, Path) or source.endswith(".json") or isfile(source):  # noqa: PTH113 - accepts any text
            return read_architecture(Path(source))
        known = (*architectures(), *baselines(), *on_lite0(), *shipped())
        raise unknown("network", source, known)
    family_of(source)  # raises for anything else
    return source


def shipped_record(name: str) -> dict[str, Any]:
    """Return the description of shipped weights: architecture, task, provenance, numbers."""
    record: dict[str, Any] = read_json(bundle_folder(name) / DESCRIPTION, what="bundle")
    return record


def known_architectures(space: SearchSpace) -> tuple[Architecture, ...]:
    """Return members of a space that are worth beginning a search with, each once.

    These are its own `first_guesses`, if it has that method, and published and shipped networks of its family.
    """
    guesses = getattr(space, "first_guesses", None)
    rows = list(guesses()) if guesses is not None else []
    family = SPACES.name_of(type(space))
    for name in (*architectures(), *shipped()):
        arch = resolve(name)
        if family_of(arch) == family:
            rows.append(arch)
    members = {fingerprint_of(arch): arch for arch in rows if _is_member(space, arch)}
    return tuple(members.values())


def _is_member(space: SearchSpace, arch: Architecture) -> bool:
    """Tell whether a space can choose an architecture of its family."""
    try:
        return bool(space.architecture(space.picks(arch)) == arch)
    except (UserError, ValueError, KeyError):
        return False


def expand(source: str | Path | Architecture, *, image: tuple[int, int], classes: int = CLASSES) -> Plan:
    """Expand an architecture at an image size (height, width), train-only outputs included."""
    sides = list(image) if isinstance(image, Sequence) else []
    if len(sides) != 2 or not all(is_integer(side) and 1 <= side <= MAX_SIDE_PIXELS for side in sides):
        raise InvalidArchitecture(
            f"image: {short(image)}; allowed: (height, width), each 1 to {MAX_SIDE_PIXELS} pixels."
        )
    return plan_of(resolve(source), Shape(3, *sides), classes)


def count(
    source: str | Path | Architecture, *, image: tuple[int, int] = COUNTING_SIZE, classes: int = CLASSES
) -> Count:
    """Count multiply-accumulates and parameters without allocating weights (or importing torch)."""
    return count_plan(expand(source, image=image, classes=classes))


def describe(
    source: str | Path | Architecture, *, image: tuple[int, int] = COUNTING_SIZE, classes: int | None = None
) -> dict[str, Any]:
    """Return size, cost, identity and published results of a network as plain data, without importing torch."""
    arch, outputs = resolve(source), published_classes(source) if classes is None else classes
    expanded = expand(arch, image=image, classes=outputs)
    size, field = count_plan(expanded), receptive_field(expanded)
    return {
        "name": str(source) if isinstance(source, str | Path) else family_of(arch),
        "family": family_of(arch),
        "fingerprint": fingerprint_of(arch),
        "image": list(image),
        "classes": outputs,
        "macs": size.macs,
        "params": size.params,
        "train_params": size.train_params,
        "output_stride": expanded.output_stride,
        "receptive_field": None if math.isinf(field) else field,
        "layers": len(expanded.calls),
        "outputs": list(expanded.outputs),
        "architecture": to_json(arch),
        "published": _results(str(source)),
    }


def _results(name: str) -> dict[str, Any]:
    """Return what is known of a network beside its size: results of its paper, or figures of shipped weights."""
    if is_published(name):
        return dict(published_record(name)["origin"].get("results", {}))
    return dict(shipped_record(name)["numbers"]) if is_shipped(name) else {}


def published_classes(source: str | Path | Architecture) -> int:
    """Return the number of classes a published or shipped network is for; 19 (Cityscapes) for anything else."""
    if isinstance(source, str) and is_published(source):
        return int(published_record(source)["origin"].get("classes", CLASSES))
    if isinstance(source, str) and is_shipped(source):
        return len(shipped_record(source)["task"]["classes"])
    return CLASSES


def create(
    source: str | Path | Architecture,
    *,
    classes: int = CLASSES,
    outputs: Sequence[str] | str = (MAIN,),
    seed: int = 0,
    channels: int = 3,
) -> Network:
    """Build a network with fresh weights, in evaluation mode.

    `outputs` names what it computes; "all" adds every train-only output. Use `forward_all` to get them. `channels` is
    the number of bands of its images.
    """
    from segtailor.nets.network import build, initialise

    network = build(resolve(source), classes, outputs=outputs, channels=channels)
    initialise(network, seed)
    return network.eval()


def load_published(network: Network, state: Mapping[str, Tensor]) -> None:
    """Copy a reference project's state dictionary into `network`; any key that does not fit raises."""
    from segtailor.nets.network import Network
    from segtailor.nets.weights import WeightsProblem, check_state, load_named

    if not isinstance(network, Network) or network.architecture is None:
        raise WeightsProblem(
            f"published weights need a network made by segtailor.create, not a {type(network).__name__}."
        )
    check_state(state)
    arch = network.architecture
    space: Any = family(family_of(arch))
    if not hasattr(space, "published_names"):
        raise Unsupported(
            f"networks of the family '{family_of(arch)}' have no reference weights here: their layers are grouped in "
            "our own way. Train one with `segtailor train`."
        )
    load_named(network, state, space.published_names(network, arch))


def load_encoder(network: Network, state: Mapping[str, Tensor]) -> None:
    """Copy a pre-trained classifier's state dictionary into the encoder of `network`, the decoder stays as it is.

    For families with such an encoder (`decoder_cell`): torchvision's MobileNet-v2 and ResNet-50, EfficientNet-Lite0's
    package, timm's `features_only` models, or an encoder-only file of the authors. Any key that does not fit raises.
    """
    from segtailor.nets.weights import check_state
    from segtailor.spaces.decoder_cell.encoder_weights import load_encoder as load

    check_state(state)
    load(network, state)
