from __future__ import annotations

import io
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image

from probe.data.builtin import Digits, Photos
from probe.data.memory import InMemory
from probe.data.open import open_data
from probe.data.source import IndexedSource, subset
from probe.errors import DataError, UnreadableImage, UsageError


def write(path: Path, level: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), (level, 0, 0)).save(path, "PNG")


def opened(text: str | Path, **options: object) -> IndexedSource:
    source = open_data(str(text), **options)  # type: ignore[arg-type]
    assert isinstance(source, IndexedSource)
    return source


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_subset_is_the_floor_formula(n: int, limit: int) -> None:
    taken = subset(n, limit)
    assert len(taken) == min(n, limit)
    assert taken == sorted(set(taken))
    assert taken[0] == 0
    assert taken[-1] < n
    if limit < n:
        assert all(index <= i * n / limit < index + 1 for i, index in enumerate(taken))
    else:
        assert taken == list(range(n))


def test_subset_examples_and_bad_limits() -> None:
    assert subset(10, 4) == [0, 2, 5, 7]
    assert subset(3, None) == [0, 1, 2]
    for limit in (0, -3):
        with pytest.raises(UsageError, match=f"--limit must be at least 1, got {limit}"):
            subset(10, limit)
    for text in ("photos", "digits", "hf:owner/name", "."):
        with pytest.raises(UsageError, match="--limit must be at least 1, got 0"):
            open_data(text, limit=0)


def test_photos_are_fixed() -> None:
    photos = opened("photos")
    assert (len(photos), photos.total, photos.class_names) == (55, 55, None)
    names = list(photos.item_names())
    assert names == sorted(set(names))
    assert names[0] == "astronaut/r0c0"
    assert photos.fingerprint == "blake2b:cee6bb796330a6f67fb87652c6924d71"
    assert opened("photos", limit=8).indices == [0, 6, 13, 20, 27, 34, 41, 48]
    assert opened("photos", limit=8).fingerprint != photos.fingerprint


def test_photos_are_tiles_of_the_original_without_overlap() -> None:
    photos = Photos()
    items = [photos.read(position) for position in range(55)]
    assert all(item.image.mode == "RGB" and item.label is None for item in items)
    assert all(145 <= min(item.image.size) <= max(item.image.size) <= 256 for item in items)
    assert all(max(i.image.size) / min(i.image.size) < 1.15 for i in items)
    china = load_sample_image("china.jpg")
    tiles = {item.name: np.asarray(item.image) for item in items if item.name.startswith("china")}
    rows = [np.hstack([tiles[f"china/r{row}c{col}"] for col in range(3)]) for row in range(2)]
    np.testing.assert_array_equal(np.vstack(rows), china)


def test_digits_splits_are_disjoint_stratified_and_fixed() -> None:
    parts = {split: opened("digits", split=split) for split in ("train", "validation", "test")}
    assert {split: len(part) for split, part in parts.items()} == {
        "train": 1253,
        "validation": 269,
        "test": 275,
    }
    names = [name for part in parts.values() for name in part.item_names()]
    assert len(set(names)) == len(names) == 1797
    for split, part in parts.items():
        assert part.class_names == tuple("0123456789")
        assert part.label_kind == "classlabel"
        counts = Counter(part.read(i).label for i in range(len(part)))
        assert max(counts.values()) - min(counts.values()) <= (7 if split == "train" else 3)
    assert {split: part.fingerprint for split, part in parts.items()} == FINGERPRINTS
    assert opened("digits").fingerprint == FINGERPRINTS["test"]


FINGERPRINTS = {
    "train": "blake2b:77078c6d1a7e89b6ccfd35fc36729b8d",
    "validation": "blake2b:e429e013c40988b5d4ea4e92904f7416",
    "test": "blake2b:cc2775e20a715d4b7dac6865d5d79322",
}


def test_digits_are_the_scaled_originals() -> None:
    bunch = load_digits()
    part = Digits(split="validation", limit=20)
    for position in range(20):
        item = part.read(position)
        row = int(item.name.removeprefix("digit-"))
        assert item.label == bunch.target[row]
        expected = np.floor(bunch.images[row] * 255 / 16 + 0.5)
        np.testing.assert_array_equal(np.asarray(item.image), np.stack([expected] * 3, axis=2))


