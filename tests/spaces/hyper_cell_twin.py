"""AutoRTNet written a second time, over a bare state dictionary: the oracle of the parity tests."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from segtailor.spaces.hyper_cell import HyperCellArchitecture

EDGES = ("02", "12", "03", "13", "23")


class Twin:
    """Run an architecture on an image with the weights of `state`; names follow the plan's nodes."""

    def __init__(self, arch: HyperCellArchitecture, state: Mapping[str, Tensor]) -> None:
        self.arch = arch
        self.state = state

    def __call__(self, image: Tensor) -> Tensor:
        older = self.norm(self.conv(image, "stem1.conv1", stride=2), "stem1.norm1")
        newer = self.norm(self.conv(older.relu(), "stem2.conv1"), "stem2.norm1")
        for number in range(1, self.arch.lead + 1):
            normal = self.arch.stages[0].normal
            older, newer = newer, self.cell(f"lead{number}", normal, older, newer, stride=1)
        outputs = []
        for number, stage in enumerate(self.arch.stages, start=1):
            maps = [older, newer]
            for cell in range(1, stage.depth + 1):
                choices = stage.reduction if cell == 1 else stage.normal
                name = f"hyper{number}_cell{cell}"
                maps.append(self.cell(name, choices, maps[-2], maps[-1], stride=2 if cell == 1 else 1))
            older, entered, newer = maps[-2], newer, maps[-1]
            if stage.depth == 1 and self.arch.bridge and number < 3:
                older = self.reduce(entered, f"hyper{number}_bridge")
            outputs.append(newer)
        joined = newer if self.arch.aggregation is None else self.aggregate(outputs)
        return self.head(joined)

    def cell(
        self, name: str, choices: tuple[str, ...], older: Tensor, newer: Tensor, *, stride: int
    ) -> Tensor:
        ops = dict(zip(EDGES, choices, strict=True))
        maps: dict[str, Tensor] = {}
        if f"nodes.{name}_pre0.conv1.weight" in self.state:
            finer = older.shape[2:] != newer.shape[2:]
            maps["0"] = self.reduce(older, f"{name}_pre0") if finer else self.unit(older, f"{name}_pre0", 1)
        if f"nodes.{name}_pre1.conv1.weight" in self.state:
            maps["1"] = self.unit(newer, f"{name}_pre1", 1)
        sides = [-(-side // stride) for side in newer.shape[2:]]
        width = self.arch.stem
        if not name.startswith("lead"):
            width = self.arch.stages[int(name[5]) - 1].width
        for node in "23":
            total = newer.new_zeros(1, width, *sides)
            for edge, op in ops.items():
                if edge[1] == node and op != "zero":
                    step = 1 if edge[0] == "2" else stride
                    total = total + self.operate(op, maps[edge[0]], f"{name}_edge{edge}", stride=step)
            maps[node] = total
        return torch.cat([maps["2"], maps["3"]], dim=1)

    def operate(self, op: str, image: Tensor, name: str, *, stride: int) -> Tensor:
        kind, *rest = op.split("_")
        repeats = 2 if "x2" in rest else 1
        dilation = next((int(part[1:]) for part in rest if part.startswith("d")), 1)
        if kind == "skip":
            return image if stride == 1 else self.reduce(image, name)
        if kind == "maxpool3":
            return self.norm(F.max_pool2d(image, 3, stride, 1), f"{name}.norm")
        for number in range(1, repeats + 1):
            if kind.startswith("conv"):
                image = self.unit(image, name, number, stride=stride)
            else:
                image = self.conv(image.relu(), f"{name}.depth{number}", stride=stride, dilation=dilation)
                image = self.norm(self.conv(image, f"{name}.point{number}"), f"{name}.norm{number}")
            stride = 1
        return image

    def aggregate(self, outputs: list[Tensor]) -> Tensor:
        aggregation = self.arch.aggregation
        assert aggregation is not None
        links = aggregation.wiring.links
        maps = {f"H{i}": self.unit(out, f"agg_pre_H{i}", 1) for i, out in enumerate(outputs, start=1)}
        for link, op in zip(links, aggregation.operators, strict=True):
            name = f"agg_edge_{link.src}_{link.dst}"
            term = self.operate(op, maps[link.src], name, stride=link.stride)
            if link.dst in maps:
                size = max(maps[link.dst].shape[2:], term.shape[2:])
                term = self.resize(maps[link.dst], size) + self.resize(term, size)
            maps[link.dst] = term
        finals = [maps[node] for node in ("F1", "F2", "F3")]
        return torch.cat([self.resize(final, maps["F2"].shape[2:]) for final in finals], dim=1)

    def head(self, image: Tensor) -> Tensor:
        branches = [self.norm(self.conv(image, "context_point.conv1"), "context_point.norm1").relu()]
        for rate in self.arch.context.rates:
            name = f"context_rate{rate}"
            point = self.conv(self.conv(image, f"{name}.depth1", dilation=rate), f"{name}.point1")
            branches.append(self.norm(point, f"{name}.norm1").relu())
        pooled = self.conv(F.adaptive_avg_pool2d(image, 1), "context_pool.conv").relu()
        branches.append(pooled.expand(-1, -1, *image.shape[2:]))
        joined = self.conv(torch.cat(branches, dim=1), "context_project.conv1")
        return self.conv(self.norm(joined, "context_project.norm1").relu(), "classifier.conv1")

    def unit(self, image: Tensor, name: str, number: int, *, stride: int = 1) -> Tensor:
        out = self.conv(image.relu(), f"{name}.conv{number}", stride=stride)
        return self.norm(out, f"{name}.norm{number}")

    def reduce(self, image: Tensor, name: str) -> Tensor:
        height, width = image.shape[2:]
        image = F.pad(image.relu(), (0, width % 2, 0, height % 2))
        weights = [self.state[f"nodes.{name}.conv{number}.weight"] for number in (1, 2)]
        halves = [
            torch.einsum("oi,nihw->nohw", weight[:, :, 0, 0], image[:, :, shift::2, shift::2])
            for shift, weight in enumerate(weights)
        ]
        return self.norm(torch.cat(halves, dim=1), f"{name}.norm")

    def conv(self, image: Tensor, name: str, *, stride: int = 1, dilation: int = 1) -> Tensor:
        weight, bias = self.state[f"nodes.{name}.weight"], self.state.get(f"nodes.{name}.bias")
        groups = image.shape[1] // weight.shape[1]
        padding = dilation * (weight.shape[2] // 2)
        return F.conv2d(image, weight, bias, stride, padding, dilation, groups)

    def norm(self, image: Tensor, name: str) -> Tensor:
        mean, var, weight, bias = (
            self.state[f"nodes.{name}.{part}"][:, None, None]
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (image - mean) / (var + 1e-5).sqrt() * weight + bias

    @staticmethod
    def resize(image: Tensor, size: torch.Size) -> Tensor:
        if image.shape[2:] == size:
            return image
        return F.interpolate(image, size=size, mode="bilinear", align_corners=False)
