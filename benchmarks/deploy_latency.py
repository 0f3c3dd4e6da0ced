"""Compare deployed networks with plain PyTorch, interleaved in one run: the deployment figures of docs/results.md.

    python -m benchmarks.deploy_latency                        # CPU: 512x1024 to labels at full size, 2 threads
    python -m benchmarks.deploy_latency --device cuda          # GPU: 1024x2048, batch 1, logits, fp16

"Plain" is the trained network, run by PyTorch without any preparation; on the CPU followed by a resize and an arg max.
The last column is the share of labels that are equal to those of plain fp32. Run it on a quiet machine; it ends with a
Markdown table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import torch

import segtailor
from segtailor.core.plan import Shape
from segtailor.core.target import Includes, Target, parse_target
from segtailor.deploy.fold import inference_form
from segtailor.deploy.stages import staged
from segtailor.nets.network import Network
from segtailor.targets.eager import place
from segtailor.targets.graph import GraphCompiled
from segtailor.targets.runtime import Compiled, compile_network, example_inputs
from segtailor.targets.timing import BenchEntry, Measurement, TimingSettings, measure_all

COMPILE_LIMITS = {
    "recompile_limit": 10_000,
    "accumulated_recompile_limit": 10_000,
}  # all networks share one `forward`


class Case(NamedTuple):
    """One case of a comparison: its name, its target, and whether the network was prepared for deployment."""

    name: str
    target: str
    ours: bool = False


class Contest(NamedTuple):
    """The cases of a comparison; the first one is the baseline."""

    networks: tuple[str, ...]
    image: tuple[int, int]
    includes: Includes
    cases: tuple[Case, ...]


CPU = Contest(
    networks=("lpsnet-s", "squeezenas-lat-small"),
    image=(512, 1024),
    includes="network+resize+argmax",
    cases=(
        Case("plain eager", "cpu/eager/fp32?threads=2&channels_last=0"),
        Case("ours, eager", "cpu/eager/fp32?threads=2", ours=True),
        Case("ours, ONNX Runtime", "cpu/onnxruntime/fp32?threads=2", ours=True),
        Case("ours, OpenVINO", "cpu/openvino/fp32?threads=2", ours=True),
    ),
)
CUDA = Contest(
    networks=("fasterseg-student", "lpsnet-s", "squeezenas-lat-small"),
    image=(1024, 2048),
    includes="network",
    cases=(
        Case("plain eager fp32", "cuda/eager/fp32?channels_last=0"),
        Case("plain eager fp16", "cuda/eager/fp16?channels_last=0"),
        Case("compiled fp16", "cuda/compiled/fp16"),
        Case("compiled in a graph fp16", "cuda/compiled+graph/fp16"),
        Case("ours", "cuda/graph/fp16", ours=True),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=5.0, help="minimum time to measure each case")
    parser.add_argument("--only", nargs="*", help="networks to time instead of the default ones")
    arguments = parser.parse_args()
    contest = CUDA if arguments.device == "cuda" else CPU
    settings = TimingSettings(seconds=arguments.seconds, runs=30)
    rows = [row for name in arguments.only or contest.networks for row in compete(name, contest, settings)]
    height, width = contest.image
    print(f"\n{contest.includes} at {height}x{width}, batch 1, {torch.__version__=}\n")
    print("| network | form | target | median ms | p95 ms | against the first | labels agree |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))


def compete(name: str, contest: Contest, settings: TimingSettings) -> Iterator[str]:
    """Time all cases of one network, interleaved; yield a row for each."""
    network = segtailor.create(name, classes=19)
    shape = Shape(3, *contest.image)
    with ExitStack() as stack:
        entrants = []
        for case in contest.cases:
            target = parse_case(case.target)
            compiled = prepared(case, target, network, contest)
            stack.callback(compiled.close)
            entrants.append(
                BenchEntry(
                    network=name, target=target, inputs=(shape,), compiled=compiled, includes=contest.includes
                )
            )
        agreements = agreement(entrants, shape)
        found = measure_all(entrants, settings)
    for case, measured, agree in zip(contest.cases, found, agreements, strict=True):
        for warning in measured.document()["warnings"]:
            print(f"warning: {name}, {case.name}: {warning}")
        yield row(case, measured, found[0], agree)


def prepared(case: Case, target: Target, network: Network, contest: Contest) -> Compiled:
    """Compile a network for a case."""
    chosen = inference_form(network) if case.ours else network
    module = staged(chosen, contest.includes, image=contest.image)
    inputs = (Shape(3, *contest.image),)
    if target.runtime != "compiled+graph":
        return compile_network(module, target, inputs)
    placed, tensors = place(
        module, Target(device="cuda", runtime="graph", precision=target.precision), inputs, pixels=False
    )
    call: Callable[..., object] = torch.compile(placed, dynamic=False, fullgraph=True)
    with torch._dynamo.config.patch(**COMPILE_LIMITS):
        return GraphCompiled(call, tensors)  # type: ignore[arg-type]


def parse_case(text: str) -> Target:
    """Read a target, or the one that exists only in this benchmark."""
    if "compiled+graph" in text:
        return Target(device="cuda", runtime="compiled+graph", precision=text.rpartition("/")[2])
    return parse_target(text)


def agreement(entrants: list[BenchEntry], shape: Shape) -> list[float]:
    """Return the share of labels that are equal to those of the first case."""
    (image,) = example_inputs((shape,))
    outputs = [entrant.compiled.outputs(image) for entrant in entrants]
    labels = [output.argmax(1) if output.ndim == 4 else output for output in outputs]
    return [float(np.mean(one == labels[0])) for one in labels]


def row(case: Case, measured: Measurement, first: Measurement, agree: float) -> str:
    facts = measured.document()
    ratio = first.document()["median_ms"] / facts["median_ms"]  # type: ignore[operator]
    return (
        f"| {facts['network']} | {case.name} | `{case.target}` | {facts['median_ms']:.2f} | {facts['p95_ms']:.2f} "
        f"| {ratio:.2f}x | {agree:.3%} |"
    )


if __name__ == "__main__":
    main()
