from __future__ import annotations

import io
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from probe.data.folder import ImageFolder
from probe.data.loader import Batch, _Prepared, batches
from probe.data.memory import InMemory
from probe.data.open import open_data
from probe.data.preprocess import as_is, named_preprocess, to_model_size
from probe.data.source import Encoded, IndexedSource, Item, StreamSource
from probe.errors import DataError, UnreadableImage, UsageError

PREPROCESS = named_preprocess("imagenet", (16, 16))
READY = as_is(PREPROCESS)


def picture(index: int) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, (16, 16, 3), dtype=np.uint8)


def folder(path: Path, n: int, bad: tuple[int, ...] = ()) -> ImageFolder:
    path.mkdir(exist_ok=True)
    for index in range(n):
        file = path / f"{index:04d}.png"
        if index in bad:
            file.write_bytes(b"broken")
        else:
            Image.fromarray(picture(index)).save(file, compress_level=0)
    source = open_data(str(path))
    assert isinstance(source, ImageFolder)
    return source


class Faulty(IndexedSource):
    """Pictures of which some cannot be read; counts what was asked for."""

    kind = "memory"

    def __init__(self, n: int, bad: set[int], limit: int | None = None) -> None:
        super().__init__("faulty", n, limit)
        self.bad, self.asked = bad, 0

    def read(self, position: int) -> Item:
        self.asked += 1
        index = self.indices[position]
        if position in self.bad:
            raise UnreadableImage(f"i{index}", "torn")
        return Item(index, f"i{index}", Image.new("RGB", (16, 16), (index % 256, 0, 0)), index)

    def item_names(self) -> list[str]:
        return []

    def content(self, position: int) -> None:
        return None


class Stream(StreamSource):
    """A stream from memory."""

    kind = "hub"
    name = "stream"
    split = "test"
    fingerprint = "none"

    def __init__(self, n: int, limit: int | None = None, bad: tuple[int, ...] = ()) -> None:
        self.n, self.limit, self.bad, self.given = n, limit, bad, 0

    def stream(self, start: int = 0) -> Iterator[Encoded]:
        for index in range(start, min(self.n, self.n if self.limit is None else self.limit)):
            self.given += 1
            buffer = io.BytesIO()
            Image.fromarray(picture(index)).save(buffer, "PNG")
            data = b"broken" if index in self.bad else buffer.getvalue()
            yield Encoded(index, f"s{index}", data, index % 3)


def joined(found: list[Batch]) -> dict[str, object]:
    return {
        "positions": np.concatenate([b.positions for b in found]).tolist(),
        "indices": np.concatenate([b.indices for b in found]).tolist(),
        "images": torch.cat([b.images for b in found]).numpy().tobytes(),
        "labels": [label for b in found for label in b.labels],
        "names": [name for b in found for name in b.names],
        "skipped": [s for b in found for s in b.skipped],
    }


def test_batches_hold_the_prepared_images_in_order() -> None:
    sizes = [(20, 30), (40, 25), (18, 18), (33, 60), (16, 99)]
    images = [np.random.default_rng(h).integers(0, 256, (h, w, 3), np.uint8) for h, w in sizes]
    source = InMemory(images, labels=list("abcde"))
    found = list(batches(source, PREPROCESS, 2))
    assert [b.positions.tolist() for b in found] == [[0, 1], [2, 3], [4]]
    assert [b.labels for b in found] == [["a", "b"], ["c", "d"], ["e"]]
    assert [b.names for b in found][1] == ("image-2", "image-3")
    assert [b.stop for b in found] == [2, 4, 5]
    assert found[0].images.dtype == torch.uint8
    assert found[0].positions.dtype == found[0].indices.dtype == np.int64
    expected = np.stack([to_model_size(Image.fromarray(a), PREPROCESS) for a in images])
    np.testing.assert_array_equal(torch.cat([b.images for b in found]).numpy(), expected)


