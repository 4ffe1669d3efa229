"""Models are shared out over array jobs, and docs/slurm.md says how."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probe.cli.app import app
from probe.cli.report_zoo import shard_of, share_of
from probe.errors import UsageError
from probe.types import ModelSpec

PAGE = (Path(__file__).parent.parent / "docs" / "slurm.md").read_text(encoding="utf-8")


def specs(count: int) -> tuple[ModelSpec, ...]:
    return tuple(ModelSpec(f"model{number}", "timm:test_vit") for number in range(count))


@pytest.mark.parametrize(("models", "jobs"), [(1, 1), (7, 1), (7, 2), (7, 3), (7, 7), (200, 50)])
def test_every_model_is_in_one_share(models: int, jobs: int) -> None:
    chosen = specs(models)
    shares = [share_of(chosen, shard_of(f"{job}/{jobs}")) for job in range(1, jobs + 1)]
    assert sorted(one.name for share in shares for one in share) == sorted(
        one.name for one in chosen
    )
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert all(list(share) == [one for one in chosen if one in share] for share in shares)


def test_a_share_takes_every_nth_model() -> None:
    names = [one.name for one in share_of(specs(7), shard_of("2/3"))]
    assert names == ["model1", "model4"]
    assert share_of(specs(3), shard_of(None)) == specs(3)


@pytest.mark.parametrize("text", ["", "1", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1.0/2"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as error:
        shard_of(text)
    assert str(error.value) == (
        f"--shard takes I/N, as 1/4 for the first of four shares; got '{text}'"
    )


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_scripts_of_the_page_are_sound() -> None:
    scripts = blocks("bash")
    assert len(scripts) == 4
    for script in scripts:
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_scripts_run_the_same_report() -> None:
    """Run by bash with Slurm's commands replaced by ones that print: one share, then all."""
    measure, render, settings, _ = blocks("bash")
    assert settings.startswith("SHARED=")
    fake = 'srun() { printf "%s\\n" "$@"; }\nSLURM_ARRAY_TASK_ID=3\nSLURM_ARRAY_TASK_COUNT=50\n'
    lines = []
    for script in (measure, render):
        whole = fake + script.replace("source settings.sh", settings)
        done = subprocess.run(["bash"], input=whole, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        lines.append(done.stdout.split("\n")[:-1])
    shard, out = lines[0].index("--shard"), lines[1].index("--out")
    assert lines[0][shard:] == ["--shard", "3/50"]
    assert lines[0][:shard] == lines[1][:out]
    assert lines[0][:2] == ["probe", "report"]


def test_the_options_of_the_page_exist() -> None:
    helped = CliRunner().invoke(app, ["report", "--help"]).stdout
    scripts = "".join(block for block in blocks("bash"))
    used = set(re.findall(r"(?<=\s|\()--[a-z-]+(?= )", scripts)) - {"--parsable"}
    assert {"--shard", "--runs", "--zoo", "--data", "--out", "--workers"} <= used
    for option in used - {"--dependency"}:
        assert re.search(rf"{option}\b", helped), option


def test_the_arithmetic_of_the_page() -> None:
    """From the two times that were measured."""
    seconds = [float(text) for text in re.findall(r"(?<=\s)(\d+\.\d) s\s", PAGE)]
    assert seconds == [6.8, 12.2]
    rate = (55 - 7) * 2 / (seconds[1] - seconds[0])
    assert f"= {rate:.1f}\nimages x passes per second" in PAGE
    rows = re.findall(r"\| ([\d,]+) \| ([\d.]+) h \| (\d+) days \| ([\d.]+) (h|days) \|", PAGE)
    assert len(rows) == 3
    for work, hours, days, jobs, unit in rows:
        needed = int(work.replace(",", "")) / rate / 3600
        assert float(hours) == pytest.approx(needed, abs=0.05)
        assert int(days) == pytest.approx(200 * needed / 24, abs=0.5)
        assert float(jobs) == pytest.approx(
            200 * needed / 50 / (24 if unit == "days" else 1), abs=0.06
        )
