import contextlib
import os
import pickle
import random
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from segtailor.core.errors import UserError
from segtailor.nets.checkpoint_file import read_state

pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol")  # damaged files claim odd ones

STATE = OrderedDict(weight=torch.arange(6.0).reshape(2, 3), count=torch.tensor(7))


def same(found: dict[str, Tensor], wanted: dict[str, Tensor] = STATE) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[key], wanted[key]) for key in wanted)


def saved(folder: Path, content: object, **options: object) -> Path:
    torch.save(content, folder / "weights.pth", **options)  # type: ignore[arg-type]
    return folder / "weights.pth"


def prefixed(*prefixes: str) -> dict[str, Tensor]:
    return {"".join(prefixes) + key: value for key, value in STATE.items()}


@pytest.mark.parametrize(
    "content",
    [
        STATE,
        {"state_dict": STATE},
        {"model": STATE, "epoch": 3, "optimizer": {"lr": 0.1}},
        {"model": {"state_dict": STATE}},
        {"state_dict": STATE, "model": "resnet"},
        prefixed("module."),
        {"state_dict": prefixed("module.")},
        prefixed("_orig_mod."),
        prefixed("_orig_mod.", "module."),
        prefixed("module.", "_orig_mod."),
    ],
)
def test_wrappings_and_prefixes_are_taken_off(tmp_path: Path, content: object) -> None:
    assert same(read_state(saved(tmp_path, content)))


def test_the_older_format_is_read_too(tmp_path: Path) -> None:
    assert same(read_state(saved(tmp_path, STATE, _use_new_zipfile_serialization=False)))


