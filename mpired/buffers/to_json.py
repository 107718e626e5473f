"""Results as JSON: one object a buffer; numbers JSON cannot hold are strings, as "nan"."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from mpired.buffers import textual
from mpired.buffers.flat import FlatBuffer
from mpired.buffers.format import Encoder
from mpired.buffers.model import Model
from mpired.datatypes.times import dtype_name

_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?")


def prepare(_model: Model) -> Encoder:
    """Say how any result becomes JSON."""
    return textual.encoder(_lines)


def _lines(results: Sequence[FlatBuffer]) -> Iterator[str]:
    yield '{"buffers": ['
    for i, result in enumerate(results):
        names = {"datatype": str(result.datatype), "dtype": dtype_name(result.datatype)}
        head = {"name": result.name, **names, "count": result.count}
        yield json.dumps(head)[:-1] + ', "data": ['
        texts = textual.elements(result, _token, "null")
        previous = next(texts, None)
        for text in texts:
            yield f"{previous},"
            previous = text
        yield (previous or "") + "]}" + ("," if i + 1 < len(results) else "")
    yield "]}"


def _token(parts: tuple[str, ...]) -> str:
    """Return an element as a number, as a text if JSON has no such number, or as a list of its components."""
    numbers = [part if _NUMBER.fullmatch(part) else json.dumps(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else f"[{', '.join(numbers)}]"
