"""The commands that read files and write none but pictures: info, show, diff and locate."""

from __future__ import annotations

import itertools
import os
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from mpired import interrupts, ops, provenance
from mpired.api.queries import look
from mpired.attempts import retry
from mpired.cli import params
from mpired.cli.messages import exit_if_skipped, pending_warnings, print_answer, report, with_flags
from mpired.cli.pages import describe_file, json_lines, lines_of, page_lines, write
from mpired.context import Context
from mpired.errors import MpiredError, UsageError, escaped, raise_all
from mpired.files.keys import of_file
from mpired.files.places import check_are_data, is_stream
from mpired.files.transaction import open_output
from mpired.formats.decoding import decode_worker
from mpired.options import DIFF, INFO, INPUTS, LOCATE, SHOW, Options, part
from mpired.queries import diff as differences
from mpired.queries import locate as extremes
from mpired.queries.elements import in_json, place_text
from mpired.queries.figures import Shown
from mpired.queries.show import BINS, ElementTable
from mpired.queries.show import show as show_file
from mpired.ranks.order import RankArgument, paths, rank_list
from mpired.report import skipped_in

_MAX_KEYS = 4
_DATE = "%Y-%m-%dT%H:%M:%SZ"
_STATUSES = {"the same": 0, "different": 1, "not known": 3}
_PERMANENT_KEYS = ("equal", "a", "b", "reason", "buffers", "examples")  # in the JSON of `diff` even if empty
_INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h, because status 1 of `diff` has a meaning
_EXIT_STATUS = "Exit status: 0 the same, 1 different, 3 not known; `mpired help statuses` lists the others."


@params.command(*INFO, "rank_numbers", "as_json@print", files="FILE...")
def info(*, files: tuple[str, ...], **options: Any) -> None:
    """Describe each FILE: format, datatype, count, shape, byte order, columns, and the keys of `--once`.

    \b
    Examples:
      mpired info sample_data/maxloc_0.npy sample_data/maxloc_0.parquet
      mpired info --type double_int sample_data/maxloc_0.bin

    The list includes columns that are not combined, such as strings, columns with nulls, and files of other programs;
    for elements that are not plain numbers it names the ops. Only a damaged or unreadable file is an error.
    """
    ranks = rank_list(params.expand(files)[0], options)
    if not ranks:
        raise UsageError("FILE", "is missing; name at least one file")
    check_are_data(paths(ranks), are_inputs=True)
    inputs = part(INPUTS, options)
    descriptions, errors = [], []
    with decode_worker(params.context()) as context:
        for rank in ranks:
            try:
                descriptions.append(_describe(rank, inputs, context))
            except (MpiredError, OSError) as error:
                errors.append(error)
    if descriptions:
        print_answer(descriptions, ("\n".join(_info_lines(description)) for description in descriptions))
    raise_all(errors, len(ranks), "files")


def _describe(rank: RankArgument, inputs: Options, context: Context) -> dict[str, Any]:
    """Return the contents of a file, its keys of `--once`, and its provenance, for JSON."""

    def describe(context: Context) -> tuple[dict[str, Any], str | None]:
        file = look(rank, inputs, context)
        can_reread = not file.obstacle and not file.source.is_sequential
        return describe_file(file), file.format.provenance(file.source) if can_reread else None

    contents, stored_record = retry(describe, (), context)
    path = next(paths([rank]), "")
    with of_file(path) as keys:
        try:
            entries, obstacle = keys.last(_MAX_KEYS), None
        except (MpiredError, OSError) as error:
            entries, obstacle = [], with_flags(error.reason if isinstance(error, MpiredError) else str(error))
        last = []
        for entry in entries:
            date = time.strftime(_DATE, time.gmtime(entry.seconds)) if entry.seconds else None
            last.append({"key": entry.text or entry.key.hex(), "date": date})
        once_keys = {"count": keys.count, "last": last, "obstacle": obstacle}
    record = None if is_stream(path) else provenance.read_record(path, stored_record)
    return contents | {"once_keys": once_keys, "provenance": record}


def _info_lines(file: dict[str, Any]) -> list[str]:
    """Return the lines of a description."""
    lines = lines_of(file)
    if (record := file["provenance"]) is not None:
        lines += [f"  {line}" for line in provenance.lines(record)]
    if (keys := file["once_keys"])["count"]:
        more = ", ..." if keys["count"] > len(keys["last"]) else ""
        last = ", ".join(escaped(row["key"]) for row in keys["last"])
        details = f"; {keys['obstacle']}" if keys["obstacle"] else f", the last one first: {last}{more}"
        lines.append(f"  once-keys: {keys['count']}{details}")
    return lines


