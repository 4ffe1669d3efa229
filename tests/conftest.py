"""Settings for all tests, made before any heavy library is imported."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Examples are the same in every run, and a busy core fails none of them.
hypothesis.settings.register_profile("probe", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("probe")

# Subprocesses inherit these; a test that talks to a local server sets its own.
HF_HOME = tempfile.mkdtemp(prefix="probe-tests-hf-")
os.environ.update(
    {
        "COLUMNS": "120",
        "HF_HOME": HF_HOME,
        "HF_HUB_OFFLINE": "1",
        "MPLBACKEND": "Agg",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
)


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder with real weights and images."""
    named = os.environ.get("PROBE_TEST_ASSETS")
    if not named:
        pytest.skip("PROBE_TEST_ASSETS is not set")
    folder = Path(named)
    assert folder.is_dir(), f"PROBE_TEST_ASSETS names {folder}, which is no folder"
    return folder


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        local = isinstance(address, str | bytes) or address[0] in ("127.0.0.1", "::1", "localhost")
        assert local, f"a test tried to reach {address[0]}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """With PROBE_REQUIRE_ASSETS=1, a skipped test that is marked `assets` is a failure."""
    report = yield
    required = os.environ.get("PROBE_REQUIRE_ASSETS") == "1"
    expected = hasattr(report, "wasxfail")
    if required and report.skipped and not expected and item.get_closest_marker("assets"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped although PROBE_REQUIRE_ASSETS is 1: {reason}"
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the `assets` fixture carries its marker, so that no skip escapes."""
    for item in items:
        if "assets" in getattr(item, "fixturenames", ()):
            item.add_marker("assets")


def pytest_unconfigure() -> None:
    """Remove the empty hub cache."""
    shutil.rmtree(HF_HOME, ignore_errors=True)
