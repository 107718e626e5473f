"""Prints mpired/__init__.pyi, from the rows of `mpired.options` and the functions of the API; `make docs` writes it.

What a collective returns depends on `output`, `in_place`, `split` and `group_b`: an overload for each.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence

import mpired
from mpired import options
from mpired.options import Group, keyword, rows

HEAD = """# Written by `make docs` from the table of options; do not edit.
# ruff: noqa: A002, I001 - names of options; in the order of the modules

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

import numpy as np

from mpired import datatypes as datatypes
from mpired import errors as errors
"""
TYPES = ("DatatypeLike", "EngineLike", "Index", "Indices", "MpiDatatype", "PathLike", "Rank", "Several")
ALIASES = """
_Ranks: TypeAlias = Several[Rank]
# Ranks whose results are arrays. Whether a file's is one, or a dict, is in the file: the type of that is `Any`.
_InMemory: TypeAlias = Several[np.ndarray]
_Yes: TypeAlias = Literal[True]
_No: TypeAlias = Literal[False]

__version__: str
"""
COLLECTIVES: dict[str, tuple[Group, str]] = {
    "reduce": (options.REDUCE, "{}"),
    "allreduce": (options.ALLREDUCE, "list[{}]"),
    "scan": (options.SCAN, "list[{}]"),
    "exscan": (options.EXSCAN, "list[{} | None]"),
    "reduce_scatter": (options.SCATTER, "list[{}]"),
    "reduce_scatter_block": (options.SCATTER_BLOCK, "list[{}]"),
}
"""The options of a collective, and what it returns of arrays."""
DECIDING = ("in_place", "split", "group_b")
"""The keywords that decide what a collective returns."""
OTHERS: dict[str, Group] = {
    "reduce_local": (*options.LOCAL, "progress"),
    "pack": (*options.PACK, "progress"),
    "unpack": (*options.UNPACK, "progress"),
    "info": options.INPUTS,
    "show": options.SHOW,
    "diff": (*options.DIFF, "progress"),
    "locate": (*options.LOCATE, "progress"),
    "recover": options.RECOVER,
}
WINDOW: dict[str, Group] = {
    "__init__": options.WINDOW,
    "accumulate": (*options.ACCUMULATE, "progress"),
    "get_accumulate": (*options.FETCH, "progress"),
    "fetch_and_op": options.FETCH_ELEMENT,
    "compare_and_swap": options.SWAP,
}
TWO_FORMS = {"pack": ("output", "PathLike"), "locate": ("top", "int")}
"""The keyword that decides between the two types that a function returns, and its type if it is given."""


def _keywords(name: str, group: Group, without: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the TypedDict of a call."""
    yield f"class _{name}(TypedDict, total=False):"
    for each, row in rows(group).items():
        if each not in without:
            yield f"    {each}: {row.static}"
    yield ""


def _function(name: str, parameters: Sequence[str], returned: str, *, overloads: bool = False) -> str:
    head = "@overload\n" if overloads else ""
    return f"{head}def {name}({', '.join(parameters)}) -> {returned}: ..."


def _collective(name: str) -> Iterator[str]:
    """Yield the overloads of a collective."""
    group, arrays = COLLECTIVES[name]
    title = f"{name.title().replace('_', '')}Options"
    deciding = [each for each in DECIDING if each in map(keyword, group)]
    # Of reduce the result is one, with a second group too.
    two = "group_b" in deciding and name != "reduce"
    yield from _keywords(title, (*group, "progress"), (*(d for d in deciding if two or d != "group_b"), "counts"))
    one, any_ops = "op: OpLike", "op: Ops" if name == "reduce" else "op: OpLike"  # whose results are a dict
    counts = ["counts: Sequence[int]"] if "counts" in group else []
    none, rest = "output: None = None", f"**options: Unpack[_{title}]"
    for groups in ("group_b: None = None", "group_b: _Ranks") if two else ("",):
        for ranks, array in (("_InMemory", "np.ndarray"), ("_Ranks", "Any")):
            returned = arrays.format(array).replace("Any | None", "Any")
            if groups == "group_b: _Ranks":
                returned = f"tuple[{returned}, {returned}]"
            op = one if ranks == "_InMemory" else any_ops
            given = [f"ranks: {ranks}", op, *counts, "*", none, "in_place: _No = False", *filter(None, [groups]), rest]
            yield _function(name, given, returned, overloads=True)
    either = ["group_b: _Ranks | None = None"] if two else []
    for given in (
        ["output: PathLike", "in_place: _No = False", "split: None = None", *either],
        [none, "in_place: _Yes", "split: None = None", *(["group_b: None = None"] if two else [])],
        [none, "in_place: _No = False", *either, "split: tuple[PathLike, PathLike]"],
    ):
        yield _function(name, ["ranks: _Ranks", any_ops, *counts, "*", *given, rest], "Summary", overloads=True)


