"""Images per second and peak memory of one search step, plain and fast supernets in one run.

    python -m benchmarks.search_throughput                                   # tiny sizes, CPU
    python -m benchmarks.search_throughput --device cuda --image 512x1024 --batch 8
    python -m benchmarks.search_throughput --device cuda --space hyper_cell --variants plain,fused-bf16-graph
    python -m benchmarks.search_throughput --device cuda --space multi_resolution --image 224x448 --batch 16

A step is a draw of weights, forward, cross-entropy on the resized logits, cost term, backward, and both optimisers.
A variant is a list of words joined by `-`: plain or fused; path or pair (one or two operators per edge; hyper_cell
only); bf16 (autocast); last (channels last); compile (the code between convolutions); graph (the whole step as one CUDA
graph); recompute; parts2, parts3, parts4, parts8 (the batch in parts, engine only). `engine` runs the step of the
search itself instead of the simple one in this file, `default` the same with all settings of the recipe at paper scale.
For multi_resolution (FasterSeg; see `cosearch.py`) also: masked (sampled widths stay on the device; implied by graph),
gemm (resizing by matrix products), mix (cells run once on mixed inputs, as in the paper, not as in the released
program); `default` is the recipe with its own batch and crop. `ladder.py` adds these one by one. A variant that fails
is reported and does not stop the others. `--memory-gib 10.4` simulates a smaller card.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.cosearch import CoSearch
from segtailor.core.cost import Within
from segtailor.core.errors import UserError
from segtailor.core.plan import OpCall, Shape
from segtailor.core.strategy import Problem
from segtailor.core.task import Task
from segtailor.costs import Macs
from segtailor.data.batches import Batch
from segtailor.nets.network import initialise
from segtailor.nets.relax import Mode, driving, gumbel_noise, live, softmax
from segtailor.nets.supernet import SupernetSettings
from segtailor.spaces.hyper_cell import HyperCell
from segtailor.spaces.inverted_residual import InvertedResidual
from segtailor.strategies.supernet_engine import SupernetEngine
from segtailor.systems import autortnet, squeezenas
from segtailor.tasks.enlarging import resize_bilinear
from segtailor.training.device import place

PARTS = {f"parts{count}": count for count in (2, 3, 4, 8)}
WORDS = (
    "plain", "fused", "path", "pair", "bf16", "last", "compile", "graph", "recompute", "masked", "gemm", "mix",
    "engine", "default", *PARTS,
)  # fmt: skip
ON_CUDA = (
    "plain,plain-bf16-last,fused,fused-bf16,fused-bf16-last,fused-bf16-graph,fused-bf16-last-graph,"
    "fused-bf16-last-compile-graph,path,path-bf16-last,engine,default"
)
ON_CPU = "plain,fused,path,pair,engine,default"
COSEARCH_ON_CUDA = (
    "plain,plain-bf16,plain-bf16-last,fused-bf16-last,fused-gemm-bf16-last,fused-gemm-masked-bf16-last,"
    "fused-gemm-bf16-last-graph,fused-gemm-bf16-last-graph-mix"
)
COSEARCH_ON_CPU = "plain,fused,fused-gemm,fused-gemm-graph"
SPACES = ("inverted_residual", "hyper_cell", "multi_resolution")
CLASSES = 19


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where and at what size to measure."""

    space: str
    image: Shape
    batch: int
    device: torch.device
    steps: int
    warmup: int
    profile: bool = False
    kind: Literal["cosearch", "pretrain"] = "cosearch"
    layers: int = 16


def macs(call: OpCall) -> float:
    return call.macs() / 1e9


