"""Frozen dataclasses to JSON and back: a thin layer over pydantic, which validates and writes schemas.

A field that may hold one of several registered types is annotated with `Tagged(REGISTRY)`. Its JSON form is the fields
of the value and its registered name: `{"kind": "evolution", "trials": 64, ...}`.
"""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from segtailor.core.errors import UserError
from segtailor.core.registry import Registry

T = TypeVar("T")
Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

JSON_LIMIT = 16 * 2**20  # bytes: files come from outside, a larger one is a mistake or an attack


KIND = "kind"  # the key that names a registered type

_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


class Tagged:
    """Annotation of a field that holds a value of a registered type: `Annotated[Strategy, Tagged(STRATEGIES)]`."""

    def __init__(self, *registries: Registry[Any]) -> None:
        self.registries = registries

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Describe the field to pydantic."""
        return core_schema.no_info_plain_validator_function(
            self.parse, serialization=core_schema.plain_serializer_function_ser_schema(self.document)
        )

    def parse(self, data: Any) -> Any:
        """Return the value that JSON data describes; a value that was built already is kept."""
        if data is None or isinstance(data, str | int | float | list):
            facts = {"form": '{"kind": NAME}', "registry": self.registries[0].kind, "known": self._known()}
            raise PydanticCustomError(
                "kind", "write {form} with the fields of that {registry}; known: {known}", facts
            )
        if not isinstance(data, dict):
            self._name(data)
            return data
        kind = data.get(KIND)
        registry = next((one for one in self.registries if kind in one), None)
        if registry is None:
            raise self._unknown(f"is called {kind!r}")
        body = {name: value for name, value in data.items() if name != KIND}
        return _validated(registry.get(str(kind)), body)

    def document(self, value: Any) -> dict[str, Json]:
        """Return the JSON form of a value."""
        return {KIND: self._name(value), **to_json(value)}

    def _name(self, value: Any) -> str:
        for registry in self.registries:
            try:
                return registry.name_of(type(value))
            except KeyError:
                continue
        raise self._unknown(f"has the type {type(value).__name__}")

    def _unknown(self, what: str) -> PydanticCustomError:
        facts = {"registry": self.registries[0].kind, "what": what[:80], "known": self._known()}
        return PydanticCustomError("kind", "no {registry} {what}; known: {known}", facts)

    def _known(self) -> str:
        return ", ".join(name for registry in self.registries for name in registry.names())


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return the pydantic adapter of a dataclass; building one takes milliseconds, so each is kept."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(value: Any) -> Any:
    """Turn a dataclass into plain JSON data."""
    return adapter(type(value)).dump_python(value, mode="json")


def from_json(kind: type[T], data: Any, *, what: str, error: type[UserError] = UserError) -> T:
    """Validate plain JSON data into `kind`; a mistake raises `error` naming the field and what is allowed."""
    try:
        value: T = _validated(kind, data)
    except ValidationError as problem:
        raise error(f"{what}: {explain(problem)}") from None
    extra = _first_unknown(data, to_json(value))
    if extra is not None:
        place, allowed = extra
        parent = place.rpartition(".")[0] or kind.__name__
        raise error(f"{what}: {place}: no such field; {parent} has: {', '.join(allowed)}")
    return value


def _validated(kind: type[T], data: Any) -> T:
    try:
        text = json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a name of a file that is no UTF-8, which pydantic's reader of JSON refuses
        return adapter(kind).validate_python(data)
    return adapter(kind).validate_json(text, strict=True)


def explain(problem: ValidationError) -> str:
    """Say in one line what is wrong with which field (the first three problems)."""
    parts = []
    for item in problem.errors()[:3]:
        place = ".".join(str(step) for step in item["loc"]) or "value"
        parts.append(f"{place}: {item['msg']} (got {short(item['input'])})")
    more = len(problem.errors()) - 3
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def canonical(data: Any) -> str:
    """Write JSON in the one form that is hashed: sorted keys, no spaces."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def fingerprint(data: Any) -> str:
    """Hash plain JSON data to 16 hexadecimal digits."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()[:16]


def read_json(path: Path, *, what: str, error: type[UserError] = UserError, limit: int = JSON_LIMIT) -> Any:
    """Read a JSON file that may come from anywhere: size bounded, damage explained."""
    try:
        status = path.stat()
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for without end
            raise error(f"{what} {path} is no regular file; check the path.")
        if size > limit:
            raise error(f"{what} {path} is {size} bytes; at most {limit} are read. Is it the right file?")
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise error(f"{what} {path} does not exist; check the path.") from None
    except OSError as problem:
        raise error(f"{what} {path} cannot be read: {problem.strerror}.") from None
    except (ValueError, RecursionError) as problem:  # bad syntax, bad characters, absurd numbers or nesting
        raise error(
            f"{what} {str(path)!r} is not valid JSON ({problem}); it may be truncated. Write it again."
        ) from None


def _first_unknown(given: Any, known: Any, place: str = "") -> tuple[str, list[str]] | None:
    """Return the place of the first key that was given but is not part of the validated value, and what is allowed."""
    if isinstance(given, dict) and isinstance(known, dict):
        for key, value in given.items():
            here = f"{place}.{key}" if place else str(key)
            if key not in known:
                return here, [str(name) for name in known]
            found = _first_unknown(value, known[key], here)
            if found:
                return found
    if isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        for index, (one, other) in enumerate(zip(given, known, strict=True)):
            found = _first_unknown(one, other, f"{place}.{index}")
            if found:
                return found
    return None


def short(value: object) -> str:
    """Write a value for a message: at most 60 characters of it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
