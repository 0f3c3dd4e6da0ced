"""The kinds of dense tasks: each has its own targets, loss, figures, pictures and output of exported files."""

from segtailor.core.registry import TASK_KINDS
from segtailor.tasks.depth import Depth
from segtailor.tasks.kind import Criterion, Form, Head, Look, Meter, Scores, TaskKind, kind_of
from segtailor.tasks.loss_settings import LossSettings
from segtailor.tasks.pose.kind import Pose
from segtailor.tasks.segmentation.kind import Segmentation
from segtailor.tasks.targets import Geometry, Targets

__all__ = [
    "TASK_KINDS",
    "Criterion",
    "Depth",
    "Form",
    "Geometry",
    "Head",
    "Look",
    "LossSettings",
    "Meter",
    "Pose",
    "Scores",
    "Segmentation",
    "Targets",
    "TaskKind",
    "kind_of",
]
