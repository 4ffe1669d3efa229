"""Every place in the source that reads a file or imports by name: what it reads runs no code.

Those that import what the user names, or one of our own modules, are listed with why.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path for folder in ("probe", "train", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)
READERS = {"yaml", "joblib", "dill", "cloudpickle", "shelve", "marshal", "jsonpickle", "runpy"}
IMPORTERS = {"import_module", "__import__", "exec_module", "load_module", "SourceFileLoader"}
ALLOWED = {
    # The constructor of an entry in a zoo file that the user names, and nothing else does.
    "probe/families/import_loader.py": ["importlib.import_module"],
    # What the user has installed.
    "probe/plugins.py": ["self.entry.load"],
    # Modules of the same package, under names that stand in our source or are files of its folder.
    "probe/__init__.py": ["importlib.import_module"],
    "probe/families/base.py": ["importlib.import_module"],
    # The module of the installed transformers that its own table of architectures names.
    "probe/families/hf_model.py": ["importlib.import_module"],
}


def imports(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for, such as `load` for `torch.load`."""
    meant = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            meant |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            meant |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return meant


def named(node: ast.expr, meant: dict[str, str]) -> str:
    """The dotted name of a called function, `.last` where it hangs on an expression."""
    if isinstance(node, ast.Name):
        return meant.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{named(node.value, meant)}.{node.attr}"
    return ""


def literal(node: ast.Call) -> bool:
    """Whether the first argument is text, as in an import statement."""
    return bool(node.args) and isinstance(node.args[0], ast.Constant)


def faults(source: str) -> list[str]:
    """What in a source may run code out of a file, with its line."""
    found, tree = [], ast.parse(source)
    meant = imports(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            names = [module, *(alias.name for alias in node.names if not module)]
            found += [(node.lineno, n) for n in names if n.partition(".")[0] in READERS]
        elif isinstance(node, ast.Call):
            said = {
                word.arg: word.value.value if isinstance(word.value, ast.Constant) else "computed"
                for word in node.keywords
            }
            name = named(node.func, meant)
            *before, last = name.removeprefix("builtins.").split(".")
            copy = name == "pickle.loads" and "pickle.dumps" in ast.unparse(node.args[0])
            wrong = (
                (name == "torch.load" and said.get("weights_only") is not True)
                or (name in ("np.load", "numpy.load") and said.get("allow_pickle") is not False)
                or (name.startswith("pickle.") and name != "pickle.dumps" and not copy)
                or (last in ("eval", "exec") and not before)
                or name in ("torch.hub.load", "torch.jit.load")
                or (last in IMPORTERS and not (last == "import_module" and literal(node)))
                # An entry point's; of images, it decodes.
                or (last == "load" and before not in ([], ["image"]) and not (node.args or said))
                or said.get("trust_remote_code", False) is not False
                or (any(n.startswith("Auto") for n in before) and "trust_remote_code" not in said)
                or (last == "YAML" and said.get("typ", "rt") not in ("rt", "safe"))
            )
            found += [(node.lineno, name)] if wrong else []
    return [f"{line}: {name}" for line, name in sorted(found)]


def test_nothing_read_can_run_code() -> None:
    assert len(SOURCES) > 100
    all_faults = {str(path.relative_to(ROOT)): faults(path.read_text()) for path in SOURCES}
    found = {
        path: [line.partition(": ")[2] for line in lines]
        for path, lines in all_faults.items()
        if lines
    }
    assert found == ALLOWED, all_faults


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(p)", "torch.load(p, weights_only=False)", "torch.load(p, weights_only=w)",
        "np.load(p)", "np.load(p, allow_pickle=True)", "pickle.load(f)", "pickle.loads(text)",
        "pickle.Unpickler(f).load()", "eval(text)", "import yaml", "from yaml import load",
        "import joblib.numpy_pickle", "AutoModel.from_pretrained(p)", "YAML(typ='unsafe')",
        "AutoConfig.from_pretrained(p, trust_remote_code=True)", "torch.hub.load(a, b)",
        "from torch import load\nload(p)", "from torch import load as read\nread(p)",
        "import torch as t\nt.load(p)", "import numpy as n\nn.load(p)",
        "from numpy import load\nload(p)", "from pickle import load\nload(f)",
        "from pickle import loads as read\nread(text)", "import pickle as p\np.load(f)",
        "from torch.hub import load\nload(a, b)", "from torch import hub\nhub.load(a, b)",
        "importlib.import_module(name)", "importlib.import_module(f'probe.{name}')",
        "from importlib import import_module\nimport_module(name)",
        "from importlib import import_module as get\nget(name)", "__import__(name)",
        "spec.loader.exec_module(module)", "loader.load_module()", "SourceFileLoader(a, b)",
        "import runpy", "from runpy import run_path", "entry.load()", "entry_points()[0].load()",
        "import builtins\nbuiltins.exec(text)", "from builtins import eval as run\nrun(text)",
        "from transformers import AutoModel as A\nA.from_pretrained(p)",
        "transformers.AutoModel.from_pretrained(p)",
        "from ruamel.yaml import YAML as Y\nY(typ='unsafe')",
    ],
)  # fmt: skip
def test_each_way_is_seen(line: str) -> None:
    assert faults(line) != []


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(p, weights_only=True)", "np.load(p, allow_pickle=False)", "YAML(typ='safe')",
        "pickle.loads(pickle.dumps(x))", "AutoConfig.from_pretrained(p, trust_remote_code=False)",
        "from torch import load\nload(p, weights_only=True)", "image.load()", "zoo.load(name)",
        "importlib.import_module('torch')", "from pickle import UnpicklingError", "model.eval()",
    ],
)  # fmt: skip
def test_the_right_way_is_not(line: str) -> None:
    assert faults(line) == []
