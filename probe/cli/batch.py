"""What the commands share: one request over several models, progress, failures, files."""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.distributed import ALONE, Processes, keeps_to_cpu, launched_alone, processes_of_launch
from probe.errors import ProbeError, UsageError
from probe.plan import Settings
from probe.session import LoadOptions
from probe.store import check_writable, slug, write_atomically
from probe.types import Failure, ModelSpec

if TYPE_CHECKING:
    from rich.progress import Progress

    from probe.data.source import Source
    from probe.session import Measured, Prepared
    from probe.types import LoadedModel

SCHEMA = 1
UNIT = "images x passes"


@dataclass(frozen=True)
class Request:
    """A command's options, parsed."""

    models: tuple[str, ...]
    data: str | None
    split: str | None
    limit: int | None
    prepare: Callable[[ModelSpec, Source, LoadedModel], Prepared]
    settings: Settings
    options: LoadOptions
    arch: str | None
    zoo: Path | None
    runs: Path
    fresh: bool
    out: Path | None
    json_path: str | None


def size_of(text: str) -> tuple[int, int]:
    """(height, width) from "224" or "224x448".

    Raises:
        UsageError: for anything else.
    """
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if not match or int(match[1]) < 1 or (match[2] and int(match[2]) < 1):
        raise UsageError(f"--image-size must be pixels, as 224 or 224x448; got '{text}'")
    return int(match[1]), int(match[2] or match[1])


@dataclass(frozen=True)
class Output:
    """What a command makes of its records: an entry per model, files (of `names`), a screen.

    `result` takes the spec and what was measured; without a data set, what shows progress.
    A command over all models together makes its entries of theirs with `combine`.
    """

    name: str
    names: tuple[str, ...]
    result: Callable[..., Any]
    files: Callable[[dict[str, Any]], dict[str, bytes | str]]
    screen: Callable[[dict[str, Any]], Any]
    combine: Callable[[list[Any]], list[dict[str, Any]]] = list


def run(request: Request, output: Output) -> int:
    """Measure, write the files, print the screen; returns the exit code, 1 if a model failed.

    Of several processes that share the images the main one does all but measure, and the others
    return 0.
    """
    out = request.out or request.runs / output.name / slug("+".join(request.models))
    group = sharing()
    with nullcontext() if group.main else silent():
        envelope = run_models(request, out, output.result, group)
    if not group.main:
        return 0
    envelope["results"] = output.combine(envelope["results"])
    return deliver(envelope, output, out, request.json_path)


def deliver(envelope: dict[str, Any], output: Output, out: Path, json_path: str | None) -> int:
    """Write the files, print the screen; returns the exit code, 1 if a model failed."""
    text = json.dumps(envelope, indent=2, allow_nan=False) + "\n"  # ASCII, for any terminal
    files = output.files(envelope) if envelope["results"] else {}
    for name in output.names:
        if name not in files:
            (out / name).unlink(missing_ok=True)  # another run's, beside this run's JSON
    for name, content in {**files, f"{output.name}.json": text}.items():
        write_atomically(out / name, content)
    shown = json_path != "-" and bool(envelope["results"])
    if shown:
        from rich.console import Console

        console = Console()
        console.print(output.screen(envelope))
        written = ", ".join(sorted([*files, f"{output.name}.json"]))
        console.print(f"Written to {out}: {written}", highlight=False, markup=False)
    if json_path == "-":
        sys.stdout.write(text)
    elif json_path is not None:
        write_atomically(Path(json_path), text)
    for failure in envelope["failures"]:
        if not (shown and sys.stdout.isatty()):  # the screen has shown it
            model, error = failure["model"], failure["error"]
            name = "" if error.startswith(model) else f"{model}: "
            print(f"probe: {name}{error}", file=sys.stderr)
    return 1 if envelope["failures"] else 0


