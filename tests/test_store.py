"""Files that are whole or not there, and records that come back as they went in."""

from __future__ import annotations

import base64
import errno
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.errors import StoreError
from probe.records import LayerRecord, PassRecord
from probe.store import State, Store, check_writable, slug, write_atomically

KEY = "0123456789abcdef" * 4
ROOT = Path(__file__).resolve().parent.parent


def record(key: str = KEY, **changes: Any) -> PassRecord:
    layer = LayerRecord(
        layer=0,
        grid=(2, 3),
        value=0.1 + 0.2,
        leave_one_out=(1 / 3, None, -1e-300),
        null=np.array([0.1, -0.0, 3e38, 1e-45], dtype=np.float32),
        pairs=15,
        subset=None,
        reason=None,
    )
    fields: dict[str, Any] = {
        "key": key,
        "model": "timm:vit",
        "condition": "clean",
        "settings": {"site": "attn_in", "options": {}},
        "machine": {"batch_size": 32, "workers": 0},
        "images": 3,
        "layers": (layer,),
    }
    return PassRecord(**(fields | changes))


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


class TestSlug:
    @given(st.text(max_size=200))
    def test_it_is_never_a_path(self, text: str) -> None:
        name = slug(text)
        assert 1 <= len(name) <= 80
        assert Path(name).name == name
        assert name not in (".", "..")
        assert not name.startswith((".", "-"))
        assert name.isascii()
        assert "/" not in name
        assert "\\" not in name
        assert "\0" not in name

    @given(st.from_regex(r"[A-Za-z0-9_+=][A-Za-z0-9._+=-]{0,50}[A-Za-z0-9_]", fullmatch=True))
    def test_plain_names_stay(self, text: str) -> None:
        assert slug(text) == text

    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("timm:deit_small_patch16_224.fb_in1k", "timm-deit_small_patch16_224.fb_in1k"),
            ("../../etc/passwd", "etc-passwd"),
            ("rpi(mode=image,seed=0,draw=0)+alpha=0.5", "rpi-mode=image-seed=0-draw=0-+alpha=0.5"),
            ("", "unnamed"),
            ("...", "unnamed"),
            ("größe", "gr-e"),
            ("x" * 100, "x" * 80),
        ],
    )
    def test_examples(self, text: str, name: str) -> None:
        assert slug(text) == name


class TestWriteAtomically:
    def test_text_and_bytes(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "er" / "file.json"
        write_atomically(path, "é\n")
        assert path.read_bytes() == "é\n".encode()
        write_atomically(path, b"\x00\xff")
        assert path.read_bytes() == b"\x00\xff"
        assert files(tmp_path) == ["deep/er/file.json"]
        assert path.stat().st_mode & 0o777 == 0o644

    @pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
    @pytest.mark.parametrize("existing", [False, True])
    def test_a_full_disk_leaves_what_was_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, existing: bool
    ) -> None:
        path = tmp_path / "file.json"
        if existing:
            path.write_text("old")

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, call, full)
        with pytest.raises(StoreError) as error:
            write_atomically(path, "new")
        assert str(error.value) == (
            f"cannot write {path}: No space left on device; choose another folder or free space"
        )
        assert files(tmp_path) == (["file.json"] if existing else [])
        assert not existing or path.read_text() == "old"

    def test_an_interrupt_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(_handle: int) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(tmp_path / "file.json", "new")
        assert files(tmp_path) == []

    def test_a_real_limit_leaves_nothing(self, tmp_path: Path) -> None:
        """The kernel refuses the write itself, part way through."""
        code = (
            "import resource, sys; from pathlib import Path\n"
            "from probe.errors import StoreError; from probe.store import write_atomically\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
            "write_atomically(Path(sys.argv[1]) / 'small', b'x' * 4096)\n"
            "try: write_atomically(Path(sys.argv[1]) / 'large', b'x' * 100_000)\n"
            "except StoreError as error: print(error)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == (
            f"cannot write {tmp_path}/large: File too large; choose another folder or free space\n"
        )
        assert files(tmp_path) == ["small"]

    def test_a_file_in_the_way_of_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_text("")
        with pytest.raises(StoreError, match=r"cannot write .*taken/file: File exists; choose"):
            write_atomically(tmp_path / "taken" / "file", "new")
        with pytest.raises(StoreError) as error:
            check_writable(tmp_path / "taken")
        assert str(error.value) == (
            f"cannot write into {tmp_path}/taken: File exists; choose another folder"
        )

    def test_a_folder_that_takes_no_file(self) -> None:
        # /proc refuses even root, who may write into any other folder.
        with pytest.raises(StoreError, match=r"^cannot write into /proc/none: .*; choose another"):
            check_writable(Path("/proc/none"))

    def test_check_writable_makes_the_folder_and_leaves_it_empty(self, tmp_path: Path) -> None:
        check_writable(tmp_path / "a" / "b")
        assert list((tmp_path / "a" / "b").iterdir()) == []


