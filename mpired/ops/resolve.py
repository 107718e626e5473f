"""The op, or the ops, of a call: predefined, or user-defined and still to be loaded; and their names for results."""

from __future__ import annotations

import importlib.util
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from mpired import mpi4py_objects
from mpired.errors import OpError, UnknownOpError, UsageError, UserOpError
from mpired.ops import table
from mpired.ops.identity import UserIdentity
from mpired.ops.op import Op, Use

if TYPE_CHECKING:  # few ops are user-defined
    from mpired.ops import user

_FILE = r".*(\.py|\.so(\.\d+)*)|.*/.*"
_IN_LIBRARY = r"(?P<path>.*\.so(?:\.\d+)*):(?P<symbol>[^:]+)(?P<variant>:[^:]*)?"


OpLike: TypeAlias = str | Op | Callable[..., Any]
"""An op in Python: its name or place, a predefined op, or a function."""
Ops: TypeAlias = OpLike | Sequence[OpLike]
"""An op, or several: a list, or their names with commas between them."""


_SYNONYMS = {f"{each.__module__}:{each.__name__}": op for op in table.OPS for each in op.synonyms}
_SYNONYMS |= {op.name.lower(): op for op in (*table.OPS, *table.STATISTICS) if op.name != "QUANTILE"}


def of_function(function: Callable[..., Any], *, commute: bool | None = None) -> Op:
    """Return the op of a function of this process, for the Python API."""
    from mpired.ops import user  # noqa: PLC0415 - few ops are user-defined

    found = user.as_op(function, user.function_name(function))
    op = table.user_op(found.place, user.UserKernel(found.place, lambda _: found, isolated=False))
    return with_properties(op, found.properties, commute=commute)


def with_properties(op: Op, properties: user.Properties, *, commute: bool | None = None) -> Op:
    """Return a user-defined op with its properties; `commute` goes before its own."""
    chosen = properties.commute if commute is None else commute
    identity = None if properties.identity is None else UserIdentity(properties.identity)
    return op._replace(
        name=properties.name or op.name,
        commute=bool(chosen),
        datatypes=properties.datatypes,
        identity=identity,
        doc=properties.doc,
    )


def resolve(op: OpLike, timeout: float | None = None, use: Use = Use.REDUCE) -> Op | None:
    """Return the op that a caller means; nothing of the user's is loaded yet. None for functions that are not known."""
    # Functions such as `sum` are of one array, so as ops they can mean nothing else than the predefined ones.
    if isinstance(op, str):
        return _SYNONYMS.get(op) or _of_text(op, timeout, use)
    if isinstance(op, Op):
        return op
    try:
        if name := mpi4py_objects.op_name(op):
            return table.get(name)
    except mpi4py_objects.NotExactError as error:
        raise OpError("`op`", str(error)) from None
    return next((row for row in (*table.OPS, *table.STATISTICS) if any(op is each for each in row.synonyms)), None)


def _of_text(text: str, timeout: float | None, use: Use) -> Op:
    """Return the op that a text names."""
    if ":" in text and not table.named(text):
        if use is not Use.REDUCE:
            raise OpError(text, "user-defined ops are for reductions only (MPI-4.1, 12.3.4); use a predefined op")
        return _at_place(text, timeout)
    try:
        return table.get(text, use)
    except UnknownOpError:
        from mpired.ops import user  # noqa: PLC0415 - as above

        points = user.entry_points().get(text, [])
        if len(points) > 1:
            raise UserOpError(text, user.ambiguity(points)) from None
        if points:
            return table.user_op(text, user.UserKernel(text, user.load, timeout=timeout))
        if re.fullmatch(_FILE, text, re.DOTALL):
            raise UnknownOpError(text, f"is the name of a file, not of an op; write {text}:FUNCTION") from None
        if numpys := re.fullmatch(r"(?:np|numpy)\.(\w+(?:\.\w+)*)", text):
            raise UnknownOpError(text, f"is not an op; write numpy:{numpys[1]}") from None
        raise


