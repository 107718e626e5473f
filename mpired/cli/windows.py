"""The commands that update a target in place and may return its old elements; and `recover`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click
import numpy as np

from mpired.api.signatures import as_numpy
from mpired.attempts import check_results, retry
from mpired.cli import messages, params, signals
from mpired.context import Context
from mpired.errors import UsageError, escaped
from mpired.files.places import check_is_data
from mpired.files.recovery import Recovered, recover_files
from mpired.formats import LINES
from mpired.formats.memory import masks_of
from mpired.options import ACCUMULATE, FETCH, FETCH_ELEMENT, FETCHED, RECOVER, REPORT, SWAP, Group
from mpired.queries.elements import in_json
from mpired.ranks.order import paths, rank_list
from mpired.report import Description, PlannedFile, describe_request, summarise_request
from mpired.sources.open import check_no_input
from mpired.windows.call import (
    WindowRequest,
    plan_accumulate,
    plan_compare_and_swap,
    plan_fetch_and_op,
    plan_get_accumulate,
)
from mpired.windows.fetched import FetchOutput, planned_size
from mpired.windows.transaction import WindowUpdate, dry_run, transact

_MAX_SHOWN = 8  # skipped origins; there may be thousands
_REPORT: Group = ("quiet", "as_json@print", "dry_run")  # of commands that print one old element
_NUMBERS = {"context_settings": {"ignore_unknown_options": True}}  # -5 is a value


@params.command(*("op@accumulate", "windows", *ACCUMULATE, "rank_numbers", *REPORT), files="TARGET ORIGIN...")
def accumulate(*, files: tuple[str, ...], windows: tuple[str, ...], op: str, **options: Any) -> None:
    """Combine each ORIGIN into TARGET, in place, as MPI_Accumulate does: target = target op origin.

    \b
    Examples:
      mpired accumulate --op sum --create 12 total.npy sample_data/counts_?.npy
      mpired accumulate --op max --target-disp 8 --origin-count 4 \\
          total.npy sample_data/counts_0.npy
      mpired accumulate --op replace --at 0:4 --origin-count 4 \\
          total.npy sample_data/counts_1.npy

    The origins are applied in the order given, all in one transaction: after a crash at any moment TARGET
    is wholly old or wholly new, and several commands may update it at once. TARGET has any
    format that stores elements: .npy, .npz, .nc, .h5, .safetensors, .parquet, .arrow, or raw binary with --type.
    --columns selects the columns or arrays that change. By default an origin must have as many elements as TARGET.
    """
    targets, arguments = _split(windows, files)
    origins = rank_list(params.expand(arguments)[0], options)
    plan = partial(plan_accumulate, targets, origins, op, options)
    _call("MPI_Accumulate", plan, targets, list(paths(origins)))


@params.command("op@fetch", *FETCHED, "windows", *FETCH, *REPORT, files="TARGET [ORIGIN]")
def get_accumulate(*, files: tuple[str, ...], windows: tuple[str, ...], op: str, **options: Any) -> None:
    """Combine ORIGIN into TARGET as `accumulate` does, and return the previous elements (MPI_Get_accumulate).

    \b
    Examples:
      mpired accumulate --op sum --create 12 total.npy sample_data/counts_0.npy
      mpired get-accumulate --op sum --to text total.npy sample_data/counts_1.npy
      mpired get-accumulate --op no_op --target-disp 3 --target-count 2 --to \\
          text total.npy

    No other command comes between the reading and the change. With --op no_op TARGET is only read, as it is
    between two updates, and no ORIGIN is needed. If OLD is a file, it is in place before TARGET changes.
    """
    targets, origins = _split(windows, files)
    if len(origins) > 1:
        raise UsageError(origins[1], "is a second origin; a call that fetches takes one")
    fetch = options["fetch"]
    check_is_data(fetch)
    plan = partial(plan_get_accumulate, targets, origins[0] if origins else None, op, options)
    check_no_input([fetch], [(origin, "the origin") for origin in origins], "name another file for the old elements")
    check_no_input([fetch], [(options["map"], "the map"), (options["types"], "the named datatypes")])
    _call("MPI_Get_accumulate", plan, targets, origins, (fetch, options["to"], options["force"]))


@params.command(*("op@fetch", "windows", *FETCH_ELEMENT, *_REPORT), settings=_NUMBERS, arguments="TARGET [VALUE]")
def fetch_and_op(*, arguments: tuple[str, ...], windows: tuple[str, ...], op: str, **options: Any) -> None:
    """Combine VALUE into one element of TARGET, and print its old value (MPI_Fetch_and_op).

    \b
    Examples:
      mpired fetch-and-op --op sum --type int64_t --create 1 counter.npy 1
      mpired fetch-and-op --op sum counter.npy 1
      mpired fetch-and-op --op no_op counter.npy

    VALUE is a number, VALUE,INDEX for a pair, a time such as 2021-02-03T04:05:06, null, or a file with one element.
    --op no_op needs none and only reads. Commands that run at once each get a different old value, so that TARGET can
    be a counter, or number the places in a queue.
    """
    targets, values = _split(windows, _without_options(arguments))
    if len(values) > 1:
        raise UsageError(values[1], "is one word too many; there is one VALUE")
    plan = partial(plan_fetch_and_op, targets, values[0] if values else None, op, options)
    _call("MPI_Fetch_and_op", plan, targets, values, is_element=True)


@params.command("windows", *SWAP, *_REPORT, settings=_NUMBERS, arguments="TARGET COMPARE VALUE")
def compare_and_swap(*, arguments: tuple[str, ...], windows: tuple[str, ...], **options: Any) -> None:
    """Set one element of TARGET to VALUE if it is COMPARE, and print its old value (MPI_Compare_and_swap).

    \b
    Examples:
      mpired fetch-and-op --op sum --type int32_t --create 1 owner.npy 0
      mpired compare-and-swap owner.npy 0 42
      mpired compare-and-swap owner.npy 0 43

    The element has changed if COMPARE is printed. Elements are integers, truth values or bytes, and are
    compared bit by bit. COMPARE and VALUE are numbers, files with one element, or null for a missing one.
    """
    targets, operands = _split(windows, _without_options(arguments))
    if len(operands) != 2:  # noqa: PLR2004 - COMPARE and VALUE
        raise UsageError("COMPARE and VALUE", f"are two words after the target, and there are {len(operands)}")
    plan = partial(plan_compare_and_swap, targets, operands[0], operands[1], options)
    _call("MPI_Compare_and_swap", plan, targets, operands, is_element=True)


def _without_options(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return arguments that may be negative numbers; refuse others that begin with a hyphen as unknown options."""
    for argument in arguments:
        is_number = argument.lower() in {"-inf", "-infinity", "-nan"}
        if re.fullmatch(r"--.*|-[a-z]+", argument, re.IGNORECASE) and not is_number:
            raise click.NoSuchOption(argument, ctx=click.get_current_context())
    return arguments


