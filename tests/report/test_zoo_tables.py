from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest

from probe.report.zoo_tables import layers_csv, records_parquet, summary_csv
from tests.report.zoo_reports import model, report, rich, zoo

Json = dict[str, Any]
BOUNDS = ("value", "low", "high")


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def numbers(row: dict[str, str], name: str) -> list[float | None]:
    cells = [row[name], row[f"{name}_low"], row[f"{name}_high"]]
    return [float(cell) if cell else None for cell in cells]


def records(content: Json) -> list[Json]:
    return pq.read_table(io.BytesIO(records_parquet(content))).to_pylist()


def test_golden_tables(golden: Callable[[str, str], None]) -> None:
    content = rich()
    golden("zoo_rich.csv", summary_csv(content) + "\n" + layers_csv(content))


def test_the_summary_has_the_columns_that_are_promised() -> None:
    head = summary_csv(zoo(1)).splitlines()[0].split(",")
    corruptions = ("jpeg_q5", "gaussian_blur_s2.5_k5", "true_gaussian_blur_s2.5")
    wanted = ["model", "resolved", "group", "position", "images"]
    for name in (
        "anchoring",
        "peak",
        "peak_layer",
        "delta_ssdc_rpi",
        "accuracy",
        *(f"fs_{c}" for c in corruptions),
        *(f"agreement_{c}" for c in corruptions),
    ):
        wanted += [name] if name.startswith("peak") else [name, f"{name}_low", f"{name}_high"]
    assert head == [*wanted, "error"]


def test_the_summary_holds_every_number_exactly() -> None:
    content = rich()
    rows = read(summary_csv(content))
    assert len(rows) == len(content["models"]) + 1
    for row, entry in zip(rows, content["models"], strict=False):
        for name in ("anchoring", "delta_ssdc_rpi", "accuracy"):
            assert numbers(row, name) == [entry[name][key] for key in BOUNDS]
        assert row["peak"] == ("" if (peak := entry["peak"]["value"]) is None else repr(peak))
        assert row["peak_layer"] == ("" if peak is None else str(entry["peak"]["layer"]))
        for own in entry["corruptions"]:
            for start, measure in (("fs", "fs"), ("agreement", "agreement_fs")):
                found = numbers(row, f"{start}_{own['column']}")
                assert found == [own[measure][key] for key in BOUNDS]
        assert (row["group"], row["error"]) == (entry["group"] or "", "")


def test_a_failed_model_is_a_row_with_its_reason_on_one_line() -> None:
    row = read(summary_csv(rich()))[-1]
    assert {key: cell for key, cell in row.items() if cell} == {
        "model": "gone",
        "error": "404: no such <file> | try again `now`",
    }


def test_corruptions_that_a_model_was_not_measured_under_are_empty() -> None:
    content = report(model(0, corruptions=("jpeg(quality=5)",)), model(1))
    first, second = read(summary_csv(content))
    assert first["fs_jpeg_q5"]
    assert numbers(first, "fs_true_gaussian_blur_s2.5") == [None, None, None]
    assert second["agreement_true_gaussian_blur_s2.5"]


def test_layers_hold_curves_with_intervals_null_bands_and_reasons() -> None:
    content = rich()
    rows = iter(read(layers_csv(content)))
    for entry in content["models"]:
        for layer in entry["layers"]:
            row = next(rows)
            assert (row["model"], row["layer"]) == (entry["model"], str(layer["layer"]))
            assert row["grid"] == "x".join(map(str, layer["grid"]))
            for kind in ("clean", "rpi"):
                point = layer[kind]
                assert numbers(row, kind) == [point[key] for key in BOUNDS]
                bands = [row[f"{kind}_null_low"], row[f"{kind}_null_high"]]
                wanted = [point["null_low"], point["null_high"]]
                assert bands == ["" if end is None else repr(end) for end in wanted]
                assert row[f"{kind}_reason"] == (point["reason"] or "")
            assert numbers(row, "ratio") == [layer["ratio"][key] for key in BOUNDS]
    assert next(rows, None) is None


