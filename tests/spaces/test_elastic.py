"""The family `elastic`: invariants of the space, and that its networks are parts of the encoder."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import MAIN, Shape
from segtailor.core.space import architecture_document, parse_architecture
from segtailor.core.task import Preprocessing
from segtailor.core.variation import sample
from segtailor.nets.network import build, initialise
from segtailor.nets.starts.remap import carry_weights
from segtailor.spaces.elastic import Elastic, ElasticArchitecture
from segtailor.spaces.starts import IMAGENET, open_source
from segtailor.testing import check_space

SPACE = Elastic()
WHOLE = ElasticArchitecture(
    scale="1", depths=(2, 2, 3, 3, 4), expansions=(6, 6, 6, 6, 6), decoder=64, detail=8
)


def test_the_space_keeps_the_invariants() -> None:
    check_space(SPACE, draws=20, image=Shape(3, 64, 128))


def test_a_stage_without_blocks_is_written_in_one_way() -> None:
    rng = Random(0)
    for arch in (sample(SPACE, rng) for _ in range(50)):
        assert SPACE.architecture(SPACE.picks(arch)) == arch
    with pytest.raises(InvalidArchitecture, match="without blocks"):
        ElasticArchitecture(scale="1", depths=(1, 1, 1, 1, 0), expansions=(3,) * 5, decoder=32, detail=8)


@pytest.mark.parametrize("scale", ["3", "9/4", "0/1", "1/0", "2/4", "x", "", "1/2/3", 1, None])
def test_a_scale_that_is_none_is_refused(scale: object) -> None:
    with pytest.raises(InvalidArchitecture, match="scale"):
        ElasticArchitecture(
            scale=scale,
            depths=WHOLE.depths,
            expansions=WHOLE.expansions,
            decoder=32,
            detail=8,  # type: ignore[arg-type]
        )


def test_the_whole_encoder_computes_what_its_weights_computed_on_imagenet() -> None:
    donor = open_source(IMAGENET).donor
    network = build(WHOLE, 3, outputs=(MAIN,))
    initialise(network, 0)
    carry_weights(donor, network, preprocessing=donor.preprocessing)
    image = torch.randn(1, 3, 64, 96)
    maps: dict[str, torch.Tensor] = {}
    ends = (("donor", donor.network, "encoder_block14"), ("ours", network.eval(), "stage4_block3"))
    for label, module, node in ends:
        module.nodes[node].register_forward_hook(lambda _, __, out, label=label: maps.update({label: out}))
        with torch.no_grad():
            module(image)
    assert torch.allclose(maps["donor"], maps["ours"], atol=1e-4)


def test_random_networks_take_nearly_all_their_encoder_over() -> None:
    donor, rng = open_source(IMAGENET).donor, Random(1)
    for _ in range(10):
        arch = sample(SPACE, rng)
        network = build(arch, 3, outputs=(MAIN,))
        initialise(network, 0)
        carried = carry_weights(donor, network, preprocessing=Preprocessing())
        fresh = {line.split(":")[0] for line in carried.lines if line.endswith("fresh")}
        assert not [name for name in fresh if name.startswith("stage") or name == "stem"]
        assert all("carried whole" in line for line in carried.lines if line.startswith(("stage", "stem")))
        plan = SPACE.plan(arch, Shape(3, 64, 128), 3)
        assert plan.macs() > 0


@pytest.mark.parametrize(("deepest", "step"), [(16, 2), (8, 4)])
def test_a_finer_deepest_map_holds_the_coarse_one(deepest: int, step: int) -> None:
    coarse = build(WHOLE, 3, outputs=(MAIN,))
    initialise(coarse, 0)
    fine = build(replace(WHOLE, deepest=deepest), 3, outputs=(MAIN,))
    fine.load_state_dict(coarse.state_dict())
    image = torch.randn(1, 3, 64, 128)
    maps = []
    for network in (coarse.eval(), fine.eval()):
        network.nodes["stage4_block3"].register_forward_hook(lambda _, __, out: maps.append(out))
        with torch.no_grad():
            assert network(image).shape == (1, 3, 8, 16)
    assert maps[1].shape[-2:] == (64 // deepest, 128 // deepest)
    assert torch.allclose(maps[1][..., step - 1 :: step, step - 1 :: step], maps[0], atol=1e-5)


def test_documents_from_before_the_deepest_stride_are_read() -> None:
    document = architecture_document(WHOLE)
    assert isinstance(document["architecture"], dict)
    del document["architecture"]["deepest"]
    assert parse_architecture(document) == WHOLE
