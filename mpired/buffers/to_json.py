"""Results as JSON: one object a buffer; numbers JSON cannot hold are strings, as "nan"."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from mpired.buffers import textual
from mpired.buffers.flat import FlatBuffer
from mpired.buffers.format import Encoder
from mpired.buffers.model import Model


def prepare(_model: Model) -> Encoder:
    """Say how any result becomes JSON."""
    return textual.encoder(_lines)


def _lines(results: Sequence[FlatBuffer]) -> Iterator[str]:
    yield '{"buffers": ['
    for i, result in enumerate(results):
        head = {"name": result.name, "datatype": str(result.datatype), "count": result.count}
        yield json.dumps(head)[:-1] + ', "data": ['
        texts = textual.elements(result, _token)
        previous = next(texts, None)
        for text in texts:
            yield f"{previous},"
            previous = text
        yield (previous or "") + "]}" + ("," if i + 1 < len(results) else "")
    yield "]}"


def _token(parts: tuple[str, ...]) -> str:
    """Return an element as a number, or as a list of its components."""
    numbers = [part if part.lstrip("-+")[:1].isdigit() else json.dumps(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else f"[{', '.join(numbers)}]"
