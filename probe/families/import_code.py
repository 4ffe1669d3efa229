"""Which source files a network of the user's own is made of, so that an edit makes a new key."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from torch import nn

# Their versions are recorded, so that their files need not be hashed.
LIBRARIES = ("torch", "torchvision", "timm", "transformers")
DYNAMIC = ("import_module", "__import__", "exec_module", "run_path")


def code_files(starts: set[str], module: nn.Module, folder: str | None) -> dict[str, Path]:
    """The source files of a network by module name, libraries aside.

    They are those of the modules `starts`, of every class that the network is made of and of the
    classes that these inherit from, and, from there on, of what each imports out of `folder` or of
    its own package. Where one imports by a computed name, every file beside it counts. Nothing else
    that happens to be imported does: the same network has the same files in every session. Files
    that are no code are not among them.
    """
    classes = {base for part in module.modules() for base in type(part).__mro__}
    waiting = [(name, "") for name in (*starts, *(one.__module__ for one in classes))]
    found: dict[str, Path] = {}
    while waiting:
        name, importer = waiting.pop()
        top = name.partition(".")[0]
        file = None if name in found or top in LIBRARIES else _file(name, folder)
        if file is None:
            continue
        inside = folder is not None and _is_own(file, Path(folder))
        if not inside and (top in sys.stdlib_module_names or importer not in ("", top)):
            continue
        found[name] = file
        if file.suffix != ".py" or top == "probe":  # probe's own version is recorded
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except SyntaxError:  # of a file that waits for a call, which will tell
            continue
        waiting += [(one, top) for one in _imported(tree, name, file)]
        if any(isinstance(node, ast.Call) and _called(node) in DYNAMIC for node in ast.walk(tree)):
            found |= {f"{name}:{beside.name}": beside for beside in file.parent.glob("*.py")}
    return found


def _is_own(file: Path, folder: Path) -> bool:
    """Whether a file lies in the folder, and not in an environment of packages inside it."""
    return file.is_relative_to(folder) and "site-packages" not in file.relative_to(folder).parts


def _file(name: str, folder: str | None) -> Path | None:
    """Where a module was imported from; of one that waits for a call, where it lies in `folder`."""
    module: ModuleType | None = sys.modules.get(name)
    if module is not None:
        place = getattr(module, "__file__", None)
        return Path(place) if place is not None and Path(place).is_file() else None
    root = _root(name.partition(".")[0], folder)
    stem = None if root is None else root.joinpath(*name.split("."))
    candidates = [] if stem is None else [stem / "__init__.py", stem.with_name(f"{stem.name}.py")]
    return next((path for path in candidates if path.is_file()), None)


def _root(top: str, folder: str | None) -> Path | None:
    """The folder that a top-level package or module lies in."""
    places = list(getattr(sys.modules.get(top), "__path__", []))
    if places:
        return Path(places[0]).parent
    return None if folder is None else Path(folder)


def _imported(tree: ast.AST, name: str, file: Path) -> Iterator[str]:
    """Dotted names that may be modules, with the packages around them, anywhere in a source."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            around = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*around, *([node.module] if node.module else [])])
            wanted = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for one in wanted:
            parts = one.split(".")
            yield from (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