class Search:
    """A supernet, its logits and optimisers, and static tensors that a step reads."""

    def __init__(self, setting: Setting, words: frozenset[str]) -> None:
        self.setting, self.words = setting, words
        space: Any = {"inverted_residual": InvertedResidual, "hyper_cell": HyperCell}[setting.space]()
        fused = "fused" in words
        settings = SupernetSettings(
            fused=fused,
            compiled="compile" in words,
            recompute="recompute" in words,
            affine=setting.space != "hyper_cell",  # as in the papers
        )
        self.supernet: Any = space.supernet(setting.image, CLASSES, settings=settings)
        initialise(self.supernet, seed=0)
        memory = torch.channels_last if "last" in words else torch.contiguous_format
        # Fused candidates concatenate flat kernels; only the maps are channels last then.
        kernels = torch.contiguous_format if fused else memory
        self.supernet.to(setting.device, memory_format=kernels).train()
        self.noise = torch.Generator().manual_seed(0)
        self.logits = {
            decision.name: nn.Parameter(torch.zeros(len(decision.options), device=setting.device))
            for decision in space.decisions
        }
        # SqueezeNAS draws for every image, AutoRTNet for the batch.
        per_image = (setting.batch,) if setting.space == "inverted_residual" else ()
        self.gumbel = {
            name: torch.zeros((*per_image, len(row)), device=setting.device)
            for name, row in self.logits.items()
        }
        trained = [value for value in self.supernet.parameters() if value.requires_grad]
        self.optimisers: list[torch.optim.Optimizer] = [
            torch.optim.SGD(trained, lr=1e-3, momentum=0.9, weight_decay=1e-4, foreach=True),
            torch.optim.SGD(self.logits.values(), lr=1e-3, foreach=True),
        ]
        generator = torch.Generator().manual_seed(1)
        shape = (setting.batch, *setting.image)
        pixels = torch.randn(shape, generator=generator)
        self.pixels = pixels.to(setting.device).contiguous(memory_format=memory)
        self.labels = torch.randint(CLASSES, (shape[0], *shape[2:]), generator=generator).to(setting.device)

    def draw(self) -> None:
        """Fill the noise for the next step, in one transfer."""
        sizes = [row.numel() for row in self.gumbel.values()]
        fresh = gumbel_noise((sum(sizes),), generator=self.noise).to(self.setting.device, non_blocking=True)
        for target, part in zip(self.gumbel.values(), fresh.split(sizes), strict=True):
            target.copy_(part.view_as(target))

    def step(self) -> Tensor:
        """Run one search step; return the loss."""
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)
        soft = {name: softmax(row + self.gumbel[name]) for name, row in self.logits.items()}
        mode = mode_of(self.words)
        weights = driving(self.supernet.decisions, soft, mode)
        everything = {name: tuple(range(row.shape[-1])) for name, row in soft.items()}
        kept = (
            everything if mode == "soft" else live(weights)
        )  # soft weights need not be read from the device
        low = torch.bfloat16
        with torch.autocast(self.setting.device.type, dtype=low, enabled="bf16" in self.words):
            logits = self.supernet(self.pixels, weights, kept)["main"]
        enlarge = resize_bilinear if "fused" in self.words else _interpolated
        full = enlarge(logits.float(), tuple(self.labels.shape[1:]), align_corners=False)
        cost = self.supernet.searched_cost(soft, macs)
        loss = functional.cross_entropy(full, self.labels) + 0.01 * torch.log(cost)
        loss.backward()
        for optimiser in self.optimisers:
            optimiser.step()
        return loss.detach()


def _interpolated(logits: Tensor, size: tuple[int, ...], *, align_corners: bool) -> Tensor:
    return functional.interpolate(logits, size=size, mode="bilinear", align_corners=align_corners)


