"""The command line: the groups of commands, signals, and `main`, which maps errors to exit statuses.

A module of this folder has the commands of one group of the help, and is imported when one of them is called.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import signal
import sys

# A pool may fork only while the process has one thread. BLAS, which no op uses, would start threads when NumPy is
# imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Iterable, Sequence
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem, shell_complete, split_arg_string

from mpired import __version__
from mpired.cli import messages
from mpired.errors import LONGEST_REASON, MpiredError, UnconfirmedError, UsageError, shortened, without_secrets
from mpired.files import calls
from mpired.files.urls import signed
from mpired.log import collect_warnings, notices_to

_GROUPS = {  # the headings of the help, and the commands of each
    "Combine files": {
        "reduce": "Combine files into one, element by element (MPI_Reduce).",
        "allreduce": "Combine files, and write the result once per file (MPI_Allreduce).",
        "scan": "Write running results, one file per rank (MPI_Scan).",
        "exscan": "Write running results of the ranks before each (MPI_Exscan).",
        "reduce-scatter": "Combine files, and split the result into blocks (MPI_Reduce_scatter).",
        "reduce-scatter-block": "Combine files, and split the result into equal blocks (MPI_Reduce_scatter_block).",
        "reduce-local": "Combine one file into another, in place (MPI_Reduce_local).",
    },
    "Update a file in place": {
        "accumulate": "Combine files into a target, in place (MPI_Accumulate).",
        "get-accumulate": "Update a target and return its previous elements (MPI_Get_accumulate).",
        "fetch-and-op": "Update one element and print its previous value (MPI_Fetch_and_op).",
        "compare-and-swap": "Replace one element if it has the expected value (MPI_Compare_and_swap).",
        "recover": "Finish an interrupted update.",
    },
    "Look at files": {
        "info": "Show the arrays, datatypes and shapes in files.",
        "show": "Show elements, statistics, histograms and pictures of files.",
        "diff": "Compare two files, and show where they differ.",
        "locate": "Find the maximum or minimum of all files, and its place (MPI_MAXLOC, MPI_MINLOC).",
    },
    "Files of records": {
        "pack": "Extract elements from a file of records (MPI_Pack).",
        "unpack": "Insert elements into a file of records (MPI_Unpack).",
    },
    "Reference": {
        "ops": "List the ops.",
        "types": "List the datatypes, or show one.",
        "engines": "List engines (local, mpi, dask) and test their workers.",
        "help": "Show the help of a command, or the exit statuses.",
        "examples": "Copy the sample data and the example ops.",
        "completion": "Print the shell completion script.",
    },
}
_MODULES = ("collectives", "windows", "queries", "packing", "reference")
# The module of each command. It is imported when the command is called, so that --help does not wait for NumPy.
_COMMANDS = {name: module for module, group in zip(_MODULES, _GROUPS.values(), strict=True) for name in group}
_NUMPY_NBYTES = 88 << 20  # of address space; with less BLAS ends the process when NumPy is imported, or crashes
_BROKEN_PIPE = 141
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIMILARITY = 0.75  # of a suggestion: one wrong letter of four
COMPLETION = "_MPIRED_COMPLETE"
"""The environment variable with which a shell requests completions."""


class Interrupted(BaseException):
    """Raised with the number of a signal that ends the command; not an `Exception`, so that only `main` catches it."""


class _Signals:
    """The signals of this process: before the commit they end the command without a change, then they are ignored."""

    early: Sequence[int] = ()  # signals before `install`, to which `__main__` appends
    interruption: Interrupted | None = None
    outcome = "no result was written"  # the state of the files after an interruption, for the message
    is_committed = False  # whether the result is in place

    def install(self) -> None:
        """Raise `Interrupted` at the signals that end the command, except ignored ones; at once for an early signal."""
        # Called after the imports: an exception within an import is lost, or becomes an ImportError.
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._interrupt)
        early, self.early = self.early, ()
        if early:
            self._interrupt(early[-1], None)

    def _interrupt(self, number: int, _frame: FrameType | None) -> NoReturn:
        self._ignore()  # a second ctrl-C must not disturb the cleanup
        self.interruption = Interrupted(number)
        raise self.interruption

    def _ignore(self) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)

    def commit(self) -> None:
        """Record that the result is in place: signals are ignored, and errors have the status of a result."""
        self.is_committed = True
        self._ignore()


signals = _Signals()


class _Commands(click.Group):
    """The commands of mpired, imported at their first use."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return [*_COMMANDS]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest one in the error."""
        if args[0] not in _COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}{_suggestion(args[0], _COMMANDS)}")
        return super().resolve_command(ctx, args)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        calls.check_address_space(_NUMPY_NBYTES)
        # NumPy loads faster here than deep in other imports, where Python maps a piece of its stack for each call.
        import numpy  # noqa: F401, ICN001, PLC0415

        command: Any = getattr(import_module(f"mpired.cli.{_COMMANDS[name]}"), name.replace("-", "_"))
        signals.install()
        return command if isinstance(command, click.Command) else command()

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        rows = (row for group in _GROUPS.values() for row in group.items())
        names = [CompletionItem(name, help=summary) for name, summary in rows if name.startswith(incomplete)]
        return names or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, group in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(group.items()), col_max=20)


