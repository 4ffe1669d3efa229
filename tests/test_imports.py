"""Imports go one way, heavy libraries wait for commands, and files stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "timm", "transformers", "datasets", "matplotlib", "scipy", "sklearn")

BASE = {"errors", "plugins", "types", "wiring"}
MODEL = {*BASE, "families", "hooks", "interventions"}
BELOW_ENGINE = {
    *MODEL,
    "corruptions",
    "conditions",
    "data",
    "distributed",
    "loading",
    "memory",
    "metrics",
    "numerics",
    "plan",
    "readout",
    "records",
    "store",
    "inline",
    "preprocess_fields",
    "yaml_file",
    "zoo",
    "zoo_file",
}
# What each part of `probe` may import from `probe`, besides itself.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "plugins": {"errors"},
    "wiring": set(),
    "types": {"errors", "wiring"},
    "yaml_file": BASE,
    "zoo": {*BASE, "yaml_file", "zoo_file"},
    "zoo_check": {*MODEL, "loading"},
    "coverage": {*MODEL, "loading", "metrics", "yaml_file"},
    "zoo_file": {*BASE, "inline", "preprocess_fields", "yaml_file"},
    "preprocess_fields": {"errors"},
    "inline": BASE,
    "numerics": BASE,
    "hooks": MODEL,
    "interventions": MODEL,
    "families": {*MODEL, "inline"},
    "loading": {*MODEL, "data", "families", "preprocess_fields"},
    "corruptions": BASE,
    "data": {*BASE, "preprocess_fields", "yaml_file"},
    "metrics": {*BASE, "numerics"},
    "records": BASE,
    "manifest": {*BASE, "records", "store"},
    "prune": {*BASE, "manifest", "plan", "records", "store"},
    "store": {*BASE, "records"},
    "plan": {*BASE, "corruptions", "records"},
    "readout": {*MODEL, "data", "loading", "numerics", "plan", "store"},
    "conditions": {*MODEL, "corruptions", "data"},
    "distributed": BASE,
    "memory": {*BASE, "metrics"},
    "running": BELOW_ENGINE,
    "saver": {"errors", "store"},
    "engine": {*BELOW_ENGINE, "running", "saver"},
    "session": {*BELOW_ENGINE, "engine"},
    "judging": BELOW_ENGINE,
    "hardware": BELOW_ENGINE,
    "remembered": {*BELOW_ENGINE, "session"},
    "cards": {*BELOW_ENGINE, "audit", "judging", "remembered", "session"},
    "audit": {*MODEL, "data", "derive", "hardware", "loading", "metrics", "numerics"},
    "inspect": {*MODEL, "inline"},
    "tasks": {*MODEL, "data", "loading", "numerics", "readout"},
    "derive": {*BASE, "corruptions", "numerics", "records", "yaml_file"},
    "report": {*BASE, "derive", "numerics", "records"},
    # What a user calls from Python knows no command.
    "api": {*BELOW_ENGINE, "derive", "engine", "session"},
    "__main__": {"cli"},
    "": {*BELOW_ENGINE, "api", "derive", "engine"},
    "cli": {
        *BELOW_ENGINE,
        *("audit", "cards", "coverage", "derive", "engine", "hardware", "inspect", "judging"),
        *("manifest", "prune", "remembered", "report", "session", "tasks", "zoo_check"),
    },
}


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names that a module imports, anywhere in it, under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield "." * node.level
            else:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(file: Path, root: Path) -> str:
    """`numerics` for probe/numerics/ranks.py, `zoo` for probe/zoo.py, "" for probe/__init__.py."""
    inner = file.relative_to(root / "probe").with_suffix("").parts
    return "" if inner == ("__init__",) else inner[0]


def violations(root: Path) -> list[str]:
    """Every import of `probe` and `train` that goes the wrong way, as `FILE imports MODULE`."""
    found = []
    files = [*root.glob("probe/**/*.py"), *root.glob("train/**/*.py")]
    for file in sorted(files):
        name = str(file.relative_to(root))
        part = part_of(file, root) if name.startswith("probe") else "train"
        if part not in ALLOWED and part != "train":
            found.append(f"{name}: state what it may import in ALLOWED")
            continue
        for module in imported(ast.parse(file.read_text(encoding="utf-8"))):
            top, _, rest = module.partition(".")
            target = rest.partition(".")[0]
            inside = (root / "probe" / target).exists() or (root / f"probe/{target}.py").exists()
            if top == "":
                found.append(f"{name} imports {module} (relative imports hide the direction)")
            elif top == "train" and part != "train" and name != "probe/cli/train.py":
                found.append(f"{name} imports {module}")
            elif top == "probe" and inside and part == "train":
                # `python -m train` is `probe train`.
                if target == "cli" and name != "train/__main__.py":
                    found.append(f"{name} imports {module}")
            elif top == "probe" and inside and target != part and target not in ALLOWED[part]:
                found.append(f"{name} imports {module}")
    return found


def test_imports_go_one_way() -> None:
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line", "module"),
    [
        ("probe/numerics/ranks.py", "from probe.metrics import ssdc", "probe.metrics.ssdc"),
        ("probe/metrics/ssdc.py", "import probe.engine", "probe.engine"),
        ("probe/engine.py", "def f():\n    from probe.cli import app", "probe.cli.app"),
        ("probe/families/vit.py", "from probe import data", "probe.data"),
        ("probe/report/rows.py", "from probe.engine import run", "probe.engine.run"),
        ("probe/cli/ssdc.py", "import train.loop", "train.loop"),
        ("train/loop.py", "from probe.cli.app import main", "probe.cli.app.main"),
        ("probe/zoo.py", "from . import types", "."),
    ],
)
def test_a_wrong_direction_is_seen(tmp_path: Path, file: str, line: str, module: str) -> None:
    for name in (
        "numerics/__init__",
        "metrics/__init__",
        "cli/__init__",
        "data/__init__",
        "engine",
    ):
        made = tmp_path / "probe" / f"{name}.py"
        made.parent.mkdir(parents=True, exist_ok=True)
        made.touch()
    assert violations(tmp_path) == []
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    (seen,) = violations(tmp_path)
    assert seen.startswith(f"{file} imports {module}")


def test_right_directions_and_unlisted_parts(tmp_path: Path) -> None:
    (tmp_path / "probe/cli").mkdir(parents=True)
    (tmp_path / "train").mkdir()
    (tmp_path / "probe/zoo.py").touch()
    (tmp_path / "probe/cli/train.py").write_text("from train.loop import run\nimport probe.zoo")
    (tmp_path / "train/loop.py").write_text("import probe.zoo")
    assert violations(tmp_path) == []
    (tmp_path / "probe/utils.py").touch()
    assert violations(tmp_path) == ["probe/utils.py: state what it may import in ALLOWED"]


@pytest.mark.parametrize("module", ["probe", "probe.zoo", "probe.types", "probe.cli.app"])
def test_light_imports_stay_light(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {set(HEAVY)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_files_stay_small() -> None:
    files = [*ROOT.glob("probe/**/*.py"), *ROOT.glob("train/**/*.py")]
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines())
        for file in files
    }
    assert len(lengths) > 10
    assert {name: length for name, length in lengths.items() if length > 300} == {}
    assert not [name for name in lengths if Path(name).stem == "utils"]