@params.command("histogram", *SHOW, "as_json@print", required=True, files="FILE...")
def show(*, files: tuple[str, ...], **options: Any) -> None:
    """Show the elements of each FILE, and figures: extremes and where they are, the exact mean, NaN, nulls.

    \b
    Examples:
      mpired show sample_data/counts_0.npy
      mpired show --columns energy sample_data/cells_?.parquet
      mpired show --slice '2:8:2' sample_data/cells_1.parquet
      mpired show --type double_int sample_data/maxloc_3.bin

    For pairs it also counts the different indices, and names those that are in the most pairs. All figures are of the
    whole file, which is read in blocks. --slice chooses the elements of the table, and of the picture if they are a
    plane.
    """
    if options["png"] is not None and len(files) > 1:
        raise UsageError("`png`", f"is of one file, and there are {len(files)}; draw one after another")
    if options["bins"] is not None and not options["histogram"] and options["png"] is None:
        raise UsageError("`bins`", "is for histograms; add `histogram` or `png`")
    check_are_data(files, are_inputs=True)
    chosen, end, errors, as_json = part(SHOW, options), 0, list[MpiredError | OSError](), report()["as_json"]
    if options["histogram"]:
        chosen["bins"] = options["bins"] or BINS
    with open_output("-") as output:

        def print_file(shown: Shown, tables: Sequence[ElementTable]) -> None:
            """Write the lines of a file after those of the files before it."""
            if as_json:
                lines = itertools.chain(["," if end else "["], json_lines(shown, tables))
            else:
                lines = itertools.chain([""] if end else [], page_lines(shown, tables, with_bars=options["histogram"]))
            write(output.fd, end, lines)

        for path in files:
            try:
                show_file(path, chosen, params.context(), print_file)
                end = os.lseek(output.fd, 0, os.SEEK_END)
            except (MpiredError, OSError) as error:
                errors.append(error)
        write(output.fd, end, [] if not as_json else ["]"] if end else ["[", "]"])
        output.commit(interrupts.committed)
    raise_all(errors, len(files), "files")


@params.command(*DIFF, "quiet@diff", "as_json@print", settings={"epilog": _EXIT_STATUS}, a="A", b="B")
@click.pass_context
def diff(ctx: click.Context, /, *, a: str, b: str, quiet: bool, **options: Any) -> None:
    """Compare the elements of A and B, or all files of two directories: how many differ, how much, and where.

    \b
    Examples:
      mpired diff sample_data/maxloc_0.npy sample_data/maxloc_0.parquet
      mpired diff --rtol 1e-9 --nan-equal sample_data/waves_1.npy \\
          sample_data/waves_1.npy

    Without a tolerance they are compared bit by bit: 0.0 and -0.0 differ, and so do two NaNs of other bits.
    With --ulp, --rtol or --atol numbers are compared by their values, and a NaN equals nothing unless
    --nan-equal is given. Elements that are not numbers, such as flags, text and times, must be equal. A missing
    element equals a missing one.

    The padding of pairs, byte order, format and the order of dimensions make no difference. Another count,
    shape, datatype or column does. A and B can also be two lists, @LIST, whose files are compared line by line.
    """
    try:
        arguments = zip((a, b), params.expand([a], [b]), strict=True)
        left, right = (ranks if text.startswith("@") or len(ranks) > 1 else text for text, ranks in arguments)
        difference = differences.diff(left, right, options, params.context())
        if not quiet:
            print_answer(_difference_row(in_json(asdict(difference))), [str(difference)])
        status = _STATUSES[difference.verdict]
    except (MpiredError, OSError, MemoryError, ImportError):
        raise
    except Exception:  # noqa: BLE001 - status 1 would mean that the files differ
        traceback.print_exc()
        status = _INTERNAL_ERROR
    ctx.exit(status)


def _difference_row(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Difference` for JSON, without those that are empty in most."""
    fields |= {"reason": fields["reason"] or None, "files": list(map(_difference_row, fields["files"]))}
    for buffer in fields["buffers"]:
        buffer["reason"] = buffer["reason"] or None
        if not buffer["units"]:
            del buffer["units"]
    return {key: value for key, value in fields.items() if key in _PERMANENT_KEYS or (value and key != "noun")}


@params.command("op@locate", *LOCATE, "rank_numbers", "as_json@print", ranks="RANK...")
def locate(*, ranks: tuple[str, ...], op: str, **options: Any) -> None:
    """Find the maximum or minimum of all RANKs: its value, its rank and its index there.

    \b
    Examples:
      mpired locate --op maxloc,minloc sample_data/counts_?.npy
      mpired locate --op minloc --top 3 --columns hits sample_data/cells_?.parquet

    The ranks may have different counts and shapes. --columns limits the search to some columns or variables.
    Of equal elements the one of the lowest rank comes first, then the one with the smallest index. If --nan,
    --nulls and --missing leave all elements out, that is an error.
    """
    locations_by_op = extremes.locate(params.expand(ranks)[0], op, options, params.context())
    skipped = skipped_in(pending_warnings)
    skipped_field = {"skipped": skipped} if skipped else {}
    rows, lines = [], []
    for name, locations in locations_by_op.items():
        label, op_field = (f"{name}: ", {"op": name}) if ops.is_list(op) else ("", {})
        for location in locations:
            rows.append(op_field | in_json(asdict(location)) | skipped_field)
            place = f"rank {location.rank}, {escaped(location.file)}, at {place_text(location.column, location.index)}"
            lines.append(f"{label}{location.value} in {place}")
    print_answer(rows, lines)
    exit_if_skipped(skipped)
