"""What a hand-made network is: its name. Everything else about it is fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from segtailor.core.errors import InvalidArchitecture

HandmadeName: TypeAlias = Literal[
    "fast-scnn", "bisenetv2", "ddrnet-23-slim", "stdc1-seg", "lr-aspp-mobilenetv3-large", "pidnet-s"
]
NAMES: tuple[HandmadeName, ...] = get_args(HandmadeName)


@dataclass(frozen=True, kw_only=True)
class HandmadeArchitecture:
    """The name of the network."""

    network: HandmadeName

    def __post_init__(self) -> None:
        if self.network not in NAMES:
            raise InvalidArchitecture(f"network: {self.network!r}; allowed: {', '.join(NAMES)}.")
