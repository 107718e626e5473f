"""The signatures of the Python API: keywords from the table of options, other arguments, and results as arrays."""

from __future__ import annotations

import contextlib
import difflib
import functools
import glob
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from mpired import interrupts
from mpired.context import Context
from mpired.datatypes import TIMES, Datatype
from mpired.datatypes.dtypes import as_times
from mpired.errors import MpiredError, UsageError
from mpired.files.urls import signed
from mpired.formats import Array
from mpired.formats.convert import in_form, same_layout
from mpired.formats.memory import ArrayRank, OpenFile, RankObject
from mpired.formats.missing import masked
from mpired.log import log_steps, no_progress, progress_from
from mpired.options import Group, Option, checked, keyword, rows
from mpired.ranks.order import RankArgument

_F = TypeVar("_F", bound=Callable[..., Any])
_RAISES = """\
Raises
------
mpired.errors.MpiredError
    If the request breaks a rule of MPI, a file is not usable, or its lock is not free; the class says which. Nothing
    has changed, except after an `UnconfirmedError`.
OSError
    If the operating system reports an error."""


def with_options(*group: str) -> Callable[[_F], _F]:
    """Give a function the options of a group in the place of its `**options`.

    The signature and the docstring of the function get a parameter for each option, and the docstring gets the errors
    that all functions raise. A call with an unknown keyword raises `TypeError` with a suggestion.
    """
    return functools.partial(_with_options, group)


def _with_options(group: Group, function: _F) -> _F:
    signature = inspect.signature(function)
    parameters = signature.parameters
    table = {name: row for name, row in rows(group).items() if name not in parameters}
    keys = tuple(key for key in group if keyword(key) in table)
    shown = [item for item in parameters.values() if item.name != "context" and item.kind is not item.VAR_KEYWORD]
    shown = [item if item.name == "self" else item.replace(annotation=_TypeText(item.annotation)) for item in shown]
    flags = {item.name: "" for item in shown if item.name != "self" and item.kind is not item.VAR_POSITIONAL}
    flags |= {name: row.flags or "" for name, row in table.items()}
    for name, row in table.items():
        default = inspect.Parameter.empty if row.required else row.default
        kind, static = inspect.Parameter.KEYWORD_ONLY, _TypeText(row.static)
        shown.append(inspect.Parameter(name, kind, default=default, annotation=static))

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True  # IPython and pytest leave such frames out
        for name, value in keywords.items():
            if name not in flags:
                title = function.__qualname__.removesuffix(".__init__")
                raise TypeError(f"{title}() has no keyword {name!r}; {_suggestion(name, flags)}")
            keywords[name] = _hide_queries(value)
        record: dict[str, Any] = {}
        if keywords.get("provenance"):
            values = {name: repr(value) for name, value in keywords.items()}
            record = {"call": f"mpired.{function.__qualname__}", "keywords": values}
        with interrupts.HoldInterrupt() as end, log_steps():
            try:
                # A window has options for all its calls.
                options = {**getattr(arguments[0], "_options", {}), **keywords} if "self" in parameters else keywords
                keywords |= checked(keys, options)
                show = keywords.pop("progress", None)
                if "context" in parameters:
                    progress = no_progress if show is None else progress_from(show)
                    keywords["context"] = Context.of(keywords, progress=progress, record=record)
                result = function(*_hide_queries(arguments), **keywords)
            except (MpiredError, OSError) as error:  # an error of the caller, which frames of mpired do not explain
                raise error.with_traceback(None)  # noqa: B904 - as it is
        del end
        return result

    returned = _TypeText(signature.return_annotation)
    call.__signature__ = signature.replace(parameters=shown, return_annotation=returned)  # type: ignore[attr-defined]
    call.__doc__ = _with_parameters(inspect.cleandoc(function.__doc__ or ""), table)
    return cast("_F", call)


def _with_parameters(docstring: str, table: Mapping[str, Option]) -> str:
    """Return a docstring with a parameter for each option and, unless it has some, with the errors of all functions."""
    head, *sections = re.split(r"\n\n(?=\w+\n---)", docstring)
    titles = [section.partition("\n")[0] for section in sections]
    if "Parameters" in titles:
        for name, row in table.items():
            choices = f" One of {', '.join(map(repr, row.kind.words))}." if row.kind.words else ""
            default = "" if row.default is None else f", default {row.default!r}"
            flag = f" ({row.long_flags[0]})" if row.flags else ""
            body = textwrap.indent(textwrap.fill(f"{row.help}{choices}{flag}", 96), "    ")
            sections[0] += f"\n{name}{default}\n{body}"
        if "Raises" not in titles:
            sections.insert(2 if "Returns" in titles else 1, _RAISES)
    return "\n\n".join([head, *sections])


