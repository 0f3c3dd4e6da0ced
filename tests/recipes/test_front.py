"""Export within a budget: which of the networks that a run kept is chosen, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import segtailor
from segtailor.core.space import fingerprint_of
from segtailor.core.task import Task
from segtailor.nets.bundle import Model, load_bundle, save_bundle
from segtailor.recipes.front import KeptFront, KeptNetwork, kept_front, pick_within, plan_front_export
from segtailor.recipes.timed import TimedNetwork
from segtailor.report.reading import report_of
from segtailor.runs import Layout, read_result
from segtailor.spaces.networks import resolve
from segtailor.spaces.starts import start_network
from segtailor.verbs import export as export_verb
from segtailor.verbs import search as search_verb
from segtailor.verbs.main import run
from segtailor.verbs.output import Printer
from segtailor.verbs.search import search
from tests.schemas import conforming
from tests.strategies.test_one_shot import DATA, around, recipe

TASK = Task(classes=("road", "car", "sky", "tree"))
IMAGE = (32, 64)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("front")
    search(recipe(around(folder), trials=8), folder / "run", context=around(folder))
    return folder / "run"


def write(file: Path, document: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document))


def bundle(folder: Path, network: str, **numbers: float) -> str:
    """Write a bundle with random weights and return the fingerprint of its network."""
    model = Model(network=segtailor.create(network, classes=4, seed=1), task=TASK, numbers=numbers)
    save_bundle(folder, model)
    return fingerprint_of(resolve(network))


def search_run(folder: Path, networks: dict[str, tuple[float, float]], *, target: str | None = None) -> Path:
    """Make a finished search whose front holds networks with quality and cost."""
    cost = {"kind": "macs"} if target is None else {"kind": "measured", "target": target}
    write(folder / "recipe.json", {"kind": "search", "image": list(IMAGE), "data": DATA, "cost": cost})
    write(folder / "result.json", {"unit": "MACs"})
    for network, (judged, price) in networks.items():
        fingerprint = fingerprint_of(resolve(network))
        bundle(folder / "front" / fingerprint, network, judged=judged, cost=price)
    return folder


THREE = {"lpsnet-step0": (0.2, 1.0), "lpsnet-step1": (0.3, 2.0), "lpsnet-step2": (0.4, 4.0)}


def tailor_run(folder: Path) -> Path:
    """Make a finished tailoring that trained two networks."""
    request = {"target": "cpu/eager/fp32?threads=1", "data": DATA}
    write(folder / "recipe.json", {"kind": "tailor", "image": list(IMAGE), "request": request})
    write(folder / "result.json", {"met": True})
    search_run(folder / "stages" / "search", THREE)
    bundle(folder / "stages" / "train" / "weights", "lpsnet-step1")
    bundle(folder / "stages" / "baseline-stdc1-seg" / "weights", "stdc1-seg")
    outside = str(folder.parent / "elsewhere")  # paths in files of a run are not followed
    networks = [
        {"network": "searched", "miou": 0.5, "model": outside},
        {"network": "stdc1-seg", "miou": 0.45, "model": outside},
    ]
    write(folder / "stages" / "recommend.json", {"networks": networks})
    return folder


def timer(times: dict[str, float], log: list[str] | None = None) -> Any:
    """Return a target of known speed: milliseconds by the name of a network."""

    def time(network: KeptNetwork) -> TimedNetwork:
        if log is not None:
            log.append(network.network)
        name = next(name for name in times if fingerprint_of(resolve(name)) == network.fingerprint)
        return TimedNetwork(
            network=network.network, median_ms=0.9 * times[name], p95_ms=times[name], making_seconds=0.0
        )

    return time


def named(front: KeptFront, name: str) -> KeptNetwork:
    return next(row for row in front.networks if row.fingerprint == fingerprint_of(resolve(name)))


MS = {"lpsnet-step0": 1.0, "lpsnet-step1": 2.0, "lpsnet-step2": 4.0, "stdc1-seg": 3.0}


@pytest.mark.parametrize(
    ("budget_ms", "chosen", "timed"),
    [
        (5.0, "lpsnet-step2", 1),  # the best is timed first and is enough
        (2.5, "lpsnet-step1", 2),
        (
            1.2,
            "lpsnet-step0",
            2,
        ),  # the middle one is not timed: the time of the best says that it is too slow
        (0.5, None, 2),  # the best, and the cheapest, whose time might have corrected what is expected
    ],
)
def test_the_best_that_keeps_the_budget_is_chosen_and_hopeless_ones_are_not_timed(
    tmp_path: Path, budget_ms: float, chosen: str | None, timed: int
) -> None:
    front = kept_front(search_run(tmp_path / "run", THREE))
    assert [row.quality for row in front.networks] == [0.4, 0.3, 0.2]
    picked = pick_within(front, budget_ms, time=timer(MS))
    assert picked.chosen == (None if chosen is None else named(front, chosen))
    assert len(picked.timed) == timed
    if chosen is None:
        assert picked.fastest.fingerprint == named(front, "lpsnet-step0").fingerprint


def test_prices_that_are_wrong_are_corrected_by_what_was_timed(tmp_path: Path) -> None:
    front = kept_front(search_run(tmp_path / "run", THREE | {"lpsnet-step1": (0.3, 1.9)}))
    log: list[str] = []
    picked = pick_within(front, 2.2, time=timer(MS | {"lpsnet-step1": 2.1, "lpsnet-step2": 6.0}, log))
    assert picked.chosen == named(front, "lpsnet-step1")  # 2.85 ms by the best one, 1.9 ms by the cheapest
    assert len(log) == 3


def test_a_busy_moment_is_timed_again(tmp_path: Path) -> None:
    front = kept_front(search_run(tmp_path / "run", {"lpsnet-step0": (0.2, 1.0)}))
    rows = iter([9.0, 1.1])

    def time(network: KeptNetwork) -> TimedNetwork:
        return TimedNetwork(
            network=network.network, median_ms=1.0, p95_ms=next(rows), making_seconds=0.0, min_ms=0.9
        )

    assert pick_within(front, 1.5, time=time).chosen == front.networks[0]


def test_a_tailoring_offers_what_it_trained_before_what_its_search_judged(tmp_path: Path) -> None:
    front = kept_front(tailor_run(tmp_path / "run"))
    assert front.target == "cpu/eager/fp32?threads=1"
    assert [(row.network[:8], row.quality, row.evidence) for row in front.networks] == [
        ("searched", 0.5, "trained"),
        ("stdc1-se", 0.45, "trained"),
        (named(front, "lpsnet-step2").network[:8], 0.4, "judged"),
        (named(front, "lpsnet-step0").network[:8], 0.2, "judged"),
    ]  # lpsnet-step1 is listed once
    assert front.networks[0].bundle == tmp_path / "run" / "stages" / "train" / "weights"
    assert front.networks[0].cost == 2.0
    picked = pick_within(front, 1.5, time=timer(MS))
    assert picked.chosen == named(front, "lpsnet-step0")
    assert [row.network for row in picked.timed][:2] == ["searched", "stdc1-seg"]  # ready ones have no price


def test_networks_of_a_run_for_int8_are_timed_as_they_are_exported(tmp_path: Path) -> None:
    folder = search_run(tmp_path / "run", THREE, target="cpu/onnxruntime/int8?threads=1")
    plan = plan_front_export(folder, 8.0)
    assert plan.front.target == "cpu/onnxruntime/fp32?threads=1"


def test_a_tailoring_without_a_front_offers_what_it_trained(tmp_path: Path) -> None:
    folder = tailor_run(tmp_path / "run")
    shutil.rmtree(folder / "stages" / "search")
    assert [row.network for row in kept_front(folder).networks] == ["searched", "stdc1-seg"]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the measurement: a network takes as many milliseconds as it has million parameters."""

    def time(front: KeptFront, network: KeptNetwork) -> TimedNetwork:
        ms = network.size.params / 1e6
        return TimedNetwork(network=network.network, median_ms=ms, p95_ms=1.1 * ms, making_seconds=0.0)

    monkeypatch.setattr(export_verb, "_time", time)


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run(["export", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_chosen_network_is_copied_and_exported_with_its_figures(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], timed: None
) -> None:
    out = tmp_path / "out"
    code, printed, _ = call(capsys, searched, "--budget", "60fps", "--out", out, "--json")
    assert code == 0
    told = conforming("export within", printed)
    best = kept_front(searched).networks[0]
    assert told["met"] is True
    assert told["model"] == str(out)
    assert told["network"] == best.network
    assert (told["quality"], told["evidence"]) == (best.quality, "judged")
    assert told["latency_ms"] <= told["p95_ms"] <= told["budget_ms"]
    assert told["files"] == [str(out / "model.onnx")]
    assert told["label_agreement"] >= 0.999
    assert sorted(path.name for path in out.iterdir()) == [
        "model.json", "model.onnx", "model.safetensors", "verify.json"
    ]  # fmt: skip
    model, before = load_bundle(out), load_bundle(best.bundle)
    assert model.architecture == before.architecture
    assert all(
        torch.equal(one, other)
        for one, other in zip(model.network.parameters(), before.network.parameters(), strict=True)
    )
    assert model.numbers["within_budget"]["p95_ms"] == told["p95_ms"]  # type: ignore[index,call-overload]
    assert model.provenance["image"] == [32, 64]
    assert model.predict(np.zeros((*IMAGE, 3), np.uint8)).shape == IMAGE


@pytest.mark.slow
def test_the_next_command_trains_from_the_copied_weights(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], timed: None
) -> None:
    out = tmp_path / "out"
    _, printed, _ = call(capsys, searched, "--budget", "60fps", "--out", out, "--json")
    words = json.loads(printed)["next"].split()
    assert words[:2] == ["segtailor", "train"]
    assert words[words.index("--start") + 1] == str(out)
    model = load_bundle(out)
    assert resolve(words[2]) == model.architecture
    record, _ = start_network(
        segtailor.create(words[2], classes=model.task.outputs),
        str(out),
        model.task,
        preprocessing=model.preprocessing,
    )
    assert record.carried == 1.0
    assert run([*words[1:], "--dry-run", "--json"]) == 0