def _written(function: Callable[..., object], group: Group) -> list[str]:
    """Return the parameters of a function that are not rows of a group."""
    found, shown = [], inspect.signature(function).parameters.values()
    table = rows(group)
    for each in shown:
        if each.name in table and each.kind is each.KEYWORD_ONLY:
            continue
        if each.kind is each.KEYWORD_ONLY and "*" not in found and not any(name.startswith("*") for name in found):
            found.append("*")
        star = "*" if each.kind is each.VAR_POSITIONAL else ""
        annotation = "" if each.annotation is each.empty else f": {each.annotation}"
        default = "" if each.default is each.empty else f" = {each.default!r}"
        found.append(f"{star}{each.name}{annotation}{default}")
    return found


def _other(name: str, group: Group) -> Iterator[str]:
    """Yield a function, or its two forms."""
    function = getattr(mpired, name)
    title = f"{name.title().replace('_', '')}Options"
    decides, given_type = TWO_FORMS.get(name, ("", ""))
    yield from _keywords(title, group, (decides,))
    returned = inspect.signature(function).return_annotation
    rest = f"**options: Unpack[_{title}]"
    if not decides:
        yield _function(name, [*_written(function, group), rest], returned)
        return
    written = [each for each in _written(function, group) if not each.startswith((f"{decides}:", "*"))]
    single = ["op: OpLike" if each == "op: Ops" else each for each in written]
    one, given, *several = returned.split(" | ")
    yield _function(name, [*single, "*", f"{decides}: None = None", rest], one, overloads=True)
    yield _function(name, [*single, "*", f"{decides}: {given_type}", rest], given, overloads=True)
    if several:  # for a list of ops
        listed = [each.replace("op: Ops", "op: list[str] | list[OpLike]") for each in written]
        given = f"{decides}: {given_type} | None = None"
        yield _function(name, [*listed, "*", given, rest], *several, overloads=True)


def _window() -> Iterator[str]:
    """Yield the class of windows."""
    for name, group in WINDOW.items():
        yield from _keywords(f"Window{name.strip('_').title().replace('_', '')}Options", group, ())
    yield "class Window:"
    yield "    paths: tuple[str, ...]"
    for name, group in WINDOW.items():
        function = getattr(mpired.Window, name)
        rest = f"**options: Unpack[_Window{name.strip('_').title().replace('_', '')}Options]"
        returned = inspect.signature(function).return_annotation
        yield f"    {_function(name, [*_written(function, group), rest], returned)}"


def main() -> None:
    """Print the stub."""
    functions = {*COLLECTIVES, *OTHERS, "Window"}
    print(HEAD, end="")
    for name, home in sorted(mpired._MODULES.items(), key=lambda each: (each[1], each[0])):  # noqa: SLF001 - ours
        if name not in functions:
            print(f"from {home} import {name} as {name}")
    print("from mpired.formats import RankFile\nfrom mpired.ops import OpLike, Ops")
    print(f"from mpired.options import {', '.join(TYPES)}")
    print("from mpired.queries.diff import Difference\nfrom mpired.queries.locate import Location")
    print(ALIASES)
    for name in COLLECTIVES:
        print(*_collective(name), sep="\n")
    for name, group in OTHERS.items():
        print(*_other(name, group), sep="\n")
    print(*_window(), sep="\n")


if __name__ == "__main__":
    main()
