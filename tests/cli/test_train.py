"""`probe train`: what it refuses, what it prints, and what its runs are good for."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from probe.cli.train import line_of, seeds_of, summary
from probe.errors import UsageError
from probe.zoo import load_zoo
from tests.cli.command import as_json, invoke, only_line
from tests.train.tiny_runs import FILES, arguments, environment, lines, reset
from train.loop import Moment

HEAVY = ("torch", "timm", "accelerate", "transformers", "datasets", "sklearn")


def train(*words: str) -> Result:
    reset()
    return invoke("train", *words)


def refused(*words: str, code: int = 2) -> str:
    return only_line(train(*words), code)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom probe.cli.app import app\ntry:\n    app(['train', '--help'])\n"
        f"finally:\n    print('HEAVY', *sorted(set(sys.modules) & {set(HEAVY)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert "--halve-on-oom" in done.stdout
    assert done.stdout.splitlines()[-1] == "HEAVY"


def test_a_run_is_a_zoo_entry_at_once(here: Path) -> None:
    (here / "zoo.yaml").write_text("schema: 1\nmodels: {}  # none yet\n")
    words = ["rpt", "--seeds", "0,1", *arguments("train.steps=4"), "--out", "runs/tiny"]
    found = train(*words, "--add-to", "zoo.yaml")
    assert found.exit_code == 0, found.stderr
    told = found.stdout.splitlines()
    assert f"step 2 of 4: loss {lines(here / 'runs/tiny/rpt-s0')[0]['loss']:.3f}" in told
    assert told[-4] == "added to zoo.yaml: digits_rpt_s0, digits_rpt_s1"
    for seed in (0, 1):
        assert sorted(path.name for path in (here / f"runs/tiny/rpt-s{seed}").iterdir()) == FILES
        assert re.fullmatch(
            rf"runs/tiny/rpt-s{seed}: validation 0\.\d{{3}} \(\d+ of 269\) · "
            r"test 0\.\d{3} \(\d+ of 275\)",
            told[seed - 3],
        )
    assert re.fullmatch(r"rpt: test accuracy 0\.\d{3}, sd 0\.\d{3} over 2 seeds", told[-1])
    options = ["--data", "digits", "--limit", "8"]
    (by_path,) = as_json("runs/tiny/rpt-s0", *options)["results"]
    (by_name,) = as_json("digits_rpt_s0", "--zoo", "zoo.yaml", *options)["results"]
    assert len(by_path["layers"]) == 2
    assert by_path["layers"] == by_name["layers"]
    again = train(*words, "--add-to", "zoo.yaml")
    assert again.stdout.splitlines()[0] == (
        "runs/tiny/rpt-s0 holds this run already; --fresh trains it again"
    )
    assert again.stdout.splitlines()[-4:] == told[-4:]


def test_untrained_networks_and_a_recipe_of_ones_own(here: Path) -> None:
    shipped = Path(__file__).resolve().parents[2] / "train/recipes/digits/spe.yaml"
    (here / "mine").mkdir()
    (here / "mine" / "spe.yaml").write_text(shipped.read_text())
    found = train("spe", *arguments(), "--recipe", "mine", "--untrained", "--add-to", "zoo.yaml")
    assert found.exit_code == 0, found.stderr
    folder = here / "runs/mine/spe-s0-untrained"
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock",
        "config.json",
        "model.safetensors",
        "training.json",
    ]
    assert load_zoo(here / "zoo.yaml")["mine_spe_s0_untrained"].source == f"file:{folder}"


def test_a_name_that_is_taken_is_refused_before_anything_is_trained(here: Path) -> None:
    (here / "zoo.yaml").write_text("schema: 1\nmodels:\n  digits_ape_s0: {source: timm:test_vit}\n")
    text = refused("ape", *arguments(), "--out", "out", "--add-to", "zoo.yaml")
    assert text == (
        "zoo.yaml has another model called 'digits_ape_s0' (timm:test_vit); rename it, or choose "
        "another --add-to"
    )
    assert not (here / "out").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("aqe",),
            "unknown variant 'aqe'. Did you mean ape? Variants: ape, ",
        ),
        (("ape", "ape"), "a variant is named twice: ape, ape"),
        (("ape", "--recipe", "digit"), "there is no recipe 'digit' with a file ape.yaml. Did you "),
        (
            ("ape", "--set", "train.lrr=1"),
            "--set train.lrr=1: a recipe has no key 'train.lrr'.",
        ),
        (("ape", "--seeds", "0,x"), "--seeds '0,x' must be whole numbers, such as 0,1,2"),
        (("ape", "--seeds", "1,1"), "--seeds '1,1' must be different whole numbers from 0"),
        (("ape", "--seeds", "-1"), "--seeds '-1' must be different whole numbers from 0"),
        (("ape", "--device", "cuda"), "--device must be auto or cpu, got 'cuda'; accelerate choos"),
        (("ape", "--jobs", "0"), "--jobs must be at least 1 and --workers at least 0"),
        ((), "Missing argument 'VARIANT'; see probe train --help"),
    ],
)
def test_what_it_refuses(here: Path, words: tuple[str, ...], text: str) -> None:
    assert refused(*words).startswith(text)
    assert list(here.iterdir()) == []


def test_seeds() -> None:
    assert seeds_of("3, 1,2") == (3, 1, 2)
    with pytest.raises(UsageError):
        seeds_of("")


def test_the_summary() -> None:
    def record(variant: str, right: int) -> dict[str, Any]:
        part = {"correct": right, "images": 10}
        return {"variant": variant, "validation": part, "test": part}

    runs = [
        (Path("a"), record("ape", 9)),
        (Path("b"), record("ape", 7)),
        (Path("c"), record("rpt", 1)),
    ]
    assert summary(runs).splitlines() == [
        "a: validation 0.900 (9 of 10) · test 0.900 (9 of 10)",
        "b: validation 0.700 (7 of 10) · test 0.700 (7 of 10)",
        "c: validation 0.100 (1 of 10) · test 0.100 (1 of 10)",
        "ape: test accuracy 0.800, sd 0.141 over 2 seeds",
    ]


def test_a_moment_as_a_line() -> None:
    assert line_of(Moment(4, 20, 64, 320, 1.23456)) == "step 4 of 20: loss 1.235"
    assert line_of(Moment(4, 20, 64, 320, 1.0, 0.5)) == (
        "step 4 of 20: loss 1.000 · validation accuracy 0.500"
    )


@pytest.mark.slow
def test_a_terminal_shows_a_bar(here: Path) -> None:
    """Speed, time left and loss while it runs; afterwards the result alone is there."""
    ours, theirs = pty.openpty()
    words = ["ape", *arguments("train.steps=60"), "--out", "out"]
    env = environment() | {"TERM": "xterm-256color", "COLUMNS": "80"}
    env.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-m", "train", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how a terminal says that nobody writes to it any more
                break
            shown += part
            if not part:
                break
    os.close(ours)
    assert process.returncode == 0, shown.decode()
    frames = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()))
    bar = re.compile(r"ape-s0 [━╸╺]+ +\d+% \d+ images/s · \d:\d\d:\d\d left · loss \d\.\d{3}")
    assert any(bar.fullmatch(frame.strip()) for frame in frames), frames
    assert max(map(len, frames)) <= 80
    assert not [frame for frame in frames if frame.startswith("step ")]
    assert re.fullmatch(r"out/ape-s0: validation .* of 275\)", [f for f in frames if f.strip()][-1])
