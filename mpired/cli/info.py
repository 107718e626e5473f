"""`mpired info`."""

from __future__ import annotations

import time
from typing import Any

from mpired import provenance
from mpired.api import queries
from mpired.attempts import repeated
from mpired.cli import params
from mpired.cli.messages import answer, in_flags
from mpired.context import Context
from mpired.errors import MpiredError, UsageError, escaped, number, raise_all
from mpired.files.keys import of_file
from mpired.files.names import check_are_data
from mpired.files.places import is_stream
from mpired.formats import format_named
from mpired.formats.decoding import decode_worker
from mpired.formats.memory import paths
from mpired.options import INFO, INPUTS, Options, part
from mpired.ranks import RankWord, rank_list
from mpired.report import describe_file

_SHOWN_KEYS = 4
_DATE = "%Y-%m-%dT%H:%M:%SZ"


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
    names = list(paths(words))
    check_are_data(names)
    inputs = part(INPUTS, options)
    described, errors = [], []
    with decode_worker(params.context()) as context:
        for word in words:
            try:
                described.append(_described(word, inputs, context))
            except (MpiredError, OSError) as error:
                errors.append(error)
    if described:
        answer(described, ("\n".join(_lines(each)) for each in described))
    raise_all(errors, len(words), "files")


def _described(word: RankWord, inputs: Options, context: Context) -> dict[str, Any]:
    """Return the contents of a file, the keys of `--once` that it remembers, and the record of its origin."""

    def look(context: Context) -> tuple[dict[str, Any], str | None]:
        file = queries.look(word, inputs, context)
        again = not file.obstacle and not file.source.is_forward  # else it cannot be read once more
        return describe_file(file), format_named(file.format).note(file.source) if again else None

    # The files' directories have been looked at, each once.
    described, note = repeated(look, (), context)
    path = next(paths([word]), "")
    with of_file(path) as keys:
        try:
            entries, obstacle = keys.last(_SHOWN_KEYS), None
        except (MpiredError, OSError) as error:
            entries, obstacle = [], in_flags(error.reason if isinstance(error, MpiredError) else str(error))
        dates = [time.strftime(_DATE, time.gmtime(each.seconds)) if each.seconds else None for each in entries]
        last = [{"key": each.text or each.key.hex(), "date": date} for each, date in zip(entries, dates, strict=True)]
        once_keys = {"count": keys.count, "last": last, "obstacle": obstacle}
    record = None if is_stream(path) else provenance.found(path, note)
    return described | {"once_keys": once_keys, "provenance": record}


def _lines(file: dict[str, Any]) -> list[str]:
    lines = lines_of(file)
    if (record := file["provenance"]) is not None:
        lines += [f"  {line}" for line in provenance.lines(record)]
    if (keys := file["once_keys"])["count"]:
        more = ", ..." if keys["count"] > len(keys["last"]) else ""
        last = ", ".join(escaped(each["key"]) for each in keys["last"])
        rest = f"; {keys['obstacle']}" if keys["obstacle"] else f", the last one first: {last}{more}"
        lines.append(f"  once-keys: {keys['count']}{rest}")
    return lines


def lines_of(file: dict[str, Any]) -> list[str]:
    """Return what `describe_file` says of a file in lines."""
    lines = [f"{escaped(file['file'])}: {file['format']}, {file['nbytes']} bytes"]
    if file["obstacle"] is not None:
        lines.append(f"  {file['obstacle']}")
    has_columns = file["obstacle"] is None and format_named(file["format"]).has_columns
    for each in [*file["buffers"], *file["other_columns"]]:
        name = f"{escaped(each['name']) or repr(each['name'])}: " if has_columns else ""
        count = "" if each["count"] is None else f"{each['count']} x "
        details = [f"{count}{escaped(each['label'])}"]
        if each["shape"] is not None:
            order = f", {each['order']} order" if each.get("order") else ""
            details.append(f"shape {tuple(each['shape'])}{order}")
        if each.get("datarep") == "external32":
            details.append("external32")
        elif each.get("byte_order") is not None:
            details.append(f"{each['byte_order']}-endian")
        details += [f"in {escaped(each['unit'])}"] if each["unit"] else []
        details += [each["storage"]] if each["storage"] else []
        details += [number(each["nulls"], "null")] if each["nulls"] else []
        use = f"; {escaped(in_flags(each['use']))}" if each["use"] else ""
        lines.append(f"  {name}{', '.join(details)}{use}")
    if has_columns and len(lines) == 1:
        lines.append("  no columns")
    return lines
