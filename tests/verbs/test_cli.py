"""The command line: what it prints, how it ends, and that help is quick."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

import segtailor
from segtailor.core.errors import Interrupted
from segtailor.verbs.main import DATA_VERBS, VERBS, run
from tests.support import shared

TINY = "synthetic:size=64x128,train=8,val=4,seed=0"


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def fresh(*words: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from segtailor.verbs.main import run; code = run(sys.argv[1:]); " \
        "print('torch' in sys.modules, file=sys.stderr); sys.exit(code)"  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "verb", [[], *[[name] for name, _ in VERBS], *[["data", name] for name, _ in DATA_VERBS]]
)
def test_help_of_every_verb_works(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, *verb, "--help")
    assert code == 0
    assert "Usage: segtailor" in out


def test_help_and_show_do_not_import_torch() -> None:
    for words in (
        ["--help"],
        ["train", "--help"],
        ["list", "architectures"],
        ["show", "fasterseg-teacher", "--json"],
    ):
        done = fresh(*words)
        assert done.returncode == 0, done.stderr
        assert done.stderr.strip().endswith("False"), words


def test_all_networks_are_counted_in_two_seconds() -> None:
    program = "import segtailor; [segtailor.count(name) for name in segtailor.architectures()]"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    assert time.perf_counter() - start < 8  # two seconds on an idle machine; tests share theirs


def test_list_names_the_thirty_networks(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "list", "architectures", "--json")
    assert code == 0
    assert tuple(json.loads(out)) == segtailor.architectures()
    assert len(json.loads(out)) == 30


def test_list_names_spaces_and_baselines_apart(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "list", "spaces", "--json")
    assert "handmade" not in json.loads(out)
    code, out, _ = call(capsys, "list", "baselines", "--json")
    assert code == 0
    assert tuple(json.loads(out)) == segtailor.baselines()
    assert len(json.loads(out)) == 6


def test_show_describes_a_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "show", "pidnet-s", "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["family"], facts["params"], facts["output_stride"]) == ("handmade", 7625651, 8)
    assert facts["outputs"] == ["main", "aux1", "aux2"]
    assert facts["published"]["params_millions"] == 7.6


@pytest.mark.parametrize("what", ["spaces", "baselines", "operators", "datasets", "tasks"])
def test_list_knows_every_kind(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "list", what, "--json")
    assert code == 0
    assert json.loads(out)


def test_show_prints_the_contract(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    svg = tmp_path / "net.svg"
    code, out, _ = call(
        capsys, "show", "lpsnet-s", "--image", "1024x2048", "--classes", "19", "--json", "--svg", str(svg)
    )
    facts = json.loads(out)
    assert code == 0
    assert (facts["macs"], facts["params"], facts["train_params"]) == (10_421_305_344, 3_371_075, 3_375_363)
    assert facts["output_stride"] == pytest.approx(1024 / 48)
    assert svg.read_text().startswith("<svg")


def test_show_prints_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "show", "squeezenas-mac-small")
    assert code == 0
    assert "277,598 parameters" in out


def test_show_reads_an_architecture_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from segtailor.core.space import architecture_document
    from segtailor.spaces import published

    file = tmp_path / "mine.json"
    file.write_text(json.dumps(architecture_document(published("autortnet-a"))))
    code, out, _ = call(capsys, "show", str(file), "--json", "--image", "768x1536")
    assert code == 0
    assert json.loads(out)["macs"] == 15_710_570_496


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "lpsnt-s"], "did you mean"),
        (["show", "lpsnet-s", "--image", "big"], "HEIGHTxWIDTH"),
        (["show", "lpsnet-s", "--image", "0x10"], "HEIGHTxWIDTH"),
        (["show", "none.json"], "does not exist"),
        (["shew"], "shew"),
        (["show"], "NAME"),
        (["show", "lpsnet-s", "--bad"], "--bad"),
        (["list", "everything"], "everything"),
        (["train", "lpsnet-s", "--data", "nowhere:x", "--out", "x"], "dataset"),
        (["eval", "nothing", "--data", TINY], "no bundle"),
        (["resume", "nothing"], "nothing"),
        (["train", "lpsnet-step0", "--data", TINY, "--out", "x", "--cache", "c", "--seed", "-1"], "seed: -1"),
        (
            [
                "train",
                "lpsnet-step0",
                "--data",
                TINY,
                "--out",
                "x",
                "--cache",
                "c",
                "--batch",
                "1",
                "--crop",
                "32x32",
            ],
            "--batch",
        ),
        (["data", "show", TINY, "--out", "x.odd", "--count", "1"], ".png"),
        (["data", "show", TINY, "--out", "/proc/x.png", "--count", "1"], "could not write the picture"),
        (["data", "check", TINY, "--limit", "0"], "limit: 0"),
        (["data", "check", TINY, "--limit", "-2"], "limit: -2"),
        (["import", "none.pth", "--as", "lpsnet-s", "--out", "x"], "cannot be read"),
        (["import", "none.pth", "--as", "lpsnet-x", "--out", "x"], "did you mean"),
        (
            ["import", "none.pth", "--as", "lpsnet-s", "--out", "x", "--classes", "0"],
            "--classes: 0 is too small",
        ),
        (["import", "none.pth", "--as", "lpsnet-s", "--out", __file__], "no empty folder"),
        (["show", "lpsnet-s", "--classes", "0"], "--classes: 0 is too small"),
        (["show", "lpsnet-s", "--svg", "none/x.svg"], "could not write the drawing"),
        (["show", "lpsnet-s", "--svg", "."], "could not write the drawing"),
    ],
)
def test_a_mistake_ends_with_one_and_a_remedy(
    words: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *words)
    assert code == 1, err
    assert says in err
    assert "Traceback" not in err
    assert out == ""


def test_a_bug_ends_with_two_and_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("segtailor.verbs.show.describe", broken)
    code, _, err = call(capsys, "show", "lpsnet-s")
    assert code == 2
    assert "ZeroDivisionError" in err


@pytest.mark.parametrize("event", [Interrupted("saved; go on with: segtailor resume x"), KeyboardInterrupt()])
def test_an_interruption_ends_with_130(
    event: BaseException, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise event

    monkeypatch.setattr("segtailor.verbs.show.describe", stopped)
    assert call(capsys, "show", "lpsnet-s")[0] == 130


def test_train_eval_and_resume_work_end_to_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, cache = str(tmp_path / "run"), str(tmp_path / "cache")
    words = [
        "train",
        "lpsnet-step0",
        "--data",
        TINY,
        "--out",
        out,
        "--cache",
        cache,
        "--epochs",
        "2",
        "--batch",
        "4",
    ]
    code, printed, err = call(capsys, *words, "--device", "cpu", "--set", "fit.ema=0.9", "--json")
    assert code == 0, err
    trained = json.loads(printed)
    assert trained["run"] == out
    assert trained["steps"] == 4
    code, printed, _ = call(
        capsys,
        "eval",
        trained["model"],
        "--data",
        TINY,
        "--split",
        "val",
        "--cache",
        cache,
        "--device",
        "cpu",
        "--json",
    )
    scores = json.loads(printed)
    assert code == 0
    assert scores["images"] == 4
    for name in ("miou", "fwiou", "mean_accuracy", "pixel_accuracy"):
        assert scores[name] == pytest.approx(trained[name])
        assert 0 <= scores[name] <= 1
    assert set(scores["per_class"]) == set(segtailor.load(trained["model"]).task.classes)
    code, printed, _ = call(capsys, "resume", out, "--cache", cache, "--json")
    assert code == 0
    assert json.loads(printed)["steps"] == 4
    code, _, err = call(capsys, "eval", trained["model"], "--data", TINY, "--cache", cache, "--batch", "0")
    assert (code, "batch: 0" in err) == (1, True)
    code, _, err = call(capsys, *words[:-1], "8", "--json")
    assert code == 1
    assert "fit.batch: 4 there, 8 asked" in err


def test_a_dry_run_writes_nothing_and_shows_the_recipe(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    code, printed, _ = call(
        capsys, "train", "lpsnet-step0", "--data", TINY, "--out", str(out), "--cache", str(tmp_path / "cache"),
        "--dry-run", "--json", "--crop", "64x64", "--set", "fit.loss.ohem=0.7",
    )  # fmt: skip
    recipe = json.loads(printed)["recipe"]
    assert code == 0
    assert (recipe["augment"]["crop"], recipe["fit"]["loss"]["ohem"]) == ([64, 64], 0.7)
    assert not out.exists()


@pytest.mark.parametrize(
    "change", ["fit.lrr=1", "fit.lr=fast", "fit.lr", "nothing.at=1", "data.x=1", "fit.lr=-1"]
)
def test_a_wrong_setting_is_named(change: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = call(
        capsys, "train", "lpsnet-step0", "--data", TINY, "--out", str(tmp_path / "x"), "--cache", str(tmp_path / "c"),
        "--set", change,
    )  # fmt: skip
    assert code == 1
    assert change.split("=")[0].split(".")[-1] in err


def test_data_check_and_show(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, printed, _ = call(capsys, "data", "check", TINY, "--json")
    facts = json.loads(printed)
    assert code == 0
    assert facts["ok"]
    assert all(set(row) == {"severity", "kind", "file", "message", "fix"} for row in facts["findings"])
    sheet = tmp_path / "new" / "sheet.png"
    code, _, _ = call(capsys, "data", "show", TINY, "--out", str(sheet), "--count", "2")
    assert code == 0
    assert Image.open(sheet).size[0] > 100


def test_data_check_ends_with_one_when_the_data_is_unusable(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    code, printed, _ = call(capsys, "data", "check", f"folder:{tmp_path}", "--json")
    facts = json.loads(printed)
    assert code == 1
    assert not facts["ok"]
    assert facts["findings"][0]["severity"] == "error"


def test_bad_data_stops_training_before_it_starts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    for index in range(4):
        Image.new("RGB", (64, 64)).save(tmp_path / "images" / f"{index}.png")
        Image.new("L", (64, 64), color=255).save(tmp_path / "masks" / f"{index}.png")
    code, _, err = call(
        capsys, "train", "lpsnet-step0", "--data", f"folder:{tmp_path}?count=3", "--out", str(tmp_path / "run"),
        "--cache", str(tmp_path / "cache"), "--crop", "64x64",
    )  # fmt: skip
    assert code == 1
    assert "255" in err or "ignore" in err
    assert not (tmp_path / "run").exists()


def test_import_makes_a_bundle_that_predicts_as_published(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = shared("fixtures/squeezenas/mac_small.pth")
    out = tmp_path / "bundle"
    code, printed, err = call(
        capsys, "import", str(file), "--as", "squeezenas-mac-small", "--out", str(out), "--json"
    )
    assert code == 0, err
    assert json.loads(printed)["model"] == str(out)
    labels = segtailor.load(out).predict(Image.open(shared("fixtures/squeezenas/image_half.png")))
    expected = Image.open(shared("fixtures/squeezenas/mac_small_half_pred.png"))
    assert (labels == expected).mean() > 0.999
    code, _, err = call(capsys, "import", str(file), "--as", "squeezenas-mac-small", "--out", str(out))
    assert code == 1
    assert "no empty folder" in err
    code, _, err = call(
        capsys, "import", str(file), "--as", "squeezenas-mac-large", "--out", str(tmp_path / "b")
    )
    assert code == 1
    assert "key" in err


def test_the_package_is_a_program_and_only_the_first_of_several_processes_prints() -> None:
    for rank, printed in (("0", ["segmentation", "depth", "pose"]), ("1", None)):
        done = subprocess.run(
            [sys.executable, "-m", "segtailor", "list", "tasks", "--json"],
            env={**os.environ, "RANK": rank}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert (json.loads(done.stdout) if done.stdout else None) == printed


def test_the_next_command_can_be_typed_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "my run"
    words = ["train", "lpsnet-step0", "--data", TINY, "--out", str(out), "--cache", str(tmp_path / "c")]
    code, printed, err = call(capsys, *words, "--set", "fit.steps=1", "--batch", "2", "--device", "cpu")
    assert code == 0, err
    assert f"next: segtailor eval '{out / 'weights'}' --data {TINY} --split val" in printed
    words[words.index("--out") + 1] = str(tmp_path / "unscored")
    _, printed, _ = call(capsys, *words, "--set", "fit.steps=1", "val_split=null", "--batch", "2")
    assert "segtailor eval" not in printed
