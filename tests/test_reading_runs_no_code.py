"""Every place in the source that reads a file: none of them can run code that lies in it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path for folder in ("probe", "train", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)
READERS = {"yaml", "joblib", "dill", "cloudpickle", "shelve", "marshal", "jsonpickle"}


def named(node: ast.expr) -> str:
    """The dotted name of a called function, `.last` where it hangs on an expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{named(node.value)}.{node.attr}"
    return ""


def faults(source: str) -> list[str]:
    """What in a source may run code out of a file, with its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            names = [module, *(alias.name for alias in node.names if not module)]
            found += [(node.lineno, n) for n in names if n.partition(".")[0] in READERS]
        elif isinstance(node, ast.Call):
            said = {
                word.arg: word.value.value if isinstance(word.value, ast.Constant) else "computed"
                for word in node.keywords
            }
            name = named(node.func)
            copy = name == "pickle.loads" and "pickle.dumps" in ast.unparse(node.args[0])
            wrong = (
                (name == "torch.load" and said.get("weights_only") is not True)
                or (name in ("np.load", "numpy.load") and said.get("allow_pickle") is not False)
                or (name.startswith("pickle.") and name != "pickle.dumps" and not copy)
                or name in ("eval", "exec", "__import__", "torch.hub.load", "torch.jit.load")
                or said.get("trust_remote_code", False) is not False
                or (name.startswith("Auto") and "trust_remote_code" not in said)
                or (name == "YAML" and said.get("typ", "rt") not in ("rt", "safe"))
            )
            found += [(node.lineno, name)] if wrong else []
    return [f"{line}: {name}" for line, name in sorted(found)]


def test_nothing_read_can_run_code() -> None:
    assert len(SOURCES) > 100
    all_faults = {str(path.relative_to(ROOT)): faults(path.read_text()) for path in SOURCES}
    assert {path: lines for path, lines in all_faults.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(p)", "torch.load(p, weights_only=False)", "torch.load(p, weights_only=w)",
        "np.load(p)", "np.load(p, allow_pickle=True)", "pickle.load(f)", "pickle.loads(text)",
        "pickle.Unpickler(f).load()", "eval(text)", "import yaml", "from yaml import load",
        "import joblib.numpy_pickle", "AutoModel.from_pretrained(p)", "YAML(typ='unsafe')",
        "AutoConfig.from_pretrained(p, trust_remote_code=True)", "torch.hub.load(a, b)",
    ],
)  # fmt: skip
def test_each_way_is_seen(line: str) -> None:
    assert faults(line) != []


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(p, weights_only=True)", "np.load(p, allow_pickle=False)", "YAML(typ='safe')",
        "pickle.loads(pickle.dumps(x))", "AutoConfig.from_pretrained(p, trust_remote_code=False)",
    ],
)  # fmt: skip
def test_the_right_way_is_not(line: str) -> None:
    assert faults(line) == []
