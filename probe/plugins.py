"""What other packages add, through entry points: families, metrics, corruptions, data sources.

A package lists an object under `probe.families`, `probe.metrics`, `probe.corruptions` or
`probe.data`, by the name that a user will write. Names are read from the metadata of what is
installed; a package's code is imported only where its object is needed. What is broken or clashes
is left out with one line that names the package, and everything else works on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from probe.errors import UsageError

FAMILIES, METRICS = "probe.families", "probe.metrics"
CORRUPTIONS, DATA = "probe.corruptions", "probe.data"
GROUPS = (FAMILIES, METRICS, CORRUPTIONS, DATA)
CODE = (".py", ".so", ".pyd")

T = TypeVar("T")


@dataclass(frozen=True)
class Plugin:
    """One entry point: what a package adds under a name."""

    entry: EntryPoint

    def __str__(self) -> str:
        """The package with its version, and the name, for messages."""
        return f"{self.package} {self.version} ('{self.entry.name}' in {self.entry.group})"

    @property
    def package(self) -> str:
        """The distribution that declares it."""
        return self.entry.dist.name if self.entry.dist is not None else "an unnamed package"

    @property
    def version(self) -> str:
        """The version of that distribution."""
        return self.entry.dist.version if self.entry.dist is not None else "unknown"

    @property
    def module(self) -> str:
        """The module that its object lies in."""
        return self.entry.value.partition(":")[0].strip()

    @cached_property
    def identity(self) -> dict[str, str]:
        """What a record says of it: the package's version, and a hash of its code."""
        return {f"plugin {self.package}": f"{self.version} code {_code_digest(self.module)}"}

    @cached_property
    def _loaded(self) -> tuple[Any, str | None]:
        try:
            return self.entry.load(), None
        except (Exception, SystemExit) as error:  # a package may fail in any way on import
            return None, first_line(error)

    def load(self, kind: type[T]) -> T:
        """Its object, which must be a `kind` that is called like the entry point, if it has a name.

        Raises:
            UsageError: one line that names the package, whatever is wrong with it.
        """
        found, reason = self._loaded
        if reason is None and not isinstance(found, kind):
            reason = f"it is a {type(found).__name__}, not a {kind.__name__}"
        if reason is None and getattr(found, "name", self.entry.name) != self.entry.name:
            reason = f"it is called '{found.name}' there; use one name"
        if reason is not None:
            raise UsageError(f"{self} cannot be used: {reason}; update or remove the package")
        return found


@dataclass(frozen=True)
class Registry:
    """What packages add to one group: `plugins` by name, and why other names were `refused`."""

    plugins: Mapping[str, Plugin]
    refused: Mapping[str, str]

    def find(self, name: str) -> Plugin | None:
        """The plugin of that name, None if nobody offers it.

        Raises:
            UsageError: if more than one package does.
        """
        if name in self.refused:
            raise UsageError(self.refused[name])
        return self.plugins.get(name)


@cache
def registry(group: str, taken: frozenset[str]) -> Registry:
    """What packages add to `group`, where `taken` are the names of what is built in.

    A name that is taken stays what it was, and one that two packages offer is nobody's; each is
    told in one line, once.
    """
    offers: dict[str, list[Plugin]] = {}
    for plugin in _installed():
        if plugin.entry.group == group:
            offers.setdefault(plugin.entry.name, []).append(plugin)
    plugins, refused = {}, {}
    for name, rivals in offers.items():
        if name in taken:
            for plugin in rivals:
                complain(f"{plugin} is left out: '{name}' is built in; give it another name")
        elif len(rivals) > 1:
            both = " and ".join(map(str, rivals))
            refused[name] = f"'{name}' is offered by {both}; remove one of them"
            complain(f"{refused[name]}, neither is used")
        else:
            plugins[name] = rivals[0]
    return Registry(plugins, refused)


def complain(line: str) -> None:
    """Tell of a plugin that is left out, on standard error unless logging says otherwise."""
    logging.getLogger("probe").warning("probe: %s", line)


def first_line(error: BaseException) -> str:
    """The kind of an error of a package's own, and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def installed() -> dict[str, str]:
    """The identities of all that is installed, used or not."""
    return {name: value for plugin in _installed() for name, value in plugin.identity.items()}


def identities(modules: Iterable[str]) -> dict[str, str]:
    """The identities of the packages that hold these top-level modules, of those with plugins."""
    tops = set(modules)
    found = (plugin.identity for plugin in _installed() if plugin.module.partition(".")[0] in tops)
    return {name: value for identity in found for name, value in identity.items()}


def forget() -> None:
    """Look again at what is installed."""
    _installed.cache_clear()
    registry.cache_clear()


@cache
def _installed() -> tuple[Plugin, ...]:
    found = [Plugin(entry) for group in GROUPS for entry in entry_points(group=group)]
    return tuple(sorted(found, key=lambda p: (p.entry.group, p.entry.name, p.package)))


def _code_digest(module: str) -> str:
    """Hash of the source and compiled files of the package that `module` lies in.

    Of a namespace package that several distributions share, the part that `module` lies in.
    """
    spec = _package_spec(module.split("."))
    if spec is None:
        return "unknown"
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    found = [
        (str(file.relative_to(folder)), file)
        for folder in folders
        for file in folder.rglob("*")
        if file.suffix in CODE and file.is_file()
    ]
    if not folders and spec.origin is not None:
        found = [(Path(spec.origin).name, Path(spec.origin))]
    digest = hashlib.sha256()
    for name, file in sorted(found):
        digest.update(f"{name}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _package_spec(parts: Sequence[str]) -> ModuleSpec | None:
    """Where the first package lies that is no namespace, of the dotted name `parts`."""
    spec = None
    for depth in range(1, len(parts) + 1):
        try:
            spec = importlib.util.find_spec(".".join(parts[:depth]))
        except Exception:  # importing a broken parent; loading tells what is wrong
            return None
        if spec is None or spec.origin is not None:
            break
    return spec
