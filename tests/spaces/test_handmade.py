"""Hand-made baselines: counts against their publications and by hand, behaviour at any size, use by name."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import segtailor
from segtailor.core.errors import InvalidArchitecture, UnknownName, Unsupported
from segtailor.core.plan import Plan, Shape, receptive_field
from segtailor.core.registry import OPERATORS, SPACES
from segtailor.core.space import architecture_document, families, family_name, family_of, parse_architecture
from segtailor.core.task import Task
from segtailor.costs.keys import call_of, key_of
from segtailor.deploy.export import export_onnx
from segtailor.deploy.fold import inference_form, norm_pairs
from segtailor.deploy.verify import verify_onnx
from segtailor.nets.bundle import Model, save_bundle
from segtailor.nets.network import Network
from segtailor.ops.arithmetic import NORM_PARAMS
from segtailor.recipes.recipe import parse_recipe, recipe_document
from segtailor.recipes.train import train_recipe
from segtailor.runs import Context
from segtailor.spaces.handmade import Handmade, HandmadeArchitecture
from segtailor.spaces.handmade.architecture import NAMES
from segtailor.tasks.enlarging import enlarge
from segtailor.testing import check_architecture, check_space
from segtailor.testing.supernets import scramble
from segtailor.verbs.calibrate import CalibrateFlags
from segtailor.verbs.train import train
from tests.support import FIXTURES

GOLDEN = json.loads((FIXTURES.parent / "golden" / "baselines.json").read_text())
ROWS = {row["architecture"]: row for row in GOLDEN["networks"]}
EXACT = [
    pytest.param(name, record, id=f"{name}-{record['metric']}")
    for name, row in ROWS.items()
    for record in row["records"]
    if record["level"] == "exact"
]
by_name = pytest.mark.parametrize("name", NAMES)


def plan_of(name: str, image: tuple[int, int] = (1024, 2048), classes: int = 19) -> Plan:
    return Handmade().plan(HandmadeArchitecture(network=name), Shape(3, *image), classes)  # type: ignore[arg-type]


def norm_values(plan: Plan) -> int:
    """Count the learnable values of norms from the built network, not from the operators' arithmetic."""
    with torch.device("meta"):
        network = Network(plan)
    return NORM_PARAMS * sum(
        part.num_features for part in network.modules() if isinstance(part, torch.nn.BatchNorm2d)
    )


def measure(name: str, metric: str, record: dict[str, Any]) -> float:
    plan = plan_of(name, tuple(record.get("image", GOLDEN["image"])), record.get("classes", 19)).select()
    if metric == "macs":
        return plan.macs()
    if metric == "params":
        return plan.params()
    if metric == "weights_without_norms":
        return plan.params() - norm_values(plan)
    return classifier(metric)


def classifier(metric: str) -> float:
    """Count STDC1 as a classifier: our backbone, then a 1x1 convolution and two linear layers at 7x7 and 1x1."""
    plan = plan_of("stdc1-seg", (224, 224))
    calls = [plan.call(node.name) for node in plan.nodes if node.name.startswith(("stem", "stage"))]
    if metric == "classifier_params":
        return sum(call.params() for call in calls) + 2 * (1024 * 1024 + 2 * 1024) + 1024 * 1000
    return sum(call.macs() for call in calls) + 1024 * 1024 * 49 + 1024 * 1024 + 1024 * 1000


@by_name
def test_counts_are_those_on_record(name: str) -> None:
    row = ROWS[name]
    assert segtailor.count(name) == (row["macs"], row["params"], row["train_params"])


@pytest.mark.parametrize(("name", "record"), EXACT)
def test_publications_are_met(name: str, record: dict[str, Any]) -> None:
    found = measure(name, record["metric"], record)
    assert abs(found / record["value"] - 1) <= record["tolerance"], found


def test_every_deviation_and_missed_claim_is_explained() -> None:
    assert set(ROWS) == set(NAMES)
    for row in ROWS.values():
        assert row["deviations"]
        assert all(record["source"] for record in row["records"])
        assert all("note" in record for record in row["records"] if record["level"] == "claim")


def conv(inputs: int, outputs: int, kernel: int = 1, *, groups: int = 1, norm: bool = True) -> int:
    return kernel * kernel * inputs // groups * outputs + 2 * outputs * norm


def test_fast_scnn_has_the_weights_that_its_table_adds_up_to() -> None:
    def separable(inputs: int, outputs: int) -> int:
        return conv(inputs, inputs, 3, groups=inputs, norm=False) + conv(inputs, outputs)

    def bottleneck(inputs: int, outputs: int) -> int:
        wide = 6 * inputs
        return conv(inputs, wide) + conv(wide, wide, 3, groups=wide) + conv(wide, outputs)

    total = conv(3, 32, 3) + separable(32, 48) + separable(48, 64)
    for inputs, outputs in ((64, 64), (64, 96), (96, 128)):
        total += bottleneck(inputs, outputs) + 2 * bottleneck(outputs, outputs)
    total += 4 * conv(128, 32) + conv(256, 128)
    total += conv(128, 128, 3, groups=128) + conv(128, 128) + conv(64, 128)
    total += 2 * separable(128, 128) + 128 * 19 + 19
    assert segtailor.count("fast-scnn").params == total