def test_records_are_tidy_and_complete() -> None:
    content = rich()
    rows = records(content)
    places = [(r["model"], r["condition"], r["layer"], r["measure"], r["rows"]) for r in rows]
    assert len(set(places)) == len(places)
    entry = content["models"][0]
    own = {
        (r["condition"], r["layer"], r["measure"]): r for r in rows if r["model"] == "deit_small"
    }
    for layer in entry["layers"]:
        for kind in ("clean", "rpi"):
            found = own[(kind, layer["layer"], "ssdc")]
            keys = (*BOUNDS, "null_low", "null_high", "reason")
            assert [found[key] for key in keys] == [layer[kind][key] for key in keys]
            assert [found["rows"], found["cols"]] == layer["grid"]
        ratio = own[("rpi", layer["layer"], "ratio_to_clean")]
        assert ratio["value"] == layer["ratio"]["value"]
    for condition, measure, scalar in (
        ("clean", "accuracy", entry["accuracy"]),
        ("rpi", "anchoring", entry["anchoring"]),
        ("rpi", "final", entry["final"]),
        ("rpi", "delta_ssdc_rpi", entry["delta_ssdc_rpi"]),
        ("jpeg(quality=5)", "fs", entry["corruptions"][0]["fs"]),
        ("jpeg(quality=5)", "accuracy", entry["corruptions"][0]["accuracy"]),
        ("jpeg(quality=5)", "agreement_fs", entry["corruptions"][0]["agreement_fs"]),
        ("rpi+alpha=0.5", "delta_ssdc_rpi", entry["alphas"][2]["delta_ssdc_rpi"]),
        ("rpi+alpha=0.5", "anchoring", entry["alphas"][2]["anchoring"]),
        ("alpha=0.0", "accuracy", entry["alphas"][4]["accuracy"]),
        ("alpha=0.75+jpeg(quality=5)", "fs", entry["alphas"][1]["fs"]["jpeg(quality=5)"]),
    ):
        found = own[(condition, None, measure)]
        assert [found[key] for key in BOUNDS] == [scalar[key] for key in BOUNDS]
    peak = own[("rpi", entry["peak"]["layer"], "peak")]
    assert (peak["value"], peak["low"]) == (entry["peak"]["value"], None)
    # layers (clean, RPI, ratio), 3 scalars, 1 grid, peak, accuracy, 3 x 3 corruptions, 5 x 6 doses
    assert len(own) == 12 * 3 + 3 + 1 + 1 + 1 + 9 + 30


def test_records_have_the_promised_columns_and_types() -> None:
    table = pq.read_table(io.BytesIO(records_parquet(rich())))
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        **dict.fromkeys(("model", "resolved", "group", "condition"), "string"),
        **dict.fromkeys(("layer", "rows", "cols"), "int32"),
        "measure": "string",
        **dict.fromkeys(("value", "low", "high", "null_low", "null_high"), "double"),
        "reason": "string",
    }


def test_undefined_numbers_are_null_with_their_reason() -> None:
    rows = [r for r in records(rich()) if r["model"] == "no labels"]
    undefined = {(r["condition"], r["measure"]): r["reason"] for r in rows if r["value"] is None}
    assert undefined[("jpeg(quality=5)", "fs")] == "the images have no labels"
    assert undefined[("rpi", "anchoring")] == "SSDC under RPI is undefined at layer 3"
    assert all(undefined.values())


def test_pandas_reads_the_records() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is no dependency of probe")
    frame = pandas.read_parquet(io.BytesIO(records_parquet(rich())))
    curve = frame[
        (frame.model == "deit_small") & (frame.condition == "rpi") & (frame.measure == "ssdc")
    ]
    wanted = [layer["rpi"]["value"] for layer in rich()["models"][0]["layers"]]
    assert curve.sort_values("layer")["value"].tolist() == wanted


def test_odd_names_stay_whole_and_printable() -> None:
    content = report(model(0, 'a,"b"\n\udc80', depth=1))
    assert read(summary_csv(content))[0]["model"] == 'a,"b"\\n\\udc80'
    assert read(layers_csv(content))[0]["model"] == 'a,"b"\\n\\udc80'
    assert records(content)[0]["model"] == 'a,"b"\\n\\udc80'


def test_a_report_of_failures_alone_has_their_rows() -> None:
    content = report(failures=[{"model": "gone", "error": "why"}])
    content["settings"], content["data"] = {}, {"name": "photos"}
    assert [row["error"] for row in read(summary_csv(content))] == ["why"]
    assert len(layers_csv(content).splitlines()) == 1
    assert records(content) == []


def test_sixty_models_stay_small() -> None:
    content = zoo(60)
    assert len(summary_csv(content).splitlines()) == 61
    assert len(records_parquet(content)) < 500_000
