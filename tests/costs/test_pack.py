"""Device packs and the tables on them: strict reading, refusal of what does not fit, prices."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from segtailor.core.errors import MissingCost, UnknownName, Unsupported, UserError
from segtailor.core.plan import OpCall, Shape
from segtailor.core.registry import SPACES
from segtailor.core.variation import sample
from segtailor.costs.entries import rank_calls
from segtailor.costs.keys import key_of
from segtailor.costs.pack import (
    Correction,
    Entry,
    LatencyTable,
    Pack,
    Use,
    parse_pack,
    read_pack,
    shipped_pack,
    shipped_packs,
)
from segtailor.ops import Conv, FactorisedReduction, Identity
from segtailor.spaces import networks
from segtailor.spaces.networks import expand

HERE = {
    "cpu": "Chip A",
    "cores": 4,
    "system": "Linux x86_64",
    "versions": {"onnxruntime": "1.2", "torch": "2"},
}
SPACE = SPACES.get("inverted_residual")()
IMAGE = (64, 96)


@cache
def calls_of_the_space() -> list[OpCall]:
    return list(rank_calls(SPACE, Shape(3, *IMAGE), 4))


def made(**changes: Any) -> Pack:
    """A pack in which the n-th entry takes n microseconds and one kernel."""
    calls = calls_of_the_space()
    pack = Pack(
        space="inverted_residual",
        settings={},
        image=IMAGE,
        classes=4,
        target="cpu/onnxruntime/fp32?threads=2",
        machine=HERE,
        entries={key_of(call): Entry(us=float(index), runs=9) for index, call in enumerate(calls)},
    )
    return replace(pack, **changes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pack.json"
    made().write(path)
    return path


def test_a_pack_survives_the_file(file: Path) -> None:
    assert read_pack(file) == made()


def test_a_truncated_pack_is_refused_wherever_it_was_cut(file: Path) -> None:
    text = file.read_text()
    for share in (0.0, 0.1, 0.5, 0.99):
        file.write_text(text[: int(share * (len(text) - 2))])
        with pytest.raises(UserError, match="truncated"):
            read_pack(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format is 2"),
        ({"format": None}, "format is None"),
        ({"classes": "4"}, "classes"),
        ({"image": [64]}, "image"),
        ({"colour": "red"}, "colour"),
        ({"target": "cpu"}, "device/runtime/precision"),
        ({"entries": {"x": {"us": -1.0}}}, "takes -1"),
        ({"entries": {"x": {"us": "fast"}}}, "us"),
        ({"entries": {"x": {}}}, "us"),
    ],
)
def test_a_damaged_pack_is_refused_with_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_pack({**made().document(), **change}, what="pack")


def test_a_document_that_is_no_object_is_refused() -> None:
    with pytest.raises(UserError, match="JSON object"):
        parse_pack([], what="pack")


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (Use(space="scalable_path"), "space: the pack has inverted_residual, wanted is scalable_path"),
        (Use(image=(64, 64)), "image: the pack has 64x96, wanted is 64x64"),
        (Use(classes=19), "classes: the pack has 4, wanted is 19"),
        (
            Use(target="cpu/onnxruntime/fp32?threads=1"),
            "target: the pack has .*threads=2, wanted is .*threads=1",
        ),
        (Use(machine={**HERE, "cpu": "Chip B"}), "cpu: measured on Chip A, this machine has Chip B"),
        (Use(machine={**HERE, "versions": {"onnxruntime": "1.3"}}), "onnxruntime: measured on 1.2"),
    ],
)
def test_a_pack_for_something_else_is_refused_with_the_difference(file: Path, use: Use, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        read_pack(file, use=use)
    assert read_pack(file, use=use, force=True) == made()


def test_a_pack_that_fits_is_accepted_whatever_else_is_installed(file: Path) -> None:
    use = Use(
        space="inverted_residual",
        image=IMAGE,
        classes=4,
        target="cpu/onnxruntime/fp32?threads=2",
        machine={**HERE, "versions": {"onnxruntime": "1.2", "torch": "3"}},
    )
    assert read_pack(file, use=use) == made()


def test_all_differences_are_named_at_once(file: Path) -> None:
    with pytest.raises(Unsupported, match=r"space.*image.*classes"):
        read_pack(file, use=Use(space="hyper_cell", image=(8, 8), classes=5))


def test_prices_add_up_and_carry_the_correction() -> None:
    table = LatencyTable(pack=made(correction=Correction(slope=2.0, per_kernel_us=10.0)))
    for seed in range(3):
        expand = SPACE.plan(sample(SPACE, Random(seed)), Shape(3, *IMAGE), 4)
        entries = [entry for call in expand.calls for entry in table.entries(call)]
        assert table.of(expand) == pytest.approx(sum(table.price(call) for call in expand.calls))
        assert table.of(expand) == pytest.approx(sum(2 * entry.us + 10 for entry in entries) / 1000)


def test_a_missing_entry_names_the_call_and_the_command() -> None:
    call = OpCall(op=Conv(dilation=3), inputs=(Shape(5, 6, 7),), channels=9)
    with pytest.raises(MissingCost) as caught:
        LatencyTable(pack=made()).price(call)
    assert "dilation=3" in str(caught.value)
    assert "5x6x7 to 9 channels" in str(caught.value)
    command = "segtailor calibrate --space inverted_residual --target 'cpu/onnxruntime/fp32?threads=2' --image 64x96"
    assert command in str(caught.value)


def test_free_operators_cost_nothing_and_only_they() -> None:
    pack = made(free=("identity",), entries={})
    table = LatencyTable(pack=pack)
    assert table.price(OpCall(op=Identity(), inputs=(Shape(5, 6, 7),), channels=5)) == 0
    with pytest.raises(MissingCost):
        table.price(OpCall(op=Conv(), inputs=(Shape(5, 6, 7),), channels=5))


# FasterSeg's released table: sums over the published networks (own entries for the zoomed x2 operator).
@pytest.mark.parametrize(
    ("name", "expected"), [("fasterseg-student", 5.701836), ("fasterseg-teacher", 17.943001)]
)
def test_the_published_table_gives_the_published_latency(name: str, expected: float) -> None:
    table = LatencyTable(pack=shipped_pack("fasterseg-1080ti"))
    expand = networks.expand(name, image=(1024, 2048), classes=19)
    assert table.of(expand) == pytest.approx(expected, abs=1e-6)


def test_the_published_table_prices_the_whole_space() -> None:
    table = LatencyTable(pack=shipped_pack("fasterseg-1080ti"))
    space = SPACES.get("multi_resolution")()
    for call in space.calls(Shape(3, 1024, 2048), 19):
        assert table.price(call) >= 0


def test_the_published_table_has_skips_as_they_were_timed() -> None:
    table = LatencyTable(pack=shipped_pack("fasterseg-1080ti"))
    source = Shape(32, 128, 256)
    copy = OpCall(op=Identity(), inputs=(source,), channels=32)
    halving = OpCall(op=FactorisedReduction(first=False), inputs=(source,), channels=64, stride=2)
    assert table.price(copy) == pytest.approx(0.0430511, abs=1e-6)
    assert table.price(halving) > 0


def test_another_size_of_the_published_networks_is_missing() -> None:
    table = LatencyTable(pack=shipped_pack("fasterseg-1080ti"))
    with pytest.raises(MissingCost):
        table.of(networks.expand("fasterseg-student", image=(512, 1024), classes=19))


def test_shipped_packs_state_their_source() -> None:
    assert "fasterseg-1080ti" in shipped_packs()
    assert "ICLR 2020" in shipped_pack("fasterseg-1080ti").source
    with pytest.raises(UnknownName, match="fasterseg-1080ti"):
        shipped_pack("fasterseg-1080")


def test_a_pack_file_is_strict_json(file: Path) -> None:
    assert json.loads(file.read_text())["format"] == 1


def test_the_h200_pack_predicts_the_published_networks_as_they_were_measured() -> None:
    """Measured whole in the same session (docs/results.md): 0.978 and 2.279 ms; the table never saw them."""
    table = LatencyTable(pack=shipped_pack("h200-multi_resolution-fp16"))
    for name, measured_ms in (("fasterseg-student", 0.978), ("fasterseg-teacher", 2.279)):
        assert table.of(expand(name, image=(1024, 2048))) == pytest.approx(measured_ms, rel=0.03)
