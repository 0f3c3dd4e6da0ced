import pytest

from segtailor.core.errors import UserError
from segtailor.core.target import Target, parse_budget_ms, parse_target


@pytest.mark.parametrize("text", ["cpu/onnxruntime/fp32", "cuda/graph/fp16", "cpu/openvino/int8?threads=2"])
def test_a_target_reads_back_as_written(text: str) -> None:
    assert str(parse_target(text)) == text
    assert parse_target(str(parse_target(text))) == parse_target(text)


def test_options_become_threads() -> None:
    assert parse_target("cpu/eager/fp32?threads=2").threads == 2
    assert parse_target("cpu/eager/fp32").threads is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cpu", "device/runtime/precision"),
        ("cpu/eager/fp64", "precision"),
        ("cpu/eager/fp32?threads=0", "out of range"),
        ("cpu/eager/fp32?threads=two", "not a number"),
        ("cpu/eager/fp32?threads", "name=value"),
        ("../../etc/passwd", "device/runtime/precision"),
    ],
)
def test_a_wrong_target_says_what_to_write(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse_target(text)


@pytest.mark.parametrize(
    ("text", "ms"), [("12ms", 12), ("60fps", 1000 / 60), ("0.5s", 500), (" 30 FPS ", 1000 / 30)]
)
def test_budgets_are_milliseconds(text: str, ms: float) -> None:
    assert parse_budget_ms(text) == pytest.approx(ms)


@pytest.mark.parametrize("text", ["", "12", "fast", "0ms", "-3ms", "nanms", "1e400ms"])
def test_a_wrong_budget_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="12ms or 60fps"):
        parse_budget_ms(text)


def test_an_unknown_precision_is_refused_in_python_too() -> None:
    with pytest.raises(UserError, match="fp32, fp16"):
        Target(device="cpu", runtime="eager", precision="fp8")
