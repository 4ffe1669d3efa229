"""Parts of a training data set: which images they hold, how they are stored, what is refused."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from timm.data import ImageNetInfo

from probe.data.builtin import Digits
from probe.data.folder import ImageFolder
from probe.data.preprocess import to_model_size
from probe.data.source import Encoded, StreamSource
from probe.errors import DataError, StoreError, UsageError
from tests.train.tiny_data import (
    CLASSES,
    picture,
    png,
    small_recipe,
    write_folder,
    write_parquet,
)
from train.parts import Part, Parts, class_list, load_parts
from train.recipe import load_recipe
from train.stored import store

THREE = {"train": 4, "val": 2, "test": 3}


def pixels(part: Part) -> np.ndarray:
    return np.asarray(part.images[part.rows])


def same(one: Parts, other: Parts) -> bool:
    return (one.class_names, one.data) == (other.class_names, other.data) and all(
        np.array_equal(pixels(a), pixels(b)) and np.array_equal(a.labels, b.labels)
        for a, b in (
            (one.train, other.train),
            (one.validation, other.validation),
            (one.test, other.test),
        )
    )


def test_digits(tmp_path: Path) -> None:
    told: list[str] = []
    parts = load_parts(load_recipe("digits", "ape"), tmp_path, report=told.append)
    assert parts.class_names == tuple("0123456789")
    assert parts.data["images"] == {"train": 1253, "validation": 269, "test": 275}
    assert sum(parts.data["images"].values()) == 1797
    assert (parts.data["source"], parts.data["classes"]) == ("digits", 10)
    assert parts.data["fingerprint"].startswith("sha256:")
    assert told == [
        "storing digits, train, at 32 px",
        "storing digits, test, at 32 px",
        "storing digits, validation, at 32 px",
    ]
    preprocess = load_recipe("digits", "ape").image.preprocess()
    for split in ("train", "validation", "test"):
        part, source = getattr(parts, split), Digits(split=split)
        assert parts.data[split] == source.fingerprint
        assert (part.images.shape, part.images.dtype) == ((len(source), 32, 32, 3), np.uint8)
        assert part.rows.tolist() == list(range(len(source)))
        for row in (0, 100, len(source) - 1):
            item = source.read(row)
            assert np.array_equal(part.images[row], to_model_size(item.image, preprocess))
            assert part.labels[row] == item.label


def test_a_folder_per_part(tmp_path: Path) -> None:
    made = write_folder(tmp_path / "data", THREE)
    parts = load_parts(small_recipe(tmp_path / "data"), tmp_path / "cache")
    assert parts.class_names == CLASSES
    assert parts.data["images"] == {"train": 12, "validation": 6, "test": 9}
    for name, folder in (("train", "train"), ("validation", "val"), ("test", "test")):
        part = getattr(parts, name)
        paths = sorted(path for path in made if path.startswith(folder))
        assert np.array_equal(pixels(part), np.stack([made[path] for path in paths]))
        assert [CLASSES[label] for label in part.labels] == [p.split("/")[1] for p in paths]
        assert not part.images.flags.writeable


@pytest.mark.parametrize("inside", ["", "data/"])
def test_parquet_files_as_the_hub_has_them(tmp_path: Path, inside: str) -> None:
    labels = {"train": [2, 0, 1, 1, 0, 2, 0], "val": [0, 1, 2], "test": [2, 1, 0, 0]}
    made = {}
    for number, (split, rows) in enumerate(labels.items()):
        name = "train-00000-of-00001" if split == "train" else split
        path = tmp_path / "data" / f"{inside}{name}.parquet"
        made[split] = write_parquet(path, rows, CLASSES, first=100 * number)
    parts = load_parts(small_recipe(tmp_path / "data"), tmp_path / "cache")
    assert parts.class_names == CLASSES
    for name, split in (("train", "train"), ("validation", "val"), ("test", "test")):
        part = getattr(parts, name)
        assert np.array_equal(pixels(part), np.stack(made[split]))
        assert part.labels.tolist() == labels[split]


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5])
def test_a_share_is_held_out_of_each_class(tmp_path: Path, share: float) -> None:
    for name, count in (("apple", 12), ("bee", 5), ("cat", 4)):
        write_folder(tmp_path / "data", {"train": count, "test": 1}, [name])
    recipe = small_recipe(tmp_path / "data", f"data.validation={share}")
    parts = load_parts(recipe, tmp_path / "cache")
    assert np.bincount(parts.validation.labels).tolist() == [
        max(1, round(share * count)) for count in (12, 5, 4)
    ]
    train, held = set(parts.train.rows.tolist()), set(parts.validation.rows.tolist())
    assert train | held == set(range(21))
    assert not train & held
    # Rows are in order of the paths: 12 of the first class, 5 of the second, 4 of the third.
    whole = np.repeat([0, 1, 2], [12, 5, 4])
    for part in (parts.train, parts.validation):
        assert np.array_equal(part.labels, whole[part.rows])
    assert parts.data["validation"] == f"{share:g} of each class of the training part"
    # No seed of a run, no global generator and no other cache changes it.
    random.seed(1)
    np.random.seed(1)
    again = load_parts(recipe, tmp_path / "other")
    assert np.array_equal(again.validation.rows, parts.validation.rows)
    assert same(again, parts)
    if share > 0.05:
        assert parts.validation.rows.tolist()[:3] != [0, 1, 2]


def test_the_held_out_share_is_seen_as_the_test_part_is(tmp_path: Path) -> None:
    """Training images are stored larger, to be cropped; the held-out ones at model size."""
    made = write_folder(tmp_path / "data", {"train": 6, "test": 2}, side=16)
    recipe = small_recipe(
        tmp_path / "data", "augment.stored=12", "data.validation=0.4", "image.resize=short"
    )
    parts = load_parts(recipe, tmp_path / "cache")
    assert parts.train.images.shape == (18, 12, 12, 3)
    assert parts.validation.images.shape == (18, 8, 8, 3)
    assert parts.test.images.shape == (6, 8, 8, 3)
    paths = sorted(path for path in made if path.startswith("train"))
    for part, side in ((parts.train, 12), (parts.validation, 8)):
        for row, label in zip(part.rows, part.labels, strict=True):
            expected = to_model_size(
                Image.fromarray(made[paths[row]]), recipe.image.preprocess(side)
            )
            assert np.array_equal(part.images[row], expected)
            assert paths[row].split("/")[1] == CLASSES[label]
    assert not set(parts.train.rows) & set(parts.validation.rows)


def test_the_fingerprint_is_of_the_data(tmp_path: Path) -> None:
    write_folder(tmp_path / "one", THREE)
    (tmp_path / "moved").symlink_to(tmp_path / "one")
    base = load_parts(small_recipe(tmp_path / "one"), tmp_path / "cache").data
    moved = load_parts(small_recipe(tmp_path / "moved"), tmp_path / "cache").data
    assert moved["fingerprint"] == base["fingerprint"]
    assert moved["source"] != base["source"]
    held = small_recipe(tmp_path / "one", "data.validation=0.5")
    assert load_parts(held, tmp_path / "cache").data["fingerprint"] != base["fingerprint"]
    (tmp_path / "one/test/bee/1.png").write_bytes(png(picture(999)))
    other = load_parts(small_recipe(tmp_path / "one"), tmp_path / "cache").data
    assert other["fingerprint"] != base["fingerprint"]
    assert [key for key in base if base[key] != other[key]] == ["test", "fingerprint"]


# Classes.


def test_a_list_of_classes_from_a_file(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", THREE)
    chosen = tmp_path / "mine.txt"
    chosen.write_text("# two of three\ncat\n\n apple \ncat\n")
    # Of the third class not even one image could be read.
    for damaged in (tmp_path / "data").glob("*/bee/*.png"):
        damaged.write_bytes(b"no image")
    recipe = small_recipe(tmp_path / "data", f"data.classes={chosen}")
    parts = load_parts(recipe, tmp_path / "cache")
    # In the order of the data set, not of the file.
    assert parts.class_names == ("apple", "cat")
    assert parts.data["images"] == {"train": 8, "validation": 4, "test": 6}
    assert len(parts.train.images) == 8
    assert np.array_equal(parts.train.images[0], picture(0))
    assert parts.train.labels.tolist() == [0] * 4 + [1] * 4
    with pytest.raises(DataError, match=r"'bee/0\.png'"):
        load_parts(small_recipe(tmp_path / "data"), tmp_path / "cache")


def test_chosen_classes_of_parquet_files_alone_are_kept(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write_parquet(tmp_path / "data" / f"{split}.parquet", [0, 1, 2, 0, 2, 2], CLASSES)
    chosen = tmp_path / "mine.txt"
    chosen.write_text("cat\napple\n")
    everything = load_parts(small_recipe(tmp_path / "data"), tmp_path / "cache")
    recipe = small_recipe(tmp_path / "data", f"data.classes={chosen}")
    parts = load_parts(recipe, tmp_path / "cache")
    assert (everything.class_names, parts.class_names) == (CLASSES, ("apple", "cat"))
    assert parts.train.labels.tolist() == [0, 1, 0, 1, 1]
    expected = np.stack([picture(row) for row in (0, 2, 3, 4, 5)])
    assert np.array_equal(parts.train.images, expected)
    assert parts.data["fingerprint"] != everything.data["fingerprint"]


class Stream(StreamSource):
    """Three images of the middle class, whose bytes are no image, between others."""

    kind, name, split, limit, fingerprint = "hub", "stream", "train", None, "of-the-stream"
    class_names = CLASSES

    def stream(self, start: int = 0) -> Iterator[Encoded]:
        for index in range(start, 9):
            data = b"no image" if index % 3 == 1 else png(picture(index))
            yield Encoded(index, f"train#{index}", data, index % 3)


def test_a_stream_decodes_only_the_chosen_classes(tmp_path: Path) -> None:
    preprocess = small_recipe("x").image.preprocess()
    told: list[str] = []
    stored = store(Stream(), "train", preprocess, ("cat", "apple"), tmp_path, 0, told.append)
    assert stored.names == ["apple", "cat"] * 3
    assert np.array_equal(stored.images, np.stack([picture(i) for i in (0, 2, 3, 5, 6, 8)]))
    assert told == ["storing stream, train, at 8 px"]
    with pytest.raises(DataError, match="'train#1'"):
        store(Stream(), "train", preprocess, None, tmp_path, 0, told.append)
    with pytest.raises(DataError) as caught:
        store(Stream(), "train", preprocess, ("dog",), tmp_path, 0, told.append)
    assert str(caught.value) == "the data set gave no images; choose another split"


def test_the_shipped_list_of_imagenet_100() -> None:
    names = class_list("imagenet100-cmc")
    assert len(names) == len(set(names)) == 100
    assert all(re.fullmatch(r"n\d{8}", name) for name in names)
    assert set(names) <= set(ImageNetInfo("imagenet-1k").label_names())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no class list 'imagenet100'. Did you mean imagenet100-cmc? Lists: "),
        (b"# nothing\n\n", "the class list '{path}' names no class; write one per line"),
        (b"\xff\xfe", "the class list '{path}' cannot be read ("),
    ],
)
def test_class_lists_that_cannot_be_used(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        class_list("imagenet100" if content is None else str(path))
    assert str(caught.value).startswith(message.format(path=path))


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_chosen_classes_that_are_not_there_are_refused_before_decoding(
    tmp_path: Path, kind: str
) -> None:
    if kind == "folder":
        write_folder(tmp_path / "data", THREE)
    else:
        for split in THREE:
            write_parquet(tmp_path / "data" / f"{split}.parquet", [0, 1, 2], CLASSES)
    chosen = tmp_path / "mine.txt"
    chosen.write_text("apple\ndog\nelk\n")
    with pytest.raises(DataError) as caught:
        load_parts(small_recipe(tmp_path / "data", f"data.classes={chosen}"), tmp_path / "cache")
    assert str(caught.value) == (
        f"2 of the 3 classes of '{chosen}' are not in the part 'train', the first 'dog'; choose "
        "another --set data.classes"
    )
    assert not (tmp_path / "cache").exists()


# The cache.


def test_a_cache_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "data", THREE)
    recipe, told = small_recipe(tmp_path / "data"), []
    first = load_parts(recipe, tmp_path / "cache", report=told.append)
    assert len(told) == 3

    def never(self: ImageFolder, position: int) -> None:
        raise AssertionError("an image was decoded again")

    monkeypatch.setattr(ImageFolder, "read", never)
    second = load_parts(recipe, tmp_path / "cache", report=told.append)
    # Mean and standard deviation act later; variants share what is stored.
    third = load_parts(
        small_recipe(tmp_path / "data", "image.mean=[0,0,0]", variant="rpt"),
        tmp_path / "cache",
        report=told.append,
    )
    assert len(told) == 3
    assert same(first, second)
    assert same(first, third)
    with pytest.raises(AssertionError, match="decoded again"):
        load_parts(small_recipe(tmp_path / "data", "image.resize=squash"), tmp_path / "cache")


def damage(entry: Path, how: str) -> None:
    if how == "truncated images":
        (entry / "images.u8").write_bytes((entry / "images.u8").read_bytes()[:-1])
    elif how == "no images":
        (entry / "images.u8").unlink()
    elif how == "truncated labels":
        (entry / "labels.json").write_text((entry / "labels.json").read_text()[:-5])
    elif how == "other labels":
        (entry / "labels.json").write_text(json.dumps(["apple"]))
    elif how == "fewer labels":
        (entry / "labels.json").write_text(json.dumps({"names": ["apple"]}))
    else:
        (entry / "labels.json").unlink()


@pytest.mark.parametrize(
    "how",
    [
        "truncated images",
        "no images",
        "truncated labels",
        "other labels",
        "fewer labels",
        "no labels",
    ],
)
def test_a_broken_cache_is_made_anew(tmp_path: Path, how: str) -> None:
    write_folder(tmp_path / "data", THREE)
    recipe = small_recipe(tmp_path / "data")
    first = load_parts(recipe, tmp_path / "cache")
    entries = [entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]
    assert len(entries) == 3
    kept = {part: pixels(getattr(first, part)) for part in ("train", "validation", "test")}
    for entry in entries:
        damage(entry, how)
        # What a process that was killed while it wrote leaves behind.
        (entry.parent / f".{entry.name}.abc").mkdir()
    told: list[str] = []
    second = load_parts(recipe, tmp_path / "cache", report=told.append)
    assert len(told) == 3
    for part, expected in kept.items():
        assert np.array_equal(pixels(getattr(second, part)), expected)
    assert not list((tmp_path / "cache").glob(".*.abc"))
    told.clear()
    load_parts(recipe, tmp_path / "cache", report=told.append)
    assert told == []


def load_at_once(recipe: Any, cache: Path, start: Any, answers: Any) -> None:
    told: list[str] = []
    start.wait()
    parts = load_parts(recipe, cache, report=told.append)
    answers.put((len(told), pixels(parts.train).tobytes(), parts.data["fingerprint"]))


def test_processes_at_once_decode_each_part_once(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", THREE)
    recipe = small_recipe(tmp_path / "data")
    context = multiprocessing.get_context("fork")
    start, answers = context.Barrier(3), context.Queue()
    processes = [
        context.Process(target=load_at_once, args=(recipe, tmp_path / "cache", start, answers))
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    found = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sum(told for told, _, _ in found) == 3
    expected = load_parts(recipe, tmp_path / "other")
    assert {rest for _, *rest in map(tuple, found) for rest in [tuple(rest)]} == {
        (pixels(expected.train).tobytes(), expected.data["fingerprint"])
    }
    left = [p for p in (tmp_path / "cache").iterdir() if p.is_dir() and p.name[0] == "."]
    assert left == []


def test_workers_change_nothing(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", THREE)
    recipe = small_recipe(tmp_path / "data")
    assert same(
        load_parts(recipe, tmp_path / "none"), load_parts(recipe, tmp_path / "two", workers=2)
    )


def test_a_part_is_pickled_by_its_file(tmp_path: Path) -> None:
    """Worker processes that are spawned must not be sent the images."""
    write_folder(tmp_path / "data", {"train": 40, "val": 1, "test": 1})
    part = load_parts(small_recipe(tmp_path / "data"), tmp_path / "cache").train
    text = pickle.dumps(part)
    assert len(text) < 6000 < part.images.nbytes
    back = pickle.loads(text)
    assert np.array_equal(back.images, part.images)
    assert np.array_equal(back.labels, part.labels)
    in_memory = Part(np.array(part.images), part.rows, part.labels)
    assert np.array_equal(pickle.loads(pickle.dumps(in_memory)).images, part.images)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", THREE)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as caught:
        load_parts(small_recipe(tmp_path / "data"), tmp_path / "file" / "cache")
    assert str(caught.value) == (
        f"cannot store images in {tmp_path / 'file' / 'cache'}: Not a directory; free space, or "
        "choose another --cache"
    )


def test_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "data", THREE)

    def full(self: Path, text: str, encoding: str | None = None) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(StoreError, match=r"No space left on device; free space, or choose"):
            load_parts(small_recipe(tmp_path / "data"), tmp_path / "cache")
    assert [entry.suffix for entry in (tmp_path / "cache").iterdir()] == [".lock"]
    load_parts(small_recipe(tmp_path / "data"), tmp_path / "cache")


# What is refused.


def refused(tmp_path: Path, *changes: str, cached: str = "cache") -> str:
    with pytest.raises((DataError, UsageError)) as caught:
        load_parts(small_recipe(tmp_path / "data", *changes), tmp_path / cached)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_class(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", {"train": 8, "val": 8, "test": 8}, ["apple"])
    assert refused(tmp_path) == ("the training part has 1 class; a classifier needs two or more")


def test_a_part_that_is_not_there(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", THREE)
    assert refused(tmp_path, "data.test=tset") == (
        f"'{tmp_path / 'data'}' has no folder 'tset' (it has: test, train, val). Did you mean "
        "test? Name its parts with --set data.{train,validation,test}=NAME"
    )
    assert refused(tmp_path, "data.source=digits", "data.test=tests") == (
        "digits has no split 'tests' (it has: train, validation, test). Did you mean test?"
    )
    assert refused(tmp_path, "data.source=photos") == (
        "photos have no labels to learn from; give --data digits, or a folder"
    )
    nothing = refused(tmp_path, f"data.source={tmp_path / 'dta'}")
    assert nothing.startswith(f"'{tmp_path / 'dta'}' does not exist. Did you mean data?")
    write_parquet(tmp_path / "table/train.parquet", [0, 1, 2, 0], CLASSES)
    message = refused(tmp_path, f"data.source={tmp_path / 'table'}", "data.validation=0.3")
    assert message.startswith("no parquet file is called 'test.parquet' or 'test-...'")


def test_digits_in_spite_of_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "digits" / "train").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    parts = load_parts(load_recipe("digits", "ape"), tmp_path / "cache")
    assert len(parts.train) == 1253


def test_an_image_without_a_label(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", THREE)
    (tmp_path / "data/val/loose.png").write_bytes(png(picture(1)))
    message = refused(tmp_path)
    assert message == "'apple/0.png' has no label; training needs one per image"
    for split in ("train", "val", "test"):
        write_parquet(tmp_path / f"table/{split}.parquet", [0, 1, 2, -1], CLASSES)
    message = refused(tmp_path, f"data.source={tmp_path / 'table'}")
    assert message == "'train.parquet#3' has no label; training needs one per image"


def test_a_label_without_a_name(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data/train.parquet", [0, 1, 3, 0], CLASSES)
    for split in ("val", "test"):
        write_parquet(tmp_path / f"data/{split}.parquet", [0, 1, 2], CLASSES)
    assert refused(tmp_path) == (
        "'train.parquet#2' has the label 3, but the data set names 3 classes; mend it"
    )


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", {"train": 4, "val": 40, "test": 2})
    (tmp_path / "data/train/bee/2.png").write_bytes(b"no image")
    message = refused(tmp_path)
    assert message.startswith("at least 1 of 12 images cannot be read, above the 1 % allowed (")
    assert "'bee/2.png': " in message
    (tmp_path / "data/train/bee/2.png").write_bytes(png(picture(1)))
    # One in 120: those who measure may leave it out, those who train may not.
    whole = (tmp_path / "data/val/cat/7.png").read_bytes()
    (tmp_path / "data/val/cat/7.png").write_bytes(whole[: len(whole) // 2])
    message = refused(tmp_path)
    assert message.startswith("cannot train on 'cat/7.png': ")
    assert message.endswith("; repair or remove it, so that every run sees the same images")
    assert [entry for entry in (tmp_path / "cache").iterdir() if entry.name[0] == "."] == []


def test_images_of_another_size(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", {"train": 4, "val": 40, "test": 2})
    (tmp_path / "data/val/apple/3.png").write_bytes(png(picture(1, 9)))
    assert refused(tmp_path) == (
        "cannot train on 'apple/3.png': preprocessing gives 9x9, but the model takes 8x8; resize "
        "with --set image.resize=squash; repair or remove it, so that every run sees the same "
        "images"
    )
    message = refused(tmp_path, "image.size=16")
    assert "'apple/0.png': preprocessing gives 8x8, but the model takes 16x16; resize" in message
    assert "--preprocess" not in message
    resized = small_recipe(tmp_path / "data", "image.size=16", "image.resize=squash")
    assert load_parts(resized, tmp_path / "cache").train.images.shape == (12, 16, 16, 3)
    assert refused(tmp_path, "augment.stored=12") == (
        "augment.stored resizes images, but image.resize is none; choose one"
    )


def test_fewer_images_than_a_batch(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", THREE)
    assert refused(tmp_path, "train.batch=13") == (
        "the training part has 12 images, fewer than a batch of 13; give more, or --set train.batch"
    )
    # What is held out is not trained on.
    assert refused(tmp_path, "train.batch=12", "data.validation=0.25").startswith(
        "the training part has 9 images, fewer than a batch of 12"
    )


def test_classes_that_a_part_lacks_or_has_alone(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", THREE)
    write_folder(tmp_path / "data", {"test": 2}, ["dog"])
    assert refused(tmp_path) == (
        "the part 'test' has the class 'dog', which the training part lacks; give parts of the "
        "same classes, or choose them with --set data.classes"
    )
    write_folder(tmp_path / "data", {"train": 2}, ["dog", "elk", "fox"])
    assert refused(tmp_path) == (
        "the part 'val' has no image of class 'dog' and 2 more; every part needs all classes"
    )
    chosen = tmp_path / "mine.txt"
    chosen.write_text("\n".join(CLASSES))
    recipe = small_recipe(tmp_path / "data", f"data.classes={chosen}")
    assert load_parts(recipe, tmp_path / "cache").class_names == CLASSES


def test_a_class_that_holding_out_would_empty(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", {"train": 9, "test": 2})
    write_folder(tmp_path / "data", {"train": 1, "test": 2}, ["dog"])
    assert refused(tmp_path, "data.validation=0.1") == (
        "holding 0.1 of class 'dog' out leaves none of its 1 images to train on; give more, or a "
        "smaller --set data.validation"
    )