def _split(windows: tuple[str, ...], arguments: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files of the windows, and the other arguments; without --window the first argument is the target."""
    if not windows and not arguments:
        raise UsageError("TARGET", "is missing; name the file to change, and then the origins")
    windows, origins = (windows, arguments) if windows else (arguments[:1], arguments[1:])
    signals.outcome = f"{', '.join(windows)} {'are as they were' if windows[1:] else 'is as it was'}"
    return windows, origins


def _call(
    name: str,
    plan: Callable[[Context], WindowRequest],
    targets: Sequence[str],
    inputs: Sequence[str],  # origins; or values, some of which may be files
    fetch: tuple[str, str | None, bool] | None = None,  # the file of the old elements, its format, `force`
    *,
    is_element: bool = False,  # whether the call is on one element, and prints its old value
) -> None:
    """Carry out a call on windows, and print its summary, or the plan of a dry run."""
    path, to, force = ("-", LINES.name, False) if is_element else fetch or (None, None, False)

    def attempt(context: Context) -> WindowUpdate | Description:
        messages.pending_warnings.clear()  # of an earlier attempt
        request = plan(context)
        if context.dry_run:
            planned, fetched = dry_run(request), None
            if path is not None:
                check_results([path], context, overwrite=force)
                fetched = PlannedFile(path, *planned_size(path, to, planned.fetched_model, request.op))
            return describe_request(name, planned, fetched)
        if path is None:
            return transact(request)
        with FetchOutput(path, to, context, targets, overwrite=force) as output:
            update = transact(request, output)
            output.send(targets[0], has_changed=any(update.protocols))
        return update

    update = retry(attempt, inputs, params.context())
    if isinstance(update, Description):
        messages.print_plan(update, inputs, "origin")
        return
    skipped = update.skipped
    origins = update.names if path is None else inputs if is_element or update.request.op.origin else ()
    figures, line = summarise_request(name, update, targets, origins, messages.pending_warnings)
    figures["output"] = path or figures["output"]
    notes = [f"{origin}: already applied, left out" for origin in skipped[:_MAX_SHOWN]]
    if len(skipped) > _MAX_SHOWN:
        notes.append(f"{len(skipped) - _MAX_SHOWN} more origins: already applied, left out")
    if is_element:
        figures["old"] = _old_element(update)
    messages.print_summary(figures, None if is_element else line, notes=notes)
    if messages.report().get("verbose") and not messages.report()["as_json"]:
        for target, protocol, window in zip(figures["windows"], update.protocols, update.windows, strict=True):
            messages.print_message(f"{target}: {window.changed_nbytes} bytes of elements, {protocol or 'not changed'}")
    messages.exit_if_skipped(figures["bad"])


def _old_element(update: WindowUpdate) -> object:
    """Return the old element as a value of JSON: a list of value and index for a pair, None if it is missing."""
    assert update.fetched is not None  # noqa: S101 - a call on one element fetches it
    if masks_of(update.fetched).any():
        return None
    (old,) = as_numpy(np.ma.getdata(update.fetched), update.datatypes[0], None)
    return [in_json(old[field]) for field in old.dtype.names] if old.dtype.names else in_json(old)


@params.command(*RECOVER, "as_json@print", required=True, files="FILE...")
def recover(*, files: tuple[str, ...], **options: Any) -> None:
    """Finish the interrupted update of each FILE, and remove its leftovers.

    \b
    Examples:
      mpired recover sample_data/counts_?.npy
      mpired recover --list sample_data/counts_0.npy

    Every mpired command that opens a file does this first, so use it before another program reads the file. A change
    whose log is whole was committed, and is finished; otherwise the file has not changed, and the log is removed.
    --discard --force gives a committed change up: the file may stay half changed.
    """
    signals.outcome = "repeat it for the files that have no line yet"
    nothing = "nothing" if options["only_list"] else "nothing to do"
    errors: list[OSError] = []  # of standard output; the next files are recovered nevertheless
    is_change_unprinted = False  # whether standard output lacks the line of a changed file

    def print_file(recovered: Recovered) -> None:
        nonlocal is_change_unprinted
        line = escaped(f"{recovered.file}: {', '.join(recovered.words) or nothing}")
        try:
            messages.print_output(messages.json_line(recovered._asdict()) if messages.report()["as_json"] else line)
        except OSError as error:
            errors.append(error)
            if recovered.changed:
                is_change_unprinted = True
                messages.print_message(line)

    try:
        recover_files(files, options, params.context(), print_file)
    finally:
        messages.print_line(None)
    if is_change_unprinted:
        signals.commit()  # the exit status is that of changed files
    if errors:
        raise errors[0]
