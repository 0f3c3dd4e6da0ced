"""Registry, codec, errors, sampling, task."""

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from segtailor.core.codec import canonical, fingerprint, from_json, read_json, to_json
from segtailor.core.cost import Linear, Power, Within
from segtailor.core.errors import DataProblem, InvalidArchitecture, UnknownName, UserError, unknown
from segtailor.core.registry import Registry
from segtailor.core.space import architecture_document, fingerprint_of, parse_architecture, read_architecture
from segtailor.core.task import Task, default_palette
from segtailor.core.variation import crossover, mutate, neighbours, sample_picks
from segtailor.spaces import architectures, published
from segtailor.spaces.scalable_path import ScalablePath


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: tuple[int, int] = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner = Inner()
    rate: float = 0.5


def test_a_duplicate_name_raises() -> None:
    registry: Registry[type] = Registry("thing")
    registry.register("one")(int)
    with pytest.raises(ValueError, match="registered twice"):
        registry.register("one")(str)


def test_an_unknown_name_lists_near_matches_or_everything() -> None:
    assert "'lpsnet-s'" in str(unknown("network", "lpsnet-x", ["lpsnet-s", "other"]))
    assert "known: a, b" in str(unknown("network", "zzzzzz", ["b", "a"]))
    registry: Registry[type] = Registry("thing")
    with pytest.raises(UnknownName, match="none"):
        registry.get("x")


def test_json_round_trip() -> None:
    value = Outer(name="x", inner=Inner(size=(3, 4)))
    assert from_json(Outer, json.loads(json.dumps(to_json(value))), what="value") == value


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"name": 3}, "name"),
        ({"name": "x", "inner": {"size": [1, "two"]}}, r"inner\.size\.1"),
        ({"name": "x", "speed": 1}, "speed: no such field; Outer has: name, inner, rate"),
        ({"name": "x", "inner": {"size": [1, 2], "depth": 3}}, r"inner\.depth"),
        ([], "value"),
    ],
)
def test_a_wrong_field_is_named(data: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        from_json(Outer, data, what="settings")


def test_canonical_json_does_not_depend_on_order() -> None:
    assert canonical({"b": 1, "a": [1, 2]}) == canonical({"a": [1, 2], "b": 1}) == '{"a":[1,2],"b":1}'
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"{", "truncated"), (b"\xff\xfe", "JSON"), (b"[" * 100_000, "JSON"), (b"9" * 5000, "JSON")],
)
def test_a_damaged_json_file_is_explained(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match=says):
        read_json(file, what="pack")


def test_a_huge_or_missing_json_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('"' + "x" * 100 + '"')
    with pytest.raises(UserError, match="at most 10"):
        read_json(file, what="pack", limit=10)
    with pytest.raises(UserError, match="does not exist"):
        read_json(tmp_path / "none.json", what="pack")
    with pytest.raises(UserError, match="is no regular file"):
        read_json(tmp_path, what="pack")


@pytest.mark.parametrize("name", architectures())
def test_every_published_architecture_survives_a_file(name: str, tmp_path: Path) -> None:
    arch = published(name)
    file = tmp_path / "a.json"
    file.write_text(json.dumps(architecture_document(arch, {"run": "somewhere"})))
    assert read_architecture(file) == arch
    assert fingerprint_of(read_architecture(file)) == fingerprint_of(arch)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "newer"),
        ({"family": "unknown"}, "family is 'unknown'; allowed"),
        ({"architecture": None}, "scalable_path"),
        ({"surprise": 1}, "unknown field 'surprise'"),
        ({"format": True}, "format is True"),
        ({"family": ["scalable_path"]}, r"family is \['scalable_path'\]; allowed"),
        ({"family": "a" * 10_000}, r"^.{1,300}$"),
        ({"format": [1] * 10_000}, r"^.{1,300}$"),
    ],
)
def test_a_wrong_architecture_document_is_explained(change: dict[str, object], says: str) -> None:
    document = architecture_document(published("lpsnet-s"))
    with pytest.raises(InvalidArchitecture, match=says):
        parse_architecture({**document, **change})
    with pytest.raises(InvalidArchitecture, match="JSON object"):
        parse_architecture([])


def test_a_truncated_architecture_file_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(architecture_document(published("lpsnet-s")))[:-20])
    with pytest.raises(InvalidArchitecture, match="truncated"):
        read_architecture(file)


def test_sampling_is_seeded_and_stays_inside_the_space() -> None:
    space = ScalablePath()
    first, second = sample_picks(space, Random(1)), sample_picks(space, Random(1))
    assert first == second != sample_picks(space, Random(2))
    limits = {decision.name: len(decision.options) for decision in space.decisions}
    for picks in [
        mutate(space, first, Random(0)),
        crossover(space, first, second, Random(0)),
        *neighbours(space, first),
    ]:
        assert all(0 <= picks[name] < limit for name, limit in limits.items())


def test_mutation_always_changes_something_and_neighbours_exactly_one_thing() -> None:
    space = ScalablePath()
    picks = sample_picks(space, Random(3))
    for seed in range(20):
        assert mutate(space, picks, Random(seed), rate=0.0) != picks
    for near in neighbours(space, picks):
        changed = [name for name in picks if near[name] != picks[name]]
        assert len(changed) == 1
        assert abs(near[changed[0]] - picks[changed[0]]) == 1  # every decision of this space is ordered


def test_objectives_prefer_quality_and_punish_cost() -> None:
    assert Linear(weight=0.1).score(0.5, 2) == pytest.approx(0.3)
    assert Power(limit=8.3).score(0.06233587477048027, 6.4139770511337275) == pytest.approx(0.06347, abs=1e-5)
    assert Within(limit=10).score(0.2, 9) > Within(limit=10).score(0.9, 11) > Within(limit=10).score(0.9, 12)
    using = Within(limit=10, least=6)
    scores = [using.score(*pair) for pair in ((0.3, 7), (0.2, 6), (0.9, 5), (0.8, 1), (0.99, 11), (0.99, 12))]
    assert scores == sorted(scores, reverse=True)


def test_a_task_checks_its_classes() -> None:
    assert len(set(default_palette(255))) > 200
    with pytest.raises(DataProblem, match="1 to 255"):
        Task(classes=())
    with pytest.raises(DataProblem, match="same name"):
        Task(classes=("a", "a"))
    with pytest.raises(DataProblem, match="colours for 2 classes"):
        Task(classes=("a", "b"), palette=((0, 0, 0),))
