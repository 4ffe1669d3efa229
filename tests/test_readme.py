"""What the README shows can be done: its commands parse, its snippets run, its links lead on."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import probe
from probe.cli.app import app
from probe.types import LoadedModel
from probe.zoo import load_zoo

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS: list[tuple[str, str]] = FENCE.findall(README)
PROSE = FENCE.sub("", README)
INLINE = re.findall(r"`([^`\n]+)`", PROSE)
SNIPPETS = [code for language, code in BLOCKS if language == "python"]
COMMANDS = [
    line
    for language, text in BLOCKS
    if language != "python"
    for line in text.replace("\\\n", " ").splitlines()
    if re.match(r"(\$ )?probe ", line)
]


def command_of(words: list[str]) -> tuple[Any, list[str], list[str]]:
    """The command that `words` name, its name in words, and the words that are left to it."""
    command, names = typer.main.get_command(app), ["probe"]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words[0]]
        names.append(words[0])
        words = words[1:]
    return command, names, words


def test_there_is_something_to_check() -> None:
    assert len(SNIPPETS) >= 2
    assert len(COMMANDS) >= 3
    assert PROSE.count("```") == 0


def test_no_placeholder_is_left() -> None:
    bare = re.compile(r"^[ \t]*[A-Z]+(?:_[A-Z]+)*[ \t]*$", re.MULTILINE)
    assert bare.findall(README) == []
    shown = re.sub(r"`[^`\n]+`", "", PROSE)
    assert re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", shown) == []
    assert re.findall(r"\b(?:TODO|FIXME|TBD|XXX)\b", README) == []


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_parses_and_its_models_have_names(line: str) -> None:
    words = shlex.split(line.removeprefix("$ "), comments=True)
    command, names, rest = command_of(words[1:])
    assert len(names) > 1, f"there is no command '{' '.join(words[:2])}'"
    context = command.make_context(names[-1], list(rest))  # an unknown option is an error
    for model in context.params.get("models") or ():
        if ":" in model or "/" not in model:  # else a path of the reader's
            load_zoo(context.params.get("zoo")).resolve(model)


@pytest.mark.parametrize("text", [text for text in INLINE if re.match(r"probe \w", text)])
def test_a_command_in_the_text_exists_with_its_options(text: str) -> None:
    command, names, rest = command_of(shlex.split(text)[1:])
    assert len(names) > 1, f"there is no command '{text}'"
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= known | {"--help"}


def test_every_option_in_the_text_is_one_of_some_command() -> None:
    def options(command: Any) -> set[str]:
        found = {option for parameter in command.params for option in parameter.opts}
        return found.union(*(options(one) for one in getattr(command, "commands", {}).values()))

    known = options(typer.main.get_command(app)) | {"--help"}
    named = {word for text in INLINE for word in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)}
    assert named >= {"--data", "--limit"}
    assert named - known == set()


def test_the_snippets_run_word_for_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after another, as a reader runs them; the checkpoint alone is a small untrained one."""
    from probe import api

    asked: list[str] = []
    load = api.load

    def small(model: str, **options: Any) -> LoadedModel:
        load_zoo().resolve(model)
        asked.append(model)
        return load("timm:test_vit", random_init=True, image_size=224, **options)

    monkeypatch.setattr(api, "load", small)
    monkeypatch.chdir(tmp_path)
    assert probe.load is small
    names: dict[str, Any] = {}
    for code in SNIPPETS:
        exec(compile(code, "README.md", "exec"), names)
        assert bool(capsys.readouterr().out.strip()) == ("print(" in code)
    assert asked
    assert [value for value in names.values() if value is ...] == []


def test_the_zoo_files_are_zoo_files(tmp_path: Path) -> None:
    zoos = [text for language, text in BLOCKS if language == "yaml" and "models:" in text]
    assert zoos
    for text in zoos:
        (tmp_path / "zoo.yaml").write_text(text)
        found = set(load_zoo(tmp_path / "zoo.yaml").models) - set(load_zoo().models)
        assert found


def test_the_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    shown = set(re.findall(r"^make ([a-z-]+)", "\n".join(t for _, t in BLOCKS), re.MULTILINE))
    assert shown >= {"demo", "test"}
    assert shown <= targets


def test_the_files_that_are_linked_to_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)", PROSE)
    assert links
    files = [link for link in links if not link.startswith(("https://", "http://"))]
    assert [link for link in files if not (ROOT / link).exists()] == []