def test_ddrnet_has_the_weights_that_its_table_adds_up_to() -> None:
    def blocks(inputs: int, outputs: int, count: int = 2) -> int:
        shortcut = conv(inputs, outputs) if inputs != outputs else 0
        return conv(inputs, outputs, 3) + (2 * count - 1) * conv(outputs, outputs, 3) + shortcut

    def bottleneck(inputs: int, outputs: int) -> int:
        half = outputs // 2
        return conv(inputs, half) + conv(half, half, 3) + conv(half, outputs) + conv(inputs, outputs)

    def before(inputs: int, outputs: int, kernel: int = 1) -> int:
        return 2 * inputs + conv(inputs, outputs, kernel, norm=False)

    total = conv(3, 32, 3) + conv(32, 32, 3)
    total += blocks(32, 32) + blocks(32, 64) + blocks(64, 128) + blocks(128, 256)  # to 1/32
    total += 2 * blocks(64, 64) + bottleneck(64, 128) + bottleneck(256, 512)  # at 1/8, and the last of both
    total += conv(128, 64) + conv(256, 64)  # from context to detail
    total += 2 * conv(64, 128, 3) + conv(128, 256, 3)  # from detail to context
    total += 5 * before(512, 128) + 4 * before(128, 128, 3) + before(640, 128) + before(512, 128)
    total += 2 * 128 + conv(128, 64, 3) + 64 * 19 + 19
    assert segtailor.count("ddrnet-23-slim").params == total


@by_name
def test_counts_and_shapes_are_those_of_the_built_network_at_any_size(name: str) -> None:
    arch = HandmadeArchitecture(network=name)  # type: ignore[arg-type]
    check_architecture(Handmade(), arch, sizes=((64, 64), (65, 97)))


@pytest.mark.slow
@by_name
@pytest.mark.parametrize("size", [(64, 333), (127, 129), (250, 101)])
def test_odd_sizes_run(name: str, size: tuple[int, int]) -> None:
    arch = HandmadeArchitecture(network=name)  # type: ignore[arg-type]
    check_architecture(Handmade(), arch, sizes=(size,))


def test_the_family_is_a_space_of_six() -> None:
    check_space(Handmade(), draws=12, image=Shape(3, 96, 128))
    calls = list(Handmade().calls(Shape(3, 96, 128), 4))
    assert len(calls) == len(set(calls))


@by_name
def test_every_call_can_be_kept_in_a_table(name: str) -> None:
    for call in plan_of(name, (96, 128)).calls:
        assert call_of(key_of(call)) == call


@by_name
def test_train_only_heads_cost_nothing(name: str) -> None:
    plan = plan_of(name, (96, 128), classes=4)
    extra = [output for output in plan.outputs if output != "main"]
    assert all(plan.shape(plan.outputs[output]).channels == 4 for output in plan.outputs)
    assert extra == [f"aux{number}" for number in range(1, len(extra) + 1)]
    assert not [node.name for node in plan.deployed().nodes if node.name.startswith("aux")]
    assert (plan.train_params() > plan.select().params()) == bool(extra)


@by_name
def test_scores_are_at_an_eighth_and_see_the_whole_image(name: str) -> None:
    plan = plan_of(name)
    assert plan.output_stride == 8
    assert math.isinf(receptive_field(plan))


@pytest.mark.slow
@by_name
def test_a_far_corner_changes_the_scores_of_the_other(name: str) -> None:
    network = segtailor.create(name, classes=4)
    scramble(network, seed=3)
    image = torch.randn(1, 3, 64, 192, generator=torch.Generator().manual_seed(0))
    changed = image.clone()
    changed[..., :8, :8] += 5
    with torch.no_grad():
        moved = (network(image) - network(changed)).abs().amax(1)[0]
    assert moved[-1, -1] > 0
    assert moved[0, 0] > moved[-1, -1]  # and the place itself is not lost


@pytest.mark.parametrize(
    "name", ["fast-scnn", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])]
)
def test_folding_keeps_the_function(name: str) -> None:
    network = segtailor.create(name, classes=4, outputs="all")
    scramble(network, seed=1)
    network.double()
    folded = inference_form(network)
    image = torch.randn(1, 3, 65, 97, dtype=torch.float64)
    with torch.no_grad():
        wanted, got = network(image), folded(image)
    assert (wanted - got).abs().max() <= 1e-9 * wanted.abs().max()
    assert norm_pairs(folded, (Shape(3, 64, 128),)) == []


