"""`segtailor data suggest`: find labels that are probably wrong, and unlabelled pictures worth labelling."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from segtailor.core.atomic import write_text
from segtailor.core.errors import DataProblem, Unsupported
from segtailor.core.ownership import is_picture, refuse_overwrite
from segtailor.core.task import Preprocessing, needs_classes
from segtailor.runs import Context
from segtailor.verbs.options import Count, DryRun, Force, Json, Seed
from segtailor.verbs.output import Printer, emit, emit_planned, with_display

if TYPE_CHECKING:
    from segtailor.data.cache import Pixels
    from segtailor.nets.bundle import Model
    from segtailor.recipes.suggest import Suspect

MAX_PIXELS = 200 * 256  # of the pictures that networks get here
CSV_HEAD = "# made by segtailor"
IN_SAMPLE = (
    "the scores are by one model. If it was trained on these samples it has learnt their mistakes too and finds fewer; "
    "without --model, networks are trained that have not seen the samples they judge"
)


@dataclass(frozen=True, kw_only=True)
class Suggestions:
    """How samples are judged."""

    model: str | None = None
    """Bundle, ONNX file or shipped weights that judges; by default small networks are trained on the other folds."""
    unlabelled: Path | None = None
    """Folder of pictures without labels, of which those that would teach most are ranked."""
    split: str = "train"
    """Split whose labels are examined."""
    folds: Count = 3
    """Parts of the split; each is judged by a network trained on the others."""
    steps: Count = 250
    """Training steps of each network."""
    network: str | None = None
    """Network that is trained, by name or file; a part of EfficientNet-Lite0 when left out."""
    count: Count = 24
    """Number of samples in the contact sheet, and of unlabelled pictures that are chosen."""
    seed: Seed = 0
    """Random seed of the trainings."""


def suggest_(
    dataset: str,
    /,
    *,
    out: Path = Path("suggestions"),
    flags: Annotated[Suggestions, Parameter(name="*")] = Suggestions(),
    context: Annotated[Context, Parameter(name="*")] = Context(),
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Rank samples by how likely their labels are wrong, and unlabelled pictures by how much they would teach.

    Writes `labels.csv` and the contact sheet `labels.png`; with --unlabelled also `unlabelled.csv` and
    `unlabelled.png`.

    Parameters
    ----------
    dataset:
        For example `folder:PATH`, `camvid:PATH`, or a YAML file.
    out:
        Folder for the lists and contact sheets.
    """
    if dry_run:
        emit_planned(out, _files(out, flags), json=json)
        return
    found = suggest(dataset, out, settings=flags, context=with_display(context, json=json), force=force)
    emit(found, lambda printer: _print(printer, found), json=json)


