"""Packages as pip installs them: a folder of code and its metadata, on the path."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from probe import plugins
from probe.families import base

STRIPED = Path(__file__).parent / "plugin" / "striped"
ENTRIES = {
    "probe.families": {"striped": "striped.net:FAMILY"},
    "probe.corruptions": {"stripes": "striped.stripes:KIND"},
    "probe.metrics": {"token_norm": "striped.norm:METRIC"},
    "probe.data": {"ramps": "striped.ramps:open_ramps"},
}
Entries = Mapping[str, Mapping[str, str]]


def install(
    site: Path, entries: Entries, *, package: str = "probe-striped", version: str = "0.1"
) -> Path:
    """Write the metadata of `package` into the folder `site`; modules are the caller's."""
    info = site / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = [
        line
        for group, names in entries.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in names.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site


def install_striped(site: Path) -> Path:
    """Install the package `striped` of the tests."""
    shutil.copytree(STRIPED, site / "striped", ignore=shutil.ignore_patterns("__pycache__"))
    return install(site, ENTRIES)


def write(site: Path, module: str, text: str) -> None:
    """A module of one file."""
    site.mkdir(parents=True, exist_ok=True)
    (site / f"{module}.py").write_text(text)


@contextmanager
def on_the_path(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything in `site` is installed, for this process."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(site))
        forget()
        yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(site)):
            del sys.modules[name]
    forget()


def forget() -> None:
    """Let the registries fill themselves anew."""
    plugins.forget()
    base.added_families.cache_clear()