class TestRecords:
    def test_a_record_comes_back_bit_for_bit(self, tmp_path: Path) -> None:
        store, one = Store(tmp_path), record()
        path = store.save(one)
        assert path == tmp_path / "passes" / "timm-vit" / "clean-0123456789abcdef0123.json"
        back = store.load("timm:vit", "clean", KEY)
        assert back is not None
        assert back.to_json() == one.to_json() == path.read_text()
        layer, old = back.layers[0], one.layers[0]
        assert (layer.value, layer.leave_one_out) == (0.1 + 0.2, (1 / 3, None, -1e-300))
        assert layer.null.dtype == np.float32
        assert layer.null.tobytes() == old.null.tobytes()

    @given(
        st.lists(st.floats(width=32, allow_nan=False), max_size=20),
        st.floats(allow_nan=False, allow_infinity=False),
    )
    def test_any_floats_come_back(self, null: list[float], value: float) -> None:
        layer = (
            record()
            .layers[0]
            .model_copy(update={"null": np.array(null, dtype=np.float32), "value": value})
        )
        back = PassRecord.from_json(record(layers=(layer,)).to_json()).layers[0]
        assert back.null.tobytes() == layer.null.tobytes()
        assert np.float64(back.value).tobytes() == np.float64(value).tobytes()

    def test_null_is_base64_of_little_endian_float32(self) -> None:
        fields = json.loads(record().to_json())
        assert fields["version"] == 3
        packed = struct.pack("<4f", 0.1, -0.0, 3e38, 1e-45)
        assert fields["layers"][0]["null"] == base64.b64encode(packed).decode()

    def test_no_nan_reaches_the_json(self) -> None:
        for bad in (float("nan"), float("inf")):
            layer = record().layers[0].model_copy(update={"value": bad})
            with pytest.raises(ValueError, match="not JSON compliant"):
                record(layers=(layer,)).to_json()

    @pytest.mark.parametrize("name", ["größe.png", "\udcff\udcfe.png"])
    def test_names_that_are_not_utf_8_come_back(self, tmp_path: Path, name: str) -> None:
        one = record(skipped=((name, "torn"),), settings={"data": {"name": name}})
        Store(tmp_path).save(one)
        back = Store(tmp_path).load("timm:vit", "clean", KEY)
        assert back is not None
        assert (back.skipped, back.settings) == (one.skipped, one.settings)

    def test_a_missing_record_is_none(self, tmp_path: Path) -> None:
        assert Store(tmp_path / "none").load("timm:vit", "clean", KEY) is None
        assert not (tmp_path / "none").exists()

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"\xff\xfe",
            b"[]",
            b"{}",
            record().to_json()[:-20].encode(),
            record(key="f" * 64).to_json().encode(),
            record().to_json().replace('"version": 3', '"version": 0').encode(),
            record().to_json().replace('"null": "', '"null": "A').encode(),
            record().to_json().replace('"images"', '"pictures"').encode(),
        ],
        ids=["empty", "half", "binary", "list", "object", "cut", "other key", "other version",
             "bad base64", "other field"],
    )  # fmt: skip
    def test_what_is_no_record_of_that_pass_is_set_aside(
        self, tmp_path: Path, content: bytes
    ) -> None:
        store = Store(tmp_path)
        path = store.save(record())
        path.write_bytes(content)
        assert store.load("timm:vit", "clean", KEY) is None
        assert path.with_suffix(".broken").read_bytes() == content
        assert not path.exists()
        store.save(record())
        assert store.load("timm:vit", "clean", KEY) is not None

    def test_a_record_of_version_2_has_no_metrics(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        fields = json.loads(record().to_json()) | {"version": 2}
        for layer in fields["layers"]:
            assert layer.pop("metrics") is None
        store.save(record()).write_text(json.dumps(fields))
        found = store.load("timm:vit", "clean", KEY)
        assert found is not None
        assert found.layers[0].metrics is None

    def test_a_record_of_version_1_has_no_maps(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        fields = json.loads(record().to_json()) | {"version": 1}
        for layer in fields["layers"]:
            del layer["maps"]
        store.save(record()).write_text(json.dumps(fields))
        found = store.load("timm:vit", "clean", KEY)
        assert found is not None
        assert found.version == 1
        assert found.layers[0].maps is None
        assert found.layers[0].value == record().layers[0].value

    def test_a_record_of_a_later_version_is_refused(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        path = store.save(record())
        path.write_text(path.read_text().replace('"version": 3', '"version": 4'))
        with pytest.raises(StoreError) as error:
            store.load("timm:vit", "clean", KEY)
        assert str(error.value) == (
            "a record of timm:vit has version 4, and this probe reads up to 3; use the newer probe "
            "that wrote it, or another --runs folder"
        )
        assert path.is_file()

    def test_maps_come_back(self, tmp_path: Path) -> None:
        maps = np.arange(18, dtype=np.uint8)
        layer = record().layers[0].model_copy(update={"maps": maps})
        Store(tmp_path).save(record(layers=(layer,)))
        back = Store(tmp_path).load("timm:vit", "clean", KEY)
        assert back is not None
        assert back.layers[0].maps is not None
        assert back.layers[0].maps.tolist() == maps.tolist()

    def test_what_was_set_aside_is_told(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        path = store.save(record())
        path.write_bytes(path.read_bytes()[:-20])
        store.load("timm:vit", "clean", KEY)
        assert store.set_aside == [path]

    def test_a_record_that_cannot_be_read_stops_the_run(self, tmp_path: Path) -> None:
        path = Store(tmp_path).path("timm:vit", "clean", KEY)
        path.mkdir(parents=True)
        with pytest.raises(StoreError) as error:
            Store(tmp_path).load("timm:vit", "clean", KEY)
        assert str(error.value) == f"cannot read {path}: Is a directory; check its permissions"

    def test_folders_merge_by_copying(self, tmp_path: Path) -> None:
        """Two keys of one model and condition lie side by side."""
        other = "f" * 64
        store = Store(tmp_path)
        store.save(record())
        store.save(record(key=other, images=9))
        assert len(files(tmp_path)) == 2
        found = store.load("timm:vit", "clean", other)
        assert found is not None
        assert found.images == 9


STATE: State = {"done": np.array(5), "sums": np.array([[0.1, -0.0], [1e-300, 2.0]])}


class TestPartial:
    def test_sums_come_back_bit_for_bit(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        assert store.load_partial(KEY) is None
        store.save_partial(KEY, STATE)
        assert files(tmp_path) == ["partial/0123456789abcdef0123.npz"]
        back = store.load_partial(KEY)
        assert back is not None
        assert set(back) == {"done", "sums"}
        assert back["sums"].tobytes() == STATE["sums"].tobytes()
        assert store.load_partial("f" * 64) is None

    @pytest.mark.parametrize("keep", [0, 3, 30, 200, -1])
    def test_half_a_file_is_dropped(self, tmp_path: Path, keep: int) -> None:
        store = Store(tmp_path)
        store.save_partial(KEY, STATE)
        (path,) = (tmp_path / "partial").iterdir()
        path.write_bytes(path.read_bytes()[:keep])
        assert store.load_partial(KEY) is None
        assert not path.exists()

    def test_a_flipped_bit_is_seen(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        store.save_partial(KEY, STATE)
        (path,) = (tmp_path / "partial").iterdir()
        content = bytearray(path.read_bytes())
        place = content.index(STATE["sums"].tobytes())
        content[place + 8] ^= 1
        path.write_bytes(content)
        assert store.load_partial(KEY) is None

    def test_one_that_cannot_be_read_stops_the_run(self, tmp_path: Path) -> None:
        (tmp_path / "partial" / f"{KEY[:20]}.npz").mkdir(parents=True)
        with pytest.raises(StoreError, match=r"cannot read .*npz: Is a directory; check its perm"):
            Store(tmp_path).load_partial(KEY)

    def test_a_finished_pass_drops_its_sums(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        store.save_partial(KEY, STATE)
        store.save_partial("f" * 64, STATE)
        store.save(record())
        assert store.load_partial(KEY) is None
        assert store.load_partial("f" * 64) is not None
        store.drop_partial("f" * 64)
        store.drop_partial("f" * 64)
        assert list((tmp_path / "partial").iterdir()) == []


class TestClaim:
    def test_a_new_an_empty_and_an_older_folder(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        Store(tmp_path / "old").save(record())
        (tmp_path / "outputs" / "ssdc").mkdir(parents=True)
        for name in ("new", "empty", "old", "outputs"):
            store = Store(tmp_path / name)
            store.claim()
            store.claim()
            assert store.is_ours()
            assert (tmp_path / name / ".probe-runs").is_file()

    def test_a_folder_that_holds_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "events.tfevents").touch()
        (tmp_path / ".git").mkdir()
        assert not Store(tmp_path).is_ours()
        with pytest.raises(StoreError) as error:
            Store(tmp_path).claim()
        assert str(error.value) == (
            f"{tmp_path} is no runs folder of probe: it holds 'events.tfevents'; choose another "
            "--runs folder"
        )
        assert not (tmp_path / ".probe-runs").exists()
