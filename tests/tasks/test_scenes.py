"""Scenes: the factor changes alone, classes differ in what is asked, seeds decide the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from probe.tasks import alignment, arrangement, relation, scale
from probe.tasks.catalogue import TASKS
from probe.tasks.design import ControlledTask, Scene, scenes
from probe.tasks.frame import Frame
from probe.tasks.shapes import MAX_REACH, REACH, SHAPES, coverage
from tests.tasks.checks import (
    DEIT,
    DIGITS,
    OBLONG,
    WIDE,
    group,
    moved_exactly,
    same_apart_from,
    same_ground,
    same_patches,
    spoilt,
)

FRAMES = pytest.mark.parametrize("frame", [DIGITS, DEIT, WIDE, OBLONG], ids=str)
EVERY = pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))


@EVERY
@FRAMES
def test_scenes_have_the_models_size_and_the_seed_decides_them(
    task: ControlledTask, frame: Frame
) -> None:
    for curve in task.curves:
        level = curve.levels(frame).kept[-1]
        once = group(task, frame, level, 5, factor=curve.factor)
        again = group(task, frame, level, 5, factor=curve.factor)
        assert len(once) == task.members
        for one, two in zip(once, again, strict=True):
            assert one.image.dtype == np.uint8
            assert one.image.shape == (*frame.size, 3)
            assert np.array_equal(one.image, two.image)
            assert one.factors == two.factors
        for other in (group(task, frame, level, 13), group(task, frame, level, 5, seed=1)):
            assert not np.array_equal(once[0].image, other[0].image)
        counts = Counter(scene.label for scene in once)
        assert counts == dict.fromkeys(range(len(task.classes)), task.members // len(task.classes))


@EVERY
def test_parts_share_no_scene(task: ControlledTask) -> None:
    level, seen = task.curve.levels(DIGITS).kept[0], list[bytes]()
    for part in ("fit", "validation", "test"):
        found = scenes(
            task,
            DIGITS,
            task.curve.factor,
            level,
            seed=0,
            part=part,
            groups=range(3),  # type: ignore[arg-type]
        )
        seen += [scene.image.tobytes() for scene in found]
    assert len(set(seen)) == len(seen) == 9 * task.members


@EVERY
@FRAMES
def test_what_is_not_the_factor_stays(task: ControlledTask, frame: Frame) -> None:
    for curve in task.curves:
        for index in range(8):
            found = [
                group(task, frame, level, index, factor=curve.factor)
                for level in curve.levels(frame).kept
            ]
            own = {curve.factor}
            if task is alignment.TASK:  # where the object is, is what moves
                found = [tuple(_without(s, "row", "col") for s in one) for one in found]
            if task is arrangement.TASK:  # a phase is a share of two stripes
                found = [tuple(_without(s, "phase") for s in one) for one in found]
            same_apart_from(found, own.pop())


def _without(scene: Scene, *names: str) -> Scene:
    return replace(scene, factors={k: v for k, v in scene.factors.items() if k not in names})


def test_a_colour_that_follows_the_size_is_seen() -> None:
    def darker(scene: Scene, level: float) -> Scene:
        return replace(scene, factors={**scene.factors, "ink": level})

    task = spoilt(scale.TASK, darker)
    with pytest.raises(AssertionError, match=r"\['ink'\] change with size"):
        same_apart_from([group(task, DIGITS, 1.0), group(task, DIGITS, 2.0)], "size")


@EVERY
def test_subgroups_are_of_one_size_and_cross_the_classes(task: ControlledTask) -> None:
    level = task.curve.levels(DIGITS).kept[0]
    made = [scene for index in range(64) for scene in group(task, DIGITS, level, index)]
    for part in task.subgroups:
        inside = [scene for scene in made if scene.factors[part.factor] == part.value]
        counts = Counter(scene.label for scene in inside)
        assert len(set(counts.values())) == 1
        assert len(counts) == len(task.classes)
        if part.factor != "place":  # drawn
            assert 2 * len(inside) == len(made)
        else:
            assert 0.3 < len(inside) / len(made) < 0.7


class TestShapes:
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("size", [2.0, 4.4, 9.0, 40.0])
    def test_area_is_the_square_of_the_size(self, shape: str, size: float) -> None:
        areas = [
            coverage(shape, size, (64 + step / 7, 64 + step / 5), step, (128, 128)).sum()
            for step in range(12)
        ]
        assert np.mean(areas) == pytest.approx(size**2, rel=0.02)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_its_farthest_point(self, shape: str) -> None:
        covered = coverage(shape, 50.0, (64, 64), 0.3, (128, 128)) > 0
        rows, cols = np.nonzero(covered)
        assert np.hypot(rows + 0.5 - 64, cols + 0.5 - 64).max() == pytest.approx(
            REACH[shape] * 50, abs=1
        )

    def test_shapes_differ(self) -> None:
        drawn = [coverage(shape, 30.0, (32, 32), 0.0, (64, 64)) for shape in SHAPES]
        for first in range(len(drawn)):
            for second in range(first):
                assert np.abs(drawn[first] - drawn[second]).sum() > 0.1 * 30**2

    def test_what_lies_outside_is_cut_off(self) -> None:
        assert coverage("disc", 4.0, (-20, 5), 0.0, (10, 10)).sum() == 0
        assert 0 < coverage("disc", 4.0, (0, 5), 0.0, (10, 10)).sum() < 9


class TestScale:
    def test_levels(self) -> None:
        assert scale.levels(DEIT) == scale.Levels((0.5, 1.0, 2.0, 3.0, 4.0, 6.0))
        found = scale.levels(DIGITS)
        assert found.kept == (0.5, 1.0, 2.0, 3.0)
        assert found.left_out[0] == (4.0, "it takes 33 px, the image has 32")
        fine = scale.levels(Frame((32, 32), (2, 2), (16, 16)))
        assert fine.left_out[0] == (0.5, "the object would be 1 px wide, below 2 px")

    @FRAMES
    def test_the_ground_is_the_same_at_every_size_and_in_every_class(self, frame: Frame) -> None:
        levels = scale.levels(frame).kept
        for small, large in pairwise(levels):
            for index in range(4):
                smaller, larger = (group(scale.TASK, frame, one, index) for one in (small, large))
                reach = MAX_REACH * large * frame.unit + 1.5
                for one, other in zip(smaller, larger, strict=True):
                    same_ground(one, other, reach)
                for other in larger[1:]:
                    same_ground(larger[0], other, reach)

    def test_a_ground_that_follows_the_class_is_seen(self) -> None:
        def lighter(scene: Scene, level: float) -> np.ndarray:
            return np.clip(scene.image.astype(int) + scene.label, 0, 255).astype(np.uint8)

        found = group(spoilt(scale.TASK, lighter), DIGITS, 1.0)
        with pytest.raises(AssertionError, match="pixels of the ground differ"):
            same_ground(found[0], found[1], 8)

    @FRAMES
    def test_the_object_lies_inside(self, frame: Frame) -> None:
        most = scale.levels(frame).kept[-1] * MAX_REACH * frame.unit
        for index in range(50):
            at = group(scale.TASK, frame, scale.levels(frame).kept[0], index)[0].factors
            for place, length in zip((at["row"], at["col"]), frame.size, strict=True):
                assert most <= float(place) <= length - most

    def test_classes_are_of_one_brightness(self) -> None:
        sums = np.zeros((len(SHAPES), 60))
        for index in range(60):
            for scene in group(scale.TASK, DIGITS, 2.0, index):
                sums[scene.label, index] = scene.image.mean()
        differences = sums[1:] - sums[0]
        assert np.abs(differences.mean(axis=1)).max() < 0.1  # levels of 255
        assert sums.std() > 10


class TestAlignment:
    def test_levels(self) -> None:
        assert alignment.offsets(DIGITS).kept == (0.0, 1.0, 2.0, 3.0)
        assert alignment.offsets(DEIT).kept == (0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0)
        assert alignment.moves(DEIT) == alignment.Levels((0.0, 1.0, 2.0, 4.0))
        found = alignment.moves(DIGITS)
        assert found.kept == (0.0, 1.0, 2.0)
        assert found.left_out == ((4.0, "it takes a grid of 10x10 patches, the model has 8x8"),)
        none = Frame((24, 24), (4, 4), (6, 6))
        assert alignment.offsets(none).kept == alignment.moves(none).kept == ()
        reason = "it takes a grid of 7x7 patches, the model has 6x6"
        assert alignment.offsets(none).left_out == ((0.0, reason),)

    @FRAMES
    def test_a_move_changes_no_pixel_but_by_moving_it(self, frame: Frame) -> None:
        for index in range(3):
            still = group(alignment.TASK, frame, 0.0, index)
            for curve in alignment.TASK.curves:
                whole = curve.factor == alignment.MOVE
                for level in curve.levels(frame).kept:
                    down, right = (int(level) * (side if whole else 1) for side in frame.patch)
                    moved = group(alignment.TASK, frame, level, index, factor=curve.factor)
                    for one, other in zip(still, moved, strict=True):
                        moved_exactly(one.image, other.image, down, right)
                        assert other.factors["row"] == float(one.factors["row"]) + down
                        assert other.factors["col"] == float(one.factors["col"]) + right

    def test_a_wrong_shift_is_seen(self) -> None:
        still = group(alignment.TASK, DIGITS, 0.0)[0].image
        moved = group(alignment.TASK, DIGITS, 2.0)[0].image
        for down, right in ((1, 2), (2, 1), (3, 3)):
            with pytest.raises(AssertionError, match="pixels are not those of the scene"):
                moved_exactly(still, moved, down, right)

    @FRAMES
    def test_objects_of_aligned_scenes_are_centred_on_patch_corners(self, frame: Frame) -> None:
        corners = set()
        for index in range(60):
            at = group(alignment.TASK, frame, 0.0, index)[0].factors
            place = tuple(
                float(at[axis]) / side
                for axis, side in zip(("row", "col"), frame.patch, strict=True)
            )
            assert place == tuple(map(round, place))
            corners.add(place)
        assert len(corners) == alignment.ANCHORS**2

    @FRAMES
    def test_the_object_stays_inside(self, frame: Frame) -> None:
        reach = MAX_REACH * alignment.SIZE * frame.unit
        for factor, level in (
            (alignment.OFFSET, alignment.offsets(frame).kept[-1]),
            (alignment.MOVE, alignment.moves(frame).kept[-1]),
        ):
            for index in range(40):
                at = group(alignment.TASK, frame, level, index, factor=factor)[0].factors
                for axis, length in zip(("row", "col"), frame.size, strict=True):
                    assert reach <= float(at[axis]) <= length - reach

    def test_whole_moves_leave_patch_contents_as_they_were(self) -> None:
        """The patches that stay in the image are the same; under an offset next to none is."""
        still = group(alignment.TASK, DIGITS, 0.0, 2)[0]
        shares = []
        for factor, level in ((alignment.MOVE, 1.0), (alignment.OFFSET, 1.0)):
            moved = group(alignment.TASK, DIGITS, level, 2, factor=factor)[0]
            before, after = (_tiles(one.image) for one in (still, moved))
            shares.append((before & after).total())
        assert shares[0] == 49
        assert shares[1] < 5


def _tiles(image: np.ndarray) -> Counter[bytes]:
    from tests.tasks.checks import patches

    return Counter(patches(image, DIGITS))


class TestRelation:
    def test_levels(self) -> None:
        assert relation.levels(DIGITS).kept == (2.0, 4.0, 6.0)
        assert relation.levels(DEIT).kept == (2.0, 4.0, 6.0, 10.0)
        reason = "it takes a grid of 12x12 patches, the model has 8x8"
        assert relation.levels(DIGITS).left_out[0] == (10.0, reason)

    @FRAMES
    def test_patches_and_their_places_are_the_same_in_both_classes(self, frame: Frame) -> None:
        for level in relation.levels(frame).kept:
            for index in range(8):
                same_patches(group(relation.TASK, frame, level, index), frame, with_places=True)

    def test_a_second_look_of_one_class_is_seen(self) -> None:
        def lighter(scene: Scene, level: float) -> np.ndarray:
            image = scene.image.copy()
            image[0, 0] = 255 * scene.label
            return image

        found = group(spoilt(relation.TASK, lighter), DIGITS, 2.0)
        with pytest.raises(AssertionError, match="2 patches differ between classes"):
            same_patches(found, DIGITS)

    def test_pairs_of_one_kind_alone_are_seen(self) -> None:
        disc, _, *others = group(relation.TASK, DIGITS, 2.0)
        with pytest.raises(AssertionError, match="patches differ between classes"):
            same_patches((disc, disc, *others), DIGITS)

    @FRAMES
    def test_the_objects_are_as_far_apart_as_they_should_be(self, frame: Frame) -> None:
        for level in relation.levels(frame).kept:
            for index in (0, 4):
                one, _, mixed, other = group(relation.TASK, frame, level, index)
                # Where two pairs differ in their second object alone, and in their first alone.
                second = np.argwhere((one.image != mixed.image).any(axis=2)).mean(axis=0)
                first = np.argwhere((one.image != other.image).any(axis=2)).mean(axis=0)
                far = np.abs(second - first) / frame.patch
                axis = 1 if one.factors["axis"] == "side by side" else 0
                assert far[axis] == pytest.approx(level, abs=0.35)
                assert far[1 - axis] == pytest.approx(0, abs=0.35)

    def test_same_means_equal_objects(self) -> None:
        for scene in group(relation.TASK, DIGITS, 4.0, 1):  # dark, calm
            row, col = int(scene.factors["row"]), int(scene.factors["col"])
            assert scene.factors["axis"] == "one above the other"
            cells = [
                scene.image[row + s * 8 - 4 : row + s * 8 + 4, col - 4 : col + 4] for s in (-1, 1)
            ]
            gap = np.abs(cells[0].astype(int) - cells[1]).mean()
            assert (gap < 5) == (scene.label == relation.CLASSES.index("same"))


class TestArrangement:
    def test_levels(self) -> None:
        assert arrangement.levels(DIGITS).kept == (1.0, 2.0, 4.0)
        assert arrangement.levels(DEIT).kept == (1.0, 2.0, 4.0, 7.0)
        assert arrangement.levels(DIGITS).left_out[0] == (
            7.0,
            "two stripes take 14 patches, the grid has 8",
        )

    @FRAMES
    def test_both_classes_hold_the_same_patches(self, frame: Frame) -> None:
        for level in arrangement.levels(frame).kept:
            for index in range(8):
                found = group(arrangement.TASK, frame, level, index)
                same_patches(found, frame)
                with pytest.raises(AssertionError):
                    same_patches(found, frame, with_places=True)

    def test_one_patch_that_knows_the_class_is_seen(self) -> None:
        def marked(scene: Scene, level: float) -> np.ndarray:
            image = scene.image.copy()
            image[5, 5, 0] ^= scene.label
            return image

        found = group(spoilt(arrangement.TASK, marked), DIGITS, 2.0)
        with pytest.raises(AssertionError, match="1 patches differ between classes"):
            same_patches(found, DIGITS)

    @FRAMES
    def test_rows_are_rows_and_columns_are_columns(self, frame: Frame) -> None:
        top, left = ((count - frame.side) // 2 for count in frame.grid)
        high, wide = frame.patch
        for level in arrangement.levels(frame).kept:
            for scene in group(arrangement.TASK, frame, level, 0):
                square = scene.image.mean(axis=2)[
                    top * high : (top + frame.side) * high, left * wide : (left + frame.side) * wide
                ]
                cells = square.reshape(frame.side, high, frame.side, wide).mean(axis=(1, 3))
                across = cells if arrangement.CLASSES[scene.label] == "rows" else cells.T
                assert across.std(axis=1).max() < 5 < across.std(axis=0).min()
                light = across.mean(axis=1) > across.mean()
                starts = np.flatnonzero(np.diff(light.astype(int)))
                assert set(np.diff(starts)) <= {int(level)}

    def test_each_place_is_as_often_light_in_either_class(self) -> None:
        frame = Frame((16, 16), (2, 2), (8, 8))
        for level in arrangement.levels(frame).kept:
            light = np.zeros((2, 8, 8))
            for index in range(400):
                for scene in group(arrangement.TASK, frame, level, index):
                    cells = scene.image.mean(axis=2).reshape(8, 2, 8, 2).mean(axis=(1, 3))
                    light[scene.label] += (cells > cells.mean()) == (
                        scene.factors["tone"] == "light"
                    )
            assert np.abs(light / 400 - 0.5).max() < 0.125  # five standard deviations
