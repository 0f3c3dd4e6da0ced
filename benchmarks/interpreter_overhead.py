"""Interpreter overhead: `Network` against a hand-written LPS-Net-S with the same weights, interleaved.

    python -m benchmarks.interpreter_overhead [--image 360x480] [--rounds 40]

Also exports both and compares the operator counts of the graphs: an exported file contains nothing of the interpreter.
"""

from __future__ import annotations

import argparse
import collections
import json
import statistics
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

import segtailor


class Path(nn.Module):
    """One path of LPS-Net, written by hand."""

    def __init__(self, depth: tuple[int, ...], width: tuple[int, ...]) -> None:
        super().__init__()
        stages, inputs = [], 3
        for stage, (blocks, outputs) in enumerate(zip(depth, width, strict=True)):
            layers: list[nn.Module] = []
            for block in range(blocks):
                stride = 2 if block == 0 and stage < 4 else 1
                layers += [
                    nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
                    nn.BatchNorm2d(outputs),
                    nn.ReLU(),
                ]
                inputs = outputs
            stages.append(nn.Sequential(*layers))
        self.stages = nn.ModuleList(stages)


class Twin(nn.Module):
    """LPS-Net-S as one would write it by hand."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        depth, width = (1, 3, 3, 10, 10), (8, 24, 48, 96, 96)
        self.high, self.low = Path(depth, width), Path(depth, width)
        self.head = nn.Conv2d(2 * width[-1], classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        height, width = image.shape[2:]
        high = resize(image, (height * 3 // 4, width * 3 // 4))
        low = resize(image, (height // 4, width // 4))
        for stage in range(5):
            high, low = self.high.stages[stage](high), self.low.stages[stage](low)
            if stage in (2, 3):
                high, low = high + resize(low, high.shape[2:]), low + resize(high, low.shape[2:])
        return self.head(torch.cat([high, resize(low, high.shape[2:])], dim=1))


def resize(image: Tensor, size: tuple[int, ...]) -> Tensor:
    return functional.interpolate(image, size=tuple(size), mode="bilinear", align_corners=True)


def twins(classes: int) -> tuple[nn.Module, nn.Module]:
    """Return both networks with equal weights."""
    network, twin = segtailor.create("lpsnet-s", classes=classes), Twin(classes).eval()
    ours = {
        path: [
            m for n, m in network.named_modules() if path in n and isinstance(m, nn.Conv2d | nn.BatchNorm2d)
        ]
        for path in ("path0", "path1")
    }
    theirs_all = [
        m for p in (twin.high, twin.low) for m in p.modules() if isinstance(m, nn.Conv2d | nn.BatchNorm2d)
    ]
    for mine, theirs in zip(ours["path0"] + ours["path1"], theirs_all, strict=True):
        theirs.load_state_dict(mine.state_dict())
    twin.head.load_state_dict(network.nodes["head"].conv1.state_dict())
    return network, twin


def operators(network: nn.Module, image: Tensor) -> collections.Counter[str]:
    graph = torch.export.export(network, (image,)).graph
    return collections.Counter(str(node.target) for node in graph.nodes if node.op == "call_function")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", default="360x480")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    height, width = map(int, chosen.image.split("x"))
    torch.set_num_threads(1)
    network, twin = (net.to(chosen.device) for net in twins(19))
    image = torch.randn(1, 3, height, width, device=chosen.device)
    with torch.no_grad():
        difference = float((network(image) - twin(image)).abs().max())
        times: dict[str, list[float]] = {"network": [], "twin": []}
        for round_number in range(chosen.rounds + 3):
            pair = [("network", network), ("twin", twin)]
            for name, net in pair if round_number % 2 else reversed(pair):
                start = time.perf_counter()
                for _ in range(2):
                    net(image)
                if chosen.device != "cpu":
                    torch.cuda.synchronize()
                if round_number >= 3:
                    times[name].append((time.perf_counter() - start) / 2)
        same = operators(network, image) == operators(twin, image)
    ratios = [a / b for a, b in zip(times["network"], times["twin"], strict=True)]
    print(
        json.dumps(
            {
                "image": chosen.image,
                "device": chosen.device,
                "max_difference": difference,
                "network_ms": round(1e3 * statistics.median(times["network"]), 3),
                "twin_ms": round(1e3 * statistics.median(times["twin"]), 3),
                "median_ratio": round(statistics.median(ratios), 4),
                "exported_graphs_have_equal_operators": same,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
