"""Where a network will run and how fast it must be: plain data, parsed from the text of a user."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from segtailor.core.errors import UserError

PRECISIONS = ("fp32", "fp16", "bf16", "int8")
Includes: TypeAlias = Literal["network", "network+argmax", "network+resize+argmax", "end-to-end"]
IMAGE_TO_LABELS: Includes = "network+resize+argmax"  # what a budget is for: labels at the size of the image
CONVERTED_RUNTIMES = ("ncnn", "litert", "executorch")  # that run files of their own, and no ONNX files
NETWORK_ONLY_RUNTIMES = ("ncnn",)  # that have no arg max: a budget is for the logits


@dataclass(frozen=True, kw_only=True)
class Target:
    """Device, runtime and precision, e.g. `cpu/onnxruntime/fp32?threads=2`."""

    device: str
    runtime: str
    precision: str = "fp32"
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UserError(
                f"target precision '{self.precision}' is unknown; choose one of {', '.join(PRECISIONS)}."
            )
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise UserError(f"threads={self.threads} is out of range; choose 1 to 1024.")

    @property
    def unrounded(self) -> Target:
        """The target in fp32 if this one is in int8: that of a file before it is rounded."""
        return replace(self, precision="fp32") if self.precision == "int8" else self

    @property
    def threads(self) -> int | None:
        """The number of threads asked for, or None for the runtime's default."""
        text = self.options.get("threads")
        if text is None:
            return None
        if not re.fullmatch(r"-?\d{1,6}", text):
            raise UserError(f"threads='{text}' is not a number; write for example ?threads=2.")
        return int(text)

    def __str__(self) -> str:
        options = "&".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        return f"{self.device}/{self.runtime}/{self.precision}" + (f"?{options}" if options else "")


def parse_target(text: str) -> Target:
    """Read `device/runtime/precision?option=value&...`."""
    names, _, tail = text.partition("?")
    parts = names.split("/")
    if len(parts) != 3 or not all(re.fullmatch(r"[a-z0-9_:]+", part) for part in parts):
        raise UserError(
            f"target '{text}' is not device/runtime/precision; write for example cpu/onnxruntime/fp32?threads=2."
        )
    options: dict[str, str] = {}
    for pair in filter(None, re.split(r"[&,]", tail)):
        name, sign, value = pair.partition("=")
        if not sign or not name or not value:
            raise UserError(f"target option '{pair}' is not name=value; write for example ?threads=2.")
        options[name] = value
    return Target(device=parts[0], runtime=parts[1], precision=parts[2], options=options)


def timed_stages(target: str) -> Includes:
    """Return what the budget of a target is for: labels, where its runtime can compute them."""
    return "network" if parse_target(target).runtime in NETWORK_ONLY_RUNTIMES else IMAGE_TO_LABELS


def parse_budget_ms(text: str) -> float:
    """Read a budget such as `12ms`, `0.5s` or `60fps` as milliseconds per image."""
    match = re.fullmatch(r"\s*([+-]?(?:\d{1,30}(?:\.\d{1,30})?|\.\d{1,30}))\s*(ms|s|fps)\s*", text.lower())
    value = float(match[1]) if match else 0.0
    if match and value <= 0:
        raise UserError(f"budget '{text}' is not above zero; write for example 12ms or 60fps.")
    if not match:
        raise UserError(f"budget '{text}' is not a time or a rate; write for example 12ms or 60fps.")
    return {"ms": value, "s": 1000 * value, "fps": 1000 / value}[match[2]]