def test_indices_are_of_the_full_set_and_positions_of_the_taken() -> None:
    found = joined(list(batches(Faulty(100, set(), limit=7), READY, 3)))
    assert found["positions"] == [0, 1, 2, 3, 4, 5, 6]
    assert found["indices"] == [0, 14, 28, 42, 57, 71, 85]


def test_workers_change_nothing(tmp_path: Path) -> None:
    source = folder(tmp_path, 203, bad=(5, 202))
    wanted = joined(list(batches(source, READY, 8)))
    names = [f"{i:04d}.png" for i in range(203) if i not in (5, 202)]
    assert wanted["names"] == names
    assert wanted["images"] == b"".join(
        picture(i).tobytes() for i in range(203) if i not in (5, 202)
    )
    for workers, size in ((2, 8), (2, 31), (0, 1)):
        assert joined(list(batches(source, READY, size, workers))) == wanted


def test_worker_error_is_one_line(tmp_path: Path) -> None:
    class Gone(Faulty):
        def read(self, position: int) -> Item:
            raise DataError("the file is gone; fetch it anew")

    for workers in (0, 1):
        with pytest.raises(DataError) as error:
            list(batches(Gone(4, set()), READY, 2, workers))
        assert str(error.value) == "the file is gone; fetch it anew"


def test_dead_worker_is_one_line() -> None:
    class Killed(Faulty):
        def read(self, position: int) -> Item:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

    with pytest.raises(DataError, match=r"a data worker process died.*use fewer --workers"):
        list(batches(Killed(4, set()), READY, 2, 1))


def test_spawned_workers_can_be_given_the_data(tmp_path: Path) -> None:
    for source in (folder(tmp_path, 3), InMemory(np.zeros((2, 16, 16, 3), np.uint8)), *BUILT_IN):
        prepared = _Prepared(source, PREPROCESS)
        again = pickle.loads(pickle.dumps(prepared))
        np.testing.assert_array_equal(again[1].pixels, prepared[1].pixels)
        assert again[1].name == prepared[1].name


BUILT_IN = [s for t in ("photos", "digits") if isinstance(s := open_data(t), IndexedSource)]


def test_positions_stay_when_a_neighbour_is_dropped() -> None:
    found = list(batches(Faulty(200, {1, 130}), READY, 3))
    assert found[0].positions.tolist() == [0, 2]
    assert found[0].skipped == [("i1", "torn")]
    assert found[1].positions.tolist() == [3, 4, 5]
    assert found[43].skipped == [("i130", "torn")]
    assert found[43].positions.tolist() == [129, 131]
    assert sum(len(b.positions) for b in found) == 198
    assert [s for b in found for s in b.skipped] == [("i1", "torn"), ("i130", "torn")]


@pytest.mark.parametrize("bad", [{0}, {0, 1}, {298, 299}, {150, 151}, {0, 150, 299}])
def test_no_batch_is_empty(bad: set[int]) -> None:
    found = list(batches(Faulty(300, bad), READY, 1))
    assert all(len(b.positions) == 1 for b in found)
    assert [p for b in found for p in b.positions] == [i for i in range(300) if i not in bad]
    assert [name for b in found for name, _ in b.skipped] == [f"i{i}" for i in sorted(bad)]
    assert found[-1].stop == 300


