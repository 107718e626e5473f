"""The command line: one command a file, and the one place that maps errors to exit statuses."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import signal
import sys

# A pool may fork only while there is one thread, and BLAS starts its own when NumPy is imported;
# no op uses it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem, shell_complete, split_arg_string

from mpired import __version__
from mpired.cli import signals
from mpired.cli.messages import KILLED, Failure, from_environment, say, tell, tell_failure, tell_warnings, warned
from mpired.errors import LONGEST_REASON, MpiredError, UnconfirmedError, UsageError, shortened, without_secrets
from mpired.files import calls
from mpired.files.urls import signed
from mpired.log import collect_warnings, notices_to

# The groups of the help, with their commands; those of a group are in one module. It is imported when one of them is
# called, so that --help does not wait for NumPy.
_GROUPS = {
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
_COMMANDS = {name: module for module, group in zip(_MODULES, _GROUPS.values(), strict=True) for name in group}
# Bytes of address space that NumPy needs to be loaded: with less its BLAS ends the process, or crashes.
_NUMPY = 88 << 20
_READER_GONE = 141
_CLOSE = 0.75  # one letter of four
COMPLETION = "_MPIRED_COMPLETE"
"""The variable by which a shell asks for completions."""


class _Commands(click.Group):
    """The commands, each in a module that is imported when it is asked for."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return [*_COMMANDS]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for an unknown word, suggest one."""
        if args[0] not in _COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}{_suggestion(args[0], _COMMANDS)}")
        return super().resolve_command(ctx, args)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        calls.check_address_space(_NUMPY)
        # Here, because deep in other imports Python maps and unmaps a piece of its stack for each call.
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


_ELSEWHERE = {
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
"""Commands and options of other programs, and those of mpired that do the same."""


def _suggestion(word: str, known: Iterable[str]) -> str:
    """Return the hint for an unknown command or option: of another program, or that is spelled almost so."""
    close = _ELSEWHERE.get(word) or " or ".join(difflib.get_close_matches(word.lower(), known, n=2, cutoff=_CLOSE))
    return f"; did you mean {close}?" if close else ""


def _op_hint(words: Sequence[str]) -> str:
    """Return the hint for an op in the place of the first file."""
    if not words or os.path.lexists(words[0]):
        return ""
    from mpired.ops import named  # noqa: PLC0415 - only for an error

    op = named(words[0])
    return f"; did you mean --op {op.name.lower()}?" if op else ""


_BEGIN = """\b
Begin:
  mpired examples try && cd try
  mpired reduce --op mean sample_data/tas_?.nc -o mean.nc
  mpired reduce -h
"""


@click.command(cls=_Commands, epilog=_BEGIN, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
def cli() -> None:
    """Combine many files element by element: sums, maxima, means, running totals.

    It works like MPI's reductions, with files in place of processes.
    """


def main(arguments: list[str] | None = None, came: list[int] | None = None) -> int:
    """Run the command, and return its exit status; everything that was printed is written."""
    # `came` gets the signals that come before there are handlers.
    signals.state.came = () if came is None else came
    _prepare_streams()
    words = sys.argv[1:] if arguments is None else arguments
    try:
        words = [*map(signed, words)]
        warned.clear()
        with notices_to(lambda paths, text: say(f"{paths[0]}: {text}")), collect_warnings(also=warned.append):
            status = _run(words)
        tell_warnings(warned)  # of a command without a summary
        click.echo(nl=False)  # flushes
    except signals.Interrupted as interrupted:
        (number,), reason = interrupted.args, f"interrupted; {signals.state.left}"
        status = KILLED + number
        tell_failure(Failure(type(interrupted).__name__, MpiredError.mpi_class, status, "", reason), cli, words)
        signal.signal(number, signal.SIG_DFL)  # so that a shell sees the true cause
        os.kill(os.getpid(), number)  # the end, unless the signal is blocked
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the interpreter's last flush is quiet
        status = _READER_GONE
    except (MpiredError, OSError, MemoryError, ImportError) as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = "standard output"  # every other file was given its name where it was opened
        status = _failed(Failure.of(error), words)
    tell(None)  # of a command without a summary
    for err in (False, True):
        with contextlib.suppress(OSError):  # reported above, or it cannot be written
            click.echo(nl=False, err=err)
    return status


def _failed(failure: Failure, words: Sequence[str], *more: str) -> int:
    """Say why the command fails, and return its status, which is about the result: once in place, it stays there."""
    if signals.state.is_committed and failure.exit_status != UnconfirmedError.exit_status:
        reason = f"{failure.reason}; that was after the result was in place, do not repeat"
        failure = failure._replace(reason=reason, exit_status=UnconfirmedError.exit_status)
    tell_failure(failure, cli, words, [*more, from_environment()])
    return failure.exit_status


def _run(words: Sequence[str]) -> int:
    """Parse and run; `cli.main` would turn a reader that is gone into status 1."""
    try:
        # A shell asks without any words; words are a command, whatever the environment contains.
        if not words and (instruction := os.environ.get(COMPLETION)):
            line = split_arg_string(os.environ.get("COMP_WORDS", ""))
            return shell_complete(cli, {"obj": tuple(line)}, "mpired", COMPLETION, instruction)
        with cli.make_context("mpired", list(words), obj=tuple(words)) as context:
            cli.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        return error.exit_code
    except click.ClickException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "mpired")
        text = " ".join(error.format_message().rstrip(".").split())
        if isinstance(error, click.NoSuchOption):
            text = f"No such option {error.option_name!r}{_suggestion(error.option_name, error.possibilities or ())}"
        if isinstance(error, click.MissingParameter):
            text += _op_hint(words[1:])
        text = shortened(without_secrets(text), LONGEST_REASON)
        failure = Failure(type(error).__name__, UsageError.mpi_class, error.exit_code, "", text)
        return _failed(failure, words, f"see `{command} --help`")
    except Exception:
        if signals.state.interruption is not None:  # of which an import of a library has made another error
            raise signals.state.interruption from None
        raise
    return 0


def _prepare_streams() -> None:
    """Let the standard streams write all that they are given, and have their descriptors even where they are closed."""
    for fd in (0, 1, 2):  # so that no file of ours gets the number
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
            stream.detach()  # else its end would close the descriptor
            buffered = io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=True)
            setattr(sys, name, buffered)
            setattr(sys, f"__{name}__", buffered)
