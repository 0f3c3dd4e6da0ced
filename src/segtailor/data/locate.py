"""Opens the dataset that a user names: `folder:PATH?val=0.1&seed=3`, `synthetic:size=64x128`, or a YAML file.

dataset: folder                     # a YAML file; paths are relative to it, options (`?val=0.1`) may follow its name
path: ../photos
classes: [road, car]

The option `task` chooses between datasets of one name: `folder:PATH?task=depth` is the dataset `folder-depth`,
`synthetic:task=depth` is `synthetic-depth`. `folder:PATH` also opens folders of annotation files (`coco`, `cvat`,
`labelme`, `labelstudio`, `yolo`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints
from urllib.parse import quote, unquote

from segtailor.core.codec import from_json
from segtailor.core.errors import DataProblem, UserError, unknown
from segtailor.core.registry import DATASETS
from segtailor.data.annotations.recognise import annotation_files, recognise
from segtailor.data.dataset import Dataset
from segtailor.data.files import read_yaml
from segtailor.data.folder import Folder
from segtailor.data.legend import CLASS_LIST_FILES

__all__ = ["DATASETS", "dataset_from", "locate", "with_option"]

PATH_OPTIONS = ("path", "legend", "boxes")  # options that are paths
FOLDER_OPTIONS = frozenset(
    {"images", "masks", "palette", "legend", "binary", "encoding", "count"}
)  # of masks alone
DEFAULT_TASK = "segmentation"  # of a dataset without a task in its name


def locate(text: str) -> Dataset:
    """Return the dataset that `text` names, with its files found; a mistake raises `UserError`."""
    file, _, asked = text.partition("?")
    if file.lower().endswith((".yaml", ".yml")) and ":" not in file.partition("/")[0]:
        return _from_yaml(_place(file), _options(asked, file))
    name, colon, rest = text.partition(":")
    if name not in DATASETS and _exists(_place(text)):
        raise DataProblem(f"'{text}' is a path without its layout; write e.g. folder:{text}.")
    if not isinstance(DATASETS.get(name), type):
        return dataset_from(name, _options(rest.removeprefix("?"), name))
    path, _, query = rest.partition("?")
    if not colon or not path:
        raise DataProblem(f"'{text}' does not say where the dataset is; write {name}:PATH.")
    options = _options(query, name)
    if "path" in options:
        raise DataProblem(f"'{text}' gives the path twice; leave out path=...")
    return dataset_from(name, {"path": path, **options})


def with_option(text: str, name: str, value: str) -> str:
    """Return the text for the same dataset with one option added or replaced; lists are separated by commas."""
    place, _, query = text.partition("?")
    options = {**_options(query, place), name: value}
    return f"{place}?" + "&".join(f"{key}={quote(held, safe='/,')}" for key, held in options.items())


def dataset_from(name: str, options: Mapping[str, Any], *, base: Path | None = None) -> Dataset:
    """Return the dataset called `name` with typed or textual options; relative paths start from `base`."""
    options = dict(options)
    name = _variant(name, str(options.pop("task", DEFAULT_TASK)))
    maker = DATASETS.get(name)
    if name == "folder" and not FOLDER_OPTIONS & options.keys():
        name = _recognised(options.get("path"), base) or name
        maker = DATASETS.get(name)
    if not isinstance(maker, type):
        made: Dataset = maker({key: _plain(value) for key, value in options.items()})
        return made
    known = [item.name for item in fields(maker)]
    for key in options:
        if key not in known:
            raise unknown(f"option of '{name}'", key, known)
    if "path" not in options:
        raise DataProblem(f"dataset '{name}' needs a path; say where its files are.")
    hints = get_type_hints(maker)
    values = {key: _typed(value, hints[key]) for key, value in options.items()}
    for key in PATH_OPTIONS:
        if isinstance(values.get(key), str):
            place = _place(values[key])
            values[key] = str(place if base is None else base / place)
    dataset: Dataset = from_json(maker, values, what=f"dataset '{name}'", error=DataProblem)
    try:
        dataset.splits  # noqa: B018 - finds the files now, so that a wrong path is reported at once
    finally:
        if name == "folder" and not FOLDER_OPTIONS & options.keys():
            _refuse_unknown_annotations(dataset)
    return dataset


def _refuse_unknown_annotations(dataset: Dataset) -> None:
    """Where no picture of a folder has a mask, name a file that should hold annotations but is of no known format."""
    if not isinstance(dataset, Folder) or not dataset.path.is_dir():
        return
    with contextlib.suppress(DataProblem):
        if any(pairing.pairs for pairing in dataset.pairings.values()):
            return
    for file in annotation_files(dataset.path):
        if file.name not in CLASS_LIST_FILES:
            raise DataProblem(
                f"{dataset.path} holds no masks, and {file} is no annotation file of COCO, CVAT, Labelme or Label "
                "Studio: it may be damaged. Export it again, or ask for its format (coco:PATH) to see what is wrong."
            ) from None


def _recognised(path: Any, base: Path | None) -> str | None:
    """Return the name of the dataset for a folder that holds annotation files instead of masks."""
    if not isinstance(path, str | Path):
        return None
    place = _place(str(path)) if base is None else base / _place(str(path))
    return recognise(place) if _exists(place) else None


def _variant(name: str, task: str) -> str:
    """Return the name of the dataset for a task, e.g. `folder-depth`; the name itself for segmentation."""
    if task == DEFAULT_TASK or name.endswith(f"-{task}"):
        return name
    if f"{name}-{task}" in DATASETS:
        return f"{name}-{task}"
    known = [other.removeprefix(f"{name}-") for other in DATASETS.names() if other.startswith(f"{name}-")]
    raise unknown(f"task of dataset '{name}'", task, [DEFAULT_TASK, *known])


def _options(query: str, name: str) -> dict[str, str]:
    """Parse `a=1&b=2`, or `a=1,b=2` where no `&` is given."""
    separator = "&" if "&" in query or query.count("=") < 2 else ","
    options: dict[str, str] = {}
    for item in filter(None, query.split(separator)):
        key, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"dataset '{name}': option '{item}' has no value; write {item}=VALUE.")
        if key in options:
            raise UserError(f"dataset '{name}': option '{key}' is given twice; keep one.")
        options[key.strip()] = unquote(value.strip())
    return options


def _typed(value: Any, hint: Any) -> Any:
    """Convert text to the type of the option: a number, yes or no, or a list split at commas.

    Text that does not fit stays as it is, so that validation reports it by the name of the option.
    """
    kinds = get_args(hint) if get_origin(hint) is not tuple else (hint,)
    kinds = kinds or (hint,)
    if not isinstance(value, str):
        return value
    if any(get_origin(kind) is tuple for kind in kinds):
        return [cell.strip() for cell in value.split(",") if cell.strip()]
    if bool in kinds:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(
            value.lower(), value
        )
    for kind in (int, float):
        if kind in kinds:
            with contextlib.suppress(ValueError):
                return kind(value)
    return value


def _plain(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def _from_yaml(path: Path, changes: Mapping[str, str]) -> Dataset:
    document = read_yaml(path, what="dataset file")
    if not isinstance(document, dict) or not isinstance(document.get("dataset"), str):
        raise DataProblem(f"dataset file {path} must say which layout it describes, e.g. 'dataset: folder'.")
    options = {key: value for key, value in document.items() if key != "dataset"}
    return dataset_from(document["dataset"], {**options, **changes}, base=path.parent)


def _place(text: str) -> Path:
    """Return a path with `~` resolved where that is possible."""
    try:
        return Path(text).expanduser()
    except RuntimeError:  # no such user: a folder may still be called so
        return Path(text)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a path, or not allowed to look
        return False
