"""Well-known hand-made real-time networks, to compare searched ones with. Nothing here is searched."""

from segtailor.spaces.handmade.architecture import HandmadeArchitecture
from segtailor.spaces.handmade.space import Handmade

__all__ = ["Handmade", "HandmadeArchitecture"]
