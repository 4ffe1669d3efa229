"""The tutorials of docs/extending.md, run as they are written, each in a folder of its own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probe.cli.app import app

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "extending.md").read_text("utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TUTORIALS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]


def test_there_are_tutorials() -> None:
    assert [text.splitlines()[0][:2] for text in TUTORIALS] == ["1.", "2.", "3."]


@pytest.mark.slow
@pytest.mark.parametrize("text", TUTORIALS, ids=lambda text: text.splitlines()[0])
def test_it_runs_as_written(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is saved under the name in its first line; a text block is in what was shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shown, ran = "", 0
    for language, block in FENCE.findall(text):
        named = re.match(r"# (\w+\.\w+)\n", block)
        if named is not None:
            Path(named[1]).write_text(block, encoding="utf-8")
        elif language == "python":
            exec(compile(block, "docs/extending.md", "exec"), {"__name__": "__main__"})
        elif language == "sh":
            shown = ""
            for line in block.splitlines():
                command, _, comment = line.partition("  # exit code ")
                words = shlex.split(command)
                assert words[0] == "probe"
                done = CliRunner().invoke(app, words[1:])
                assert done.exit_code == int(comment or 0), done.output
                shown, ran = shown + done.output, ran + 1
        else:
            assert language == "text"
            for expected in block.splitlines():
                assert expected in re.sub(r"[ \t]+$", "", shown, flags=re.MULTILINE)
    assert ran
