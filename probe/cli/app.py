"""The command line: one app, and one place where errors become a line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from probe import __version__
from probe.cli.audit import audit
from probe.cli.compare import compare
from probe.cli.fragility import fragility
from probe.cli.readout import readout
from probe.cli.report import report
from probe.cli.runs import runs_app
from probe.cli.scale import scale
from probe.cli.ssdc import ssdc
from probe.cli.tasks import tasks
from probe.cli.train import train
from probe.cli.zoo import zoo_app
from probe.distributed import speaks
from probe.errors import ProbeError

INTERRUPTED = 130  # as a shell counts it


class Commands(TyperGroup):
    """Runs a command; whatever ends it early becomes one line and an exit code.

    Done here, since typer would end an interrupt or a closed pipe without a word.
    """

    _asked: str | None = None  # the command that runs: some errors of its options do not name it

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Parse and run; a wrong request becomes one line too."""
        try:
            code = super().main(*args, **kwargs | {"standalone_mode": False})
        except TyperException as error:
            text = error.format_message().strip().rstrip(".")
            if not text:  # without arguments the help has been printed
                sys.exit(error.exit_code)
            context = getattr(error, "ctx", None)
            command = context.command_path if context is not None else self._asked or self.name
            fail(f"{text}; see {command} --help", error.exit_code)
        except OSError as error:  # --help is written before a command is invoked
            _unwritten(error)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Invoke the command that `ctx` names."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                self._asked = " ".join(filter(None, (ctx.command_path, ctx.invoked_subcommand)))
                sys.stdout.flush()
        except ProbeError as error:
            fail(str(error), error.exit_code)
        except KeyboardInterrupt:
            fail(
                "interrupted; the same command without --fresh goes on from what is stored",
                INTERRUPTED,
            )
        except BrokenPipeError:  # nobody reads on, as with `| head`; closing must not fail again
            _forget_output()
            sys.exit(141)
        except OSError as error:
            _unwritten(error)


def _unwritten(error: OSError) -> NoReturn:
    reason = error.strerror or str(error)
    if error.filename is not None:  # standard output has none
        fail(f"cannot use {error.filename}: {reason}", 1)
    _forget_output()
    fail(f"cannot write the output: {reason}", 1)


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    name="probe",
    cls=Commands,
    help="Does a vision transformer organise its tokens by where they sit, or by what they show?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command()(ssdc)
app.command()(scale)
app.command()(fragility)
app.command()(compare)
app.command()(report)
app.command()(audit)
app.command()(readout)
app.command()(tasks)
app.command()(train)
app.add_typer(zoo_app, name="zoo")
app.add_typer(runs_app, name="runs")


@app.callback(invoke_without_command=True)
def root(
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    """Does a vision transformer organise its tokens by where they sit, or by what they show?"""
    if version:
        typer.echo(f"probe {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    app()


def fail(message: str, code: int) -> NoReturn:
    """Print `message` as one line on standard error and exit.

    Processes that share a run end with the same error, and the main one alone says so. Those that
    train may differ, and keep a code by which the launcher ends the others.
    """
    if not speaks() and sys.argv[1:2] != ["train"]:
        sys.exit(code if code == INTERRUPTED else 0)
    line = " ".join(message.split())
    print(f"probe: {line}", file=sys.stderr)
    sys.exit(code)
