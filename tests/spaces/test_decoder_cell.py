import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import segtailor
from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import Shape
from segtailor.core.space import architecture_document, parse_architecture, read_architecture
from segtailor.core.variation import sample
from segtailor.nets.network import Network, initialise
from segtailor.nets.weights import WeightsProblem
from segtailor.spaces import networks
from segtailor.spaces.decoder_cell import (
    SEARCH_FORM,
    DecoderCell,
    decode,
    encode,
    final_form,
    flatten,
    unflatten,
)
from segtailor.spaces.decoder_cell.architecture import AUXILIARIES, OPERATIONS
from segtailor.testing import check_architecture, check_space
from tests.support import FIXTURES, deterministic, deterministic_state, fixture, noise

GOLDEN = json.loads((FIXTURES.parent / "golden" / "auxcells.json").read_text())
NAMES = ("auxcells-arch0", "auxcells-arch1", "auxcells-arch2")
PAPER = {  # Figures 10 to 12
    NAMES[0]: [[[3, 3], [3, 2], [3, 0]], [8, [0, 0, 5, 2], [0, 2, 8, 8], [0, 5, 1, 4]]],
    NAMES[1]: [[[2, 3], [3, 1], [4, 4]], [2, [1, 0, 3, 6], [0, 1, 2, 8], [2, 0, 6, 1]]],
    NAMES[2]: [[[1, 3], [4, 3], [2, 2]], [5, [0, 0, 4, 1], [3, 2, 0, 1], [5, 6, 5, 0]]],
}
TINY = DecoderCell(channels=8, repeats=1)


def identify(row: dict[str, Any]) -> str:
    return "-".join([row["architecture"], *map(str, row["frame"].values()), str(row["classes"])])


@pytest.mark.parametrize("row", GOLDEN["counts"], ids=identify)
def test_counts_are_exact(row: dict[str, Any]) -> None:
    arch = replace(networks.published(row["architecture"]), **row["frame"])
    count = segtailor.count(arch, image=tuple(GOLDEN["image"]), classes=row["classes"])
    assert count.params == row["params"]
    assert count.macs == row.get("macs", count.macs)
    assert count.train_params - count.params == row.get("aux_params", count.train_params - count.params)


@pytest.mark.parametrize("encoder", GOLDEN["encoders"])
def test_encoder_counts_are_exact(encoder: str) -> None:
    plan = networks.expand(replace(networks.published(NAMES[0]), encoder=encoder), image=(512, 512))
    calls = [plan.call(node.name) for node in plan.nodes if node.name.startswith("encoder_")]
    assert sum(call.params() for call in calls) == GOLDEN["encoders"][encoder]["params"]
    assert sum(call.macs() for call in calls) == GOLDEN["encoders"][encoder]["macs"]


@pytest.mark.parametrize("name", NAMES)
def test_resolutions_and_unused_adaptations_are_the_published_ones(name: str) -> None:
    plan = networks.expand(name, image=(512, 512), classes=21)
    assert [plan.shape(f"block{block}_sum").height for block in range(3)] == GOLDEN["blocks"][name]
    assert plan.shape("head") == (21, GOLDEN["output_side"][name], GOLDEN["output_side"][name])
    assert {node: plan.call(node).macs() for node in plan.dormant} == GOLDEN["dormant_macs"][name]
    assert not plan.align_corners


@pytest.mark.parametrize("name", NAMES)
def test_paper_forms_decode_and_encode(name: str) -> None:
    arch = networks.published(name)
    connections, cell = PAPER[name]
    assert decode([connections, cell]) == decode([cell, connections]) == arch
    assert encode(arch) == [connections, cell]
    assert encode(arch, order="cell_first") == [cell, connections]
    flat = flatten(arch)
    assert len(flat) == 20
    assert flat[:6] == [0, cell[0], *cell[1]]
    assert flat[14:] == [index for pair in connections for index in pair]
    assert unflatten(flat) == arch


def test_collected_entries_are_the_published_ones() -> None:
    archs = [networks.published(name) for name in NAMES]
    assert [arch.cell.collected for arch in archs] == [(1, 4, 7, 10), (4, 7, 10), (1, 4, 7, 10)]
    assert [arch.collected for arch in archs] == [(0, 1, 2), (1, 2), (1, 2)]


def test_decisions_come_in_the_order_and_number_of_the_controller() -> None:
    sizes = [len(decision.options) for decision in DecoderCell().decisions]
    assert sizes == [4, 4, 5, 5, 6, 6, 11, 2, 2, 11, 11, 5, 5, 11, 11, 8, 8, 11, 11]