@given(st.integers(1, 120), st.sets(st.integers(0, 119), max_size=4), st.integers(1, 50))
@settings(max_examples=30)
def test_resuming_gives_the_rest(n: int, bad: set[int], size: int) -> None:
    bad = {i for i in bad if i < n} if n >= 100 else set()
    bad = set(sorted(bad)[: n // 100])
    whole = list(batches(Faulty(n, bad), READY, size))
    for cut in {0, len(whole) // 2, len(whole) - 1}:
        done, stop = whole[: cut + 1], whole[cut].stop
        failed = sum(len(b.skipped) for b in done)
        rest = list(batches(Faulty(n, bad), READY, size, start=stop, failed=failed))
        assert [b.names for b in done + rest] == [b.names for b in whole]


def test_one_percent_is_allowed_and_more_is_refused_at_once() -> None:
    assert joined(list(batches(Faulty(100, {99}), READY, 10)))["skipped"] == [("i99", "torn")]
    source = Faulty(300, {2, 3, 4, 5, 200})
    with pytest.raises(DataError) as error:
        list(batches(source, READY, 1))
    assert source.asked == 6
    assert str(error.value) == (
        "at least 4 of 300 images cannot be read, above the 1 % allowed ('i2': torn; 'i3': torn; "
        "'i4': torn); repair or remove them"
    )
    with pytest.raises(DataError, match="at least 1 of 99 images cannot be read"):
        list(batches(Faulty(99, {0}), READY, 4))
    with pytest.raises(DataError, match="at least 2 of 150 images"):
        list(batches(Faulty(150, {140}), READY, 4, start=100, failed=1))


def test_unreadable_file_is_named_with_its_reason(tmp_path: Path) -> None:
    source = folder(tmp_path, 12, bad=(7,))
    with pytest.raises(DataError, match=r"1 of 12 .*'0007.png': it is no image that Pillow knows"):
        list(batches(source, READY, 4))


def test_image_smaller_than_the_crop_counts_as_unusable() -> None:
    images = [picture(i) for i in range(100)] + [picture(0)[:9]]
    (batch,) = batches(InMemory(images), READY, 200)
    assert batch.skipped == [
        (
            "image-100",
            "preprocessing gives 9x16, but the model takes 16x16; choose another --preprocess",
        )
    ]


def test_bad_arguments() -> None:
    with pytest.raises(UsageError, match="--batch-size must be at least 1, got 0"):
        batches(Faulty(3, set()), READY, 0)
    with pytest.raises(UsageError, match="--workers must be at least 0, got -1"):
        batches(Faulty(3, set()), READY, 1, -1)


def test_global_random_state_is_left_alone(tmp_path: Path) -> None:
    source = folder(tmp_path, 4)
    before = torch.get_rng_state()
    for workers in (0, 1):
        list(batches(source, READY, 2, workers))
    assert torch.equal(torch.get_rng_state(), before)


def test_stopping_early_ends_the_workers(tmp_path: Path) -> None:
    import multiprocessing

    found = batches(folder(tmp_path, 40), READY, 2, 2)
    next(found)
    assert len(multiprocessing.active_children()) == 2
    found.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


def test_streams_give_the_same_with_any_number_of_threads() -> None:
    wanted = joined(list(batches(Stream(105, bad=(3,)), READY, 4)))
    assert wanted["positions"] == [i for i in range(105) if i != 3]
    assert wanted["images"] == b"".join(picture(i).tobytes() for i in range(105) if i != 3)
    assert wanted["labels"] == [i % 3 for i in range(105) if i != 3]
    assert wanted["skipped"] == [("s3", "it is no image that Pillow knows")]
    assert joined(list(batches(Stream(105, bad=(3,)), READY, 17, 3))) == wanted


def test_streams_stop_at_their_limit_and_resume() -> None:
    found = list(batches(Stream(50, limit=7), READY, 3))
    assert [b.positions.tolist() for b in found] == [[0, 1, 2], [3, 4, 5], [6]]
    rest = list(batches(Stream(50, limit=7), READY, 3, start=found[1].stop))
    assert rest[0].names == ("s6",)
    assert len(rest) == 1


def test_streams_are_refused_when_it_is_certain() -> None:
    known = Stream(500, limit=100, bad=(1, 2))
    with pytest.raises(DataError, match=r"at least 2 of 100 images .*'s1': .*'s2': "):
        list(batches(known, READY, 2))
    assert known.given == 4
    # Without a limit only the end tells; with one, it may come sooner than promised.
    for stream, n in ((Stream(99, bad=(1,)), 99), (Stream(50, limit=100, bad=(1,)), 50)):
        with pytest.raises(DataError, match=f"at least 1 of {n} images cannot be read"):
            list(batches(stream, READY, 10))
    with pytest.raises(DataError, match="the data set gave no images; choose another split"):
        list(batches(Stream(0), READY, 2))