def test_where_no_network_keeps_the_budget_nothing_is_written(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], timed: None
) -> None:
    out = tmp_path / "out"
    code, printed, told = call(capsys, searched, "--budget", "0.0001ms", "--out", out, "--json")
    assert code == 1
    document = conforming("export within", printed)
    assert document["met"] is False
    assert document["model"] is None
    assert document["network"] in told
    assert "Nothing was written" in told
    assert list(tmp_path.iterdir()) == []


def test_dry_run_lists_what_would_be_considered(searched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = call(capsys, searched, "--budget", "8ms", "--dry-run", "--json")
    assert code == 0
    document = json.loads(printed)
    front = kept_front(searched)
    assert [row["network"] for row in document["considered"]] == [row.network for row in front.networks]
    assert document["out"] == f"{searched}-8ms"
    assert document["image"] == list(front.image)
    assert not Path(document["out"]).exists()
    code, printed, _ = call(capsys, searched, "--budget", "8ms", "--dry-run")
    assert "would write" in printed


@pytest.mark.slow
def test_a_network_is_really_timed_from_image_to_labels(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_verb, "TIMING_SECONDS", 0.05)
    words = (searched, "--budget", "10s", "--target", "cpu/eager/fp32?threads=1", "--out", tmp_path / "out")
    code, printed, _ = call(capsys, *words, "--image", "64x64", "--json")
    assert code == 0
    told = conforming("export within", printed)
    assert told["includes"] == "network+resize+argmax"
    assert told["target"] == "cpu/eager/fp32?threads=1"
    assert told["image"] == [64, 64]
    assert told["conditions"]["image"] == [64, 64]
    assert told["latency_ms"] > 0


def unfinished(folder: Path) -> Path:
    (folder / "result.json").unlink()
    return folder


def without_front(folder: Path) -> Path:
    shutil.rmtree(folder / "front")
    return folder


def without_weights(folder: Path) -> Path:
    next((folder / "front").glob("*/model.safetensors")).unlink()
    return folder


def small_weights(folder: Path) -> Path:
    next((folder / "front").glob("*/model.safetensors")).write_bytes(b"few")
    return folder


def wrong_name(folder: Path) -> Path:
    next((folder / "front").iterdir()).rename(folder / "front" / "0123456789abcdef")
    return folder


def quality_of_text(folder: Path) -> Path:
    file = next((folder / "front").glob("*/model.json"))
    document = json.loads(file.read_text())
    document["numbers"]["judged"] = "best"
    write(file, document)
    return folder


def cut_description(folder: Path) -> Path:
    file = next((folder / "front").glob("*/model.json"))
    file.write_text(file.read_text()[:50])
    return folder


def too_many(folder: Path) -> Path:
    for number in range(70):
        (folder / "front" / f"{number:016x}").mkdir()
    return folder


def linked(folder: Path, name: str) -> Path:
    """Move a part of the run outside, and put a link in its place."""
    place = folder / name
    outside = folder.parent / "outside"
    shutil.move(place, outside)
    place.symlink_to(outside)
    return folder


FINGERPRINT = fingerprint_of(resolve("lpsnet-step0"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (unfinished, "not finished.*segtailor resume"),
        (without_front, "kept no networks with weights"),
        (without_weights, "damaged: model.safetensors is missing"),
        (small_weights, "damaged: model.safetensors is 3 bytes"),
        (wrong_name, "does not say what the search judged"),
        (quality_of_text, "does not say what the search judged"),
        (cut_description, "not valid JSON"),
        (too_many, "at most 64"),
        (partial(linked, name="recipe.json"), "symbolic link"),
        (partial(linked, name="result.json"), "symbolic link"),
        (partial(linked, name="front"), "symbolic link"),
        (partial(linked, name=f"front/{FINGERPRINT}"), "symbolic link"),
        (partial(linked, name=f"front/{FINGERPRINT}/model.json"), "symbolic link"),
        (partial(linked, name=f"front/{FINGERPRINT}/model.safetensors"), "symbolic link"),
    ],
)
def test_a_run_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, message: str
) -> None:
    folder = change(search_run(tmp_path / "run", {"lpsnet-step0": (0.2, 1.0)}))
    code, out, told = call(capsys, folder, "--budget", "8ms", "--out", tmp_path / "out")
    assert (code, out) == (1, "")
    (line,) = told.strip().splitlines()
    assert line.startswith("error: ")
    assert re.search(message, line)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["stages", "stages/search", "stages/train", "stages/train/weights"])
