"""What other packages add: families, metrics, corruptions, data, and what is left out."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from probe import plugins
from probe.corruptions import parse
from probe.data.open import open_data
from probe.errors import DataError, UsageError
from probe.families.base import added_families, families, family_of
from probe.metrics.added import find_metrics, metric_packages
from probe.plan import Settings, current, make_passes, versions
from probe.types import Condition, Task
from tests.cli.command import ROOT, subprocess_probe
from tests.installed import install, install_striped, on_the_path, write

FAMILY = """
from probe.families.base import Family

def claims(module):
    {claims}

FAMILY = Family({name!r}, {library!r}, claims, lambda module, size: None, lambda module: None)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package `striped`, installed for this process."""
    with on_the_path(install_striped(tmp_path / "site"), monkeypatch):
        yield tmp_path / "site"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines about plugins that are left out."""
    lines = [r.getMessage() for r in caplog.records if r.name == "probe"]
    assert all("\n" not in line and line.startswith("probe: ") for line in lines)
    return [line.removeprefix("probe: ") for line in lines]


def test_a_corruption_of_another_package(site: Path) -> None:
    found = parse("stripes( width = 8 )")
    assert (str(found), found.slug) == ("stripes(width=8)", "stripes_w8")
    assert found.effective_sigma is None
    image = np.full((32, 32, 3), 200, np.uint8)
    stripes = found.apply(image, 0, 3)
    assert np.array_equal(stripes, found.apply(image, 0, 3))
    assert sorted(np.unique(stripes)) == [0, 200]
    assert stripes.mean() == 100
    with pytest.raises(UsageError, match="width of stripes must be a whole number from 1 to 64"):
        parse("stripes(width=0)")
    with pytest.raises(UsageError, match=r"unknown corruption 'stripe'. Did you mean stripes"):
        parse("stripe(width=8)")


def test_data_of_another_package(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_data("ramps:12", limit=6)
    assert (source.name, source.kind, len(source), source.total) == ("ramps:12", "ramps", 6, 12)
    assert source.packages == plugins.installed()
    with pytest.raises(
        DataError,
        match=r"'ramps' cannot be opened: probe-striped 0.1 \('ramps' in "
        r"probe.data\) raised ValueError: invalid literal",
    ):
        open_data("ramps")
    with pytest.raises(UsageError, match=r"unknown data 'ramp'. Did you mean ramps"):
        open_data("ramp")
    monkeypatch.chdir(site)
    (site / "ramps").mkdir()
    with pytest.raises(DataError, match="holds no image file"):
        open_data("ramps")  # what lies there is meant first, as for data sets of the hub


def test_nothing_is_imported_before_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "bursting", "raise RuntimeError('boom\\nmore')")
    entries = {group: {"burst": "bursting:X"} for group in plugins.GROUPS}
    with on_the_path(install(tmp_path, entries, package="probe-burst"), monkeypatch):
        assert str(parse("jpeg(quality=5)")) == "jpeg(quality=5)"
        assert open_data("digits").kind == "digits"
        assert told(caplog) == []
        broken = r"probe-burst 0.1 \('burst' in probe.{}\) cannot be used: RuntimeError: boom; up"
        with pytest.raises(UsageError, match=broken.format("corruptions")):
            parse("burst(x=1)")
        with pytest.raises(UsageError, match=broken.format("data")):
            open_data("burst:x")
        with pytest.raises(UsageError, match=broken.format("families")):
            family_of(nn.Identity(), "timm", "burst")
        assert told(caplog) == []
        assert added_families() == {}
        (line,) = told(caplog)
        assert line.startswith("probe-burst 0.1 ('burst' in probe.families) cannot be used: Run")


def test_a_package_that_exits_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "leaving", "raise SystemExit('gone')")
    entries = {plugins.CORRUPTIONS: {"leave": "leaving:X"}}
    with (
        on_the_path(install(tmp_path, entries, package="probe-leave"), monkeypatch),
        pytest.raises(UsageError, match=r"cannot be used: SystemExit: gone; update or remove"),
    ):
        parse("leave(x=1)")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nowhere:X", "ModuleNotFoundError: No module named 'nowhere'"),
        ("thing:MISSING", "AttributeError: module 'thing' has no attribute 'MISSING'"),
        ("thing:N", "it is a int, not a Kind"),
        ("thing:KIND", "it is called 'other' there; use one name"),
        ("no module at all", "AttributeError: "),
    ],
)
def test_each_broken_plugin_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, reason: str
) -> None:
    write(
        tmp_path,
        "thing",
        "from probe.corruptions.kinds import Kind\nN = 3\nKIND = Kind('other', '', (), None)\n",
    )
    site = install(tmp_path, {plugins.CORRUPTIONS: {"mine": value}}, package="probe-mine")
    with on_the_path(site, monkeypatch):
        with pytest.raises(UsageError) as caught:
            parse("mine()")
        start = "probe-mine 0.1 ('mine' in probe.corruptions) cannot be used: "
        assert str(caught.value).startswith(start + reason)
        assert str(caught.value).endswith("; update or remove the package")
        assert "\n" not in str(caught.value)


