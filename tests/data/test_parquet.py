from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features
from datasets import Image as ImageFeature
from PIL import Image

from probe.data.open import open_data
from probe.data.parquet import Parquet
from probe.errors import DataError, UnreadableImage, UsageError

STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def png(level: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (5, 4), (level, 1, 2)).save(buffer, "PNG")
    return buffer.getvalue()


def write(
    path: Path,
    levels: list[int],
    labels: pa.Array | None = None,
    features: dict[str, Any] | None = None,
    column: str = "image",
    group: int = 1000,
) -> None:
    cells = pa.array([{"bytes": png(level), "path": f"{level}.png"} for level in levels], STRUCT)
    table = pa.table({column: cells} | ({} if labels is None else {"label": labels}))
    if features is not None:
        meta = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(meta)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group)


def opened(path: Path, **options: Any) -> Parquet:
    source = open_data(str(path), **options)
    assert isinstance(source, Parquet)
    return source


def levels(source: Parquet, positions: list[int] | range) -> list[int]:
    return [source.read(p).image.getpixel((0, 0))[0] for p in positions]  # type: ignore[index]


def test_files_written_by_the_datasets_library(tmp_path: Path) -> None:
    features = Features({"img": ImageFeature(), "kind": ClassLabel(names=["cat", "dog"])})
    images = [Image.new("RGB", (5, 4), (level, 0, 0)) for level in (10, 20, 30)]
    data = Dataset.from_dict({"img": images, "kind": [1, 0, -1]}, features=features)
    data.to_parquet(str(tmp_path / "d.parquet"))
    source = opened(tmp_path / "d.parquet")
    assert (source.kind, source.total) == ("parquet", 3)
    assert (source.class_names, source.label_kind) == (("cat", "dog"), "classlabel")
    assert levels(source, range(3)) == [10, 20, 30]
    assert [source.read(p).label for p in range(3)] == [1, 0, None]
    assert source.read(1).name == "d.parquet#1"


def test_rows_of_many_files_and_groups_in_any_order(tmp_path: Path) -> None:
    write(tmp_path / "b/x.parquet", list(range(100, 170)), group=33)
    write(tmp_path / "a.parquet", list(range(90)), group=40)
    write(tmp_path / ".hidden/y.parquet", [255])
    (tmp_path / "README.md").write_text("text")
    source = opened(tmp_path)
    expected = [*range(90), *range(100, 170)]
    assert source.total == 160
    assert levels(source, range(160)) == expected
    order = [int(i) for i in np.random.default_rng(0).permutation(160)]
    assert levels(source, order) == [expected[i] for i in order]
    assert source.read(90).name == "b/x.parquet#0"
    limited = opened(tmp_path, limit=7)
    assert limited.indices == [0, 22, 45, 68, 91, 114, 137]
    assert levels(limited, range(7)) == [expected[i] for i in limited.indices]


def test_pickled_while_a_file_is_open(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1, 2, 3])
    source = opened(tmp_path)
    assert levels(source, [2]) == [3]
    assert levels(pickle.loads(pickle.dumps(source)), [1, 0]) == [2, 1]


def test_fingerprint_is_of_rows_not_of_paths(tmp_path: Path) -> None:
    write(tmp_path / "1/a.parquet", [1, 2, 3, 4], labels=pa.array([0, 1, 2, 3]))
    write(tmp_path / "2/a.parquet", [1, 2, 3, 4], labels=pa.array([0, 1, 2, 3]), group=2)
    write(tmp_path / "3/a.parquet", [1, 2, 3, 4], labels=pa.array([0, 1, 2, 9]))
    write(tmp_path / "4/a.parquet", [1, 2, 3, 9], labels=pa.array([0, 1, 2, 3]))
    first = opened(tmp_path / "1").fingerprint
    assert opened(tmp_path / "2").fingerprint == first
    assert opened(tmp_path / "1/a.parquet").fingerprint == first
    assert opened(tmp_path / "3").fingerprint != first
    assert opened(tmp_path / "4").fingerprint != first
    halves = {opened(tmp_path / f"{n}", limit=2).fingerprint for n in (1, 2, 3, 4)}
    assert len(halves) == 1


def test_split_takes_the_files_of_that_name(tmp_path: Path) -> None:
    write(tmp_path / "data/train-00000-of-00002.parquet", [1])
    write(tmp_path / "data/train-00001-of-00002.parquet", [2])
    write(tmp_path / "data/test-00000-of-00001.parquet", [3])
    write(tmp_path / "extra.parquet", [4])
    assert levels(opened(tmp_path, split="train"), range(2)) == [1, 2]
    assert levels(opened(tmp_path, split="extra"), range(1)) == [4]
    assert opened(tmp_path).total == 4
    with pytest.raises(UsageError, match=r"called 'tst.parquet' or .*extra, test, train\)\. Did"):
        opened(tmp_path, split="tst")


