"""The family as one decision, which network, so that whatever works with a space works with these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from segtailor.core.plan import OpCall, Plan, PlanBuilder, Shape
from segtailor.core.space import Decision, Picks
from segtailor.spaces.handmade.architecture import NAMES, HandmadeArchitecture, HandmadeName
from segtailor.spaces.handmade.bisenet_v2 import bisenet_v2
from segtailor.spaces.handmade.ddrnet import ddrnet_23_slim
from segtailor.spaces.handmade.fast_scnn import fast_scnn
from segtailor.spaces.handmade.lr_aspp import lr_aspp_mobilenet_v3_large
from segtailor.spaces.handmade.pidnet import pidnet_s
from segtailor.spaces.handmade.stdc import stdc1_seg

Outputs = Mapping[str, str]  # output name -> node name
NETWORKS: Mapping[HandmadeName, Callable[[PlanBuilder, int], Outputs]] = {
    "fast-scnn": fast_scnn,
    "bisenetv2": bisenet_v2,
    "ddrnet-23-slim": ddrnet_23_slim,
    "stdc1-seg": stdc1_seg,
    "lr-aspp-mobilenetv3-large": lr_aspp_mobilenet_v3_large,
    "pidnet-s": pidnet_s,
}


@dataclass(frozen=True, kw_only=True)
class Handmade:
    """Six hand-made real-time networks."""

    architecture_type: ClassVar[type] = HandmadeArchitecture

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Which network."""
        return (Decision(name="network", options=NAMES, group="path"),)

    def architecture(self, picks: Picks) -> HandmadeArchitecture:
        """Decode picks."""
        return HandmadeArchitecture(network=NAMES[picks["network"]])

    def picks(self, arch: HandmadeArchitecture) -> Picks:
        """Encode an architecture."""
        return {"network": NAMES.index(arch.network)}

    def plan(self, arch: HandmadeArchitecture, image: Shape, classes: int) -> Plan:
        """Expand a network to its layers, train-only heads included."""
        build = PlanBuilder(image)
        outputs = NETWORKS[arch.network](build, classes)
        return build.plan(outputs=outputs, align_corners=False)

    def calls(self, image: Shape, classes: int) -> Iterator[OpCall]:
        """Yield every call of the six networks, each once."""
        seen: set[OpCall] = set()
        for name in NAMES:
            for call in self.plan(HandmadeArchitecture(network=name), image, classes).calls:
                if call not in seen:
                    seen.add(call)
                    yield call
