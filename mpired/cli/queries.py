"""The commands that look at files: info, show, diff and locate."""

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
from mpired.attempts import repeated
from mpired.cli import params
from mpired.cli.messages import answer, end_without, in_flags, report, warned
from mpired.cli.pages import describe_file, json_lines, lines_of, page_lines, write
from mpired.context import Context
from mpired.errors import MpiredError, UsageError, escaped, raise_all
from mpired.files.keys import of_file
from mpired.files.places import check_are_data, is_stream
from mpired.files.transaction import open_output
from mpired.formats import format_named
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

_SHOWN_KEYS = 4
_DATE = "%Y-%m-%dT%H:%M:%SZ"
_STATUSES = {"the same": 0, "different": 1, "not known": 3}
_ALWAYS = ("equal", "a", "b", "reason", "buffers", "examples")  # keys of the JSON of `diff`
_BUG = 70  # EX_SOFTWARE of sysexits.h, because status 1 of `diff` has a meaning
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
    words = rank_list(params.expand(files)[0], options)
    if not words:
        raise UsageError("FILE", "is missing; name at least one file")
    check_are_data(paths(words), are_inputs=True)
    inputs = part(INPUTS, options)
    described, errors = [], []
    with decode_worker(params.context()) as context:
        for word in words:
            try:
                described.append(_described(word, inputs, context))
            except (MpiredError, OSError) as error:
                errors.append(error)
    if described:
        answer(described, ("\n".join(_info_lines(each)) for each in described))
    raise_all(errors, len(words), "files")


def _described(word: RankArgument, inputs: Options, context: Context) -> dict[str, Any]:
    """Return the contents of a file, the keys of `--once` that it remembers, and the record of its origin."""

    def described(context: Context) -> tuple[dict[str, Any], str | None]:
        file = look(word, inputs, context)
        again = not file.obstacle and not file.source.is_sequential  # else it cannot be read once more
        return describe_file(file), format_named(file.format).provenance(file.source) if again else None

    # The files' directories have been looked at, each once.
    contents, recorded = repeated(described, (), context)
    path = next(paths([word]), "")
    with of_file(path) as keys:
        try:
            entries, obstacle = keys.last(_SHOWN_KEYS), None
        except (MpiredError, OSError) as error:
            entries, obstacle = [], in_flags(error.reason if isinstance(error, MpiredError) else str(error))
        dates = [time.strftime(_DATE, time.gmtime(each.seconds)) if each.seconds else None for each in entries]
        last = [{"key": each.text or each.key.hex(), "date": date} for each, date in zip(entries, dates, strict=True)]
        once_keys = {"count": keys.count, "last": last, "obstacle": obstacle}
    record = None if is_stream(path) else provenance.found(path, recorded)
    return contents | {"once_keys": once_keys, "provenance": record}


def _info_lines(file: dict[str, Any]) -> list[str]:
    lines = lines_of(file)
    if (record := file["provenance"]) is not None:
        lines += [f"  {line}" for line in provenance.lines(record)]
    if (keys := file["once_keys"])["count"]:
        more = ", ..." if keys["count"] > len(keys["last"]) else ""
        last = ", ".join(escaped(each["key"]) for each in keys["last"])
        rest = f"; {keys['obstacle']}" if keys["obstacle"] else f", the last one first: {last}{more}"
        lines.append(f"  once-keys: {keys['count']}{rest}")
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
    with open_output("-") as output:  # whose file has no name until the page is complete

        def tell(shown: Shown, tables: Sequence[ElementTable]) -> None:
            """Write a file to the page, behind those of other files."""
            if as_json:
                lines = itertools.chain(["," if end else "["], json_lines(shown, tables))
            else:
                lines = itertools.chain([""] if end else [], page_lines(shown, tables, with_bars=options["histogram"]))
            write(output.fd, end, lines)

        for path in files:
            try:
                show_file(path, chosen, params.context(), tell)
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
        words = zip((a, b), params.expand([a], [b]), strict=True)
        one, other = (ranks if word.startswith("@") or len(ranks) > 1 else word for word, ranks in words)
        found = differences.diff(one, other, options, params.context())
        if not quiet:
            answer(_difference(in_json(asdict(found))), [str(found)])
        status = _STATUSES[found.verdict]
    except (MpiredError, OSError, MemoryError, ImportError):
        raise
    except Exception:  # noqa: BLE001 - a bug
        traceback.print_exc()
        status = _BUG
    ctx.exit(status)


def _difference(found: dict[str, Any]) -> dict[str, Any]:
    """Return a comparison as JSON has it; what only some have is left out of the others."""
    found |= {"reason": found["reason"] or None, "files": list(map(_difference, found["files"]))}
    for each in found["buffers"]:
        each["reason"] = each["reason"] or None
        if not each["units"]:
            del each["units"]
    return {key: value for key, value in found.items() if key in _ALWAYS or (value and key != "noun")}


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
    found = extremes.locate(params.expand(ranks)[0], op, options, params.context())
    skipped = skipped_in(warned)
    more = {"skipped": skipped} if skipped else {}
    rows, lines = [], []
    for name, places in found.items():
        label, row = (f"{name}: ", {"op": name}) if ops.is_list(op) else ("", {})
        for each in places:
            rows.append(row | in_json(asdict(each)) | more)
            place = f"rank {each.rank}, {escaped(each.file)}, at {place_text(each.column, each.index)}"
            lines.append(f"{label}{each.value} in {place}")
    answer(rows, lines)
    end_without(skipped)
