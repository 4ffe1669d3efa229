"""Sums are written beside the work: what was given, in order, and a failure is not lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe import saver as module
from probe.errors import StoreError
from probe.saver import Clock, Saver
from probe.store import State, Store

KEY = "a" * 64


def ones() -> State:
    return {"sums": np.ones(3)}


def test_what_is_written_is_what_was_given(tmp_path: Path) -> None:
    """Also where the sums go on while they are written."""
    store, sums = Store(tmp_path), np.zeros(1000)
    saver = Saver(store, "")
    for _ in range(20):
        sums[:] += 1
        saver.save(KEY, lambda: {"sums": sums})
        sums[:] += 1
    saver.close()
    kept = store.load_partial(KEY)
    assert kept is not None
    assert set(kept["sums"]) == {39.0}


def test_work_goes_on_while_sums_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, gate = Store(tmp_path), threading.Event()
    write = store.save_partial

    def slowly(key: str, state: State, share: str) -> None:
        assert gate.wait(10)
        write(key, state, share)

    monkeypatch.setattr(store, "save_partial", slowly)
    saver = Saver(store, "1of2x8")
    saver.save(KEY, ones)
    assert store.load_partial(KEY, "1of2x8") is None
    gate.set()
    saver.wait()
    assert store.load_partial(KEY, "1of2x8") is not None
    saver.close()


def test_a_failure_is_told_by_what_comes_next(tmp_path: Path) -> None:
    (tmp_path / "partial").write_text("no folder")
    saver = Saver(Store(tmp_path), "")
    saver.save(KEY, ones)
    with pytest.raises(StoreError, match=r"cannot write .*choose another folder or free space"):
        saver.save(KEY, ones)
    saver.wait()  # told once
    saver.close()


def test_a_clock_strikes_before_a_minute_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    clock, struck = Clock(), []
    for now in range(0, 200, 25):
        if clock.due(60):
            struck.append(now)
    assert struck == [50, 100, 150]
    slow = Clock()
    now += 70
    assert slow.due(60)


def test_without_memory_for_a_copy_sums_are_written_at_once(tmp_path: Path) -> None:
    class Large(np.ndarray):
        def copy(self, order: Any = "C") -> Any:
            raise MemoryError

    store = Store(tmp_path)
    saver = Saver(store, "")
    saver.save(KEY, lambda: {"sums": np.ones(3).view(Large)})
    kept = store.load_partial(KEY)
    assert kept is not None
    assert kept["sums"].tolist() == [1.0, 1.0, 1.0]
    saver.close()


def test_memory_that_ends_while_writing_is_no_batch_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)

    def fail(_key: str, _state: State, _share: str) -> None:
        raise MemoryError

    monkeypatch.setattr(store, "save_partial", fail)
    saver = Saver(store, "")
    saver.save(KEY, ones)
    with pytest.raises(StoreError, match="no memory is left to save sums; stop other programs"):
        saver.wait()
    saver.close()


def test_without_a_store_nothing_is_kept() -> None:
    saver = Saver(None, "")
    saver.save(KEY, ones)
    saver.wait()
    saver.close()