def suggest(
    dataset: str,
    out: str | Path,
    *,
    settings: Suggestions | None = None,
    context: Context | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Examine the labels of a split, rank unlabelled pictures where a folder is given, and write lists and sheets."""
    from segtailor.data.cache import open_pixels
    from segtailor.data.dataset import preprocessing_of, scaled_as
    from segtailor.data.locate import locate
    from segtailor.data.subset import take
    from segtailor.nets.models import load
    from segtailor.recipes.suggest import cross_fitted, examined, ranked

    wanted, context, folder = settings or Suggestions(), context or Context(), Path(out)
    refuse_overwrite([(path, _is_ours) for path in _files(folder, wanted)], force=force)
    data = locate(dataset)
    needs_classes(data.task, "data suggest")
    given = None if wanted.model is None else load(wanted.model)
    if given is not None:
        data = scaled_as(data, given.preprocessing)
    pictures = [] if wanted.unlabelled is None else _pictures(wanted.unlabelled, preprocessing_of(data))
    pixels = open_pixels(data, wanted.split, context.cache_folder)
    note, judge = None, _Judge(wanted, context, preprocessing_of(data))
    if given is not None:
        model, note = judge.given(given, pixels), IN_SAMPLE
        context.tell(f"note: {note}.")
        everything = take(pixels, range(len(pixels)), max_pixels=MAX_PIXELS)
        suspects = ranked(examined(everything, model))
    else:
        suspects = cross_fitted(pixels, judge.trained, folds=wanted.folds, max_pixels=MAX_PIXELS)
    folder.mkdir(parents=True, exist_ok=True)
    _write_labels(folder, suspects, pixels, count=wanted.count)
    facts: dict[str, Any] = {
        "out": str(folder),
        "files": [str(path) for path in _files(folder, wanted)],
        "split": wanted.split,
        "images": len(pixels),
        "out_of_sample": wanted.model is None,
        "note": note,
        "labels": [asdict(one) for one in suspects],
    }
    if wanted.unlabelled is not None:
        facts["unlabelled"] = _rank_unlabelled(folder, wanted.unlabelled, pictures, pixels, judge)
    return facts


@dataclass(kw_only=False)
class _Judge:
    """Gives the networks that judge: the user's, or short trainings."""

    wanted: Suggestions
    context: Context
    preprocessing: Preprocessing
    models: list[Any] = field(default_factory=list)

    def given(self, model: Any, pixels: Pixels) -> Any:
        if model.task.outputs != pixels.task.outputs:
            raise DataProblem(
                f"the model knows {model.task.outputs} classes, the data has {pixels.task.outputs}; "
                "give a model for the same classes."
            )
        if not model.confident:
            raise Unsupported("the model gives labels without probabilities; give a bundle.")
        self.models.append(model)
        return model

    def trained(self, pixels: Pixels, fold: int) -> Model:
        from segtailor.recipes.short_training import ShortTraining, train_briefly
        from segtailor.training.device import pick_device

        wanted = self.wanted
        self.context.tell(f"fold {fold + 1} of {wanted.folds}: training on {len(pixels)} images")
        settings = ShortTraining(network=wanted.network, steps=wanted.steps, seed=wanted.seed)
        model = train_briefly(
            pixels,
            settings,
            device=pick_device(self.context.device),
            preprocessing=self.preprocessing,
            trusted=self.context.trusted,
        )
        self.models.append(model)
        return model


def _pictures(folder: Path, preprocessing: Preprocessing) -> list[Path]:
    """Return the pictures of the folder without labels; one without any raises before networks are trained."""
    from segtailor.data.files import PICTURE_SUFFIXES, list_pictures

    suffixes = PICTURE_SUFFIXES if preprocessing.ranges is None else PICTURE_SUFFIXES | {".npy"}
    files = list(list_pictures(folder, suffixes))
    if not files:
        raise DataProblem(f"folder {folder} holds no pictures; name another one.")
    return files


def _rank_unlabelled(
    folder: Path, pictures: Path, files: Sequence[Path], pixels: Pixels, judge: _Judge
) -> list[dict[str, Any]]:
    """Rank the pictures that can be read; the others are named."""
    import numpy as np

    from segtailor.data.bands import read_scaled
    from segtailor.data.sheet import write_picture
    from segtailor.recipes.suggest import choose_pictures, describe_picture
    from segtailor.recipes.suggest_sheet import picture_sheet

    ranges = judge.preprocessing.ranges
    model = judge.models[-1]
    described, read = [], []
    for file in files:
        try:
            described.append(describe_picture(read_scaled(file, ranges), model, max_pixels=MAX_PIXELS))
        except DataProblem as problem:
            judge.context.tell(f"left out: {problem}")
            continue
        read.append(file)
    if not read:
        raise DataProblem(f"no picture in {pictures} can be read; see the reasons above.")
    labelled = [
        describe_picture(pixels.pair(index).image, model, max_pixels=MAX_PIXELS)[1]
        for index in range(len(pixels))
    ]
    names = [file.relative_to(pictures).as_posix() for file in read]
    chosen = choose_pictures(
        names,
        [entropy for entropy, _ in described],
        np.stack([features for _, features in described]),
        np.stack(labelled),
        count=judge.wanted.count,
    )
    rows = [{"rank": rank, **asdict(one)} for rank, one in enumerate(chosen, start=1)]
    _write_csv(folder / "unlabelled.csv", rows)
    shown = [(f"{row['rank']}. {row['name']}", read_scaled(pictures / row["name"], ranges)) for row in rows]
    write_picture(folder / "unlabelled.png", picture_sheet(shown), force=True)
    return rows


def _write_labels(folder: Path, suspects: Sequence[Suspect], pixels: Pixels, *, count: int) -> None:
    from segtailor.data.sheet import write_picture
    from segtailor.recipes.suggest_sheet import label_sheet

    rows = [
        {
            "rank": rank,
            **{key: value for key, value in asdict(one).items() if key != "shift"},
            "shift_down": one.shift[0],
            "shift_right": one.shift[1],
        }
        for rank, one in enumerate(suspects, start=1)
    ]
    _write_csv(folder / "labels.csv", rows)
    write_picture(folder / "labels.png", label_sheet(suspects[:count], pixels), force=True)


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(rows[0]) if rows else ["rank"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, f"{CSV_HEAD}\n{stream.getvalue()}", what="list of suggestions")


def _files(out: Path, wanted: Suggestions) -> list[Path]:
    kinds = ["labels", *(["unlabelled"] if wanted.unlabelled is not None else [])]
    return [out / f"{kind}.{suffix}" for kind in kinds for suffix in ("csv", "png")]


def _is_ours(path: Path) -> bool:
    return is_picture(path)


def _print(printer: Printer, facts: dict[str, Any]) -> None:
    rows = [
        [rank, row["name"], f"{row['score']:.1f}", _reason(row)]
        for rank, row in enumerate(facts["labels"][:10], start=1)
    ]
    printer.table("labels to look at first", [">rank", "sample", ">score", "why"], rows)
    for row in facts.get("unlabelled", [])[:10]:
        printer.say(f"label next: {row['rank']}. {row['name']}")
    printer.say(f"wrote {', '.join(facts['files'])}")


def _reason(row: dict[str, Any]) -> str:
    parts = []
    if row["given"]:
        parts.append(f"{row['share']:.1%} labelled {row['given']}, looks like {row['found']}")
    if any(row["shift"]) and row["gain"] > 0.1:
        parts.append(f"fits better moved by {row['shift'][0]} down, {row['shift'][1]} right")
    return "; ".join(parts)