def test_names_that_are_taken_and_names_that_two_want(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entries = {plugins.CORRUPTIONS: {"jpeg": "a:X", "haze": "a:X"}, plugins.DATA: {"hf": "a:X"}}
    install(tmp_path, entries, package="probe-a")
    install(tmp_path, {plugins.CORRUPTIONS: {"haze": "b:X"}}, package="probe-b", version="2.0")
    with on_the_path(tmp_path, monkeypatch):
        assert parse("jpeg(quality=5)").packages == {}
        with pytest.raises(UsageError) as caught:
            parse("haze()")
        rivals = (
            "'haze' is offered by probe-a 0.1 ('haze' in probe.corruptions) and probe-b 2.0 "
            "('haze' in probe.corruptions); remove one of them"
        )
        assert str(caught.value) == rivals
        taken = "probe-a 0.1 ('jpeg' in probe.corruptions) is left out: 'jpeg' is built in; give it"
        first, second = told(caplog)
        assert (first, second[: len(taken)]) == (f"{rivals}, neither is used", taken)
        caplog.clear()
        with pytest.raises(UsageError, match="unknown data 'nothing'"):
            open_data("nothing")
        (line,) = told(caplog)
        assert line.startswith("probe-a 0.1 ('hf' in probe.data) is left out: 'hf' is built in")


class Unread(nn.Module):
    """What no family of ours reads."""


def test_families_of_others_never_stand_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = {
        "greedy": ("greedy", "timm", "return True"),
        "failing": ("failing", "timm", "raise ValueError('odd')"),
        "elsewhere": ("elsewhere", "jax", "return True"),
        "timm_vit": ("timm_vit", "timm", "return True"),
    }
    for module, (name, library, claims) in made.items():
        write(tmp_path, f"m_{module}", FAMILY.format(name=name, library=library, claims=claims))
    entries = {plugins.FAMILIES: {name: f"m_{name}:FAMILY" for name in made}}
    with on_the_path(install(tmp_path, entries, package="probe-many"), monkeypatch):
        ours = next(iter(families().values()))
        mine = replace(ours, name="ours", library="timm", claims=lambda m: type(m) is nn.Linear)
        monkeypatch.setitem(families(), "ours", mine)
        plugins.forget()
        assert family_of(nn.Linear(1, 1), "timm").name == "ours"
        assert told(caplog) == []  # the others were not even looked at
        assert family_of(Unread(), "timm").name == "greedy"
        assert sorted(line.split("'")[1] for line in told(caplog)) == [
            "elsewhere",
            "failing",
            "timm_vit",
        ]
        assert "its claims() raised ValueError: odd" in " ".join(told(caplog))
        assert "its library is 'jax', not timm or hf" in " ".join(told(caplog))
        assert "'timm_vit' is built in; give it another name" in " ".join(told(caplog))
        with pytest.raises(UsageError, match=r"unknown family 'greed'. Did you mean greedy"):
            family_of(Unread(), "timm", "greed")


def test_a_plugin_in_use_changes_the_key_and_is_named(site: Path) -> None:
    def key(corruption: str) -> str:
        tasks = [Task(Condition(corruption=corruption), ssdc=False, top1=True)]
        (one,) = make_passes(tasks, Settings(), {"resolved": "m", "versions": versions()})
        found.append(one.settings["versions"])
        return one.key

    found: list[dict[str, str]] = []
    ours, theirs = key("jpeg(quality=5)"), key("stripes(width=4)")
    (name,) = set(found[1]) - set(found[0])
    assert (found[0], name) == (versions(), "plugin probe-striped")
    assert found[1][name] == plugins.installed()[name]
    assert found[1][name].startswith("0.1 code ")
    assert [current(one) for one in found] == [True, True]

    code = site / "striped" / "ramps.py"  # any file of the package counts, as with our own code
    code.write_text(code.read_text() + "\n")
    plugins.forget()
    assert key("jpeg(quality=5)") == ours
    assert key("stripes(width=4)") != theirs
    assert [current(one) for one in found] == [True, False, True, True]
    shutil.rmtree(site / "probe_striped-0.1.dist-info")
    plugins.forget()
    assert [current(one) for one in found] == [True, False, True, False]
    assert not current(None)


def test_the_code_of_a_single_file_and_of_a_shared_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "single", "X = 1")
    write(tmp_path / "shared" / "mine", "__init__", "X = 1")
    write(tmp_path / "shared" / "other", "__init__", "X = 1")
    install(tmp_path, {plugins.DATA: {"one": "single:X"}}, package="one")
    install(tmp_path, {plugins.DATA: {"two": "shared.mine:X"}}, package="two")
    install(tmp_path, {plugins.DATA: {"three": "gone:X"}}, package="three")

    def digests() -> dict[str, str]:
        plugins.forget()
        return plugins.installed()

    with on_the_path(tmp_path, monkeypatch):
        first = digests()
        assert first["plugin three"] == "0.1 code unknown"
        write(tmp_path / "shared" / "other", "__init__", "X = 2")
        assert digests() == first
        write(tmp_path, "single", "X = 2")
        write(tmp_path / "shared" / "mine", "__init__", "X = 2")
        changed = {name for name, value in digests().items() if value != first[name]}
        assert changed == {"plugin one", "plugin two"}


