"""Contact sheets of suggestions: pictures beside their labels, in order of rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from segtailor.core.text import visible
from segtailor.data.cache import Pixels
from segtailor.recipes.suggest import Suspect
from segtailor.tasks import Look, kind_of
from segtailor.tasks.bands import shown_picture

WIDTH_PIXELS, MAX_HEIGHT_PIXELS, GAP_PIXELS, LINE_PIXELS = 300, 400, 8, 22
COLUMNS = 2
MAX_CELLS = 200  # limits the memory of a sheet
PAPER, INK = (250, 250, 248), (30, 30, 34)


def label_sheet(suspects: Sequence[Suspect], pixels: Pixels) -> Image.Image:
    """Draw each sample as image | labels, with its rank, score and reason above."""
    places = {name: index for index, name in enumerate(pixels.names)}
    cells = []
    for rank, one in enumerate(suspects[:MAX_CELLS], start=1):
        pair = pixels.pair(places[one.name])
        image = shown_picture(pair.image)
        drawn = kind_of(pixels.task).paint(image, pair.labels, pixels.task, Look(form="overlay"))
        title = f"{rank}. {one.name}  {one.score:.1f}"
        reason = f"{one.given}: {one.found}? {one.share:.0%}" if one.given else ""
        cells.append(_cell([title, reason], [image, np.asarray(drawn)]))
    return _assembled(cells)


def picture_sheet(pictures: Sequence[tuple[str, NDArray[np.uint8]]]) -> Image.Image:
    """Draw pictures with a line of text each."""
    return _assembled([_cell([text], [shown_picture(image)]) for text, image in pictures[:MAX_CELLS]])


def _cell(lines: Sequence[str], images: Sequence[NDArray[np.uint8]]) -> Image.Image:
    height, width = images[0].shape[:2]
    scale = min(WIDTH_PIXELS / width, MAX_HEIGHT_PIXELS / height)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    head = LINE_PIXELS * len(lines)
    cell = Image.new("RGB", ((WIDTH_PIXELS + GAP_PIXELS) * len(images), size[1] + head), PAPER)
    draw = ImageDraw.Draw(cell)
    for number, line in enumerate(lines):
        draw.text((0, number * LINE_PIXELS), visible(line)[-80:], INK, font=ImageFont.load_default(13))
    for number, image in enumerate(images):
        cell.paste(Image.fromarray(image).resize(size), (number * (WIDTH_PIXELS + GAP_PIXELS), head))
    return cell


def _assembled(cells: Sequence[Image.Image]) -> Image.Image:
    rows = [cells[start : start + COLUMNS] for start in range(0, len(cells), COLUMNS)]
    width = max(sum(cell.width for cell in row) for row in rows) + 2 * GAP_PIXELS
    height = sum(max(cell.height for cell in row) + GAP_PIXELS for row in rows) + GAP_PIXELS
    sheet, top = Image.new("RGB", (width, height), PAPER), GAP_PIXELS
    for row in rows:
        left = GAP_PIXELS
        for cell in row:
            sheet.paste(cell, (left, top))
            left += cell.width
        top += max(cell.height for cell in row) + GAP_PIXELS
    return sheet