def test_labels_without_names(tmp_path: Path) -> None:
    write(tmp_path / "n.parquet", [1, 2], labels=pa.array([7, None]))
    write(tmp_path / "s.parquet", [1, 2], labels=pa.array(["cat", "dog"]))
    write(tmp_path / "f.parquet", [1, 2], labels=pa.array([0.5, 1.5]))
    for name, labels in (("n", [7, None]), ("s", ["cat", "dog"]), ("f", [None, None])):
        source = opened(tmp_path / f"{name}.parquet")
        assert (source.class_names, source.label_kind) == (None, None)
        assert [source.read(p).label for p in range(2)] == labels


def test_which_columns_are_taken(tmp_path: Path) -> None:
    cells = pa.array([{"bytes": png(1), "path": None}], STRUCT)
    other = pa.array([{"bytes": png(2), "path": None}], STRUCT)
    numbers = pa.array([0])
    fine = {"_type": "ClassLabel", "names": ["a"]}
    features = {"fine": fine, "coarse": {"_type": "ClassLabel", "names": ["b"]}, "seq": [fine]}
    table = pa.table({"mask": other, "image": cells, "fine": numbers, "coarse": numbers})
    meta = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(meta), tmp_path / "two.parquet")
    source = opened(tmp_path / "two.parquet")
    assert levels(source, [0]) == [1]
    assert (source.class_names, source.read(0).label) == (None, None)
    pq.write_table(pa.table({"left": other, "right": cells}), tmp_path / "lr.parquet")
    with pytest.raises(DataError, match=r"several image columns \(left, right\); keep one"):
        opened(tmp_path / "lr.parquet")
    pq.write_table(pa.table({"x": numbers, "y": numbers}), tmp_path / "no.parquet")
    with pytest.raises(DataError, match=r"'no.parquet' has no image column \(its columns: x, y\)"):
        opened(tmp_path / "no.parquet")


def test_bare_bytes_with_the_image_feature(tmp_path: Path) -> None:
    table = pa.table({"pic": pa.array([png(6)])})
    meta = {"huggingface": json.dumps({"info": {"features": {"pic": {"_type": "Image"}}}})}
    pq.write_table(table.replace_schema_metadata(meta), tmp_path / "b.parquet")
    assert levels(opened(tmp_path / "b.parquet"), [0]) == [6]


def test_rows_without_bytes_are_unreadable(tmp_path: Path) -> None:
    cells = pa.array([{"bytes": None, "path": "x/a.png"}, None, {"bytes": b"no", "path": None}])
    pq.write_table(pa.table({"image": cells.cast(STRUCT)}), tmp_path / "p.parquet")
    source = opened(tmp_path / "p.parquet")
    reasons = ["only the path 'x/a.png'", "no image bytes, nothing", "no image that Pillow knows"]
    for position, reason in enumerate(reasons):
        with pytest.raises(UnreadableImage, match=f"'p.parquet#{position}': .*{reason}"):
            source.read(position)
    assert source.fingerprint.startswith("blake2b:")


def test_bad_files_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("hello, this is no parquet file")
    with pytest.raises(DataError, match=r"text.parquet' is no whole parquet file: ") as error:
        opened(tmp_path / "text.parquet")
    assert "\n" not in str(error.value)
    write(tmp_path / "empty/a.parquet", [])
    with pytest.raises(DataError, match="holds no rows; give parquet files with images"):
        opened(tmp_path / "empty")
    write(tmp_path / "mixed/a.parquet", [1])
    write(tmp_path / "mixed/b.parquet", [1], column="img")
    with pytest.raises(DataError, match=r"'b.parquet' and 'a.parquet' differ in their image"):
        opened(tmp_path / "mixed")
    table = pa.table({"image": pa.array([{"bytes": b"", "path": ""}], STRUCT)})
    pq.write_table(table.replace_schema_metadata({"huggingface": "{"}), tmp_path / "m.parquet")
    with pytest.raises(DataError, match=r"'m.parquet' carries 'huggingface' metadata"):
        opened(tmp_path / "m.parquet")


@pytest.mark.assets
def test_cifar10(assets: Path) -> None:
    folder = assets / "data" / "cifar10"
    source = opened(folder, split="test", limit=50)
    assert (source.total, len(source), source.name) == (10000, 50, str(folder))
    assert source.class_names is not None
    assert source.class_names[:3] == ("airplane", "automobile", "bird")
    table = pq.read_table(folder / "test.parquet")
    for position in (0, 31, 49, 7):
        row = table.slice(position * 200, 1).to_pylist()[0]
        expected = np.asarray(Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB"))
        item = source.read(position)
        np.testing.assert_array_equal(np.asarray(item.image), expected)
        assert (item.index, item.label) == (position * 200, row["label"])