def run_models(
    request: Request,
    out: Path,
    result: Callable[[ModelSpec, Measured], Any],
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """Measure every model of the request; one that fails becomes a row and the others still run.

    Raises:
        UsageError: if the request itself is wrong, or fits none of its models.
        ProbeError: if a data set or a folder to write into is missing; nothing has run then.
    """
    from probe.engine import taken
    from probe.session import measure

    with processes.in_step():
        specs, sources = _opened(request)
        if processes.main:
            check_outputs(out, request.runs, request.json_path)
    options = request.options
    if options.device == "auto" and keeps_to_cpu():
        options = replace(options, device="cpu")
    results, failures, refused = [], [], []
    for number, (spec, source) in enumerate(zip(specs, sources, strict=True), start=1):
        title = spec.name if len(specs) == 1 else f"{spec.name} ({number}/{len(specs)})"
        try:
            with (
                processes.in_step(),
                progress_bar(title, taken(source)) as (on_loaded, advance),
            ):
                measured = measure(
                    spec,
                    source,
                    partial(request.prepare, spec, source),
                    request.settings,
                    options,
                    runs=request.runs,
                    fresh=request.fresh,
                    on_loaded=on_loaded,
                    progress=advance,
                    processes=processes,
                )
                if processes.main:
                    results.append(result(spec, measured))
        except ProbeError as error:
            refused += [error] if isinstance(error, UsageError) else []
            failures.append(Failure(spec.name, " ".join(str(error).split())))
        except Exception as error:  # one broken model never ends a batch; its traceback is kept
            failures.append(unexpected(spec, error, out, keep=processes.main))
    if len(refused) == len(specs):
        raise refused[0]
    return envelope_of(results, failures)


def envelope_of(results: list[Any], failures: list[Failure]) -> dict[str, Any]:
    """The JSON output: what every command writes."""
    failed = [{"model": one.model, "error": one.error} for one in failures]
    return {"schema": SCHEMA, "results": results, "failures": failed}


def _opened(request: Request) -> tuple[list[ModelSpec], list[Source]]:
    """The models, and the data of each."""
    from probe.data.open import open_data

    specs = resolved(request.models, request.arch, request.zoo)
    wanted = [request.data or spec.data or "photos" for spec in specs]
    sources: dict[str, Source] = {
        text: open_data(text, split=request.split, limit=request.limit)
        for text in dict.fromkeys(wanted)
    }
    return specs, [sources[text] for text in wanted]


def resolved(models: Sequence[str], arch: str | None, zoo_file: Path | None) -> list[ModelSpec]:
    """The models that are named; none may be named twice."""
    from probe.zoo import load_zoo

    zoo = load_zoo(zoo_file)
    specs = [zoo.resolve(model, arch=arch) for model in models]
    names = [spec.name for spec in specs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UsageError(f"{', '.join(repeated)} is named more than once")
    return specs


def check_outputs(out: Path, runs: Path, json_path: str | None) -> None:
    """Refuse, before anything runs, what could not be written."""
    if json_path is not None and json_path != "-":
        path = Path(json_path)
        if path.is_dir():
            raise UsageError(f"--json {path} is a folder; name a file")
        if path.exists() and not path.is_file():  # a device would be replaced by a file
            raise UsageError(f"--json {path} is no regular file; - is standard output")
        check_writable(path.absolute().parent)
    check_writable(out)
    check_writable(runs)


def unexpected(spec: ModelSpec, error: Exception, out: Path, *, keep: bool) -> Failure:
    """A failure that nobody foresaw; with `keep` its traceback goes into a file in `out`."""
    path = out / f"failure-{slug(spec.name)}.txt"
    trace = "".join(traceback.format_exception(error))
    if keep:
        write_atomically(path, trace)
    first = (str(error).splitlines() or [""])[0]
    if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):
        return Failure(spec.name, "out of memory; choose a smaller --batch-size", trace)
    what = f"{type(error).__name__}: {first}"
    return Failure(spec.name, f"unexpected {what}; the traceback is in {path}", trace)


def sharing() -> Processes:
    """The processes of this launch; says so if fewer were started than were asked for.

    Raises:
        UsageError: if the launcher has not said where they meet.
    """
    if launched_alone():
        print(
            "probe: one process was started, since accelerate launch --cpu needs MPI for more; "
            "accelerate launch --multi_gpu starts several without GPUs too",
            file=sys.stderr,
        )
    return processes_of_launch()


@contextmanager
def silent() -> Iterator[None]:
    """Nothing is printed: neither remarks of libraries nor bars of downloads."""
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        yield


def bars() -> Progress:
    """Progress bars on standard error, with the time left; every task has a `unit`."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


@contextmanager
def progress_bar(
    title: str, images: int | None
) -> Iterator[tuple[Callable[[Any, int], None], Callable[[int], None]]]:
    """A progress bar on standard error while a model runs, on a terminal only."""
    if not sys.stderr.isatty():
        yield (lambda model, passes: None), (lambda count: None)
        return
    with bars() as bar:
        task = bar.add_task(f"{title}: loading", total=None, unit=UNIT)

        def on_loaded(_model: Any, passes: int) -> None:
            bar.update(task, description=title, total=images and images * passes)

        yield on_loaded, lambda count: bar.advance(task, count)