def test_safetensors_are_read_and_unprefixed(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(prefixed("module."), path)
    assert same(read_state(str(path)))


def test_a_prefix_that_only_some_keys_have_is_a_name(tmp_path: Path) -> None:
    state = {"module.weight": torch.ones(1), "weight": torch.zeros(1)}
    assert same(read_state(saved(tmp_path, state)), state)


class Attack:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("form", ["zip", "older", "bare pickle", "beside weights", "named safetensors"])
def test_code_in_a_file_is_refused_and_never_run(tmp_path: Path, form: str) -> None:
    trace = tmp_path / "executed"
    content: object = {"state_dict": STATE, "x": Attack(trace)} if form == "beside weights" else Attack(trace)
    path = saved(tmp_path, content, _use_new_zipfile_serialization=form != "older")
    if form == "bare pickle":
        path.write_bytes(pickle.dumps(content))
    if form == "named safetensors":
        path = path.rename(path.with_suffix(".safetensors"))
    with pytest.raises(UserError, match=path.name):
        read_state(path)
    assert not trace.exists()
    if form == "bare pickle":  # the attack works where it is let in, so the check above means something
        pickle.loads(path.read_bytes())
        assert trace.exists()


def test_a_whole_pickled_module_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Nothing in it was run.*state_dict"):
        read_state(saved(tmp_path, nn.Conv2d(1, 1, 1)))


@pytest.mark.parametrize("newer", [True, False])
def test_every_truncation_of_a_checkpoint_is_explained(tmp_path: Path, newer: bool) -> None:
    path = saved(tmp_path, {"state_dict": STATE}, _use_new_zipfile_serialization=newer)
    whole = path.read_bytes()
    for size in [*range(0, len(whole) - 1, 37), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"weights\.pth"):
            read_state(path)


@pytest.mark.parametrize("suffix", [".pth", ".older.pth", ".safetensors"])
def test_flipped_bytes_are_explained_or_harmless(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        safetensors.torch.save_file(STATE, path)
    else:
        torch.save(STATE, path, _use_new_zipfile_serialization=suffix == ".pth")
    whole = path.read_bytes()
    rng = random.Random(0)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 8))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(UserError):
            assert all(isinstance(value, Tensor) for value in read_state(path).values())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.pth", b""),
        ("notes.pth", b"these are not weights"),
        ("picture.pth", b"\x89PNG\r\n\x1a\n" + bytes(100)),
        ("truncated.safetensors", safetensors.torch.save(STATE)[:-5]),
        ("long_header.safetensors", b"\xff" * 8 + b"{}"),
    ],
)
def test_a_foreign_file_is_explained(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=name):
        read_state(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([torch.ones(1)], "type list"),
        ({}, "an empty dictionary"),
        ({"weight": torch.ones(1), "epoch": 3}, "'epoch' is a value of type int"),
        ({1: torch.ones(1)}, "'1'"),
        (torch.ones(1), "type Tensor"),
    ],
)
def test_what_is_no_dictionary_of_tensors_is_named(tmp_path: Path, content: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_state(saved(tmp_path, content))


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.pth.*No such file"):
        read_state(tmp_path / "absent.pth")
    with pytest.raises(UserError, match="not a file"):
        read_state(tmp_path)


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at most 100 are read"):
        read_state(saved(tmp_path, STATE), limit=100)


def archived(folder: Path, content: bytes, **options: object) -> Path:
    """Write the kind of archive that torch reads, around a pickle of ours."""
    with zipfile.ZipFile(folder / "made.pth", "w", **options) as archive:  # type: ignore[arg-type]
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return folder / "made.pth"


def test_an_archive_that_unpacks_to_more_than_it_weighs_is_refused(tmp_path: Path) -> None:
    path = archived(tmp_path, b"N" * 10**6, compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10**5
    with pytest.raises(UserError, match="unpacks to 10000"):
        read_state(path)


def test_tensors_larger_than_what_is_stored_for_them_are_refused(tmp_path: Path) -> None:
    repeated = {"a": torch.zeros(10).expand(10**6, 10)}
    with pytest.raises(UserError, match="'a' has shape 1000000x10, more than is stored"):
        read_state(saved(tmp_path, repeated))
    block = torch.zeros(10**5)
    with pytest.raises(UserError, match="more than is stored"):
        read_state(saved(tmp_path, {f"w{index}": block for index in range(100)}))


def test_tied_weights_are_read(tmp_path: Path) -> None:
    block = torch.arange(10**4, dtype=torch.float32)
    assert same(read_state(saved(tmp_path, {"a": block, "b": block})), {"a": block, "b": block})


def test_sparse_tensors_are_refused(tmp_path: Path) -> None:
    huge = torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (10**5, 10**5))
    with pytest.raises(UserError, match="no dense tensor"):
        read_state(saved(tmp_path, {"a": huge}))


@pytest.mark.parametrize("legacy", [False, True])
def test_containers_without_end_inside_each_other_are_refused(tmp_path: Path, legacy: bool) -> None:
    deep = b"\x80\x02})" + b"\x85" * 10**6 + b"K\x01s."  # a tuple as key: hashing it would overflow the stack
    path = archived(tmp_path, deep)
    if legacy:
        start = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
        path.write_bytes(b"".join(pickle.dumps(part, 2) for part in start) + deep)
    with pytest.raises(UserError, match="500 containers inside each other"):
        read_state(path)


def test_a_pickle_of_a_million_small_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="1000000 small parts"):
        read_state(archived(tmp_path, b"\x80\x02](" + b"]" * 1_100_000 + b"e."))


@pytest.mark.slow
def test_a_pickle_that_grows_by_calls_is_stopped(tmp_path: Path) -> None:
    """Encoding bytes as hexadecimal doubles them: forty calls would make a terabyte."""
    calls = b"\x80\x02c_codecs\nencode\nq\x00X\x01\x00\x00\x00xX\x06\x00\x00\x00latin1\x86Rq\x01"
    for _ in range(40):
        calls += b"h\x00h\x01X\x09\x00\x00\x00hex_codec\x86Rq\x01"
    with pytest.raises(UserError, match="takes more than"):
        read_state(archived(tmp_path, calls + b"."))


def test_a_safetensors_file_with_a_huge_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes((2**26).to_bytes(8, "little") + b"{" + b" " * 2**26)
    with pytest.raises(UserError, match="header states"):
        read_state(path)


def test_a_pipe_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "weights.safetensors")
    with pytest.raises(UserError, match="not a file"):
        read_state(tmp_path / "weights.safetensors")