def _at_place(text: str, timeout: float | None) -> Op:
    """Return the op at a place: in a library, a Python file or a module."""
    if library := re.fullmatch(_IN_LIBRARY, text, re.DOTALL):
        path, symbol, variant = library.groups(default="")
        if variant not in {"", ":count"}:
            raise UserOpError(text, f"has {variant!r} behind the symbol, where only :count can be")
        if "/" not in path:
            raise UserOpError(text, f"a library needs a path; write ./{text}")
        check_file(path, text)
        from mpired.ops import clibrary, user  # noqa: PLC0415 - only for a library

        load = clibrary.LargeCFunction if variant else clibrary.CFunction
        return table.user_op(text, user.UserKernel(f"{path}:{symbol}", load, path, timeout))
    home, _, name = text.rpartition(":")
    if not home or not name:
        raise UserOpError(text, "names no function; write FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION")
    from mpired.ops import user  # noqa: PLC0415 - as above

    if home.endswith(".c"):
        built = f"./{os.path.splitext(home)[0].removeprefix('./')}.so"
        way_out = f"compile it with `gcc -O2 -shared -fPIC -o {built} {home}`, and use {built}:{name}"
        raise UserOpError(text, f"is C source; {way_out}")
    if user.is_file(home):
        check_file(home, text)
    elif os.path.isfile(f"{home}.py") and importlib.util.find_spec(home) is None:
        raise UserOpError(text, f"there is no module {home}; for the file write {home}.py:{name}")
    path = home if user.is_file(home) else ""
    return table.user_op(text, user.UserKernel(text, user.load, path, timeout))


def file_of(text: str) -> str | None:
    """Return the file that an op is read from; None if it is from none that its text names."""
    home = text.rpartition(":")[0]
    if not home:
        return None
    if library := re.fullmatch(_IN_LIBRARY, text, re.DOTALL):
        return library["path"]
    from mpired.ops import user  # noqa: PLC0415 - as above

    return home if user.is_file(home) else None


def check_file(path: str, text: str) -> None:
    """Raise `UserOpError` about `text` unless there is a regular file at `path`."""
    if not os.path.exists(path):
        raise UserOpError(text, "the file does not exist; check its path")
    if not os.path.isfile(path):
        raise UserOpError(text, f"{path} is not a regular file")


def is_list(op: Ops) -> bool:
    """Return whether a caller gives several ops, or a list of one."""
    if not isinstance(op, str):
        return isinstance(op, Sequence) and not isinstance(op, Op)
    home, _, function = op.rpartition(":")
    return "," in op and ("," in function or not os.path.isfile(home))  # the name of a file may have a comma


def each_of(op: Ops) -> list[OpLike]:
    """Return the ops that a caller gives."""
    named: Any = [op] if not is_list(op) else map(str.strip, op.split(",")) if isinstance(op, str) else op
    if not (named := [*named]):
        raise UsageError("`op`", "has no op; name one at least")
    return [*named]


def labels(ops: Sequence[Op]) -> list[str]:
    """Return what the result of each op is called, in names of arrays and files: a function by its own name."""
    found = [_label(op) for op in ops]
    twice = next((label for label, count in Counter(found).items() if count > 1), None)
    if twice is not None:
        reason = f"has two ops whose results would be named {twice!r}; leave one out, or combine in two calls"
        raise UsageError("`op`", reason)
    return found


def _label(op: Op) -> str:
    if op.user:
        name = op.name.removesuffix(":count").rpartition(":")[2]
        return re.sub(r"\W+", "_", name).strip("_")
    return op.name.lower() + ("" if op.rules.quantile is None else f"_{op.rules.quantile}")


def summary(ops: Sequence[Op]) -> tuple[str, ...]:
    """Return the rules of ops in words; those that not all have with the ops that have them."""
    holders: dict[str, list[str]] = {}
    for op in ops:
        for rule in op.rules.summary():
            holders.setdefault(rule, []).append(_label(op))
    return tuple(rule if len(names) == len(ops) else f"{rule} ({', '.join(names)})" for rule, names in holders.items())
