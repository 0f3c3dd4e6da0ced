"""Human pose: joints as heat maps, crops of single people, loss, metrics and drawing."""

from segtailor.tasks.pose.crops import Crop, Variation, crop_of, cut_person
from segtailor.tasks.pose.drawing import draw_skeleton
from segtailor.tasks.pose.heatmaps import (
    HeatMaps,
    flip_test,
    heatmap_loss,
    mirror_joints,
    mirror_maps,
    resize_maps,
)
from segtailor.tasks.pose.oks import Found, KeypointScores, keypoint_scores, oks
from segtailor.tasks.pose.persons import Person, PersonView
from segtailor.tasks.pose.scoring import Pckh, pckh
from segtailor.tasks.pose.skeletons import COCO, MPII, SKELETONS, Skeleton, skeleton_called

__all__ = [
    "COCO",
    "MPII",
    "SKELETONS",
    "Crop",
    "Found",
    "HeatMaps",
    "KeypointScores",
    "Pckh",
    "Person",
    "PersonView",
    "Skeleton",
    "Variation",
    "crop_of",
    "cut_person",
    "draw_skeleton",
    "flip_test",
    "heatmap_loss",
    "keypoint_scores",
    "mirror_joints",
    "mirror_maps",
    "oks",
    "pckh",
    "resize_maps",
    "skeleton_called",
]
