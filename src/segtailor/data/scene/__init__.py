"""Street scenes drawn from numbers alone: image, labels and depth of one view, in NumPy."""

from segtailor.data.scene.canvas import CLASSES, PALETTE
from segtailor.data.scene.render import Scene, render

__all__ = ["CLASSES", "PALETTE", "Scene", "render"]
