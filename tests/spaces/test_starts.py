"""Where weights come from: every source, what `auto` takes, and one clear line for what cannot work."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import segtailor
from segtailor.core.errors import UserError
from segtailor.core.plan import MAIN, Shape
from segtailor.core.shipped import shipped
from segtailor.core.task import Preprocessing, Task
from segtailor.nets.bundle import Model, save_bundle
from segtailor.nets.network import Network, build, initialise
from segtailor.nets.starts.remap import carry_weights
from segtailor.runs import Context
from segtailor.spaces import starts as starts_module
from segtailor.spaces.inverted_residual import InvertedResidual
from segtailor.spaces.networks import resolve
from segtailor.spaces.scalable_path import ScalablePath
from segtailor.spaces.starts import (
    AUTO,
    IMAGENET,
    NONE,
    choose_start,
    licence_warning,
    open_source,
    start_facts,
    start_network,
    start_supernet,
    starts,
)
from segtailor.verbs.list import list_
from segtailor.verbs.search import SearchChoices, search_recipe

TASK = Task(classes=("road", "car", "sky"))
PLAIN = Preprocessing()


def fresh(name: str, seed: int = 1) -> Network:
    network = build(resolve(name), TASK.outputs, outputs=(MAIN,))
    initialise(network, seed)
    return network


def bundle(folder: Path, name: str, task: Task = TASK) -> Path:
    network = segtailor.create(name, classes=task.outputs, seed=7)
    save_bundle(folder, Model(network=network, task=task))
    return folder


@pytest.mark.parametrize("name", ["squeezenas-mac-large", "auxcells-arch0", "lr-aspp-mobilenetv3-large"])
def test_auto_takes_imagenet_where_it_fits(name: str) -> None:
    chosen, line = choose_start(AUTO, resolve(name), TASK)
    assert chosen == IMAGENET
    assert "Apache-2.0" in line
    record, carried = start_network(fresh(name), chosen, TASK, preprocessing=PLAIN)
    assert carried is not None
    assert 0.25 < record.carried == carried.share <= 1
    assert record.document()["licence"] == "Apache-2.0"


def test_decoders_take_nothing_from_an_encoder() -> None:
    _, carried = start_network(fresh("auxcells-arch0"), IMAGENET, TASK, preprocessing=PLAIN)
    assert carried is not None
    taken = {line.split(":")[0] for line in carried.lines if not line.endswith("fresh")}
    assert taken
    assert all(name.startswith("encoder") for name in taken)


@pytest.mark.parametrize("name", ["lpsnet-s", "camvid-fast", "fasterseg-student", "autortnet-a"])
def test_auto_takes_nothing_where_imagenet_does_not_fit_and_says_so(name: str) -> None:
    chosen, line = choose_start(AUTO, resolve(name), TASK)
    assert chosen == NONE
    assert "fit" in line


def test_without_the_package_auto_is_random_and_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts_module, "find_spec", lambda _: None)
    chosen, line = choose_start(AUTO, resolve("squeezenas-mac-small"), TASK)
    assert chosen == NONE
    assert "pip install" in line


def test_none_leaves_random_weights_alone() -> None:
    network = fresh("squeezenas-mac-small")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    record, carried = start_network(network, NONE, TASK, preprocessing=PLAIN)
    assert carried is None
    assert record.carried == 0
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_bundle_and_a_run_directory_give_all_their_weights(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "run" / "weights", "lpsnet-step0")
    for place in (folder, folder.parent, folder / "model.safetensors"):
        network = fresh("lpsnet-step0")
        record, _ = start_network(network, str(place), TASK, preprocessing=PLAIN)
        assert record.carried == 1
        given = segtailor.load(folder).network.state_dict()
        assert all(torch.equal(value, given[name]) for name, value in network.state_dict().items())


def test_a_tailoring_gives_the_network_that_it_recommends(tmp_path: Path) -> None:
    inside = bundle(tmp_path / "run" / "stages" / "train" / "weights", "lpsnet-step0")
    outside = bundle(tmp_path / "other", "lpsnet-step0")
    (tmp_path / "run" / "result.json").write_text(json.dumps({"model": str(inside)}))
    record, _ = start_network(fresh("lpsnet-step0"), str(tmp_path / "run"), TASK, preprocessing=PLAIN)
    assert record.carried == 1
    (tmp_path / "run" / "result.json").write_text(json.dumps({"model": str(outside)}))
    with pytest.raises(UserError, match="holds no trained network"):
        open_source(str(tmp_path / "run"))


def test_shipped_weights_start_relatives_and_their_licence_is_told() -> None:
    name = shipped()[0]
    network = fresh("camvid-fast")
    record, _ = start_network(network, name, TASK, preprocessing=PLAIN)
    assert record.carried > 0.5
    assert "commercial" in str(licence_warning(start_facts(name)))
    assert licence_warning(start_facts(IMAGENET)) is None


def test_a_published_checkpoint_starts_its_network(tmp_path: Path) -> None:
    published = segtailor.create("lpsnet-s", classes=19, seed=3)
    names = ScalablePath().published_names(published, published.architecture)
    state = {
        theirs[-1]: published.state_dict()[ours].clone() for ours, theirs in names.names.items() if theirs
    }
    torch.save(state, tmp_path / "lps.pth")
    network = fresh("lpsnet-s")
    record, _ = start_network(network, str(tmp_path / "lps.pth"), TASK, preprocessing=PLAIN)
    assert record.carried > 0.99  # road, car and sky are classes of Cityscapes, too
    assert "lpsnet" in record.learnt_from


def test_a_start_that_shares_next_to_nothing_is_refused(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "weights", "lpsnet-step0", Task(classes=("a", "b", "c")))
    with pytest.raises(UserError, match="shares next to nothing"):
        start_network(fresh("squeezenas-mac-large"), str(folder), TASK, preprocessing=PLAIN)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: torch.save({"a.weight": torch.zeros(3)}, path), "fit no published network"),
        (lambda path: path.write_bytes(b"PK\x03\x04 damaged"), "cannot be read"),
        (lambda path: path.mkdir(), "holds no trained network"),
        (lambda _: None, "does not exist"),
    ],
)
def test_what_is_no_start_gets_one_clear_line(tmp_path: Path, make: object, message: str) -> None:
    path = tmp_path / "file.pth"
    make(path)  # type: ignore[operator]
    with pytest.raises(UserError, match=message):
        open_source(str(path))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="imagenet"):
        open_source("imagenett")


def test_list_starts_says_what_is_usable_here(capsys: pytest.CaptureFixture[str]) -> None:
    list_("starts", json=True)
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} >= {"imagenet", *shipped(), "timm:resnet18"}
    for row in rows:
        assert {"name", "families", "licence", "learnt_from", "usable"} <= row.keys()
    assert [row.name for row in starts()] == [row["name"] for row in rows]
    list_("starts")
    assert "Apache-2.0" in capsys.readouterr().out


# timm is replaced by a module that builds torchvision's ResNet-18 with timm's (equal) names, as timm itself needs a
# torchvision that matches torch.


class Basic(nn.Module):
    """A residual block of torchvision and timm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1 or inputs != outputs:
            point = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(point, nn.BatchNorm2d(outputs))

    def forward(self, image: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(image)))))
        return torch.relu(out + (image if self.downsample is None else self.downsample(image)))


