"""Search spaces: decisions, picks, architectures, and their conversion into each other and into files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from pydantic_core import CoreSchema, core_schema

from segtailor.core.codec import Json, adapter, fingerprint, from_json, read_json, short, to_json
from segtailor.core.errors import InvalidArchitecture, unknown
from segtailor.core.plan import OpCall, Plan, Shape
from segtailor.core.registry import FIXED
from segtailor.core.registry import SPACES as SPACES  # extensions import it from here

FORMAT = 1  # of architecture files
ARCHITECTURE_LIMIT = 2**20  # bytes of an architecture file
MAX_CLASSES = 2**16

Picks: TypeAlias = Mapping[str, int]  # decision name -> index of the chosen option
Architecture: TypeAlias = Any  # a frozen dataclass, one type per family
Group: TypeAlias = Literal["op", "width", "path", "depth", "resolution"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One choice: its options, its kind, and whether the options are ordered from small to large."""

    name: str
    options: tuple[Json, ...]
    group: Group
    ordered: bool = False


class SearchSpace(Protocol):
    """The networks that a search can choose from. All members are pure; many picks may give one architecture."""

    architecture_type: ClassVar[type]

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions in a fixed order."""

    def architecture(self, picks: Picks) -> Architecture:
        """Decode picks."""

    def picks(self, arch: Architecture) -> Picks:
        """Encode an architecture of this space: the canonical inverse of `architecture`."""

    def plan(self, arch: Architecture, image: Shape, classes: int) -> Plan:
        """Expand an architecture of this family to its layers, train-only outputs included."""

    def calls(self, image: Shape, classes: int) -> Iterator[OpCall]:
        """Yield every call that the main output of any plan of this space may make."""


def families() -> tuple[str, ...]:
    """Return the names of all families: first the search spaces, then the finished networks."""
    return SPACES.names() + FIXED.names()


def family(name: str) -> type[SearchSpace]:
    """Return a family by name, or raise `UnknownName` with near matches."""
    return FIXED.get(name) if name in FIXED else SPACES.get(name)


def family_name(space: SearchSpace) -> str:
    """Return the registered name of the family of a space."""
    return next(name for name in families() if family(name) is type(space))


def check_picks(decisions: Iterable[Decision], picks: Picks) -> None:
    """Raise `InvalidArchitecture` naming the decision that is missing, unknown or picked out of range."""
    known = {decision.name: len(decision.options) for decision in decisions}
    for name in picks:
        if name not in known:
            raise InvalidArchitecture(f"picks: {unknown('decision', str(name), known)}")
    for name, count in known.items():
        if name not in picks:
            raise InvalidArchitecture(f"picks: {name} is missing; give one option for each decision.")
        if not is_integer(picks[name]) or not 0 <= picks[name] < count:
            raise InvalidArchitecture(
                f"picks: {name} is {short(picks[name])}; allowed: the number of an option, 0 to {count - 1}."
            )


def picks_of(decisions: Iterable[Decision], values: Mapping[str, object]) -> Picks:
    """Return the picks for values by decision name; a value that is no option raises `InvalidArchitecture`."""
    picks = {}
    for decision in decisions:
        options: tuple[object, ...] = decision.options
        value = values[decision.name]
        if value not in options:
            raise InvalidArchitecture(f"{decision.name}: {value}; this space allows {list(options)}.")
        picks[decision.name] = options.index(value)
    return picks


def family_of(arch: Architecture) -> str:
    """Return the registered name of the family an architecture belongs to."""
    for name in families():
        if family(name).architecture_type is type(arch):
            return name
    raise InvalidArchitecture(
        f"{type(arch).__name__} is no architecture of a registered family: {families()}."
    )


def plan_of(arch: Architecture, image: Shape, classes: int) -> Plan:
    """Expand any architecture with the space of its family."""
    if not is_integer(classes) or not 1 <= classes <= MAX_CLASSES:
        raise InvalidArchitecture(f"classes: {short(classes)}; allowed: 1 to {MAX_CLASSES}.")
    return family(family_of(arch))().plan(arch, image, classes)


def is_integer(value: object) -> bool:
    """Tell whether a value is an integer of Python or NumPy; booleans are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def fingerprint_of(arch: Architecture) -> str:
    """Return the fingerprint of family and architecture; the origin does not change it."""
    return fingerprint({"family": family_of(arch), "architecture": to_json(arch)})


def architecture_document(arch: Architecture, origin: Mapping[str, Json] | None = None) -> dict[str, Json]:
    """Return the JSON document of an architecture file; `origin` says recipe, run or paper."""
    return {
        "format": FORMAT,
        "family": family_of(arch),
        "architecture": to_json(arch),
        "origin": dict(origin or {}),
    }


def parse_architecture(document: Any, *, what: str = "architecture") -> Architecture:
    """Validate an architecture document from a file or a bundle."""
    if not isinstance(document, dict):
        raise InvalidArchitecture(
            f"{what}: expected a JSON object with 'format', 'family' and 'architecture'."
        )
    version = document.get("format")
    if not is_integer(version) or version != FORMAT:
        raise InvalidArchitecture(
            f"{what}: format is {short(version)}, this version reads format {FORMAT}. "
            "A newer file needs a newer segtailor; an older one must be exported again."
        )
    unknown = sorted(set(document) - {"format", "family", "architecture", "origin"})
    if unknown:
        raise InvalidArchitecture(
            f"{what}: unknown field '{unknown[0]}'; allowed: format, family, architecture, origin."
        )
    name = document.get("family")
    if name not in families():
        raise InvalidArchitecture(f"{what}: family is {short(name)}; allowed: {', '.join(families())}.")
    kind = family(name).architecture_type
    return from_json(kind, document.get("architecture"), what=f"{what} ({name})", error=InvalidArchitecture)


def architecture_schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of the architecture files of a family; like the reader, it allows no unknown fields."""
    body = adapter(family(name).architecture_type).json_schema()
    definitions = body.pop("$defs", {})
    for kind in (body, *definitions.values()):
        if kind["type"] == "object":
            kind["additionalProperties"] = False
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Architecture file of the family {name}",
        "type": "object",
        "properties": {
            "format": {"const": FORMAT},
            "family": {"const": name},
            "architecture": body,
            "origin": {"type": "object", "description": "Where it comes from; not part of its identity."},
        },
        "required": ["format", "family", "architecture"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def read_architecture(path: Path) -> Architecture:
    """Read an architecture file."""
    document = read_json(path, what="architecture file", error=InvalidArchitecture, limit=ARCHITECTURE_LIMIT)
    return parse_architecture(document, what=f"architecture file {path}")


class AsDocument:
    """Annotation of a field that holds an architecture of any family; its JSON form is an architecture document."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Describe the field to pydantic."""
        return core_schema.no_info_plain_validator_function(
            self.parse, serialization=core_schema.plain_serializer_function_ser_schema(architecture_document)
        )

    def parse(self, value: Any) -> Architecture:
        """Return the architecture of a document; an architecture is kept."""
        return value if is_dataclass(value) else parse_architecture(value)
