"""Where the labels of a scatter's points go, so that none lies on a point or on another label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MARK, CLEAR = 0.055, 0.1  # half a marker, and its room from labels of other points, inches
RADII = (0.0, 0.06, 0.13, 0.22, 0.33, 0.46, 0.62, 0.8, 1.0, 1.25, 1.6)  # inches
# Between the bars of an interval first, then beside and above, then the angles between.
ANGLES = (2, 6, -2, -6, 0, 8, 4, -4, 1, 7, -1, -7, 3, 5, -3, -5)
CROWD = 0.5  # points within this many inches crowd each other
LED = 0.1  # a label that is further away than this needs a line to its point, inches

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle, in inches."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: Box) -> bool:
        """Whether the two overlap."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.bottom < other.top
            and other.bottom < self.top
        )

    def inside(self, other: Box) -> bool:
        """Whether it lies in the other whole."""
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.bottom <= self.bottom
            and self.top <= other.top
        )

    def grown(self, by: float) -> Box:
        """The rectangle with a margin around it."""
        return Box(self.left - by, self.bottom - by, self.right + by, self.top + by)

    def nearest(self, point: Point) -> Point:
        """The point of the rectangle that is nearest to `point`."""
        x = min(max(point[0], self.left), self.right)
        return x, min(max(point[1], self.bottom), self.top)


@dataclass(frozen=True)
class Label:
    """A label's place; `line` leads from it to its point where it stands away from it."""

    box: Box
    line: tuple[Point, Point] | None


def place_labels(
    points: Sequence[Point], sizes: Sequence[Point], area: Box, reach: float
) -> list[Label | None]:
    """A place for the label of every point, `None` where there is none within `reach` inches.

    Labels of the most crowded points come first, and take the nearest free place; lines to labels
    pass between the other points where they can. `points` and `sizes` (width, height) are in
    inches, as is `area`, which holds all labels. The same input gives the same places.
    """
    marks = [Box(x - MARK, y - MARK, x + MARK, y + MARK) for x, y in points]
    taken = list(marks)
    lines: list[tuple[Point, Point]] = []
    found: list[Label | None] = [None] * len(points)

    def crowd(i: int) -> int:
        return sum(math.dist(points[i], other) < CROWD for other in points)

    def place(i: int, strict: bool) -> Label | None:
        # When it must, a label may come close to other points, and a line may pass over them.
        placed = taken[len(marks) :]
        apart = [math.dist(points[i], other) > MARK for other in points]
        others = [box for box, away in zip(marks, apart, strict=True) if away]
        blocking = [*placed, *others] if strict else placed
        keep_off = [*placed, *(box.grown(CLEAR - MARK) if strict else box for box in others)]
        for box in _candidates(points[i], sizes[i], reach):
            if not box.inside(area) or any(box.meets(other) for other in keep_off):
                continue
            if any(_crosses(line, box) for line in lines):
                continue
            end = box.nearest(points[i])
            line = (points[i], end) if math.dist(end, points[i]) > LED else None
            if line is None or not any(_crosses(line, other) for other in blocking):
                return Label(box, line)
        return None

    for i in sorted(range(len(points)), key=lambda i: (-crowd(i), i)):
        label = place(i, strict=True) or place(i, strict=False)
        if label is not None:
            taken.append(label.box)
            if label.line is not None:
                lines.append(label.line)
            found[i] = label
    return found


def _candidates(point: Point, size: Point, reach: float) -> list[Box]:
    """Boxes around a point, nearest first, in the order of `ANGLES`."""
    (x, y), (width, height) = point, size
    boxes = []
    for radius in RADII:
        if radius > reach:
            break
        for turn in ANGLES:
            angle = 2 * math.pi * turn / len(ANGLES)
            across, up = math.cos(angle), math.sin(angle)
            out = radius + MARK + 0.005
            cx = x + across * out + _sign(across) * width / 2
            cy = y + up * out + _sign(up) * height / 2
            boxes.append(Box(cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2))
    return boxes


def _sign(share: float) -> float:
    """-1, 0 or 1: which side of a box faces the point, or its middle."""
    return 0.0 if abs(share) < 1e-9 else math.copysign(1.0, share)


def _crosses(line: tuple[Point, Point], box: Box) -> bool:
    """Whether a straight line passes through a rectangle."""
    (x0, y0), (x1, y1) = line
    start, end = 0.0, 1.0
    for at, by, low, high in (
        (x0, x1 - x0, box.left, box.right),
        (y0, y1 - y0, box.bottom, box.top),
    ):
        if by == 0:
            if not low < at < high:
                return False
            continue
        first, last = sorted(((low - at) / by, (high - at) / by))
        start, end = max(start, first), min(end, last)
    return start < end
