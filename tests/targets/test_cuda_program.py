"""The fast form of a network for CUDA graphs: fused, kernels chosen, branches on lanes; the function stays the same."""

import pytest
import torch
from torch import Tensor, fx, nn

import segtailor
from segtailor.core.plan import Shape
from segtailor.core.target import parse_target
from segtailor.deploy.fold import inference_form
from segtailor.targets.cuda import kernels
from segtailor.targets.cuda.fuse import FusedConvolution, FusedResize, fuse
from segtailor.targets.cuda.kernels import fastest
from segtailor.targets.cuda.program import Program, compile_program, schedule, trace
from segtailor.testing import check_runtime

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
ONE_OF_EACH = ["fasterseg-student", "autortnet-a", "squeezenas-lat-small", "lpsnet-s"]


class Branches(nn.Module):
    """Two branches that meet: every pattern that is fused, and a sum that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.left = nn.Conv2d(8, 8, 3, 1, 1)
        self.right = nn.Conv2d(8, 8, 1)
        self.deep = nn.Conv2d(8, 8, 3, 1, 1, groups=8)

    def forward(self, image: Tensor) -> Tensor:
        stem = self.stem(image).relu()
        left = (self.left(stem) + stem).relu()
        right = self.deep(self.right(stem).relu())
        small = nn.functional.interpolate(right, size=(3, 5), mode="bilinear", align_corners=True)
        large = nn.functional.interpolate(small, size=right.shape[2:], mode="bilinear", align_corners=False)
        return (large + left).relu() + left.mean()


def fused_ops(module: nn.Module, image: Tensor) -> list[object]:
    return [node.target for node in fuse(trace(module, (image,))).graph.nodes if node.op == "call_function"]


def test_bias_sum_and_relu_become_part_of_the_convolution_or_resize() -> None:
    ops = fused_ops(Branches().eval(), torch.randn(1, 3, 16, 24))
    convolutions = [op for op in ops if isinstance(op, FusedConvolution)]
    assert [(op.relu, op.adds) for op in convolutions] == [
        (True, False),
        (True, True),
        (True, False),
        (False, False),
    ]
    assert [(op.relu, op.adds) for op in ops if isinstance(op, FusedResize)] == [(False, False), (True, True)]


def test_a_fused_node_that_fails_shows_its_own_error() -> None:
    graph = fuse(trace(Branches().eval(), (torch.randn(1, 3, 16, 24),)))
    with pytest.raises(RuntimeError, match="channels"):
        fx.Interpreter(graph).run(torch.randn(1, 5, 16, 24))


def test_a_value_with_two_readers_is_not_swallowed() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, image: Tensor) -> Tensor:
            out = self.conv(image)
            return out.relu() + out

    module, image = Twice().eval(), torch.randn(1, 3, 9, 9)
    (conv,) = (op for op in fused_ops(module, image) if isinstance(op, FusedConvolution))
    assert not conv.relu
    assert torch.equal(compile_program(module, (image,))(image), module(image))


def test_a_sum_with_a_broadcast_value_is_left_alone() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.shift = nn.Parameter(torch.randn(1, 4, 1, 1))

        def forward(self, image: Tensor) -> Tensor:
            return (self.conv(image) + self.shift).relu()

    module, image = Shifted().eval(), torch.randn(1, 3, 9, 9)
    (conv,) = (op for op in fused_ops(module, image) if isinstance(op, FusedConvolution))
    assert not conv.adds
    assert torch.allclose(compile_program(module, (image,))(image), module(image))


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_a_schedule_waits_for_every_value_of_another_lane(lanes: int) -> None:
    graph = fuse(trace(Branches().eval(), (torch.randn(1, 3, 16, 24),)))
    steps = schedule(graph.graph, lanes)
    lane_of = {step.node: step.lane for step in steps}
    assert len(steps) == sum(node.op == "call_function" for node in graph.graph.nodes)
    assert len(set(lane_of.values())) == min(lanes, 3)
    for step in steps:
        made = [node for node in step.node.all_input_nodes if node in lane_of]
        assert set(step.waits) == {node for node in made if lane_of[node] != step.lane}


def test_weights_are_read_when_the_program_runs_not_copied() -> None:
    module, image = Branches().eval(), torch.randn(1, 3, 16, 24)
    fast = Program(fuse(trace(module, (image,))), lanes=2)
    with torch.no_grad():
        module.stem.weight.mul_(2)
    assert torch.allclose(fast(image), module(image), atol=1e-6)


@pytest.mark.parametrize("name", ["lpsnet-step0", pytest.param("auxcells-arch0", marks=pytest.mark.slow)])
def test_a_program_equals_its_network(name: str) -> None:
    network = inference_form(segtailor.create(name, classes=5)).requires_grad_(False)
    image = torch.randn(1, 3, 64, 96)
    assert torch.allclose(compile_program(network, (image,))(image), network(image), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_program_equals_the_networks_of_every_family(name: str) -> None:
    network = inference_form(segtailor.create(name, classes=5)).requires_grad_(False)
    image = torch.randn(1, 3, 64, 128)
    assert torch.allclose(compile_program(network, (image,))(image), network(image), atol=1e-4)


def test_a_kernel_without_rivals_is_not_timed() -> None:
    op = FusedResize(size=(4, 4), align_corners=True)
    assert fastest([op], [torch.randn(1, 3, 2, 2)]) is op


def test_kernels_are_compared_although_the_network_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "milliseconds", lambda kernel, _inputs: float(kernel is not double))

    def twice(image: torch.Tensor) -> torch.Tensor:
        return image + image

    def double(image: torch.Tensor) -> torch.Tensor:
        return 2 * image

    def wrong(image: torch.Tensor) -> torch.Tensor:
        return 3 * image

    assert fastest([twice, wrong, double], [torch.full((1, 2, 3, 3), torch.inf)]) is double


@pytest.mark.device
@NEEDS_GPU
@pytest.mark.parametrize("name", [*ONE_OF_EACH, "auxcells-arch0"])
@pytest.mark.parametrize("tune", ["0", "1"])
def test_recorded_networks_give_the_outputs_of_torch(name: str, tune: str) -> None:
    network = inference_form(segtailor.create(name, classes=5))
    check_runtime(network, parse_target(f"cuda/graph/fp16?tune={tune}"), (Shape(3, 128, 256),))


@pytest.mark.device
@NEEDS_GPU
@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "stride", "dilation", "groups"),
    [
        (3, 8, 3, 2, 1, 1),
        (3, 17, 5, 1, 1, 1),
        (24, 24, 3, 1, 2, 24),
        (40, 40, 5, 2, 1, 40),
        (16, 19, 1, 1, 1, 1),
        (16, 24, 3, 1, 1, 2),
    ],
)
def test_every_kernel_computes_its_operator(
    channels: int, outputs: int, kernel: int, stride: int, dilation: int, groups: int
) -> None:
    from segtailor.targets.cuda.kernels import candidates

    padding = dilation * (kernel - 1) // 2
    image, weight, bias = (
        torch.randn(shape, device="cuda").half().to(memory_format=torch.channels_last)
        if len(shape) == 4
        else torch.randn(shape, device="cuda").half()
        for shape in ((2, channels, 21, 34), (outputs, channels // groups, kernel, kernel), (outputs,))
    )
    for relu in (False, True):
        op = FusedConvolution(
            stride=(stride, stride),
            padding=(padding, padding),
            dilation=(dilation, dilation),
            groups=groups,
            relu=relu,
            adds=True,
        )
        plain = FusedConvolution(**{**vars(op), "adds": False})
        other = torch.randn_like(plain(image, weight, bias))
        for case, inputs in ((plain, (image, weight, bias)), (op, (image, weight, bias, other))):
            expected = case(*inputs).float()
            found = list(candidates(case, inputs))
            assert len(found) > 1 or not relu
            for run in found:
                assert (run(*inputs).float() - expected).abs().max() <= 1e-2 * expected.abs().max()