def _hide_queries(value: Any) -> Any:
    """Return an argument with URLs whose queries messages do not show; a list or tuple is copied."""
    if isinstance(value, str):
        return signed(value) if "://" in value else value
    return type(value)(map(_hide_queries, value)) if type(value) in {list, tuple} else value


class _TypeText(str):
    """A type that `help` shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _suggestion(name: str, flags: Mapping[str, str]) -> str:
    """Return a hint with the keywords that have this name as a flag or a similar name, or else with all keywords."""
    flag = f"--{name.strip('_').replace('_', '-')}"
    close = [candidate for candidate, own_flags in flags.items() if flag in own_flags.split()]
    close = close or difflib.get_close_matches(name, flags, n=2)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"the keywords are {', '.join(flags)}"


def as_rank(rank: object, name: str) -> RankArgument:
    """Convert a rank of a Python call to a path or a rank object; `name` is its name in messages."""
    if isinstance(rank, str | os.PathLike):
        return os.fsdecode(rank)
    if isinstance(rank, RankObject):
        return rank
    if isinstance(rank, np.ndarray):
        return ArrayRank(f"array of {name}", rank)
    if hasattr(rank, "read"):
        file, path = OpenFile(f"open file of {name}", rank), getattr(rank, "name", None)
        with contextlib.suppress(AttributeError, OSError, TypeError, ValueError):
            if isinstance(path, str | bytes) and os.path.samestat(os.stat(path), os.fstat(cast("Any", rank).fileno())):
                file.path = file.name = os.fsdecode(path)
        return file
    kind = type(rank).__name__
    reason = f"is of the type {kind}; a rank is the path of a file, an array, or a file that is open as bytes"
    raise UsageError(name, reason)


def as_path(path: object, name: str) -> str:
    """Convert the path of a Python call to a string; `name` is the name of the parameter."""
    if isinstance(path, str | os.PathLike):
        return os.fsdecode(path)
    raise UsageError(f"`{name}`", f"is of the type {type(path).__name__}; give the path of a file, such as 'a.npy'")


def as_ranks(ranks: object, option: str = "ranks", rank_name: str = "rank {}") -> Sequence[RankArgument]:
    """Convert the ranks of a Python call to paths and rank objects."""
    if isinstance(ranks, str | bytes | os.PathLike):
        path = os.fsdecode(ranks)
        hint = f"sorted(glob.glob({path!r}))" if glob.has_magic(path) else "a list of paths, one per rank"
        raise UsageError(option, f"is one path; give {hint}")
    if isinstance(ranks, np.ndarray) or hasattr(ranks, "read"):
        kind = "array" if isinstance(ranks, np.ndarray) else "open file"
        raise UsageError(option, f"is one {kind}; give a list, one a rank")
    try:
        items = list(ranks)  # type: ignore[call-overload]
    except TypeError:
        reason = f"is of the type {type(ranks).__name__}; give a list of paths, arrays or open files"
        raise UsageError(option, reason) from None
    arguments: list[RankArgument] = []
    for number, item in enumerate(items):
        argument = item if isinstance(item, str) else as_rank(item, rank_name.format(number))
        if isinstance(argument, str) and "://" in argument:
            argument = signed(argument)
        elif isinstance(item, str) and glob.has_magic(item) and not os.path.lexists(item):
            raise UsageError(item, f"is a pattern, and there is no such file; use sorted(glob.glob({item!r}))")
        arguments.append(argument)
    return arguments


def shaped(
    result: Array,
    shape: tuple[int, ...] | None,
    *,
    fortran_order: bool,
    form: np.dtype | None = None,  # the form of structures in the rank
) -> np.ndarray:
    """Read a result into a new array, which is masked if nulls are allowed."""
    block = np.empty(result.count, result.datatype.form)
    with contextlib.closing(result.open()) as reader:
        valid = reader.read(0, block)
    mask = None if valid is None else ~valid
    return in_shape(as_numpy(block, result.datatype, form), mask, shape, fortran_order=fortran_order)


def in_shape(
    elements: np.ndarray, mask: np.ndarray | None, shape: tuple[int, ...] | None, *, fortran_order: bool
) -> np.ndarray:
    """Return elements in a shape, or with one dimension if it is None; with a mask, a masked array."""
    order: Any = "F" if fortran_order else "C"
    shape = elements.shape if shape is None else shape
    elements = elements.reshape(shape, order=order)
    return elements if mask is None else masked(elements, mask.reshape(shape, order=order))


def as_numpy(block: np.ndarray, datatype: Datatype, form: np.dtype | None) -> np.ndarray:
    """Return elements with the dtype of a NumPy program: bool, datetime64, or the form of the rank's structures."""
    if datatype.is_bool:
        return block.astype(bool)
    if datatype.group in TIMES:
        return as_times(block, datatype)
    if form is None or form == block.dtype:
        return block
    return block.view(form) if same_layout(form, datatype) else in_form(block, form)