class ResNet18(nn.Module):
    """ResNet-18 with the names of torchvision and timm; `forward` gives the last map."""

    pretrained_cfg = {"license": "cc-by-nc-4.0", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = (64, 64, 128, 256, 512)
        for stage in range(1, 5):
            first = Basic(widths[stage - 1], widths[stage], 1 if stage == 1 else 2)
            setattr(self, f"layer{stage}", nn.Sequential(first, Basic(widths[stage], widths[stage], 1)))
        self.fc = nn.Linear(512, 10)

    def forward(self, image: Tensor) -> Tensor:
        out = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(image))), 3, 2, 1)
        for stage in range(1, 5):
            out = getattr(self, f"layer{stage}")(out)
        return out


@pytest.fixture
def fake_timm(monkeypatch: pytest.MonkeyPatch) -> ResNet18:
    torch.manual_seed(0)
    model = ResNet18().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    timm = ModuleType("timm")
    timm.create_model = lambda *_, **__: model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    return model


def test_a_resnet_of_timm_gives_equal_maps(fake_timm: ResNet18) -> None:
    donor = open_source("timm:resnet18").donor
    image = torch.randn(1, 3, 64, 96)
    maps: list[Tensor] = []
    donor.network.nodes["encoder_layer4_1"].register_forward_hook(lambda _, __, out: maps.append(out))
    with torch.no_grad():
        donor.network(image)
        assert torch.allclose(maps[0], fake_timm(image), atol=1e-4)