class EngineSearch:
    """The step of the search itself, with the named settings or those of the recipe at paper scale (`default`)."""

    def __init__(self, setting: Setting, words: frozenset[str]) -> None:
        self.setting = setting
        system = {"inverted_residual": squeezenas, "hyper_cell": autortnet}[setting.space]
        strategy = system.PAPER_STRATEGY
        if "default" not in words:
            fit = replace(
                strategy.fit,
                precision="bf16" if "bf16" in words else "fp32",
                channels_last="last" in words,
                accumulate=next((PARTS[word] for word in words if word in PARTS), 1),
            )
            how = SupernetSettings(
                fused="fused" in words,
                compiled="compile" in words,
                recompute="recompute" in words,
                affine=strategy.supernet.affine,
            )
            strategy = replace(strategy, fit=fit, supernet=how, record="graph" in words, mode=mode_of(words))
        problem = Problem(
            space=system.PAPER.space,
            cost=Macs(),
            objective=Within(limit=float("inf")),
            task=Task(classes=tuple(f"class{index}" for index in range(CLASSES))),
            image=setting.image,
            device=str(setting.device),
        )
        space: Any = system.PAPER.space
        supernet = space.supernet(setting.image, CLASSES, settings=strategy.supernet)
        initialise(supernet, seed=0)
        place(supernet, setting.device, channels_last=strategy.fit.channels_last).train()
        self.engine = SupernetEngine(supernet, strategy, problem, device=setting.device)
        self.learning = {decision.group for decision in space.decisions}
        generator = torch.Generator().manual_seed(1)
        pixels = torch.randn((setting.batch, *setting.image), generator=generator)
        labels = torch.randint(CLASSES, (setting.batch, *setting.image[1:]), generator=generator)
        self.batch = Batch(pixels.to(setting.device), labels.to(torch.uint8).to(setting.device))
        self.number = 0

    def draw(self) -> None:
        """Draw new noise for the next step."""
        self.number += 1

    def step(self) -> Tensor:
        """Run one search step; return the loss."""
        temperature = 3.0 - 0.001 * self.number
        self.engine.step(
            self.batch, number=self.number, temperature=temperature, rate=1e-3, learning=self.learning
        )
        return torch.tensor(self.engine.report().loss)


def mode_of(words: frozenset[str]) -> Mode:
    return "path" if "path" in words else "pair" if "pair" in words else "soft"


def captured(search: Search) -> Callable[[], Tensor]:
    """Record one step as a CUDA graph; the tensors of noise, pixels and labels are reused."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            search.draw()
            search.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    for optimiser in search.optimisers:
        optimiser.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = search.step()

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


def measure(setting: Setting, words: frozenset[str]) -> dict[str, float]:
    """Time steps one by one after a warm-up; report the median."""
    cuda = setting.device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    search = (EngineSearch if words & {"engine", "default"} else Search)(setting, words)
    search.draw()
    first = float(search.step())
    step = captured(search) if isinstance(search, Search) and "graph" in words else search.step
    seconds = []
    for count in range(setting.warmup + setting.steps):
        search.draw()
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        loss = step()
        if cuda:
            torch.cuda.synchronize()
        if count >= setting.warmup:
            seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    row = {
        "images_per_s": setting.batch / median,
        "step_ms": 1000 * median,
        "slowest_ms": 1000 * max(seconds),
        "first_loss": first,
        "last_loss": float(loss),
    }
    if isinstance(search, EngineSearch) and search.engine.most is not None:
        row["images_at_a_time"] = search.engine.most  # memory ran out with more
    if setting.profile:
        profile(search, step)
    if cuda:
        row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return row


def measure_cosearch(setting: Setting, words: frozenset[str]) -> dict[str, float]:
    """Time steps of FasterSeg's search; in a recorded variant, only steps after the recording."""
    cuda = setting.device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    search = CoSearch(
        setting.kind,
        words,
        image=setting.image,
        batch=setting.batch,
        device=setting.device,
        layers=setting.layers,
    )
    # A step is recorded after three others; in pretraining both roles alternate, and each is recorded.
    recorded = {"cosearch": 4, "pretrain": 8}[setting.kind] if words & {"graph", "default"} and cuda else 0
    warmup, batch = setting.warmup + recorded, len(search.batch.labels)
    seconds, first = [], None
    for count in range(warmup + setting.steps):
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        search.step()
        if cuda:
            torch.cuda.synchronize()
        if count >= warmup:
            seconds.append(time.perf_counter() - start)
        if count == 0:
            first = search.loss()
    median = statistics.median(seconds)
    row = {
        "images_per_s": batch / median,
        "batch": batch,
        "step_ms": 1000 * median,
        "slowest_ms": 1000 * max(seconds),
        "first_loss": first or 0.0,
        "last_loss": search.loss(),
    }
    if setting.profile:
        profile_of(search.step, cuda=cuda)
    if cuda:
        row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return row


def profile_of(step: Callable[[], object], *, cuda: bool) -> None:
    """Print the time of each kernel of one step."""
    with torch.profiler.profile() as found:
        step()
        if cuda:
            torch.cuda.synchronize()
    key = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    print(found.key_averages().table(sort_by=key, row_limit=20, max_name_column_width=70), file=sys.stderr)


