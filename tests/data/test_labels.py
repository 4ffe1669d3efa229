from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from probe.data.builtin import Digits, Photos
from probe.data.labels import LabelMap, check_for_fragility, map_labels
from probe.data.memory import InMemory
from probe.data.open import open_data
from probe.data.source import Encoded, IndexedSource, Item, LabelKind, StreamSource
from probe.errors import DataError, UsageError

# WordNet ids of ImageNet-1k and their classes, by Russakovsky et al.'s order.
TENCH, ROBIN, CRANE = ("n01440764", 0), ("n01558993", 15), ("n02012849", 134)
AGREEMENT = "ask for agreement fragility (--measure agreement)"


def folder(root: Path, *names: str) -> IndexedSource:
    """An image folder with these files."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(path)
    source = open_data(str(root))
    assert isinstance(source, IndexedSource)
    return source


def classes_of(root: Path, *classes: str) -> IndexedSource:
    return folder(root, *(f"{name}/x.png" for name in classes))


class Table(IndexedSource):
    """As parquet files give them: ClassLabel names, or a plain label column without any."""

    kind = "parquet"

    def __init__(self, names: tuple[str, ...] | None, total: int = 3) -> None:
        super().__init__("table", total, None)
        self.class_names = names
        self.label_kind: LabelKind | None = None if names is None else "classlabel"

    def read(self, position: int) -> Item:
        raise NotImplementedError

    def item_names(self) -> Iterable[str]:
        return [f"t.parquet#{row}" for row in range(self.total)]

    def content(self, position: int) -> bytes | None:
        raise NotImplementedError


class Hub(StreamSource):
    kind, name, split, limit, fingerprint = "hub", "owner/name", "test", None, "none"

    def stream(self, start: int = 0) -> Iterable[Encoded]:  # type: ignore[override]
        raise NotImplementedError


def mapped(
    source: IndexedSource | StreamSource,
    classes: int,
    names: list[str] | None = None,
    *,
    seen: list[int | str | None] | None = None,
    file: Path | None = None,
) -> LabelMap:
    return map_labels(source, seen, classes, names, None if file is None else str(file))


def refusal(*args: object, **options: object) -> str:
    with pytest.raises(DataError) as caught:
        mapped(*args, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Folders


def test_wordnet_folders_map_to_an_imagenet_head(tmp_path: Path) -> None:
    source = classes_of(tmp_path, CRANE[0], ROBIN[0], TENCH[0])
    labels = mapped(source, 1000)
    assert labels.kind == "wnid"
    assert labels.map == dict([TENCH, ROBIN, CRANE])
    assert labels.note == "by the WordNet ids of imagenet-1k"
    item = source.read(1)
    assert item.name == "n01558993/x.png"
    assert labels.accepts(item.name, item.label) == frozenset({15})


@pytest.mark.parametrize(
    ("classes", "subset", "file"),
    [
        (21841, "imagenet-22k", "imagenet22k_synsets.txt"),
        (21843, "imagenet-21k-goog", "imagenet21k_goog_synsets.txt"),
        (21842, "imagenet-22k-ms", "imagenet22k_ms_synsets.txt"),
        (11221, "imagenet-21k-miil", "imagenet21k_miil_synsets.txt"),
        (11821, "imagenet-12k", "imagenet12k_synsets.txt"),
    ],
)
def test_wordnet_folders_map_to_21k_heads(
    tmp_path: Path, classes: int, subset: str, file: str
) -> None:
    order = (files("timm.data") / "_info" / file).read_text().split()
    assert len(order) == classes
    picked = sorted([order[7], order[classes // 2], order[-1]])
    labels = mapped(classes_of(tmp_path, *picked), classes)
    assert labels.note == f"by the WordNet ids of {subset}"
    assert labels.map == {name: order.index(name) for name in picked}


def test_wordnet_folders_that_the_head_lacks_are_refused(tmp_path: Path) -> None:
    source = classes_of(tmp_path, "n00005787", ROBIN[0])
    assert refusal(source, 1000) == (
        f"'{tmp_path}' has 2 folders and the model 1000 outputs; 1 of the folders are no WordNet "
        "ids of its classes (n00005787): leave them out, or give --labels FILE (name,label)"
    )
    assert mapped(source, 21841).map["n00005787"] == 1


def test_one_stray_folder_among_wordnet_ids_is_named(tmp_path: Path) -> None:
    source = classes_of(tmp_path, "extra", ROBIN[0], TENCH[0])
    assert source.label_kind == "folder"
    assert "1 of the folders are no WordNet ids of its classes (extra): leave them out" in refusal(
        source, 1000
    )


def test_wordnet_folders_follow_the_models_own_ids(tmp_path: Path) -> None:
    source = classes_of(tmp_path, ROBIN[0], TENCH[0])
    labels = mapped(source, 3, [ROBIN[0], "n09999999", TENCH[0]])
    assert (labels.kind, labels.map) == ("wnid", {TENCH[0]: 2, ROBIN[0]: 0})
    assert labels.note == "by the model's label names"
    assert "1 of the folders are no WordNet ids of its classes (n01558993)" in refusal(
        source, 2, [TENCH[0], "n09999999"]
    )


def test_wordnet_folders_under_another_head_of_as_many_outputs_go_by_order(tmp_path: Path) -> None:
    source = classes_of(tmp_path, ROBIN[0], TENCH[0], CRANE[0])
    labels = mapped(source, 3)
    assert (labels.kind, labels.map) == ("folder", {TENCH[0]: 0, ROBIN[0]: 1, CRANE[0]: 2})
    assert labels.note == "by order: as many folders, sorted by name, as the head has outputs"
    assert refusal(source, 100).startswith(f"'{tmp_path}' has 3 folders and the model 100 outputs")


def test_a_1000_way_head_with_other_names_is_not_imagenets(tmp_path: Path) -> None:
    source = classes_of(tmp_path, ROBIN[0], TENCH[0])
    ours = [f"thing {index}" for index in range(1000)]
    assert "2 of the folders are no single ones of the model's label names" in refusal(
        source, 1000, ours
    )
    imagenet = (files("timm.data") / "_info" / "imagenet_synsets.txt").read_text().split()
    lemmas = dict(
        line.split("\t")
        for line in (files("timm.data") / "_info" / "imagenet_synset_to_lemma.txt")
        .read_text()
        .splitlines()
    )
    theirs = [lemmas[wordnet].split(",")[0] for wordnet in imagenet]
    assert mapped(source, 1000, theirs).map == dict([TENCH, ROBIN])
    assert mapped(source, 1000, [f"LABEL_{i}" for i in range(1000)]).map == dict([TENCH, ROBIN])


def test_folders_go_by_order_only_with_as_many_outputs(tmp_path: Path) -> None:
    source = classes_of(tmp_path, "dog", "cat", "eel")
    labels = mapped(source, 3)
    assert (labels.kind, labels.map) == ("folder", {"cat": 0, "dog": 1, "eel": 2})
    assert mapped(source, 3, ["LABEL_0", "LABEL_1", "LABEL_2"]).map == labels.map
    assert mapped(source, 3, ["x", "y", "z"]).map == labels.map
    assert labels.accepts("dog/x.png", 1) == frozenset({1})
    for classes in (2, 4):
        assert refusal(source, classes) == (
            f"'{tmp_path}' has 3 folders and the model {classes} outputs, and the model has no "
            "label names to go by; choose a model for this data, or give --labels FILE (name,label)"
        )


def test_folders_go_by_the_models_names_first(tmp_path: Path) -> None:
    source = classes_of(tmp_path, "dog", "cat", "sea_eel")
    labels = mapped(source, 4, ["Sea-Eel", "dog", "cow", "cat, house cat"])
    assert labels.map == {"cat": 3, "dog": 1, "sea_eel": 0}
    assert labels.note == "by the model's label names"
    assert mapped(source, 3, ["dog", "cat", "sea eel"]).map == {"cat": 1, "dog": 0, "sea_eel": 2}
    assert refusal(source, 3, ["dog", "house", "cow"]) == (
        f"class 'dog' is number 1 in '{tmp_path}', but the model's label names have it at 0, and "
        "other names do not match; give --labels FILE (name,label)"
    )
    assert mapped(source, 3, ["house", "dog", "cow"]).map == {"cat": 0, "dog": 1, "sea_eel": 2}
    assert "2 of the folders are no single ones of the model's label names (cat, sea_eel)" in (
        refusal(source, 5, ["dog", "a", "b", "c", "d"])
    )


def test_two_folders_of_one_name_are_refused(tmp_path: Path) -> None:
    source = classes_of(tmp_path, "Sea_Eel", "sea-eel")
    assert "several folders have one label name; give --labels" in refusal(
        source, 3, ["sea eel", "dog", "cat"]
    )


def test_plain_folder_names_under_an_imagenet_head(tmp_path: Path) -> None:
    labels = mapped(classes_of(tmp_path / "a", "tench", "American robin"), 1000)
    assert labels.map == {"American robin": 15, "tench": 0}
    assert labels.note == "by imagenet-1k's label names"
    # Two classes of ImageNet are called crane: the bird and the machine.
    assert "no single ones of imagenet-1k's label names (crane): leave them out" in refusal(
        classes_of(tmp_path / "b", "tench", "crane"), 1000
    )


# Tables with class names


def test_class_labels_go_by_number_with_as_many_outputs() -> None:
    source = Table(("cat", "dog", "eel"))
    labels = mapped(source, 3)
    assert (labels.kind, labels.map) == ("classlabel", {"cat": 0, "dog": 1, "eel": 2})
    assert labels.note == "by order: as many class numbers as the head has outputs"
    assert labels.accepts("t.parquet#0", 2) == frozenset({2})
    assert labels.accepts("t.parquet#0", None) is None
    for wrong in (3, -1):
        with pytest.raises(DataError) as caught:
            labels.accepts("t.parquet#0", wrong)
        assert str(caught.value) == (
            f"label {wrong} of 't.parquet#0' is outside the data set's 3 class names; give "
            "--labels FILE (name,label)"
        )


def test_class_labels_go_by_wordnet_ids_and_names() -> None:
    labels = mapped(Table((ROBIN[0], TENCH[0])), 1000)
    assert (labels.kind, labels.map) == ("wnid", dict([ROBIN, TENCH]))
    assert labels.accepts("t.parquet#0", 0) == frozenset({15})
    labels = mapped(Table(("eel", "cat")), 3, ["cat", "dog", "eel"])
    assert (labels.kind, labels.map) == ("classlabel", {"eel": 2, "cat": 0})
    assert labels.accepts("t.parquet#0", 0) == frozenset({2})
    assert "10 outputs" in refusal(Table(tuple("abcdefghijklmnopqrst")), 10)


def test_names_that_a_data_set_and_its_model_both_repeat_keep_their_order() -> None:
    labels = mapped(Table(("crane", "dog", "crane bird")), 3, ["crane", "dog", "crane, crane bird"])
    assert labels.map == {"crane": 0, "dog": 1, "crane bird": 2}


def test_a_whole_name_goes_before_a_part_of_one() -> None:
    labels = mapped(Table(("crane", "dog")), 4, ["cat", "crane, crane bird", "crane", "dog"])
    assert labels.map == {"crane": 2, "dog": 3}


def test_digits_map_to_a_ten_way_head() -> None:
    digits = Digits()
    for names in (None, list("0123456789")):
        labels = mapped(digits, 10, names)
        assert labels.map == {str(digit): digit for digit in range(10)}
        item = digits.read(3)
        assert isinstance(item.label, int)
        assert labels.accepts(item.name, item.label) == frozenset({item.label})
    assert "10 classes and the model 1000 outputs" in refusal(digits, 1000)


# Labels without class names


def test_numbers_from_python_are_classes_of_the_head() -> None:
    source = InMemory(np.zeros((3, 4, 4, 3), np.uint8), [7, 2, 7])
    for seen in (None, [7, 2, 7]):
        labels = mapped(source, 10, seen=seen)
        assert labels.kind == "classlabel"
        assert labels.accepts("image-0", 7) == frozenset({7})
    assert labels.map == {"2": 2, "7": 7}
    assert refusal(source, 5, seen=[7, 2, 7]) == (
        "label 7 is outside the model's head (0 to 4); choose a model for this data, or correct "
        "the label"
    )
    with pytest.raises(DataError, match=r"label '7' of 'image-0' is none .* \(classes 0 to 4\)"):
        mapped(source, 5).accepts("image-0", 7)


def test_plain_numbers_of_a_file_must_be_those_of_the_head() -> None:
    assert mapped(Table(None), 3, seen=[2, 0, 1, 1]).map == {"0": 0, "1": 1, "2": 2}
    for seen in ([0, 1], [1, 2, 3], [0, 1, 2, 3]):
        assert "without class names, which may count otherwise than the model's 3" in refusal(
            Table(None), 3, seen=seen
        )
    with pytest.raises(DataError, match=r"label '0' of 't.parquet#1' is none of the labels"):
        mapped(Table(None), 3, ["a", "b", "c"]).accepts("t.parquet#1", 0)
    assert "has no class names, and neither has the model" in refusal(Table(None), 3)


def test_plain_text_goes_by_wordnet_ids_and_names() -> None:
    for seen in (None, [ROBIN[0], TENCH[0], None]):
        labels = mapped(Table(None), 1000, seen=seen)
        assert labels.accepts("t.parquet#0", ROBIN[0]) == frozenset({15})
        with pytest.raises(DataError, match=r"label 'bird' of 't.parquet#0' is none of"):
            labels.accepts("t.parquet#0", "bird")
    assert (labels.kind, labels.map) == ("wnid", dict([ROBIN, TENCH]))
    assert mapped(Table(None), 2, ["cat", "dog"], seen=["dog"]).map == {"dog": 1}
    assert "no single ones of the model's label names (eel)" in refusal(
        Table(None), 2, ["cat", "dog"], seen=["eel", "cat"]
    )
    assert "mixes whole numbers and text as labels (1, 'cat')" in refusal(
        Table(None), 2, ["cat", "dog"], seen=["cat", 1]
    )


def test_unlabelled_data_is_offered_agreement(tmp_path: Path) -> None:
    flat = folder(tmp_path, "a.png", "b/c.png")
    unlabelled = InMemory(np.zeros((2, 4, 4, 3), np.uint8))
    cases = [(Photos(), None), (flat, None), (unlabelled, [None]), (Table(("a", "b")), [None])]
    for source, seen in cases:
        assert refusal(source, 2, seen=seen) == (
            f"'{source.name}' has no labels, which accuracy and FS need; {AGREEMENT}, which needs "
            "none, or give --labels FILE (name,label)"
        )


def test_one_class_is_refused_for_fragility(tmp_path: Path) -> None:
    check_for_fragility(mapped(classes_of(tmp_path / "two", TENCH[0], ROBIN[0]), 1000))
    single = classes_of(tmp_path / "one", ROBIN[0])
    with pytest.raises(DataError) as caught:
        check_for_fragility(mapped(single, 1000))
    assert str(caught.value) == (
        "the data set has one class ('n01558993'), so FS would say nothing about telling classes "
        f"apart; add images of others, or {AGREEMENT}"
    )
    file = written(tmp_path, "name,label\nx.png,15\n")
    with pytest.raises(DataError, match=r"has one class \('15'\)"):
        check_for_fragility(mapped(single, 1000, file=file))


def test_a_model_with_too_few_names_is_refused() -> None:
    assert refusal(Table(("a", "b")), 2, ["a"]) == (
        "the model has 1 label names for 2 outputs; mend id2label in its config.json"
    )


# Label files


def written(root: Path, text: str, name: str = "labels.csv") -> Path:
    path = root / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_labels_by_path_or_base_name(tmp_path: Path) -> None:
    source = folder(tmp_path / "images", "a/x.png", "a/y.png", "b/x.png", "b/z.png", "b/w.png")
    file = written(
        tmp_path,
        "\ufeffname, label ,remark\n"
        f"y.png,{ROBIN[0]},by base name\n"
        "a/x.png,3,\n"
        "b/x.png, 3 | tench|n01558993,several\n"
        "z.png,,none is right\n"
        "\n"
        '"gone, long ago.png",nonsense,not here\n',
    )
    labels = mapped(source, 1000, file=file)
    assert labels.kind == "file"
    assert labels.map == {"n01558993": 15, "3": 3, "tench": 0}
    assert labels.note == (
        "4 of 5 images labelled by labels.csv, 1 of them with no acceptable label; 1 names in it "
        "fit no image"
    )
    accepted = {name: labels.accepts(name, 0) for name in source.item_names()}
    assert accepted == {
        "a/x.png": frozenset({3}),
        "a/y.png": frozenset({15}),
        "b/x.png": frozenset({3, 0, 15}),
        "b/z.png": None,
        "b/w.png": None,
    }
    check_for_fragility(labels)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "x.png,1\n",
            "has the columns x.png, 1; give a CSV with the columns name,label, or a JSON list",
        ),
        ("", "has the columns (none); give a CSV"),
        ("name,label,label\n", "has the columns name, label, label; give a CSV"),
        (
            "name,label\nx.png,1\n",
            "line 2: 'x.png' fits 2 images (a/x.png, b/x.png); write the relative path",
        ),
        (
            "name,label\ny.png,1\na/y.png,2\n",
            "line 3: 'a/y.png' stands there twice; keep one, with several labels joined by |",
        ),
        ("name,label\ny.png,10\n", "line 2: label 10 is outside the model's head (0 to 9)"),
        ("name,label\ny.png,-1\n", "line 2: label -1 is outside the model's head (0 to 9)"),
        (
            "name,label\ny.png,cta\n",
            "line 2: label 'cta' is no class of this model; write a number from 0 to 9",
        ),
        ("name,label\ny.png,1,2\n", "line 2 has 3 fields and the header 2; put names with commas"),
        ('name,label\n"y.png,1\n', "line 2: unexpected end of data; give a CSV"),
        (
            "name,label\nq.png,1\n",
            "names no image of the data set (its names: q.png); write their relative paths, such "
            "as 'a/x.png'",
        ),
        ("name,label\n", "names no image of the data set; write their relative paths"),
        ("[[1], [2]]", "has 2 entries for 3 images, which are not called ILSVRC2012_val_...;"),
        ("[[1], 2", "is no valid JSON ("),
        ("[[1], [2], [10]]", "entry 2: label 10 is outside the model's head (0 to 9)"),
        ("[[1], [2], {}]", "entry 2 is {}; write a list of class numbers or names"),
        ("[[1], [2], [true]]", "entry 2 is [true]; write a list of class numbers or names"),
    ],
)
def test_bad_label_files(tmp_path: Path, text: str, message: str) -> None:
    source = folder(tmp_path / "images", "a/x.png", "a/y.png", "b/x.png")
    file = written(tmp_path, text)
    line = refusal(source, 10, file=file)
    assert line.removeprefix(f"--labels '{file}'").lstrip(", ").startswith(message)


def test_label_files_that_are_not_there_or_no_text(tmp_path: Path) -> None:
    source = folder(tmp_path / "images", "a/x.png")
    written(tmp_path, "")
    with pytest.raises(UsageError) as caught:
        mapped(source, 10, file=tmp_path / "label.csv")
    assert str(caught.value) == (
        f"--labels '{tmp_path}/label.csv' is no file. Did you mean labels.csv?"
    )
    binary = tmp_path / "labels.bin"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read (" in refusal(source, 10, file=binary)


def test_a_files_names_may_be_the_models(tmp_path: Path) -> None:
    source = folder(tmp_path / "images", "a.png", "b.png")
    file = written(tmp_path, "name,label\na.png,Dog\nb.png,cat\n")
    assert mapped(source, 2, ["cat", "dog"], file=file).map == {"Dog": 1, "cat": 0}
    assert "label 'cat' fits classes 0, 1; write the number" in refusal(
        source, 2, ["cat", "cat"], file=written(tmp_path, "name,label\na.png,cat\n")
    )


def test_a_list_follows_the_sorted_images(tmp_path: Path) -> None:
    source = folder(tmp_path / "images", "b.png", "a.png", "c.png")
    file = written(tmp_path, "[[4, 2], 7, []]", "real.json")
    labels = mapped(source, 10, file=file)
    assert labels.items == {
        "a.png": frozenset({2, 4}),
        "b.png": frozenset({7}),
        "c.png": frozenset(),
    }
    assert labels.accepts("c.png", None) is None
    assert labels.note.endswith(
        "3 of 3 images labelled by real.json, 1 of them with no acceptable label"
    )


def test_real_labels_follow_the_numbers_of_the_validation_images(tmp_path: Path) -> None:
    """The published list of 50,000, on three images in folders that sort otherwise."""
    shipped = (files("timm.data") / "_info" / "imagenet_real_labels.json").read_text()
    real = json.loads(shipped)
    file = written(tmp_path, shipped, "real.json")
    empty = real.index([])
    many = next(k for k, accepted in enumerate(real) if len(accepted) > 2)
    name = "ILSVRC2012_val_{:08d}.JPEG".format
    source = folder(
        tmp_path / "images",
        f"n2/{name(1)}",
        f"n1/{name(many + 1)}",
        f"n0/{name(empty + 1)}",
    )
    labels = mapped(source, 1000, file=file)
    assert labels.accepts(f"n2/{name(1)}", 2) == (frozenset(real[0]) or None)
    assert labels.accepts(f"n1/{name(many + 1)}", 1) == frozenset(real[many])
    assert labels.accepts(f"n0/{name(empty + 1)}", 0) is None
    short = written(tmp_path, json.dumps(real[:many]), "short.json")
    assert f"has {many} entries, none for 'n" in refusal(source, 1000, file=short)


def test_files_for_streams(tmp_path: Path) -> None:
    file = written(tmp_path, "name,label\ntest#0,3\ntest#2,4\n")
    labels = mapped(Hub(), 10, file=file)
    assert labels.accepts("test#0", None) == frozenset({3})
    assert labels.accepts("test#1", 5) is None
    assert labels.note == "2 images labelled by labels.csv"
    listed = written(tmp_path, "[[1]]", "real.json")
    assert "a streamed data set has no order that it could follow" in refusal(
        Hub(), 10, file=listed
    )


# Real data


@pytest.mark.assets
def test_the_thousand_imagenet_folders(assets: Path) -> None:
    source = open_data(str(assets / "data" / "imagenet_sample_256"))
    assert isinstance(source, IndexedSource)
    labels = mapped(source, 1000)
    assert labels.kind == "wnid"
    assert list(labels.map.values()) == list(range(1000))
    assert labels.map["n01558993"] == 15
    few = open_data(str(assets / "data" / "imagenet_sample_256"), limit=7)
    assert isinstance(few, IndexedSource)
    for position in range(7):
        item = few.read(position)
        assert labels.accepts(item.name, item.label) == {labels.map[item.name.split("/")[0]]}
    assert "1000 folders and the model 10 outputs" in refusal(source, 10)


@pytest.mark.assets
def test_cifar10(assets: Path) -> None:
    source = open_data(str(assets / "data" / "cifar10"), split="test", limit=5)
    assert isinstance(source, IndexedSource)
    labels = mapped(source, 10)
    assert labels.kind == "classlabel"
    assert list(labels.map)[:4] == ["airplane", "automobile", "bird", "cat"]
    assert list(labels.map.values()) == list(range(10))
    item = source.read(2)
    assert labels.accepts(item.name, item.label) == frozenset({item.label})
    assert "10 classes and the model 1000 outputs" in refusal(source, 1000)
    shuffled = list(reversed(list(labels.map)))
    assert mapped(source, 10, shuffled).map["airplane"] == 9