def test_final_logits_and_encoder_features_equal_the_reference() -> None:
    facts, expected = fixture("aux_arch0_parity")
    network = segtailor.create("auxcells-arch0", classes=21)
    segtailor.load_published(network, deterministic_state(facts["state"]))
    taps = {f"tap{i}": node for i, node in enumerate(_tap_nodes(network.plan))}
    plan = network.plan.with_nodes(network.plan.nodes, outputs={**network.plan.outputs, **taps})
    probed = Network(plan).eval()
    probed.load_state_dict(network.state_dict())
    with torch.no_grad():
        image = noise(1, 3, 256, 256)
        logits, outputs = network(image), probed.forward_all(image)
    assert len(facts["state"]) == 824
    assert np.abs(logits.numpy() - expected["logits"]).max() < 1e-5 * facts["logits_absmax"]
    for i, check in enumerate(facts["encoder_feature_checks"]):
        tap = outputs[f"tap{i}"]
        assert list(tap.shape) == check["shape"]
        assert (tap.mean().item(), tap.std().item()) == pytest.approx((check["mean"], check["std"]), abs=1e-3)
        assert tap.flatten()[:5].tolist() == pytest.approx(check["first5"], abs=1e-3)


def test_search_logits_and_losses_equal_the_reference() -> None:
    facts, expected = fixture("aux_arch0_search_parity")
    arch = decode(facts["genotype_paper_form"], channels=48, repeats=1)
    network = segtailor.create(arch, classes=21, outputs="all")
    segtailor.load_published(network, deterministic_state(facts["state"]))
    with torch.no_grad():
        outputs = network.forward_all(noise(1, 3, 256, 256))
    assert set(outputs) == {"main", "aux0", "aux1", "aux2"}
    for name, logits in outputs.items():
        wanted = expected[name]
        assert np.abs(logits.numpy() - wanted).max() < 1e-5 * np.abs(wanted).max()
    check = facts["loss_check"]
    target = np.random.default_rng(1).integers(0, 22, (1, 64, 64))
    labels = torch.from_numpy(np.where(target == 21, 255, target))
    teacher = torch.from_numpy(np.random.default_rng(2).standard_normal((1, 21, 64, 64)).astype(np.float32))
    full = {
        name: functional.interpolate(out, size=(64, 64), mode="bilinear") for name, out in outputs.items()
    }
    losses = {
        name: functional.cross_entropy(out, labels, ignore_index=255).item() for name, out in full.items()
    }
    distillation = functional.mse_loss(full["main"], teacher).item()
    auxiliary = [losses[f"aux{i}"] for i in range(3)]
    assert losses["main"] == pytest.approx(check["ce_main"], rel=1e-5)
    assert distillation == pytest.approx(check["kd_mse"], rel=1e-5)
    assert auxiliary == pytest.approx(check["ce_aux"], rel=1e-5)
    total = losses["main"] + 0.3 * distillation + 0.15 * sum(auxiliary)
    assert total == pytest.approx(check["total = ce_main + 0.3*kd + 0.15*sum(ce_aux)"], rel=1e-5)


def _tap_nodes(plan: Any) -> list[str]:
    return [plan.by_name[f"adapt{i}"].inputs[0] for i in range(4)]