def profile(search: Search | EngineSearch, step: Callable[[], Tensor]) -> None:
    """Print the time of each kernel of one step."""
    search.draw()
    profile_of(step, cuda=search.setting.device.type == "cuda")


def compare(setting: Setting, variants: list[str]) -> dict[str, Any]:
    """Measure all variants of one space; speed-ups are relative to `plain`."""
    rows: dict[str, Any] = {}
    for variant in variants:
        words = frozenset(variant.split("-"))
        if words & {"path", "pair"} and setting.space != "hyper_cell":
            continue
        try:
            timed = measure_cosearch if setting.space == "multi_resolution" else measure
            rows[variant] = timed(setting, words)
        except (RuntimeError, UserError) as problem:  # out of memory or no compiler: report it and continue
            rows[variant] = {"failed": str(problem).splitlines()[0][:200]}
        base = rows.get("plain", {}).get("images_per_s")
        if base and "images_per_s" in rows[variant]:
            rows[variant]["speedup"] = rows[variant]["images_per_s"] / base
        what = setting.kind if setting.space == "multi_resolution" else setting.space
        print(f"{what:18} {variant:34} {describe(rows[variant])}", file=sys.stderr, flush=True)
    return rows


def describe(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"failed: {row['failed']}"
    memory = f"{row['peak_gib']:6.2f} GiB" if "peak_gib" in row else ""
    speedup = f"x{row['speedup']:.2f}" if "speedup" in row else ""
    parts = f" {row['images_at_a_time']} images at a time" if "images_at_a_time" in row else ""
    return f"{row['images_per_s']:8.2f} images/s {row['step_ms']:9.1f} ms {memory} {speedup}{parts}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--space", default="both", choices=("both", *SPACES))
    parser.add_argument(
        "--kind", default="both", choices=("both", "cosearch", "pretrain"), help="steps of FasterSeg"
    )
    parser.add_argument("--layers", type=int, default=16, help="layers of FasterSeg's supernet; at least 8")
    parser.add_argument("--image", default="64x128")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, help="CPU threads; all by default")
    parser.add_argument("--variants", help=f"on CUDA {ON_CUDA}\non CPU {ON_CPU}")
    parser.add_argument("--memory-gib", type=float, help="memory limit, to simulate a smaller card")
    parser.add_argument("--profile", action="store_true", help="print the slowest kernels of each variant")
    parser.add_argument(
        "--no-tune", action="store_true", help="let cuDNN choose kernels by heuristics: starts sooner"
    )
    parser.add_argument("--no-tf32", action="store_true", help="full float32 in convolutions")
    return parser.parse_args()


def main() -> None:
    options = parse()
    device = torch.device(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    height, width = map(int, options.image.split("x"))
    usual = {
        "cuda": (ON_CUDA, COSEARCH_ON_CUDA),
        "cpu": (ON_CPU, COSEARCH_ON_CPU),
    }[device.type][options.space == "multi_resolution"]
    variants = (options.variants or usual).split(",")
    unknown = sorted({word for variant in variants for word in variant.split("-")} - set(WORDS))
    if unknown:
        raise SystemExit(f"unknown word '{unknown[0]}'; variants are made of {', '.join(WORDS)}")
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = not options.no_tune
        torch.backends.cudnn.allow_tf32 = not options.no_tf32
        if options.memory_gib:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(options.memory_gib * 2**30 / total)
    spaces = SPACES[:2] if options.space == "both" else (options.space,)
    results = {}
    for space in spaces:
        setting = Setting(
            space=space,
            image=Shape(3, height, width),
            batch=options.batch,
            device=device,
            steps=options.steps,
            warmup=options.warmup,
            profile=options.profile,
            layers=options.layers,
        )
        if space != "multi_resolution":
            results[space] = compare(setting, variants)
            continue
        for kind in ("cosearch", "pretrain") if options.kind == "both" else (options.kind,):
            results[kind] = compare(replace(setting, kind=kind), variants)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    record = {"device": name, "torch": torch.__version__, "image": options.image, "batch": options.batch}
    print(json.dumps({**record, "results": results}, indent=2))


if __name__ == "__main__":
    main()
