"""The few Python literals that an npy header may hold, read without evaluating anything."""

from __future__ import annotations

import re
from typing import Any

_SPACE = " \t\n\r\f"
# Texts without escapes, integers as Python 2 wrote them too, True and False, and the marks between.
_TOKEN = re.compile(
    rf"""[{_SPACE}]*(?:
        (?P<text>'[^'\\\n]*'|"[^"\\\n]*") | (?P<integer>\d{{1,19}})L?\b | (?P<word>[A-Za-z]+) | (?P<mark>[][(){{}},:])
    )""",
    re.ASCII | re.VERBOSE,
)


class Literal:
    """A parser of the few literals that an npy header may hold; `ValueError` for anything else."""

    _DEPTH = 5

    def __init__(self, text: str) -> None:
        self._text = text.rstrip(_SPACE)
        self._at = 0
        self._next()

    def whole(self) -> Any:
        """Return the one value that the text is."""
        value = self._value(0)
        if self._kind:
            raise ValueError("text after its end")
        return value

    def _next(self) -> None:
        if self._at == len(self._text):
            self._kind, self._word = "", ""
            return
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"at character {self._at}")
        self._at = match.end()
        self._kind, self._word = match.lastgroup, match[match.lastgroup]

    def _take(self, mark: str) -> bool:
        if (self._kind, self._word) != ("mark", mark):
            return False
        self._next()
        return True

    def _value(self, depth: int) -> Any:
        if depth > self._DEPTH:
            raise ValueError("nested too deep")
        kind, word = self._kind, self._word
        self._next()
        if kind == "text":
            return word[1:-1]
        if kind == "integer":
            return int(word)
        if kind == "word" and word in ("True", "False"):
            return word == "True"
        if kind == "mark" and word in "([":
            return self._sequence(word, depth)
        if kind == "mark" and word == "{":
            return self._mapping(depth)
        raise ValueError(f"at character {self._at}")

    def _sequence(self, opening: str, depth: int) -> Any:
        closing, items, comma = {"(": ")", "[": "]"}[opening], [], True
        while not self._take(closing):
            if not comma:
                raise ValueError("a comma is missing")
            items.append(self._value(depth + 1))
            comma = self._take(",")
        if opening == "(" and len(items) == 1 and not comma:
            return items[0]
        return tuple(items) if opening == "(" else items

    def _mapping(self, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        comma = True
        while not self._take("}"):
            key = self._value(depth + 1)
            if not comma or not isinstance(key, str) or key in items or not self._take(":"):
                raise ValueError("not a dictionary with each key once")
            items[key] = self._value(depth + 1)
            comma = self._take(",")
        return items
