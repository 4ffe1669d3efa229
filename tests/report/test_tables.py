from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest

from probe.report.tables import layers_csv, summary_csv

Json = dict[str, Any]
Make = Callable[..., Json]


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def value(text: str) -> float | None:
    return float(text) if text else None


@pytest.mark.parametrize("name", ["one", "several"])
def test_golden_tables(
    name: str, request: pytest.FixtureRequest, golden: Callable[[str, str], None]
) -> None:
    envelope = request.getfixturevalue(name)
    golden(f"{name}.csv", layers_csv(envelope) + "\n" + summary_csv(envelope))


@pytest.mark.parametrize("name", ["one", "several"])
def test_layers_hold_every_number_exactly(name: str, request: pytest.FixtureRequest) -> None:
    envelope = request.getfixturevalue(name)
    rows = iter(read(layers_csv(envelope)))
    for entry in envelope["results"]:
        for layer in entry["layers"]:
            for condition in ("clean", "rpi"):
                row, point = next(rows), layer[condition]
                assert (row["model"], row["resolved"]) == (entry["model"], entry["resolved"])
                assert (row["layer"], row["condition"]) == (str(layer["layer"]), condition)
                assert [int(row["rows"]), int(row["cols"])] == layer["grid"]
                for key in ("value", "low", "high", "null_low", "null_high"):
                    assert value(row[key]) == point[key]
                assert row["reason"] == (point["reason"] or "")
                assert value(row.get("p", "")) == point.get("p")
    assert next(rows, None) is None


def test_summary_holds_every_number_exactly(several: Json) -> None:
    rows = read(summary_csv(several))
    for row, entry in zip(rows, several["results"], strict=True):
        assert row["images"] == str(entry["images"])
        for name in ("delta_ssdc_rpi", "anchoring", "final"):
            found = [value(row[name]), value(row[f"{name}_low"]), value(row[f"{name}_high"])]
            assert found == [entry[name][key] for key in ("value", "low", "high")]
            assert row[f"{name}_reason"] == (entry[name]["reason"] or "")
        assert value(row["peak"]) == entry["peak"]["value"]
        assert row["peak_layer"] == ("" if (at := entry["peak"]["layer"]) is None else str(at))
        assert row["peak_reason"] == (entry["peak"]["reason"] or "")
    assert rows[1]["grids"] == "56x56 28x28 14x14 7x7"


def test_p_is_a_column_only_where_it_was_computed(one: Json, several: Json) -> None:
    assert layers_csv(one).splitlines()[0].endswith(",reason,p")
    assert layers_csv(several).splitlines()[0].endswith(",reason")


def test_names_are_quoted_and_made_printable(make: Make, wrap: Make) -> None:
    text = layers_csv(wrap(make('a,"b"\n\udc80', layers=1)))
    assert "\r" not in text
    assert len(text.splitlines()) == 3
    assert read(text)[0]["model"] == 'a,"b"\\n\\udc80'


def test_no_results_give_headers_alone(wrap: Make) -> None:
    assert len(layers_csv(wrap()).splitlines()) == len(summary_csv(wrap()).splitlines()) == 1