@pytest.mark.slow
@by_name
@pytest.mark.parametrize("size", [(64, 96), (75, 101)])
def test_exported_files_give_the_logits_of_the_network(
    name: str, size: tuple[int, int], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network = segtailor.create(name, classes=4)
    scramble(network, seed=2)
    file = tmp_path / "model.onnx"
    export_onnx(network, file, image=size)
    image = np.random.default_rng(0).standard_normal((1, 3, *size)).astype(np.float32)
    assert verify_onnx(file, network, [image]).equal


def coloured(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return four images of 16-pixel squares in one of three colours, and the number of the colour."""
    labels = torch.randint(3, (4, 1, 4, 4), generator=generator).repeat_interleave(16, 2)
    labels = labels.repeat_interleave(16, 3)[:, 0]
    pure = functional.one_hot(labels, 3).permute(0, 3, 1, 2).float()
    return pure + 0.1 * torch.randn(pure.shape, generator=generator), labels


@pytest.mark.slow
@by_name
def test_twenty_steps_of_training_reduce_the_loss_of_every_output(name: str) -> None:
    network = segtailor.create(name, classes=3, outputs="all").train()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    history: list[dict[str, float]] = []
    for _ in range(20):
        images, labels = coloured(generator)
        losses = {
            output: functional.cross_entropy(enlarge(logits, (64, 64), align_corners=False), labels)
            for output, logits in network.forward_all(images).items()
        }
        optimiser.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        assert all(weight.grad is not None for weight in network.parameters())
        optimiser.step()
        history.append({output: float(loss.detach()) for output, loss in losses.items()})
    for output in network.plan.outputs:
        early, late = (sum(row[output] for row in part) for part in (history[:4], history[-4:]))
        goal = 0.8 if output == "main" else 1  # coarse heads cannot tell the squares apart
        assert late < goal * early, (output, early, late)


@pytest.mark.slow
def test_a_baseline_trains_to_a_bundle_by_name(tmp_path: Path) -> None:
    context = Context(cache=tmp_path / "cache", device="cpu")
    data = "synthetic:size=64x64,train=8,val=4,seed=0"
    recipe = train_recipe("ddrnet-23-slim", data, crop=(64, 64), context=context)
    recipe = replace(recipe, fit=replace(recipe.fit, steps=2, batch=4))
    result = train(recipe, tmp_path / "run", check=False, context=context)
    bundle = segtailor.load(str(result["model"]))
    assert bundle.architecture == HandmadeArchitecture(network="ddrnet-23-slim")


def test_bundles_of_baselines_load(tmp_path: Path) -> None:
    network = segtailor.create("fast-scnn", classes=3)
    save_bundle(tmp_path / "bundle", Model(network=network, task=Task(classes=("a", "b", "c"))))
    loaded = segtailor.load(tmp_path / "bundle")
    assert loaded.architecture == network.architecture
    pixels = np.zeros((70, 90, 3), np.uint8)
    assert loaded.predict(pixels).shape == (70, 90)


def test_baselines_are_no_search_space_and_no_published_architecture() -> None:
    assert sorted(segtailor.baselines()) == sorted(NAMES)
    assert not set(segtailor.baselines()) & set(segtailor.architectures())
    assert "handmade" not in SPACES
    assert "handmade" in families()


def test_the_family_can_be_calibrated_by_name() -> None:
    flags = CalibrateFlags(space="handmade", target="cpu/eager/fp32", image=(64, 64))
    assert flags.recipe().space == Handmade()
    assert flags.recipe().space_name == family_name(Handmade()) == "handmade"
    assert parse_recipe(recipe_document(flags.recipe()), what="recipe") == flags.recipe()
    with pytest.raises(UnknownName, match="inverted_residual"):
        replace(flags, space="inverted").recipe()


def test_documents_survive_and_wrong_ones_are_explained() -> None:
    arch = HandmadeArchitecture(network="bisenetv2")
    assert family_of(arch) == "handmade"
    document = architecture_document(arch)
    assert parse_architecture(document) == arch
    with pytest.raises(InvalidArchitecture, match=r"network.*fast-scnn"):
        parse_architecture({**document, "architecture": {"network": "bisenetv3"}})
    with pytest.raises(InvalidArchitecture, match="allowed: fast-scnn"):
        HandmadeArchitecture(network="unet")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="'pidnet-s'"):
        segtailor.count("pidnet")


def test_foreign_weights_are_refused_with_a_remedy() -> None:
    network = segtailor.create("fast-scnn", classes=3)
    with pytest.raises(Unsupported, match="segtailor train"):
        segtailor.load_published(network, {})


def test_operators_of_baselines_are_registered_by_the_family() -> None:
    kinds = {type(node.op) for name in NAMES for node in plan_of(name, (64, 64)).nodes}
    assert {OPERATORS.name_of(kind) for kind in kinds} >= {"squeeze_excite", "likeness", "norm", "bin_pool"}
