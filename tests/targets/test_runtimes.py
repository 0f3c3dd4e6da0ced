"""Runtimes compute what PyTorch computes, and say clearly what they cannot do."""

import numpy as np
import pytest
import torch
from torch import nn

import segtailor
from segtailor.core.errors import UserError
from segtailor.core.plan import Shape
from segtailor.core.target import parse_target
from segtailor.deploy.fold import inference_form
from segtailor.deploy.stages import staged
from segtailor.ops import Resize
from segtailor.targets import RUNTIMES, compile_network, describe_runtimes, describe_targets, runtime_for
from segtailor.targets.runtime import example_inputs
from segtailor.testing import check_runtime

CPU = [
    "cpu/eager/fp32",
    "cpu/eager/fp32?channels_last=0",
    "cpu/eager/bf16",
    "cpu/onnxruntime/fp32",
    "cpu/openvino/fp32",
    pytest.param("cpu/onnxruntime/int8", marks=pytest.mark.slow),
    pytest.param("cpu/openvino/int8", marks=pytest.mark.slow),
]
CUDA = ["cuda/eager/fp32", "cuda/eager/fp16", "cuda/graph/fp16", "cuda/graph/bf16", "cuda/graph/fp32"]
IMAGE = (Shape(3, 32, 64),)


def usable(text: str) -> str:
    """Skip a target whose package is not installed here."""
    target = parse_target(text)
    reason = RUNTIMES.get(target.runtime)().available(target)
    if reason is not None:
        pytest.skip(reason)
    return text


class Weighted(nn.Module):
    """A stand-in for an operator of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, padding=1)

    def forward(self, image: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.conv(image) * other


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return inference_form(segtailor.create("lpsnet-step0", classes=4))


@pytest.mark.parametrize("text", CPU)
def test_a_runtime_gives_the_outputs_of_torch(text: str, network: nn.Module) -> None:
    check_runtime(network, parse_target(usable(text) + ("&" if "?" in text else "?") + "threads=1"), IMAGE)


@pytest.mark.parametrize("text", CPU)
def test_a_runtime_takes_operators_with_several_inputs(text: str) -> None:
    check_runtime(Weighted(), parse_target(usable(text)), (Shape(4, 8, 12), Shape(6, 8, 12)))


@pytest.mark.slow
@pytest.mark.parametrize("text", ["cpu/compiled/fp32"])
def test_compiled_networks_give_the_outputs_of_torch(text: str, network: nn.Module) -> None:
    check_runtime(network, parse_target(usable(text)), IMAGE)
    check_runtime(Weighted(), parse_target(text), (Shape(4, 8, 12), Shape(6, 8, 12)))


@pytest.mark.device
@pytest.mark.parametrize("text", [*CUDA, "cuda/compiled/fp16", "cuda/onnxruntime/fp16", "cuda/tensorrt/fp16"])
def test_a_gpu_gives_the_outputs_of_torch(text: str, network: nn.Module) -> None:
    check_runtime(network, parse_target(usable(text)), IMAGE)
    check_runtime(Weighted(), parse_target(text), (Shape(4, 8, 12), Shape(6, 8, 12)))


@pytest.mark.device
@pytest.mark.parametrize("text", ["cuda/eager/fp16", "cuda/graph/fp16"])
def test_pixels_on_the_host_become_labels_on_the_host_through_a_gpu(text: str, network: nn.Module) -> None:
    module = staged(network, "end-to-end")
    (pixels,) = example_inputs(IMAGE, pixels=True)
    compiled = compile_network(module, parse_target(usable(text)), IMAGE, pixels=True)
    with torch.no_grad():
        wanted = module(torch.from_numpy(pixels)).numpy()
    assert (compiled.outputs(pixels) == wanted).mean() > 0.95  # half precision may turn near ties
    compiled.close()


@pytest.mark.parametrize("text", ["cpu/eager/fp32", "cpu/onnxruntime/fp32", "cpu/openvino/fp32"])
def test_pixels_become_labels(text: str, network: nn.Module) -> None:
    module = staged(network, "end-to-end")
    (pixels,) = example_inputs(IMAGE, pixels=True)
    compiled = compile_network(module, parse_target(usable(text)), IMAGE, pixels=True)
    with torch.no_grad():
        wanted = module(torch.from_numpy(pixels)).numpy()
    found = compiled.outputs(pixels)
    assert found.dtype == np.uint8
    assert (found == wanted).mean() > 0.999


def test_an_input_of_which_only_the_size_matters_is_accepted() -> None:
    from segtailor.core.plan import OpCall

    call = OpCall(op=Resize(), inputs=(Shape(4, 3, 4), Shape(8, 6, 8)), channels=4)
    compiled = compile_network(
        call.op.module(call), parse_target(usable("cpu/onnxruntime/fp32?threads=1")), call.inputs
    )
    compiled.run()
    assert compiled.outputs(*example_inputs(call.inputs)).shape == (1, 4, 6, 8)


def test_compiling_leaves_the_network_as_it_was(network: nn.Module) -> None:
    before = {name: value.clone() for name, value in network.state_dict().items()}
    compile_network(network, parse_target("cpu/eager/bf16"), IMAGE).close()
    after = network.state_dict()
    assert all(
        value.dtype == after[name].dtype and torch.equal(value, after[name]) for name, value in before.items()
    )


def test_the_number_of_threads_holds_while_timing_and_is_put_back(network: nn.Module) -> None:
    compiled = compile_network(network, parse_target("cpu/eager/fp32?threads=2"), IMAGE)
    before = torch.get_num_threads()
    with compiled.prepared():
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before
    assert compiled.threads == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cpu/egaer/fp32", "did you mean 'eager'"),
        ("gpu/eager/fp32", "no device is called 'gpu'"),
        ("cpu/graph/fp16", "runs on cuda, not on cpu"),
        ("cpu/eager/int8", "runtime with int8: onnxruntime, openvino"),
        ("cuda/graph/int8", "not in int8"),
        ("cpu/onnxruntime/fp16", "fp32 or int8 on the CPU"),
        ("cpu/onnxruntime/bf16", "computes in fp32, fp16, int8, not in bf16"),
        ("cpu/eager/fp32?thread=2", "did you mean 'threads'"),
        ("cpu/eager/fp32?channels_last=yes", "neither 0 nor 1"),
        ("cpu/onnxruntime/fp32?provider=cuda", "does not run on cpu"),
        ("cuda:x/eager/fp32", "cuda:0"),
    ],
)
def test_a_wrong_target_says_what_to_do(text: str, says: str, network: nn.Module) -> None:
    with pytest.raises(UserError, match=says):
        compile_network(network, parse_target(text), IMAGE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize(
    "text", ["cuda/eager/fp32", "cuda/graph/fp16", "cuda/compiled/fp16", "cuda/tensorrt/fp16"]
)
def test_a_gpu_target_without_a_gpu_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="no CUDA device"):
        runtime_for(parse_target(text))


@pytest.mark.parametrize("shape", [Shape(3, 100_000, 100_000), Shape(3, 0, 8), Shape(-3, 8, 8)])
def test_absurd_sizes_are_refused_before_anything_is_allocated(shape: Shape) -> None:
    with pytest.raises(UserError, match="out of range"):
        compile_network(nn.Identity(), parse_target("cpu/eager/fp32"), (shape,))


def test_every_runtime_is_described() -> None:
    rows = dict(describe_runtimes())
    assert tuple(rows) == RUNTIMES.names()
    assert rows["eager"] == "available on cpu"
    assert "experimental" in rows["tensorrt"]
    assert "cpu/onnxruntime/fp32" in dict(describe_targets())