def test_a_resnet_of_timm_starts_residual_families(fake_timm: ResNet18) -> None:
    assert not fake_timm.training
    for name, least in (("ddrnet-23-slim", 0.3), ("pidnet-s", 0.3), ("camvid-fast", 0.3)):
        record, _ = start_network(fresh(name), "timm:resnet18", TASK, preprocessing=PLAIN)
        assert record.carried > least, name
        assert "commercial" in str(licence_warning(record.document())) or "nc" in record.licence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "last"),
    [
        ("resnet18", "encoder_layer4_1"),
        ("resnet50", "encoder_layer4_2"),
        ("tf_efficientnet_lite0", "encoder_block15"),
    ],
)
def test_an_installed_timm_starts_with_equal_maps(
    monkeypatch: pytest.MonkeyPatch, model: str, last: str
) -> None:
    timm = pytest.importorskip(
        "timm", reason="timm is not installed here, so that its own models are not tried"
    )
    donor = timm.create_model(model, pretrained=False).eval()
    for module in donor.modules():
        if isinstance(module, nn.BatchNorm2d):  # in a new model some are zero, which would hide their blocks
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: donor)
    network, image, maps = open_source(f"timm:{model}").donor.network.eval(), torch.randn(1, 3, 96, 128), []
    network.nodes[last].register_forward_hook(lambda _, __, out: maps.append(out))
    with torch.no_grad():
        network(image)
        if model == "tf_efficientnet_lite0":  # ours ends before its head
            wanted = donor.blocks(donor.bn1(donor.conv_stem(image)))
        else:
            wanted = donor.forward_features(image)
    torch.testing.assert_close(maps[0], wanted, rtol=1e-4, atol=1e-4 * wanted.abs().max().item())


def test_a_timm_beside_a_torchvision_for_another_torch_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm").mkdir()
    problem = "operator torchvision::nms does not exist"
    (tmp_path / "timm" / "__init__.py").write_text(f"raise RuntimeError('{problem}')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(UserError, match=problem):
        open_source("timm:resnet18")
    (row,) = (row for row in starts() if row.name == "timm:resnet18")
    assert not row.usable
    assert "torchvision" in row.remark


def test_weights_are_fetched_only_for_a_trusted_recipe() -> None:
    with pytest.raises(UserError, match="trust"):
        open_source("timm:resnet18", trusted=False)


def test_a_training_records_its_start(tmp_path: Path) -> None:
    data = "synthetic:size=32x64,train=8,val=4,seed=0"
    context = Context(cache=tmp_path / "cache", device="cpu")
    result = segtailor.train(
        "squeezenas-mac-small",
        tmp_path / "run",
        data=data,
        changes=["fit.steps=1", "fit.batch=4"],
        check=False,
        context=context,
    )
    start = result["start"]
    assert isinstance(start, dict)
    assert start["name"] == IMAGENET
    assert 0 < float(str(start["carried"])) < 1
    assert segtailor.load(tmp_path / "run" / "weights").provenance["start"] == start


def test_every_candidate_of_a_supernet_begins_as_the_network_made_of_it_alone() -> None:
    space, source = InvertedResidual(frame="small"), open_source(IMAGENET)
    supernet = space.supernet(Shape(3, 64, 128), TASK.outputs)
    initialise(supernet, 3)
    share = start_supernet(supernet, space=space, source=source, task=TASK, preprocessing=PLAIN)
    assert 0.2 < share < 1
    for option in (0, 5):
        arch = space.architecture({row.name: option for row in space.decisions})
        alone, taken = build(arch, TASK.outputs, outputs=(MAIN,)), build(arch, TASK.outputs, outputs=(MAIN,))
        initialise(alone, 4)
        before = {name: value.clone() for name, value in alone.state_dict().items()}
        carry_weights(source.donor, alone, preprocessing=PLAIN, classes=TASK.classes)
        supernet.transfer(arch, taken)
        kernels = [name for name in before if name.endswith("depth.weight")]
        carried = [name for name in kernels if not torch.equal(before[name], alone.state_dict()[name])]
        assert len(carried) > len(kernels) // 2
        for name in carried:
            assert torch.equal(taken.state_dict()[name], alone.state_dict()[name]), name


def test_a_search_by_gradients_starts_where_blocks_agree_and_says_so_where_not(tmp_path: Path) -> None:
    context, data = (
        Context(cache=tmp_path / "cache", device="cpu"),
        "synthetic:size=32x64,train=8,val=4,seed=0",
    )
    assert search_recipe("squeezenas", data, SearchChoices(), context=context).start == IMAGENET
    assert search_recipe("squeezenas", data, SearchChoices(start="none"), context=context).start == NONE
    assert search_recipe("autortnet", data, SearchChoices(), context=context).start == NONE
    with pytest.raises(UserError, match="cannot begin from weights"):
        search_recipe("fasterseg", data, SearchChoices(start=IMAGENET), context=context)