def test_a_package_is_used_through_the_command_line(tmp_path: Path) -> None:
    """Its architecture, family, corruption and data in one command; the records name it."""
    site = install_striped(tmp_path / "site")
    done = subprocess_probe(
        *("fragility", "timm:striped_net", "--random-init", "--data", "ramps:12"),
        *("--corruption", "stripes(width=4)", "--corruption", "jpeg(quality=5)"),
        *("--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--json", "-"),
        PYTHONPATH=f"{ROOT}:{site}",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (result,) = json.loads(done.stdout)["results"]
    assert (result["family"], result["images"], result["labelled"]) == ("striped", 12, 12)
    rows = {row["corruption"]: row for row in result["corruptions"]}
    assert set(rows) == {"stripes(width=4)", "jpeg(quality=5)"}
    assert rows["stripes(width=4)"]["agreement_fs"]["value"] is not None
    records = [json.loads(p.read_text()) for p in (tmp_path / "runs" / "passes").glob("*/*.json")]
    assert len(records) == 3
    for record in records:
        assert record["settings"]["versions"]["plugin probe-striped"].startswith("0.1 code ")
        assert record["settings"]["data"]["kind"] == "ramps"


def test_a_metric_of_another_package(tmp_path: Path) -> None:
    """Its means stand beside SSDC in records, JSON and CSV, for the key and under RPI too."""
    site = install_striped(tmp_path / "site")
    common = ["ssdc", "timm:striped_net", "--random-init", "--data", "digits", "--limit", "6"]
    places = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--json", "-"]

    def ran(*more: str) -> dict[str, Any]:
        done = subprocess_probe(*common, *places, *more, PYTHONPATH=f"{ROOT}:{site}")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["results"][0]

    bare, result = ran(), ran("--metric", "token_norm", "--rpi-draws", "2")
    assert "metrics" not in bare["layers"][0]["clean"]
    assert "metrics" not in bare["settings"]
    assert result["settings"]["metrics"] == ["token_norm"]
    rows = list(csv.DictReader((tmp_path / "out" / "layers.csv").read_text().splitlines()))
    for row, (layer, condition) in zip(
        rows, product(result["layers"], ("clean", "rpi")), strict=True
    ):
        found = layer[condition]["metrics"]["token_norm"]
        assert found["low"] < found["value"] < found["high"]
        assert float(row["token_norm"]) == found["value"]
        assert float(row["token_norm_high"]) == found["high"]
    # A norm over channels 16 wide at the output of a layer norm, whose rows have unit variance.
    assert result["layers"][0]["clean"]["metrics"]["token_norm"]["value"] == pytest.approx(
        4, abs=0.01
    )
    # Tokens of layer 0 keep their content and lose their table row: other tokens, other norms.
    clean, rpi = (
        result["layers"][1][c]["metrics"]["token_norm"]["value"] for c in ("clean", "rpi")
    )
    assert clean != rpi
    assert result["layers"][0]["clean"]["value"] == bare["layers"][0]["clean"]["value"]
    records = [json.loads(p.read_text()) for p in (tmp_path / "runs" / "passes").glob("*/*.json")]
    assert len(records) == 5  # none was taken for one without the metric


def test_a_metric_that_nobody_offers(site: Path) -> None:
    with pytest.raises(UsageError, match=r"adds the metric 'token_nor'\. Did you mean token_norm"):
        find_metrics(["token_nor"])
    with pytest.raises(UsageError, match="--metric: one is given twice in token_norm, token_norm"):
        find_metrics(["token_norm", "token_norm"])
    assert metric_packages(["token_norm"]) == plugins.installed()


def test_a_broken_package_breaks_no_other_model(tmp_path: Path) -> None:
    write(tmp_path, "bursting", "raise RuntimeError('boom')")
    entries = {plugins.FAMILIES: {"burst": "bursting:X", "timm_vit": "bursting:X"}}
    site = install(tmp_path, entries, package="probe-burst")
    common = ["--random-init", "--data", "digits", "--limit", "2", "--json", "-"]
    done = subprocess_probe(
        *("ssdc", "timm:test_vit", "timm:test_burst", "--image-size", "32", *common),
        *("--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")),
        PYTHONPATH=f"{ROOT}:{site}",
    )
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert [result["family"] for result in found["results"]] == ["timm_vit"]
    assert "timm has no model 'test_burst'" in found["failures"][0]["error"]
    lines = done.stderr.splitlines()
    assert (
        "probe: probe-burst 0.1 ('burst' in probe.families) cannot be used: RuntimeError: boom; "
        "update or remove the package"
    ) in lines
    assert not any("Traceback" in line for line in lines)
