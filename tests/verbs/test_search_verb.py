"""`segtailor search`: what it writes, what it refuses, and that a killed one ends the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import segtailor
from segtailor.core.space import fingerprint_of, read_architecture
from segtailor.verbs.main import run

DATA = "synthetic:size=32x64,train=8,val=2,seed=0"
TINY = ["--data", DATA, "--scale", "small", "--device", "cpu"]
SHORT = ["--set", "evaluator.fit.steps=1", "evaluator.fit.batch=2", "evaluator.reparameterise=false"]


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def asked(folder: Path, *words: str, recipe: str = "lpsnet") -> list[str]:
    cache = ["--cache", str(folder / "cache")]
    return ["search", recipe, *TINY, *cache, "--out", str(folder / "run"), *words, *SHORT]


def plain(folder: Path) -> dict[str, Any]:
    """Return the result of a run without times and places."""
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    for record in found["trials"]:
        record["result"].pop("seconds")
    found["architecture"], found["report"] = (Path(found[key]).name for key in ("architecture", "report"))
    return found


def test_an_expansion_writes_family_front_and_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = asked(tmp_path, "--steps", "1", "--budget", "300kMACs", "--json")
    code, out, err = call(capsys, *words)
    assert code == 0, err
    found = json.loads(out)
    assert found["run"] == str(tmp_path / "run")
    assert found["unit"] == "MACs"
    assert found["cost"] <= 300_000
    arch = read_architecture(Path(found["architecture"]))
    assert fingerprint_of(arch) == found["fingerprint"]
    assert segtailor.count(arch, image=(32, 64), classes=len(_classes())).macs == found["cost"]
    folder = tmp_path / "run"
    kept = {item["fingerprint"] for item in [*found["family"], *found["front"]]}
    assert {path.name.split(".")[0] for path in (folder / "architectures").iterdir()} == kept
    plan = json.loads((folder / "architectures" / f"{found['fingerprint']}.plan.json").read_text())
    assert sum(node["macs"] for node in plan["nodes"]) == found["cost"]
    assert "<svg" in (folder / "report" / "pareto.svg").read_text()
    assert "search 0/" in err
    code, out, err = call(capsys, *[word for word in words if word != "--json"])  # finished: only shown
    assert code == 0, err
    assert "step 1: " in out
    assert "next: segtailor train" in out


def _classes() -> tuple[str, ...]:
    from segtailor.data.synthetic import TASK

    return TASK.classes


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["random", "evolution"])
def test_other_strategies_are_a_flag(
    strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = ["--budget", "4MMACs", "--strategy", strategy, "--trials", "3", "--json"]
    code, out, err = call(capsys, *asked(tmp_path, *budget))
    assert code == 0, err
    assert json.loads(out)["trials"] == 3


def test_a_dry_run_shows_the_recipe_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, *asked(tmp_path, "--dry-run", "--json"))
    assert code == 0, err
    assert json.loads(out)["recipe"]["kind"] == "search"
    assert json.loads(out)["first"] == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "old", "new"),
    [
        ("lpsnet", "training.fit.lr=0.5", "evaluator.fit.lr=0.5"),
        ("auxcells", "staged.stage2.lr=0.5", "evaluator.stage2.lr=0.5"),
        ("lpsnet", "strategy.settings.steps=2", "strategy.steps=2"),
        ("lpsnet", "space.settings.paths=2", "space.paths=2"),
    ],
)
def test_settings_may_have_the_names_of_earlier_versions(
    recipe: str, old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [
        "search",
        recipe,
        *TINY,
        "--cache",
        str(tmp_path),
        "--out",
        "run",
        "--dry-run",
        "--json",
        "--set",
    ]
    code, out, err = call(capsys, *common, old)
    assert code == 0, err
    with_old = json.loads(out)["recipe"]
    assert with_old == json.loads(call(capsys, *common, new)[1])["recipe"]
    assert with_old != json.loads(call(capsys, *common[:-1])[1])["recipe"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "10MACs"], r"no architecture within 10 MACs: expansion starts with the cheapest"),
        (["--budget", "10MACs", "--strategy", "random"], "no architecture within 10 MACs in 512 draws"),
        (["--budget", "12ms"], "add --target"),
        (["--target", "cpu/eager/fp32", "--budget", "0.001ms"], r"no architecture within 0\.001 ms"),
        (["--target", "cpu/nothing/fp32"], "nothing"),
        (["--pack", "absent.json"], "absent.json does not exist"),
        (["--strategy", "evolve"], "no strategy is called 'evolve'; did you mean 'evolution'"),
        (["--executor", "clster"], "no executor is called 'clster'"),
        (["--evaluator", "shared"], "none was named; give --supernet RUN"),
        (["--space", "scalable"], "no space is called 'scalable'; did you mean 'scalable_path'"),
        (["--trials", "4"], "give --steps"),
    ],
)
def test_mistakes_are_explained_and_do_not_claim_the_folder(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, *asked(tmp_path, *words))
    assert code == 1, err
    assert out == ""
    assert re.search(message, err), err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_unknown_recipes_name_the_near_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, *asked(tmp_path, recipe="lpsnt"))
    assert code == 1
    assert "no recipe is called 'lpsnt'; did you mean 'lpsnet'" in err


@pytest.mark.parametrize(("what", "name"), [("recipes", "lpsnet"), ("strategies", "expansion")])
def test_recipes_and_strategies_are_listed(what: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "list", what, "--json")
    assert code == 0
    assert name in json.loads(out)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_search_resumes_on_the_command_line_to_the_same_result(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from segtailor.verbs.main import main; main()"]
    words = ["--steps", "2", "--json"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*program, *asked(whole, *words)], check=True, capture_output=True)
    child = subprocess.Popen([*program, *asked(killed, *words)], stdout=subprocess.DEVNULL)
    journal = killed / "run" / "journal.jsonl"
    end = time.monotonic() + 120
    while time.monotonic() < end and child.poll() is None:
        if journal.exists() and journal.read_text().count('"fingerprint":') > 6:
            break
        time.sleep(0.01)
    child.kill()
    child.wait()
    assert not (killed / "run" / "result.json").exists()
    cache = ["--cache", str(killed / "other-cache"), "--device", "cpu", "--json"]
    done = subprocess.run(
        [*program, "resume", str(killed / "run"), *cache], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert plain(killed / "run") == plain(whole / "run")
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    told = [record["id"] for entry in entries for record in entry.get("records", []) if "id" in record]
    assert len(told) == len(set(told))  # no finished trial was repeated


def test_another_space_is_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--space", "inverted_residual", "--strategy", "random", "--trials", "1", "--json"]
    code, out, err = call(capsys, *asked(tmp_path, *words))
    assert code == 0, err
    document = json.loads(Path(json.loads(out)["architecture"]).read_text())
    assert document["family"] == "inverted_residual"
    assert document["origin"]["recipe"] == "lpsnet"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_workers_try_the_same_networks_as_one(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from segtailor.verbs.main import main; main()"]
    words = ["--strategy", "random", "--trials", "4", "--budget", "4M", "--json"]
    for name, workers in (("one", []), ("two", ["--workers", "2"])):
        subprocess.run([*program, *asked(tmp_path / name, *words, *workers)], check=True, capture_output=True)
    one, two = (plain(tmp_path / name / "run")["trials"] for name in ("one", "two"))
    assert [(item["fingerprint"], item["seed"]) for item in one] == [
        (item["fingerprint"], item["seed"]) for item in two
    ]
    for first, second in zip(one, two, strict=True):  # sums by several threads differ in the last digits
        assert first["result"]["quality"] == pytest.approx(second["result"]["quality"], abs=0.02)


@pytest.mark.slow
def test_fasterseg_writes_student_and_teacher(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = [f"strategy.{name}" for name in ("fit.steps=1", "pretraining.fit.steps=1", "judge_every=0")]
    code, out, err = call(capsys, *asked(tmp_path, "--json", recipe="fasterseg"), *short)
    assert code == 0, err
    found = json.loads(out)
    teacher = found["roles"]["teacher"]
    for outcome, ratio in ((found, 2), (teacher, 3)):
        arch = read_architecture(Path(outcome["architecture"]))
        assert fingerprint_of(arch) == outcome["fingerprint"]
        assert arch.stem_ratio == ratio
    document = json.loads(Path(teacher["architecture"]).read_text())
    assert document["origin"]["role"] == "teacher"


def test_the_strategy_gradient_is_refused_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = "synthetic:size=32x64,train=8,val=2"
    command = ["search", "lpsnet", "--data", data, "--out", str(tmp_path / "run"), "--cache", str(tmp_path)]
    assert run([*command, "--strategy", "gradient"]) == 1
    told = capsys.readouterr().err
    assert "unknown" not in told
    assert "segtailor search fasterseg" in told


def test_an_expansion_by_counted_operations_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = "synthetic:size=32x64,train=8,val=2"
    command = ["search", "lpsnet", "--data", data, "--out", str(tmp_path / "run"), "--cache", str(tmp_path)]
    assert run([*command, "--dry-run", "--json"]) == 0
    assert "by MACs, which stand in for the latency" in capsys.readouterr().err
