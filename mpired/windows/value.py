"""One element from text, as on the command line: `-3`, `0x1f`, `1e-3`, `2+1j`, `true`, `5.5,7`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpired.datatypes import Datatype
from mpired.datatypes.datatype import Group
from mpired.errors import UsageError

_TRUTHS = {"true": 1, "false": 0}


def parse_value(text: str, datatype: Datatype) -> np.ndarray:
    """Return an array of one element.

    Raises
    ------
    UsageError
        If the text is no element of the datatype, or outside of its range.
    """
    element = np.zeros(1, datatype.form)
    words = text.split(",") if datatype.group is Group.PAIR else [text]
    names = datatype.form.names if datatype.group is Group.PAIR else None
    if names is not None and len(words) != len(names):
        raise UsageError(repr(text), f"is no {datatype}; write VALUE,INDEX")
    try:
        if names is not None:
            for name, word in zip(names, words, strict=True):
                element[name] = _scalar(word, datatype.form[name])
        elif datatype.group is Group.COMPLEX and datatype.form.names is not None:
            number = complex(text)
            element[0] = (number.real, number.imag)
        else:
            element[0] = _scalar(text, datatype.form)
    except (ValueError, OverflowError):
        raise UsageError(repr(text), f"is no element of {datatype}") from None
    return element


def _scalar(word: str, form: np.dtype) -> Any:
    readers: dict[str, Callable[[str], Any]] = {"i": _integer, "u": _integer, "f": form.type, "c": _complex}
    value = readers[form.kind](word.strip())
    if form.kind in "iu" and not np.iinfo(form).min <= value <= np.iinfo(form).max:
        raise OverflowError
    return value


def _integer(word: str) -> int:
    return _TRUTHS[word.lower()] if word.lower() in _TRUTHS else int(word, 0)


def _complex(word: str) -> complex:
    return complex(word.replace("i", "j") if "inf" not in word else word)
