"""The tables of a report: a row per model, a row per layer, and every number in tidy form."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from probe.report.format import grid_text, one_line, plain
from probe.report.tables import POINT, cell, csv_text
from probe.report.zoo_facts import COLUMNS, corruption_columns

BOUNDS = ("value", "low", "high")

Json = Mapping[str, Any]


def summary_csv(report: Json) -> str:
    """One row per model, numbers with their bounds in `_low` and `_high`; empty where undefined.

    `fs_<corruption>` and `agreement_<corruption>` follow the corruption's column name. `peak` has
    no bounds: a maximum is biased. Models that failed are rows that hold their `error` alone.
    """
    columns = corruption_columns(report)
    named = [f"{start}_{column}" for start in COLUMNS.values() for column in columns]
    head = ["model", "resolved", "group", "position", "images", *_with_bounds("anchoring")]
    head += ["peak", "peak_layer", *_with_bounds("delta_ssdc_rpi"), *_with_bounds("accuracy")]
    for name in named:
        head += _with_bounds(name)
    rows = []
    for model in report["models"]:
        row = _identity(model)
        row += [plain(model["position"]), str(model["images"]), *_cells(model["anchoring"])]
        peak = model["peak"]
        row += [cell(peak["value"]), "" if peak["layer"] is None else str(peak["layer"])]
        row += [*_cells(model["delta_ssdc_rpi"]), *_cells(model["accuracy"])]
        entries = {entry["column"]: entry for entry in model["corruptions"]}
        for measure in COLUMNS:
            for column in columns:
                entry = entries.get(column)
                row += ["", "", ""] if entry is None else _cells(entry[measure])
        rows.append([*row, ""])
    for failure in report["failures"]:
        empty = [""] * (len(head) - 1)
        rows.append([plain(failure["model"]), *empty, one_line(failure["error"])])
    return csv_text([*head, "error"], rows)


def layers_csv(report: Json) -> str:
    """One row per model and layer: SSDC clean and under RPI, each with bounds and null band.

    `ratio` is RPI over clean. The `_reason` columns say why a number or its interval is missing.
    """
    head = ["model", "resolved", "layer", "grid"]
    for kind in ("clean", "rpi"):
        head += [kind, *(f"{kind}_{key}" for key in POINT[1:]), f"{kind}_reason"]
    head += [*_with_bounds("ratio"), "ratio_reason"]
    rows = []
    for model in report["models"]:
        for layer in model["layers"]:
            row = [plain(model["model"]), plain(model["resolved"])]
            row += [str(layer["layer"]), grid_text(layer["grid"])]
            for kind in ("clean", "rpi"):
                point = layer[kind]
                row += [*(cell(point[key]) for key in POINT), one_line(point["reason"] or "")]
            ratio = layer["ratio"]
            rows.append([*row, *_cells(ratio), one_line(ratio["reason"] or "")])
    return csv_text(head, rows)


def records_parquet(report: Json) -> bytes:
    """Every number of the report in tidy form, one row per model, condition, layer and measure.

    `condition` is `clean`, `rpi`, a corruption, or one of these at an alpha, such as
    `rpi+alpha=0.5` and `alpha=0.5+jpeg(quality=5)`. `layer` is null for what belongs to the whole
    model; `rows` and `cols` are the grid of the layer, or of layers on one grid. Rows at alpha 1
    repeat those without alpha, so that curves over alpha are whole. A number is null with its
    `reason`. Models that failed have no row. The same report gives the same bytes with the same
    version of pyarrow.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    text, whole, real = pa.string(), pa.int32(), pa.float64()
    schema = pa.schema(
        {
            **dict.fromkeys(("model", "resolved", "group", "condition"), text),
            **dict.fromkeys(("layer", "rows", "cols"), whole),
            "measure": text,
            **dict.fromkeys(POINT, real),
            "reason": text,
        }
    )
    rows = [row for model in report["models"] for row in _records(model)]
    file = io.BytesIO()
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


def _records(model: Json) -> Iterator[dict[str, Any]]:
    identity = {
        "model": plain(model["model"]),
        "resolved": plain(model["resolved"]),
        "group": None if model["group"] is None else plain(model["group"]),
    }

    def row(
        condition: str,
        measure: str,
        scalar: Json,
        layer: int | None = None,
        grid: tuple[int, int] | None = None,
    ) -> dict[str, Any]:
        rows, cols = (None, None) if grid is None else grid
        place = {"condition": condition, "layer": layer, "rows": rows, "cols": cols}
        numbers = {key: scalar.get(key) for key in POINT}
        reason = scalar["reason"]
        told = {"reason": None if reason is None else one_line(reason)}
        return {**identity, **place, "measure": measure, **numbers, **told}

    for kind in ("clean", "rpi"):
        for layer in model["layers"]:
            yield row(kind, "ssdc", layer[kind], layer["layer"], layer["grid"])
    for layer in model["layers"]:
        yield row("rpi", "ratio_to_clean", layer["ratio"], layer["layer"], layer["grid"])
    for measure in ("anchoring", "final", "delta_ssdc_rpi"):
        yield row("rpi", measure, model[measure])
    for entry in model["anchoring_by_grid"]:
        yield row("rpi", "anchoring_by_grid", entry, grid=entry["grid"])
    yield row("rpi", "peak", model["peak"], model["peak"]["layer"])
    yield row("clean", "accuracy", model["accuracy"])
    for entry in model["corruptions"]:
        for measure in ("accuracy", "fs", "agreement_fs"):
            yield row(plain(entry["corruption"]), measure, entry[measure])
    for dose in model["alphas"]:
        alpha = f"alpha={float(dose['alpha'])!r}"
        for measure in ("delta_ssdc_rpi", "anchoring"):
            yield row(f"rpi+{alpha}", measure, dose[measure])
        yield row(alpha, "accuracy", dose["accuracy"])
        for corruption, scalar in dose["fs"].items():
            yield row(f"{alpha}+{plain(corruption)}", "fs", scalar)


def _identity(model: Json) -> list[str]:
    return [plain(model["model"]), plain(model["resolved"]), plain(model["group"] or "")]


def _with_bounds(name: str) -> list[str]:
    return [name, f"{name}_low", f"{name}_high"]


def _cells(scalar: Json) -> list[str]:
    return [cell(scalar[key]) for key in BOUNDS]
