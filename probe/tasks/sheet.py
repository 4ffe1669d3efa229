"""Contact sheets: a row of scenes per level, so that a reader sees what a model was asked."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from probe.tasks.design import ControlledTask, Scene, scenes, tested_levels
from probe.tasks.frame import Frame

SHOWN = 128  # pixels, least height of a scene on the sheet
GAP, MARGIN = 6, 96  # pixels between scenes, and left of them for the level
GROUPS = (0, 7)  # matched groups in a row: they differ in every subgroup that goes in turn
LABEL = 13  # font size, pixels


def sheet_name(task: ControlledTask, frame: Frame) -> str:
    """The sheet's file name."""
    height, width = frame.size
    return f"examples-{task.name}-{height}x{width}-p{frame.patch[0]}x{frame.patch[1]}.png"


def contact_sheet(task: ControlledTask, frame: Frame, seed: int) -> bytes | None:
    """A PNG of the first test scenes of `seed` at every level; None where no level fits."""
    rows: list[tuple[str, Sequence[Scene]]] = []
    units = {curve.factor: curve.unit for curve in task.curves}
    for factor, level in tested_levels(task, frame):
        shown = scenes(task, frame, factor, level, seed=seed, part="test", groups=GROUPS)
        rows.append((f"{factor} {level:g}\n{units[factor]}", list(shown)))
    if not rows:
        return None
    times = max(1, -(-SHOWN // frame.size[0]))
    high, wide = (side * times for side in frame.size)
    columns = max(len(row) for _, row in rows)
    head = 2 * LABEL
    size = (MARGIN + columns * (wide + GAP), head + len(rows) * (high + GAP))
    sheet = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(LABEL)
    for column, scene in enumerate(rows[0][1]):
        at = (MARGIN + column * (wide + GAP), LABEL // 2)
        draw.text(at, task.classes[scene.label], fill="black", font=font)
    for number, (label, row) in enumerate(rows):
        top = head + number * (high + GAP)
        draw.text((GAP, top), label, fill="black", font=font)
        for column, scene in enumerate(row):
            picture = Image.fromarray(scene.image).resize((wide, high), Image.Resampling.NEAREST)
            sheet.paste(picture, (MARGIN + column * (wide + GAP), top))
    content = io.BytesIO()
    sheet.save(content, format="PNG")
    return content.getvalue()
