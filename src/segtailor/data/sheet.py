"""Contact sheets: pictures beside their overlays, with a legend of colours, names and pixel shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from segtailor.core.atomic import write_bytes, writing
from segtailor.core.errors import DataProblem, UserError
from segtailor.core.ownership import is_picture, refuse_overwrite
from segtailor.core.ranges import check_seed, check_whole
from segtailor.core.task import Colour, Task
from segtailor.core.text import visible
from segtailor.data.dataset import Dataset, Pair, Sample
from segtailor.data.files import PICTURE_SUFFIXES, software_tag
from segtailor.tasks import Look, kind_of
from segtailor.tasks.bands import shown_picture

PICTURE_WIDTH_PIXELS = 320
MAX_HEIGHT_PIXELS = 2 * PICTURE_WIDTH_PIXELS  # taller pictures are made narrower
GAP_PIXELS = 8
MAX_PICTURES = 300  # per sheet: limits its memory
TEXT_HEIGHT_PIXELS = 14
LINE_HEIGHT_PIXELS = 24
PAPER: Colour = (250, 250, 248)
INK: Colour = (30, 30, 34)


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """The picture, and the errors of samples that could not be read."""

    picture: Image.Image
    problems: tuple[str, ...] = ()


def contact_sheet(dataset: Dataset, split: str, *, columns: int = 2, count: int = 8, seed: int = 0) -> Sheet:
    """Draw `count` random samples of a split as image | overlay, `columns` per row, a legend below.

    Samples that cannot be read are left out and reported; where no sample can be read, `DataProblem` is raised.
    """
    check_whole("columns", columns, least=1, error=DataProblem)
    check_whole("count", count, least=1, error=DataProblem)
    check_seed(seed, error=DataProblem)
    samples = dataset.samples(split)
    if not samples:
        raise DataProblem(f"split '{split}' holds no images, so there is nothing to show; check the dataset.")
    chosen = _choose(samples, min(count, MAX_PICTURES), seed)
    found, problems = _read(chosen)
    if not found:
        raise DataProblem(f"none of {len(problems)} samples can be read; the first: {problems[0]}")
    cells = [_cell(sample.name, pair, dataset.task) for sample, pair in found]
    legend = _legend(dataset.task, [pair for _, pair in found], width=_width(min(columns, len(cells))))
    return Sheet(picture=_assemble(cells, legend, columns=min(columns, len(cells))), problems=tuple(problems))


def check_picture(path: Path, *, force: bool = False) -> None:
    """Refuse a name without a picture suffix, and a file that another program wrote."""
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        raise UserError(f"{path} does not say which kind of picture it is; let the name end in .png or .jpg.")
    refuse_overwrite([(path, is_picture)], force=force)


def write_picture(path: Path, picture: Image.Image, *, force: bool = False) -> None:
    """Write a picture atomically in the format that its suffix names; missing parent folders are made."""
    check_picture(path, force=force)
    kind = Image.registered_extensions()[path.suffix.lower()]
    content = BytesIO()  # PIL's own writing of JPEG files does not notice a full disk
    picture.save(content, kind, **software_tag(kind))
    with writing(path, what="picture"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content.getvalue(), what="picture")


def _choose(samples: Sequence[Sample], count: int, seed: int) -> list[Sample]:
    places = np.random.default_rng(seed).permutation(len(samples))[:count]
    return [samples[place] for place in sorted(places)]


def _read(samples: Sequence[Sample]) -> tuple[list[tuple[Sample, Pair]], list[str]]:
    """Return the samples that can be read, and the errors of the others."""
    found, problems = [], []
    for sample in samples:
        try:
            found.append((sample, sample.read()))
        except DataProblem as problem:
            problems.append(str(problem))
    return found, problems


def _width(columns: int) -> int:
    return columns * (2 * PICTURE_WIDTH_PIXELS + GAP_PIXELS) + (columns + 1) * GAP_PIXELS


def _cell(name: str, pair: Pair, task: Task) -> Image.Image:
    """Draw one sample: image and overlay side by side, the name above."""
    height, width = pair.image.shape[:2]
    scale = min(PICTURE_WIDTH_PIXELS / width, MAX_HEIGHT_PIXELS / height)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    cell = Image.new("RGB", (2 * PICTURE_WIDTH_PIXELS + GAP_PIXELS, size[1] + LINE_HEIGHT_PIXELS), PAPER)
    shown = np.asarray(Image.fromarray(shown_picture(pair.image)).resize(size, Image.Resampling.LANCZOS))
    kind = kind_of(task)
    target = kind.targets(task).resized(pair.labels, (height, width), (size[1], size[0]))
    cell.paste(Image.fromarray(shown), (0, LINE_HEIGHT_PIXELS))
    cell.paste(
        kind.paint(shown, target, task, Look(form="overlay")),
        (PICTURE_WIDTH_PIXELS + GAP_PIXELS, LINE_HEIGHT_PIXELS),
    )
    ImageDraw.Draw(cell).text((0, 3), _fitted(visible(name), 2 * PICTURE_WIDTH_PIXELS), INK, font=_font())
    return cell


def _legend(task: Task, pairs: Sequence[Pair], width: int) -> Image.Image:
    """Draw a colour sample and a text for each entry of the legend, e.g. every class and its share."""
    named = kind_of(task).legend([pair.labels for pair in pairs], task)
    lines = [(colour, visible(text)) for colour, text in named]
    entry = max(int(_font().getlength(text)) for _, text in lines) + LINE_HEIGHT_PIXELS + 3 * GAP_PIXELS
    entry = min(entry, width - 2 * GAP_PIXELS)
    per_row = max(1, (width - GAP_PIXELS) // entry)
    legend = Image.new(
        "RGB", (width, math.ceil(len(lines) / per_row) * LINE_HEIGHT_PIXELS + GAP_PIXELS), PAPER
    )
    draw = ImageDraw.Draw(legend)
    for index, (colour, text) in enumerate(lines):
        x, y = GAP_PIXELS + index % per_row * entry, index // per_row * LINE_HEIGHT_PIXELS + GAP_PIXELS // 2
        draw.rectangle(
            (x, y + 2, x + TEXT_HEIGHT_PIXELS + 2, y + TEXT_HEIGHT_PIXELS + 4), fill=colour, outline=INK
        )
        draw.text(
            (x + LINE_HEIGHT_PIXELS, y + 1), _fitted(text, entry - LINE_HEIGHT_PIXELS), INK, font=_font()
        )
    return legend


def _assemble(cells: Sequence[Image.Image], legend: Image.Image, *, columns: int) -> Image.Image:
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    heights = [max(cell.height for cell in row) for row in rows]
    sheet = Image.new(
        "RGB", (_width(columns), sum(heights) + GAP_PIXELS * (len(rows) + 1) + legend.height), PAPER
    )
    y = GAP_PIXELS
    for row, height in zip(rows, heights, strict=True):
        for index, cell in enumerate(row):
            sheet.paste(cell, (GAP_PIXELS + index * (2 * PICTURE_WIDTH_PIXELS + 2 * GAP_PIXELS), y))
        y += height + GAP_PIXELS
    sheet.paste(legend, (0, y))
    return sheet


def _fitted(text: str, width: int) -> str:
    """Shorten a text from the left: the end of a path says most."""
    if _font().getlength(text) <= width:
        return text
    keep = len(text)
    while keep > 1 and _font().getlength("..." + text[-keep:]) > width:
        keep -= 1
    return "..." + text[-keep:]


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(TEXT_HEIGHT_PIXELS)