@pytest.mark.parametrize("name", NAMES)
def test_every_published_network_loads_with_and_without_the_auxiliary_part(name: str) -> None:
    full, main = (segtailor.create(name, classes=21, outputs=outputs) for outputs in ("all", "main"))
    names, own = DecoderCell.published_names(full, full.architecture).names, full.state_dict()
    state = {goal: deterministic(goal, tuple(own[key].shape)) for key, (goal,) in names.items()}
    assert len(state) == len(own)
    image = noise(1, 3, 64, 64)
    segtailor.load_published(full, state)
    with torch.no_grad():
        wanted = full.forward_all(image)["main"]
    bare = {key: value for key, value in state.items() if "aux_clfs" not in key}
    assert len(bare) == len(main.state_dict()) < len(state)
    for given in (state, bare):
        initialise(main, seed=1)
        segtailor.load_published(main, given)
        with torch.no_grad():
            assert main(image).equal(wanted)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda state: state.pop("decoder.cells.1.agg.branch_2.0.weight"), "missing key 'decoder.cells.1.agg.branch"),
        (lambda state: state.pop("decoder.adapt2.0.weight"), "missing key 'decoder.adapt2.0.weight'"),
        (lambda state: state.update({"decoder.cells.0.op_3.x": torch.zeros(1)}), "unknown key 'decoder.cells.0.op_3"),
        (lambda state: state.update({"decoder.aux_clfs.3.aux_clf.bias": torch.zeros(1)}), "unknown key 'decoder.aux"),
        (lambda state: state.update({"decoder.conv_clf.bias": torch.zeros(19)}), "'decoder.conv_clf.bias' has shape"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_does_not_fit_is_refused_by_key(damage: Any, says: str) -> None:
    facts, _ = fixture("aux_arch0_parity")
    state = {key: torch.zeros(shape) for key, shape in facts["state"]}
    network = segtailor.create("auxcells-arch0", classes=21)
    damage(state)
    with pytest.raises(WeightsProblem, match=says.replace(".", r"\.")):
        segtailor.load_published(network, state)


def test_auxiliary_keys_are_not_dropped_where_the_network_has_that_output() -> None:
    network = segtailor.create("auxcells-arch0", classes=21, outputs="all")
    facts, _ = fixture("aux_arch0_parity")
    with pytest.raises(WeightsProblem, match=r"missing key 'decoder\.aux_clfs\.0"):
        segtailor.load_published(network, {key: torch.zeros(shape) for key, shape in facts["state"]})


def test_random_architectures_keep_every_invariant() -> None:
    check_space(TINY, draws=200, image=Shape(3, 96, 128))


@pytest.mark.parametrize("encoder", ["resnet50", "efficientnet_lite0"])
def test_random_architectures_on_other_encoders_keep_every_invariant(encoder: str) -> None:
    check_space(replace(TINY, encoder=encoder), draws=20, image=Shape(3, 65, 97))


@pytest.mark.parametrize("seed", range(8))
def test_random_architectures_count_and_run_as_built(seed: int) -> None:
    check_architecture(TINY, sample(TINY, Random(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_two_hundred_random_architectures_count_and_run_as_built(seed: int) -> None:
    space = replace(TINY, repeats=1 + seed % 2, auxiliary=AUXILIARIES[seed % 3])
    check_architecture(space, sample(space, Random(1000 + seed)))


@pytest.mark.parametrize("encoder", ["resnet50", "efficientnet_lite0"])
def test_other_encoders_count_and_run_as_built(encoder: str) -> None:
    check_architecture(TINY, replace(sample(TINY, Random(3)), encoder=encoder), sizes=((64, 64), (67, 65)))


@pytest.mark.parametrize("operation", range(len(OPERATIONS)))
def test_every_operation_alone_counts_and_runs_as_built(operation: int) -> None:
    row = [0, 0, operation, operation]
    arch = decode([[[3, 3], [4, 4], [5, 2]], [operation, row, row, row]], channels=4, auxiliary="none")
    check_architecture(TINY, arch, sizes=((64, 65),))


@pytest.mark.parametrize("auxiliary", AUXILIARIES)
def test_auxiliary_variants_have_their_outputs(auxiliary: str) -> None:
    arch = replace(sample(TINY, Random(1)), auxiliary=auxiliary)
    outputs = segtailor.create(arch, classes=3, outputs="all").forward_all(torch.zeros(1, 3, 64, 64))
    assert set(outputs) == ({"main"} if auxiliary == "none" else {"main", "aux0", "aux1", "aux2"})
    if auxiliary == "plain":
        plan = networks.expand(arch, image=(64, 64), classes=3)
        assert plan.train_params() - plan.select().params() == 3 * (9 * 8 * 3 + 3)


def test_auxiliary_outputs_train_and_unused_adaptations_stay_frozen() -> None:
    arch = decode(PAPER[NAMES[0]], channels=8, repeats=1)
    network = segtailor.create(arch, classes=3, outputs="all").train()
    sum(out.mean() for out in network.forward_all(torch.randn(2, 3, 64, 64)).values()).backward()
    without = {name for name, parameter in network.named_parameters() if parameter.grad is None}
    assert without == {f"nodes.adapt1.{part}" for part in ("conv1.weight", "norm1.weight", "norm1.bias")}


@pytest.mark.parametrize(
    ("size", "logits"), [((375, 500), (94, 125)), ((65, 97), (17, 25)), ((64, 64), (16, 16))]
)
def test_odd_sizes_round_up(size: tuple[int, int], logits: tuple[int, int]) -> None:
    assert networks.expand("auxcells-arch0", image=size).shape("head")[1:] == logits


def test_search_form_and_final_form_differ_in_the_frame_alone() -> None:
    found = SEARCH_FORM.architecture(SEARCH_FORM.picks(decode(PAPER[NAMES[1]], channels=48, repeats=1)))
    assert (found.channels, found.repeats, found.auxiliary) == (48, 1, "cell")
    assert final_form(found) == networks.published(NAMES[1])


def test_a_space_refuses_an_architecture_of_another_frame() -> None:
    with pytest.raises(InvalidArchitecture, match="channels: 64; this space has 48"):
        SEARCH_FORM.picks(networks.published(NAMES[0]))


def _document() -> dict[str, Any]:
    document: dict[str, Any] = architecture_document(networks.published(NAMES[0]))
    return json.loads(json.dumps(document))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("connections", 0, 1), 4, r"connections\[0\]\[1\]: reads entry 4.*0 to 3"),
        (("connections", 2, 0), 6, r"connections\[2\]\[0\]: reads entry 6.*0 to 5"),
        (("connections", 1, 0), -1, r"connections\[1\]\[0\]: reads entry -1.*0 to 4"),
        (("connections",), [[0, 0]], "connections"),
        (("cell", "branches", 0, "inputs", 0), 2, r"cell.branches\[0\].inputs\[0\]: reads entry 2.*0 to 1"),
        (("cell", "branches", 2, "inputs", 1), 8, r"cell.branches\[2\].inputs\[1\]: reads entry 8.*0 to 7"),
        (("cell", "branches", 1, "operations", 0), "conv7x7", "cell.branches.1.operations.0.*'conv1x1'"),
        (("cell", "first"), "swish", "cell.first"),
        (("cell", "last"), "zero", "cell.last"),
        (("encoder",), "mobilenet_v3", "encoder: 'mobilenet_v3'; allowed: mobilenet_v2.*Did you mean"),
        (("encoder",), "timm:hf_hub:someone/model", "encoder"),
        (("channels",), 0, "channels: 0; allowed: 1 to"),
        (("repeats",), 99, "repeats: 99; allowed: 1 to"),
        (("repeats",), "two", "repeats"),
        (("auxiliary",), "both", "auxiliary"),
        (("width",), 8, "width"),
    ],
)
def test_a_wrong_field_is_named(path: tuple[Any, ...], value: object, says: str) -> None:
    document = _document()
    place = document["architecture"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(InvalidArchitecture, match=says):
        parse_architecture(document)


@pytest.mark.parametrize(
    ("sequence", "says"),
    [
        ([[[3, 3], [3, 2], [3, 0]]], "sequence"),
        ([[[3, 3], [3, 2]], [8, [0, 0, 5, 2], [0, 2, 8, 8], [0, 5, 1, 4]]], "connections.*3 entries"),
        ([[[3, 3], [3, 2], [3, 0]], [11, [0, 0, 5, 2], [0, 2, 8, 8], [0, 5, 1, 4]]], r"cell\[0\]: operation 11"),
        ([[[3, 3], [3, 2], [3, 0]], [8, [0, 0, 5, 12], [0, 2, 8, 8], [0, 5, 1, 4]]], r"cell\[1\]\[3\]: operation 12"),
        ([[[3, 3], [3, 2], [3, 0]], [8, [0, 0, 5, 2], [0, 5, 8, 8], [0, 5, 1, 4]]], r"branches\[1\].inputs\[1\].*to 4"),
        ([[[3, 3], [3, "a"], [3, 0]], [8, [0, 0, 5, 2], [0, 2, 8, 8], [0, 5, 1, 4]]], "connections.*integers"),
    ],
)  # fmt: skip
def test_a_wrong_sequence_is_explained(sequence: list[Any], says: str) -> None:
    with pytest.raises(InvalidArchitecture, match=says):
        decode(sequence)


def test_a_flat_form_of_another_length_or_start_is_refused() -> None:
    flat = flatten(networks.published(NAMES[0]))
    with pytest.raises(InvalidArchitecture, match=r"actions.*20"):
        unflatten(flat[:-1])
    with pytest.raises(InvalidArchitecture, match=r"actions\[0\]: 1"):
        unflatten([1, *flat[1:]])


def test_a_newer_or_truncated_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArchitecture, match="format is 2"):
        parse_architecture({**_document(), "format": 2})
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(_document())[:-40])
    with pytest.raises(InvalidArchitecture, match="truncated"):
        read_architecture(broken)
