"""What is told of each kind of task, as plain data: its figures, the one that searches climb, what a file gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from segtailor.core.task import Kind


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of an evaluation: its name in JSON, its label for people, and its unit (shares are told in %)."""

    name: str
    label: str
    unit: str = "%"

    def told(self, value: float | None) -> str:
        """Write a value for people."""
        if value is None:
            return "-"
        if self.unit == "%":
            return f"{100 * value:.1f} %"
        return f"{value:.3f} {self.unit}".rstrip()


@dataclass(frozen=True, kw_only=True)
class KindFacts:
    """What everyone may know of a kind without importing torch.

    The first figure is the headline: from 0 to 1, higher is better, and it is what searches climb. `finished` names the
    output of an exported file that needs no further work, besides `logits`; it has `rank` dimensions. `described` names
    what is told of a single prediction; `coloured` says that each output has a colour of its own in pictures.
    """

    summary: str
    figures: tuple[Figure, ...]
    finished: str
    rank: int
    described: str
    coloured: bool = False

    @property
    def headline(self) -> Figure:
        """The figure that a network is judged by."""
        return self.figures[0]


KIND_FACTS: Mapping[Kind, KindFacts] = {
    "segmentation": KindFacts(
        summary="One class per pixel.",
        figures=(
            Figure(name="miou", label="mIoU"),
            Figure(name="fwiou", label="fwIoU"),
            Figure(name="mean_accuracy", label="mean accuracy"),
            Figure(name="pixel_accuracy", label="pixel accuracy"),
        ),
        finished="labels",
        rank=3,
        described="shares",
        coloured=True,
    ),
    "depth": KindFacts(
        summary="The distance of each pixel, in metres.",
        figures=(
            Figure(name="delta1", label="delta < 1.25"),
            Figure(name="delta2", label="delta < 1.25²"),
            Figure(name="delta3", label="delta < 1.25³"),
            Figure(name="rmse", label="RMSE", unit="m"),
            Figure(name="rmse_log", label="RMSE of logarithms", unit=""),
            Figure(name="abs_rel", label="abs rel", unit=""),
            Figure(name="sqr_rel", label="sqr rel", unit="m"),
        ),
        finished="depth",
        rank=3,
        described="depth",
    ),
    "pose": KindFacts(
        summary="The joints of one person per crop.",
        figures=(
            Figure(name="pose_quality", label="quality"),
            Figure(name="pckh", label="PCKh@0.5"),
            Figure(name="pckh_fine", label="PCKh@0.1"),
            Figure(name="ap", label="AP (OKS)"),
            Figure(name="ar", label="AR (OKS)"),
        ),
        finished="heatmaps",
        rank=4,
        described="joints",
    ),
}