def test_no_link_in_a_tailoring_is_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = linked(tailor_run(tmp_path / "run"), name)
    code, _, told = call(capsys, folder, "--budget", "8ms", "--dry-run")
    assert code == 1
    assert "symbolic link" in told


@pytest.mark.parametrize("name", ["../../../elsewhere", "/elsewhere", "a/b"])
def test_names_of_networks_lead_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = tailor_run(tmp_path / "run")
    write(folder / "stages" / "recommend.json", {"networks": [{"network": name, "miou": 0.5}]})
    code, _, told = call(capsys, folder, "--budget", "8ms", "--dry-run")
    assert code == 1
    assert "no plain name" in told


def test_damaged_weights_leave_nothing_behind(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(searched, folder)
    for file in (folder / "front").glob("*/model.safetensors"):
        file.write_bytes(bytes(len(file.read_bytes())))
    code, _, told = call(capsys, folder, "--budget", "8ms", "--out", tmp_path / "out")
    assert code == 1
    assert "damaged" in told
    assert not (tmp_path / "out").exists()


def test_a_full_folder_stays_as_it_is(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    code, _, told = call(capsys, searched, "--budget", "8ms", "--out", tmp_path)
    assert code == 1
    assert "give a new folder" in told
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_bundles_runs_and_flags_that_do_not_fit_are_refused(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = kept_front(searched).networks[0].bundle
    for words, message in (
        ((some, "--budget", "8ms"), "no run directory"),
        ((searched,), "is a run directory"),
        ((searched, "--budget", "8ms", "--precision", "int8"), "is for a bundle"),
        ((searched, "--budget", "fast"), "no time or rate|not a time"),
        ((searched, "--budget", "8ms", "--target", "cpu"), "not device/runtime/precision"),
        (
            (searched, "--budget", "8ms", "--target", "cpu/onnxruntime/int8"),
            "Use --target cpu/onnxruntime/fp32",
        ),
    ):
        code, _, told = call(capsys, *words)
        assert code == 1
        assert re.search(message, told), told
    write(tmp_path / "train" / "recipe.json", {"kind": "train"})
    code, _, told = call(capsys, tmp_path / "train", "--budget", "8ms")
    assert code == 1
    assert "keeps no networks" in told


def test_a_file_that_differs_from_its_network_leaves_nothing(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_front_export(searched, 1000.0, out=tmp_path / "out")
    front = replace(plan.front, networks=plan.front.networks[:1])
    monkeypatch.setattr("segtailor.recipes.front.save_bundle", _full_disk)
    with pytest.raises(segtailor.core.errors.RunProblem, match="No space left"):
        replace(plan, front=front).carry_out(
            lambda network: TimedNetwork(
                network=network.network, median_ms=1.0, p95_ms=1.0, making_seconds=0.0
            )
        )
    assert list(tmp_path.iterdir()) == []


def _full_disk(folder: Path, model: Model) -> None:
    raise OSError(28, "No space left on device")


def test_layouts_name_stages(tmp_path: Path) -> None:
    assert Layout(tmp_path).stage("search") == tmp_path / "stages" / "search"


def test_the_page_of_a_search_lists_what_it_kept(searched: Path) -> None:
    budgets = report_of(searched).budgets
    assert budgets is not None
    front = kept_front(searched)
    assert {row.note for row in budgets.offers} == {row.network for row in front.networks}
    assert {row.quality for row in budgets.offers} == {row.quality for row in front.networks}
    best = budgets.best()
    assert best is not None
    assert best.command.split()[2] == str(front.networks[0].bundle)
    assert best.params == front.networks[0].size.params


def test_the_page_of_a_search_without_weights_offers_none(tmp_path: Path) -> None:
    assert report_of(without_front(search_run(tmp_path / "run", THREE))).budgets is None


def test_people_are_told_what_was_chosen_and_how_to_go_on(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], timed: None
) -> None:
    code, printed, _ = call(capsys, searched, "--budget", "60fps", "--out", tmp_path / "out")
    assert code == 0
    best = kept_front(searched).networks[0]
    assert f"chosen: {best.network}, {100 * best.quality:.1f} % mIoU by the weights of the search" in printed
    assert f"wrote {tmp_path / 'out' / 'model.onnx'}" in printed
    assert "it may gain by a short training: segtailor train" in printed


def test_a_search_that_kept_weights_names_the_command(
    searched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result: Any = {**(read_result(searched) or {}), "run": str(searched), "trials": 8}
    search_verb._print(Printer(), result, DATA)
    assert f"segtailor export {searched} --budget 8ms" in capsys.readouterr().out


def test_judged_qualities_count_less_where_training_reached_less_than_was_judged(tmp_path: Path) -> None:
    folder = tailor_run(tmp_path / "run")
    networks = [
        {"network": "searched", "miou": 0.24}
    ]  # judged at 0.3, so the one judged at 0.4 counts as 0.32
    write(folder / "stages" / "recommend.json", {"networks": networks})
    front = kept_front(folder)
    assert [(row.quality, row.rank) for row in front.networks] == [
        (0.4, pytest.approx(0.32)),
        (0.24, 0.24),
        (0.2, pytest.approx(0.16)),
    ]
    assert pick_within(front, 5.0, time=timer(MS)).chosen == front.networks[0]


def test_times_of_a_busy_machine_do_not_rule_others_out(tmp_path: Path) -> None:
    front = kept_front(search_run(tmp_path / "run", THREE))

    def time(network: KeptNetwork) -> TimedNetwork:
        median = network.cost
        slow = 20.0 if network.cost == 4.0 else 1.1 * median
        return TimedNetwork(
            network=network.network, median_ms=median, p95_ms=slow, making_seconds=0.0, min_ms=median
        )

    assert pick_within(front, 3.5, time=time).chosen == named(front, "lpsnet-step1")
