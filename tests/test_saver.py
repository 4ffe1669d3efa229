"""Sums are written beside the work: what was given, in order, and a failure is not lost."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from probe import saver as module
from probe.errors import StoreError
from probe.saver import Clock, Saver
from probe.store import State, Store

KEY = "a" * 64


def test_what_is_written_is_what_was_given(tmp_path: Path) -> None:
    """Also where the sums go on while they are written."""
    store, sums = Store(tmp_path), np.zeros(1000)
    saver = Saver(store, "")
    for step in range(20):
        sums += 1
        saver.save(KEY, {"sums": sums, "step": np.array(step)})
        sums += 1
    saver.close()
    kept = store.load_partial(KEY)
    assert kept is not None
    assert int(kept["step"]) == 19
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
    saver.save(KEY, {"sums": np.ones(3)})
    assert store.load_partial(KEY, "1of2x8") is None
    gate.set()
    saver.wait()
    assert store.load_partial(KEY, "1of2x8") is not None
    saver.close()


def test_a_failure_is_told_by_what_comes_next(tmp_path: Path) -> None:
    (tmp_path / "partial").write_text("no folder")
    saver = Saver(Store(tmp_path), "")
    saver.save(KEY, {"sums": np.ones(3)})
    with pytest.raises(StoreError, match=r"cannot write .*choose another folder or free space"):
        saver.save(KEY, {"sums": np.ones(3)})
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
