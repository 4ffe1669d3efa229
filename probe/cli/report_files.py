"""A report's files: made of cards and records, written whole, left alone when nothing is new."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.cards import Cards
from probe.errors import StoreError, UsageError
from probe.hardware import load_hardware
from probe.manifest import Manifest, choose_manifest, load_manifest, manifest_path
from probe.plan import versions
from probe.records import ModelCard, PassRecord
from probe.store import Store, slug, write_atomically
from probe.types import Failure

if TYPE_CHECKING:
    from probe.cli.report_batch import Batch

CODE = ("derive", "report", "numerics", "published.yaml")
HARDWARE = "hardware.json"
Models = Sequence[tuple[ModelCard, Sequence[PassRecord]]]


def write_report(batch: Batch, json_path: str | None, json_to: Path | None) -> int:
    """Render a finished batch; returns the exit code, 1 if a model failed."""
    failed = {one.model for one in batch.failures}
    models = [
        (entry.card, entry.records)
        for entry in batch.entries
        if entry.card and entry.records is not None and entry.spec.name not in failed
    ]
    request = batch.request
    if request.shard is not None:
        print(
            f"{len(models)} models are measured; the same command without --shard renders all, "
            "once every share has run"
        )
        return _failed(batch.manifest())
    return _write(
        batch.manifest(), models, request.runs, request.out, request.hardware, json_path, json_to
    )


def unchanged(batch: Batch, json_path: str | None, json_to: Path | None) -> int | None:
    """Leave alone what is there already, whole and of the same records; None where it is not."""
    out = batch.request.out
    manifest = _up_to_date(batch)
    if manifest is None:
        return None
    print(f"probe: nothing is new; {out} is up to date", file=sys.stderr)
    text = (out / "report.json").read_text(encoding="utf-8")
    return _tell(manifest, json.loads(text), out, json_path, json_to, text)


def rendered_again(
    runs: Path,
    name: str | None,
    out: Path | None,
    hardware: bool,
    json_path: str | None,
    json_to: Path | None,
) -> int:
    """Render a stored report without any model; returns the exit code.

    Raises:
        UsageError: if there is no such report.
        StoreError: if a card or a pass of it is missing or damaged.
    """
    if not Store(runs).is_ours():
        raise UsageError(f"{runs} is no runs folder of probe; name the one that a report ran into")
    manifest, count = choose_manifest(runs, name)
    if count > 1 and name is None:
        print(
            f"probe: rendering '{manifest.name}', the newest of {count} reports in {runs}; "
            "choose another with --name",
            file=sys.stderr,
        )
    store, models = Store(runs), []
    for one in manifest.models:
        try:
            card = ModelCard.from_json(Cards(runs).path(one.model, one.card).read_bytes())
        except (OSError, ValueError) as error:
            raise StoreError(_incomplete(one.model, "its card")) from error
        records = [store.load(p.resolved, p.condition, p.key) for p in one.passes]
        whole = [record for record in records if record is not None]
        if len(whole) != len(records):
            missing = next(p for p, r in zip(one.passes, records, strict=True) if r is None)
            raise StoreError(_incomplete(one.model, f"the pass under {missing.condition}"))
        models.append((card, whole))
    where = out or runs / "reports" / slug(manifest.name)
    return _write(manifest, models, runs, where, hardware, json_path, json_to)


def _incomplete(model: str, what: str) -> str:
    return f"{what} of {model} is missing or damaged; run the report again without --render-only"


def _write(
    manifest: Manifest,
    models: Models,
    runs: Path,
    out: Path,
    shown: bool,
    json_path: str | None,
    json_to: Path | None,
) -> int:
    hardware = load_hardware(runs, [card.model for card, _ in models])
    content = _report(manifest, models)
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    made = _rendered(content, text, hardware if shown else None)
    made[HARDWARE] = json.dumps(hardware, indent=1) + "\n"
    _remove_other_figures(out, made)
    for name, file in made.items():
        write_atomically(out / name, file)
    hashes = {name: _sha256(file) for name, file in made.items()}
    inputs = _inputs(manifest, models, runs, shown)
    manifest.model_copy(update={"inputs": inputs, "rendered": hashes}).save(runs)
    return _tell(manifest, content, out, json_path, json_to, text)


def _tell(
    manifest: Manifest,
    content: Mapping[str, Any],
    out: Path,
    json_path: str | None,
    json_to: Path | None,
    text: str,
) -> int:
    """Print what was made and what failed; returns the exit code."""
    if json_path == "-":
        sys.stdout.write(text)
    elif json_to is not None:
        write_atomically(json_to, text)
    if json_path != "-":
        from rich.console import Console

        from probe.cli.report_screen import report_screen

        console = Console()
        console.print(report_screen(content))
        line = f"The report is in {out}; open {out / 'index.html'}"
        console.print(line, highlight=False, markup=False)
    return _failed(manifest)


def _failed(manifest: Manifest) -> int:
    for one in manifest.failures:
        name = "" if one.error.startswith(one.model) else f"{one.model}: "
        print(f"probe: {name}{one.error}", file=sys.stderr)
    return 1 if manifest.failures else 0


def _report(manifest: Manifest, models: Models) -> dict[str, Any]:
    from functools import partial

    from probe.derive.published import compare_published
    from probe.derive.report import Asked, report

    asked = Asked(
        title=manifest.title,
        protocol=manifest.protocol,
        corruptions=manifest.corruptions,
        dosed=manifest.dosed,
        alphas=manifest.alphas,
    )
    compared = partial(compare_published, protocol=manifest.protocol)
    return report(
        models,
        [Failure(one.model, one.error) for one in manifest.failures],
        asked,
        manifest.data_name,
        published=compared if manifest.against == "published" else None,
    )


def _rendered(
    content: Mapping[str, Any], text: str, hardware: Mapping[str, Any] | None
) -> dict[str, bytes | str]:
    """Every file of the report but `hardware.json`, by its path in the output folder."""
    made: dict[str, bytes | str] = {"report.json": text}
    if not content["models"]:  # nothing was measured: there is nothing to draw
        return made
    from probe.report.web import page
    from probe.report.zoo_figures import figures
    from probe.report.zoo_markdown import report_markdown
    from probe.report.zoo_tables import layers_csv, records_parquet, summary_csv

    made["summary.csv"] = summary_csv(content)
    made["layers.csv"] = layers_csv(content)
    made["records.parquet"] = records_parquet(content)
    made |= figures(content)
    made["REPORT.md"] = report_markdown(content, hardware)
    made["index.html"] = page(content, hardware)
    return made


def _remove_other_figures(out: Path, made: Mapping[str, object]) -> None:
    """Drop what another report left in this folder, so that all files belong together."""
    for path in [*out.glob("figures/*.svg"), *out.glob("figures/*.png")]:
        if f"figures/{path.name}" not in made:
            path.unlink(missing_ok=True)
    for name in ("index.html", "summary.csv", "layers.csv", "records.parquet", "REPORT.md"):
        if name not in made:
            (out / name).unlink(missing_ok=True)


def _up_to_date(batch: Batch) -> Manifest | None:
    """The manifest of the same report if `out` holds it already, whole and of the same records."""
    request, out, shown = batch.request, batch.request.out, batch.request.hardware
    if request.fresh or any(entry.card is None for entry in batch.entries):
        return None
    old = load_manifest(manifest_path(request.runs, request.name))
    wanted = batch.manifest()
    if old is None or not old.inputs or old.failures:
        return None
    if old.model_copy(update={"inputs": "", "rendered": {}}) != wanted:
        return None
    models = [(entry.card, ()) for entry in batch.entries if entry.card is not None]
    if _inputs(wanted, models, request.runs, shown) != old.inputs:
        return None
    try:
        same = all(_sha256((out / n).read_bytes()) == h for n, h in old.rendered.items())
    except OSError:
        return None
    return old if same and old.rendered else None


def _inputs(manifest: Manifest, models: Models, runs: Path, shown: bool) -> str:
    """Hash of all that the files follow from: cards, record files, code, hardware where shown.

    Records count by path, size and time of change, so that nothing needs to be read.
    """
    digest = hashlib.sha256()
    for card, _ in models:
        digest.update(card.to_json().encode())
    store = Store(runs)
    for one in manifest.models:
        for p in one.passes:
            try:
                state = store.path(p.resolved, p.condition, p.key).stat()
            except OSError:
                return "missing"
            digest.update(f"{p.key} {state.st_size} {state.st_mtime_ns}\n".encode())
    shown_now = load_hardware(runs, [card.model for card, _ in models]) if shown else None
    digest.update(json.dumps([versions(), shown_now, _code()], sort_keys=True).encode())
    return digest.hexdigest()


def _code() -> str:
    """Hash of everything that renders, so that changed code renders anew."""
    digest = hashlib.sha256()

    def add(entry: Traversable) -> None:
        if entry.is_dir():
            for inner in sorted(entry.iterdir(), key=lambda e: e.name):
                if inner.name != "__pycache__":
                    add(inner)
        elif entry.is_file():
            digest.update(entry.name.encode() + b"\0" + entry.read_bytes())

    for name in CODE:
        add(package_files("probe") / name)
    return digest.hexdigest()


def _sha256(content: bytes | str) -> str:
    data = content.encode("utf-8") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()