def test_digits_refuses_another_split() -> None:
    with pytest.raises(UsageError, match=r"no split 'valid' .*validation.* Did you mean valid"):
        open_data("digits", split="valid")


def test_folder_is_sorted_and_ignores_what_is_hidden(tmp_path: Path) -> None:
    for name in ("b.png", "a/2.PNG", "a/1.png", "a-b.jpeg", ".hidden/x.png", "a/.y.png", "B.png"):
        write(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    folder = opened(tmp_path)
    assert list(folder.item_names()) == ["B.png", "a-b.jpeg", "a/1.png", "a/2.PNG", "b.png"]
    assert (folder.kind, folder.name, folder.total) == ("folder", str(tmp_path), 5)
    assert (folder.class_names, folder.label_kind) == (None, None)
    assert [folder.read(i).label for i in range(5)] == [None] * 5


def test_folder_is_read_whole_whatever_the_files_are_called(tmp_path: Path) -> None:
    for name in ("bullet_train.jpg", "cat.jpg", "dog_test.jpg", "train/a.jpg", "test/b.jpg"):
        write(tmp_path / name)
    assert opened(tmp_path).total == 5


def test_folder_classes(tmp_path: Path) -> None:
    wordnet = tmp_path / "wordnet"
    for name in ("n01440764/x/b.png", "n01440764/a.png", "n01443537/c.png"):
        write(wordnet / name)
    source = opened(wordnet)
    assert (source.label_kind, source.class_names) == ("wnid", ("n01440764", "n01443537"))
    assert [source.read(i).label for i in range(3)] == [0, 0, 1]
    write(wordnet / "n1/d.png")
    source = opened(wordnet, limit=2)
    assert (source.label_kind, source.class_names) == ("folder", ("n01440764", "n01443537", "n1"))
    assert [(source.read(i).index, source.read(i).label) for i in range(2)] == [(0, 0), (2, 1)]


def test_folder_fingerprint_is_of_names_and_content_alone(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for level in range(4):
        write(one / f"{level}.png", level)
    shutil.copytree(one, two, copy_function=shutil.copyfile)
    for file in two.iterdir():
        os.utime(file, (1, 1))
    first = opened(one).fingerprint
    assert first == opened(two).fingerprint
    half = opened(one, limit=2).fingerprint
    assert half != first
    # Not taken: its content does not count, its name does.
    write(two / "1.png", 99)
    assert opened(two, limit=2).fingerprint == half
    assert opened(two).fingerprint != first
    (two / "1.png").rename(two / "1b.png")
    assert opened(two, limit=2).fingerprint != half


def test_folder_follows_links_but_not_in_circles(tmp_path: Path) -> None:
    write(tmp_path / "data/real/a.png")
    write(tmp_path / "elsewhere/b.png")
    (tmp_path / "data/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/real/loop").symlink_to(tmp_path / "data")
    (tmp_path / "data/real/gone.png").symlink_to(tmp_path / "nowhere")
    source = opened(tmp_path / "data")
    assert list(source.item_names()) == ["linked/b.png", "real/a.png", "real/gone.png"]
    with pytest.raises(UnreadableImage, match=r"'real/gone.png': No such file or directory"):
        source.read(2)
    assert source.fingerprint.startswith("blake2b:")


def test_named_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    source = opened(tmp_path)
    with pytest.raises(UnreadableImage, match="it is no plain file"):
        source.read(0)


def test_what_cannot_be_opened_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "pictures/one.png")
    (tmp_path / "pictures/x.parquet").touch()
    monkeypatch.chdir(tmp_path)
    cases = {
        "photo": r"unknown data 'photo'\. Did you mean photos\? --data takes photos, digits, a fo",
        "picture": r"unknown data 'picture'\. Did you mean pictures",
        "": r"unknown data ''\. --data takes",
        "./pictures/two": r"'./pictures/two' does not exist\.",
        "pictures/on.png": r"'pictures/on.png' does not exist\. Did you mean one.png\?",
        "a/b/c": r"'a/b/c' does not exist",
        "pictures/one.png": r"single file and no .parquet; give the folder it lies in",
        "hf:a/b/c": r"'hf:a/b/c' does not exist",
    }
    for text, message in cases.items():
        with pytest.raises(UsageError, match=message) as error:
            open_data(text)
        assert "\n" not in str(error.value)
    with pytest.raises(DataError, match=r"'empty' holds no image file; known suffixes: .apng"):
        open_data("empty")
    with pytest.raises(DataError, match="holds 1 images and 1 parquet files; give a folder"):
        open_data("pictures")
    (tmp_path / "pictures/x.parquet").unlink()
    for text, what in (("photos", "photos"), ("pictures", "an image folder")):
        with pytest.raises(UsageError, match=f"--split 'test': {what} has no splits"):
            open_data(text, split="test")


def test_memory_takes_images_and_arrays() -> None:
    array = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    grey = array[..., 0]
    source = InMemory([Image.fromarray(array), array, grey, Image.new("LA", (2, 2), (9, 0))])
    for position, expected in enumerate([array, array, np.stack([grey] * 3, axis=2)]):
        item = source.read(position)
        assert (item.index, item.name, item.label) == (position, f"image-{position}", None)
        np.testing.assert_array_equal(np.asarray(item.image), expected)
    np.testing.assert_array_equal(np.asarray(source.read(3).image), np.full((2, 2, 3), 255))


def test_memory_fingerprint_is_of_pixels_and_labels() -> None:
    stack = np.arange(4 * 2 * 3 * 3, dtype=np.uint8).reshape(4, 2, 3, 3)
    plain = InMemory(stack).fingerprint
    assert InMemory([Image.fromarray(a) for a in stack], name="other").fingerprint == plain
    assert InMemory(stack.reshape(4, 3, 2, 3)).fingerprint != plain
    assert InMemory(stack[::-1]).fingerprint != plain
    labelled = InMemory(stack, labels=[0, 1, 2, 3]).fingerprint
    assert labelled != plain
    assert InMemory(stack, labels=np.arange(4)).fingerprint == labelled  # type: ignore[arg-type]
    taken = InMemory(stack, labels=["a", None, "c", "d"], limit=2)
    assert [(taken.read(i).index, taken.read(i).label) for i in range(2)] == [(0, "a"), (2, "c")]


def test_memory_refuses_what_is_no_image() -> None:
    with pytest.raises(DataError, match="no images were given"):
        InMemory([])
    with pytest.raises(DataError, match=r"image 0 is float64 of shape \(2, 2, 3\); give uint8"):
        InMemory([np.zeros((2, 2, 3))])
    with pytest.raises(DataError, match=r"image 0 is uint8 of shape \(3, 2, 2\)"):
        InMemory(np.zeros((1, 3, 2, 2), dtype=np.uint8))
    with pytest.raises(DataError, match="image 0 is a str; give Pillow images or uint8 arrays"):
        InMemory(["a.png"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="1 labels were given for 2 images"):
        InMemory(np.zeros((2, 4, 4, 3), dtype=np.uint8), labels=[1])
    with pytest.raises(UsageError, match=r"a label must be a whole number, text or None, got"):
        InMemory(np.zeros((1, 4, 4, 3), dtype=np.uint8), labels=[0.5])  # type: ignore[list-item]
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)).save(
        buffer, "JPEG"
    )
    half = Image.open(io.BytesIO(buffer.getvalue()[:900]))
    with pytest.raises(UnreadableImage, match="'image-0': image file is truncated"):
        InMemory([half]).read(0)


@pytest.mark.assets
def test_real_folder(assets: Path) -> None:
    source = opened(assets / "data" / "imagenet_sample_256", limit=64)
    assert (source.total, len(source), source.label_kind) == (1000, 64, "wnid")
    assert source.class_names is not None
    assert len(source.class_names) == 1000
    item = source.read(1)
    assert (item.index, item.label) == (15, 15)
    assert item.name.startswith(source.class_names[15] + "/")
    assert min(item.image.size) == 256