_SYNONYMS = {
    "cmp": "diff",
    "compare": "diff",
    "version": "--version",
    "merge": "reduce",
    "combine": "reduce",
    "--dtype": "--type",
    "--nproc": "--jobs",
    "--threads": "--jobs",
    "--workers": "--jobs",
}
"""Commands and options of other programs, with their equivalents here."""


def _suggestion(name: str, names: Iterable[str]) -> str:
    """Return the hint for an unknown command or option: a synonym, or similar names."""
    similar = difflib.get_close_matches(name.lower(), names, n=2, cutoff=_SIMILARITY)
    suggestion = _SYNONYMS.get(name) or " or ".join(similar)
    return f"; did you mean {suggestion}?" if suggestion else ""


def _op_hint(arguments: Sequence[str]) -> str:
    """Return the hint for the name of an op without `--op`, in front of the files."""
    if not arguments or os.path.lexists(arguments[0]):
        return ""
    from mpired.ops import named  # noqa: PLC0415 - only for an error

    op = named(arguments[0])
    return f"; did you mean --op {op.name.lower()}?" if op else ""


_EPILOG = """\b
Begin:
  mpired examples try && cd try
  mpired reduce --op mean sample_data/tas_?.nc -o mean.nc
  mpired reduce -h
"""


@click.command(cls=_Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
def cli() -> None:
    """Combine many files element by element: sums, maxima, means, running totals.

    It works like MPI's reductions, with files in place of processes.
    """


def main(arguments: list[str] | None = None, early_signals: Sequence[int] = ()) -> int:
    """Run the command, flush its output, and return its exit status; `early_signals` came before the handlers."""
    signals.early = early_signals
    _prepare_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        arguments = [*map(signed, arguments)]
        messages.pending_warnings.clear()
        with (
            notices_to(lambda paths, text: messages.print_message(f"{paths[0]}: {text}")),
            collect_warnings(also=messages.pending_warnings.append),
        ):
            status = _run(arguments)
        messages.print_warnings(messages.pending_warnings)  # of a command without a summary
        click.echo(nl=False)  # flushes
    except Interrupted as interrupted:
        (number,), reason = interrupted.args, f"interrupted; {signals.outcome}"
        status = messages.KILLED + number
        failure = messages.Failure(type(interrupted).__name__, MpiredError.mpi_class, status, "", reason)
        messages.print_failure(failure, cli, arguments)
        signal.signal(number, signal.SIG_DFL)  # so that the shell sees the signal
        os.kill(os.getpid(), number)  # returns if the signal is blocked
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the interpreter's last flush prints no error
        status = _BROKEN_PIPE
    except (MpiredError, OSError, MemoryError, ImportError) as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = "standard output"  # errors of other files have names
        status = _fail(messages.Failure.of(error), arguments)
    messages.print_line(None)  # of a command without a summary
    for err in (False, True):
        with contextlib.suppress(OSError):  # the failure is printed already, or cannot be printed
            click.echo(nl=False, err=err)
    return status


def _fail(failure: messages.Failure, arguments: Sequence[str], *hints: str) -> int:
    """Print the failure of the command and return its status; after the commit that is the status of the result."""
    if signals.is_committed and failure.exit_status != UnconfirmedError.exit_status:
        reason = f"{failure.reason}; that was after the result was in place, do not repeat"
        failure = failure._replace(reason=reason, exit_status=UnconfirmedError.exit_status)
    messages.print_failure(failure, cli, arguments, [*hints, messages.environment_options()])
    return failure.exit_status


def _run(arguments: Sequence[str]) -> int:
    """Parse and run a command, and return its exit status."""
    # Not `cli.main`, which turns a broken pipe into status 1.
    try:
        # A shell that requests completions gives no arguments.
        if not arguments and (instruction := os.environ.get(COMPLETION)):
            line = split_arg_string(os.environ.get("COMP_WORDS", ""))
            return shell_complete(cli, {"obj": tuple(line)}, "mpired", COMPLETION, instruction)
        with cli.make_context("mpired", list(arguments), obj=tuple(arguments)) as context:
            cli.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        return error.exit_code
    except click.ClickException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "mpired")
        text = " ".join(error.format_message().rstrip(".").split())
        if isinstance(error, click.NoSuchOption):
            text = f"No such option {error.option_name!r}{_suggestion(error.option_name, error.possibilities or ())}"
        if isinstance(error, click.MissingParameter):
            text += _op_hint(arguments[1:])
        text = shortened(without_secrets(text), LONGEST_REASON)
        failure = messages.Failure(type(error).__name__, UsageError.mpi_class, error.exit_code, "", text)
        return _fail(failure, arguments, f"see `{command} --help`")
    except Exception:
        if signals.interruption is not None:  # the import of a library has turned it into another error
            raise signals.interruption from None
        raise
    return 0


def _prepare_streams() -> None:
    """Reserve the descriptors of closed standard streams, and buffer output so that short writes are repeated."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # With PYTHONUNBUFFERED, or `python -u`, Python writes a string by one write(2), and loses the rest of a short one.
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        raw = getattr(stream, "buffer", None)
        if isinstance(stream, io.TextIOWrapper) and isinstance(raw, io.RawIOBase):
            encoding, errors = stream.encoding, stream.errors
            stream.detach()  # its destructor would close the descriptor
            buffered = io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=True)
            setattr(sys, name, buffered)
            setattr(sys, f"__{name}__", buffered)
