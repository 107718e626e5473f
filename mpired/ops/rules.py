"""The ops of a call: which ops it names, by which rules they combine, and for which calls and datatypes they are.

MPI-4.1, 6.9.2, 12.3.4. The options become the rules of an op, or are refused with a reason.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mpired import mpi4py_objects
from mpired.datatypes import Datatype, Group, from_dtype
from mpired.datatypes.times import dtype_name
from mpired.errors import OpError, UnknownOpError, UsageError, UserOpError, number
from mpired.ops import table
from mpired.ops.identity import UserIdentity
from mpired.ops.op import Op, Use, ruled
from mpired.ops.table import COMPARE_AND_SWAP, ORDERED, STATISTICS, names_of, ops_for
from mpired.values import listed

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
    known = properties._asdict() | {
        "name": properties.name or op.name,
        "commute": bool(properties.commute if commute is None else commute),
        "identity": None if properties.identity is None else UserIdentity(properties.identity),
    }
    return op._replace(**known)


def resolve(op: OpLike, timeout: float | None = None, use: Use = Use.REDUCE) -> Op | None:
    """Return the op that a caller means; nothing of the user's is loaded yet. None for functions that are not known."""
    # Functions such as `sum` are of one array, so as ops they can mean nothing else than the predefined ones.
    if isinstance(op, Op):
        return op
    if isinstance(op, str) and op in _SYNONYMS:
        return _SYNONYMS[op]
    if use is Use.REDUCE and is_list(op):
        text = op if isinstance(op, str) else "`op`"
        raise UsageError(text, "is a list of ops, which `mpired reduce` and `mpired locate` take; name one op")
    if isinstance(op, str):
        return _of_text(op, timeout, use)
    if name := mpi4py_objects.op_name(op):
        return table.get(name)
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
    from mpired.ops import user  # noqa: PLC0415 - few ops are user-defined

    if library := re.fullmatch(_IN_LIBRARY, text, re.DOTALL):
        path, symbol, variant = library.groups(default="")
        if variant not in {"", ":count"}:
            raise UserOpError(text, f"has {variant!r} behind the symbol, where only :count can be")
        if "/" not in path:
            raise UserOpError(text, f"a library needs a path; write ./{text}")
        check_file(path, text)
        from mpired.ops import clibrary  # noqa: PLC0415 - only for a library

        load = clibrary.LargeCFunction if variant else clibrary.CFunction
        return table.user_op(text, user.UserKernel(f"{path}:{symbol}", load, path, timeout))
    home, _, name = text.rpartition(":")
    if not home or not name:
        raise UserOpError(text, "names no function; write FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION")
    if home.endswith(".c"):
        built = f"./{os.path.splitext(home)[0].removeprefix('./')}.so"
        hint = f"compile it with `gcc -O2 -shared -fPIC -o {built} {home}`, and use {built}:{name}"
        raise UserOpError(text, f"is C source; {hint}")
    path = home if home.endswith(".py") or "/" in home else ""  # "" for a module
    if path:
        check_file(path, text)
    elif home.isidentifier() and importlib.util.find_spec(home) is None:
        if os.path.isfile(f"{home}.py"):
            raise UserOpError(text, f"there is no module {home}; for the file write {home}.py:{name}")
        if hint := table.suggestion(home, (*table.OPS, *table.STATISTICS)):
            raise UnknownOpError(text, f"is not an MPI op, and there is no module {home}; {hint}")
    return table.user_op(text, user.UserKernel(text, user.load, path, timeout))


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
    """Return the chosen rules of ops in words, except that for NaN; rules of some ops with the names of these."""
    holders: dict[str, list[str]] = {}
    for op in ops:
        rules = op.rules
        overflow = {"wrap": "overflow expected", "error": "overflow refused"}.get(rules.overflow, "")
        words = {
            f"at {rules.quantile}": rules.quantile is not None,
            overflow: bool(overflow),
            f"{rules.missing} is missing": rules.missing is not None,
            f"computed in {_name(rules.accumulate_in)}": rules.accumulate_in is not None,
            f"converted to {_name(rules.result_type)}": rules.result_type is not None,
            "nulls left out": rules.nulls == "ignore",
            "nulls propagate": rules.nulls == "propagate",
            "rounded once": rules.exact,
            f"ddof {rules.ddof}": rules.ddof > 0,
            "weighted": bool(rules.weights),
        }
        for word in (word for word, is_chosen in words.items() if is_chosen):
            holders.setdefault(word, []).append(_label(op))
    return tuple(rule if len(names) == len(ops) else f"{rule} ({', '.join(names)})" for rule, names in holders.items())


def _name(datatype: Datatype | None) -> str | None:
    return None if datatype is None else dtype_name(datatype) or str(datatype)


PURPOSES = {
    "exact": "rounds a sum once",
    "accumulate_in": "computes in a wider datatype",
    "result_type": "converts results",
    "ddof": "is for variances",
    "weights": "is for weighted means",
}
"""The purposes of options that only some ops take."""
_DEFAULTS: Mapping[str, Any] = {"nan": "propagate", "nulls": "error", "ddof": 0, "exact": False}


def with_policies(op: Op, options: Mapping[str, Any], *, window: bool = False) -> Op:
    """Return an op with the rules that the options of a call choose; `window` for the elements of one."""
    chosen = {name: options[name] for name in _OPTIONS if options.get(name) not in (None, (), _DEFAULTS.get(name))}
    if not (chosen or window):
        return op
    if "missing" in chosen and math.isnan(chosen["missing"]):  # which is equal to nothing
        chosen |= {"nan": "ignore", "missing": None}
    if op.user:
        raise UsageError(f"`{next(iter(chosen))}`", f"is for predefined ops; {op} is user-defined")
    for name, purpose in PURPOSES.items():
        if name in chosen and name not in op.takes:
            raise UsageError(f"`{name}`", f"{purpose}, and the op is {op}; leave it out")
    if "exact" in chosen and "weights" in chosen:
        raise UsageError("`exact`", "is not for weighted means, whose terms are rounded; leave it or `weights` out")
    if "exact" in chosen and "accumulate_in" in chosen:
        raise UsageError("`exact`", "rounds once whatever the datatype; leave `accumulate_in` out")
    if chosen.get("nan") == "mpi" and op.mpi_kernel is None:
        raise UsageError("`nan='mpi'`", f"is for ops of MPI that see NaNs, and the op is {op}; leave it out")
    chosen |= {name: real_type(chosen[name]) for name in ("accumulate_in", "result_type") if name in chosen}
    return ruled(op, op.rules._replace(window=window, **chosen))


_OPTIONS = ("overflow", "nan", "nulls", "missing", *PURPOSES)


def real_type(name: str, option: str = "result_type") -> Datatype:
    """Return a predefined datatype of real numbers."""
    from mpired.datatypes.text.parse import parse  # noqa: PLC0415 - with it comes the grammar of derived datatypes

    datatype, _ = parse("long_double" if name == "longdouble" else name)
    if datatype.group not in Group.C_INTEGER | Group.FLOATING_POINT:
        reason = f"{datatype.label} is not a type of real numbers; name one, such as double or int64_t"
        raise UsageError(f"`{option}`", reason)
    return datatype


def widest(op: Op, datatypes: Sequence[Datatype], within: Datatype | None = None) -> Datatype | None:
    """Return the datatype that ranks of several become without loss for `accumulate_in`; None if there is none."""
    within = within or op.rules.accumulate_in
    if len({*datatypes}) == 1 and datatypes[0].group in op.groups:
        return datatypes[0]
    if within is None or not all(each.is_bool or each.group in _REAL for each in datatypes):
        return None
    forms = [np.dtype(np.bool_) if each.is_bool else each.form for each in datatypes]
    for form in (np.result_type(*forms), np.dtype(np.int64), within.form):  # a sum of truth values is an integer
        if all(has_values_of(form, each) for each in forms) and has_values_of(within.form, form):
            datatype = within if form == within.form else from_dtype(form)
            if datatype.group in op.groups:
                return datatype
    return None


_REAL = Group.C_INTEGER | Group.FORTRAN_INTEGER | Group.FLOATING_POINT


def has_values_of(wide: np.dtype, form: np.dtype) -> bool:
    """Return whether a form has each value of another one; NumPy takes a double for wider than 64 bits."""
    bits = np.iinfo(form).bits - (form.kind == "i") if form.kind in "iu" else 0
    return np.can_cast(form, wide) and not (wide.kind in "fc" and bits > np.finfo(wide).nmant + 1)


def holds(wide: Datatype, datatype: Datatype) -> bool:
    """Return whether a datatype of real numbers has each value of another one, of which true is 1."""
    if wide.group not in _REAL or not (datatype.is_bool or datatype.group in _REAL):
        return wide == datatype
    return has_values_of(wide.form, np.dtype(np.bool_) if datatype.is_bool else datatype.form)


def widening(op: Op, buffers: Sequence[Sequence[Datatype]]) -> str:
    """Return the name of a datatype in which an op can combine buffers of several datatypes each; "" for none."""
    for name in ("int64_t", "uint64_t", "double", "longdouble") if "accumulate_in" in op.takes else ():
        within = real_type(name)
        wide = [widest(op, datatypes, within) for datatypes in buffers]
        known = [each for each in wide if each is not None]
        results = [op.gives(each) for each in known] if op.gives else known
        is_real = within.form.kind == "f"
        if len(known) == len(wide) and (is_real or all(each.form.kind != "f" for each in results)):
            return name
    return ""


def check_rules(op: Op, datatypes: Sequence[Datatype], nranks: int) -> None:
    """Raise an error if the rules make no sense for elements of these datatypes, and `nranks` ranks."""
    rules = op.rules
    if rules.weights:
        if len(rules.weights) != nranks:
            values, ranks = number(len(rules.weights), "value"), number(nranks, "rank")
            raise UsageError("`weights`", f"has {values} for {ranks}; give one for each rank")
        if not math.fsum(rules.weights):
            raise UsageError("`weights`", "add up to 0, by which nothing can be divided")
    for datatype in datatypes:
        if rules.missing is not None:
            _check_missing(op, datatype, rules.missing)
        if rules.exact:
            _check_exact(op, datatype)
        if rules.accumulate_in is not None or rules.result_type is not None:
            _check_wide(op, datatype)


def null_refused(op: Op, datatype: Datatype, form: str, hint: str) -> UsageError:
    """Return the error for results that may be null in a format, or a file, that has nothing for that."""
    reason = f"may give nulls of {datatype.label}, for which {form} has no value; {hint}"
    return UsageError(f"`nulls={op.rules.nulls!r}`", f"{reason}, or say with `missing` which value stands for them")


def _check_missing(op: Op, datatype: Datatype, missing: float) -> None:
    if datatype.group in Group.COMPLEX | Group.BYTE | Group.CHARACTER | Group.DERIVED:
        raise UsageError("`missing`", f"is a real number, and elements are {datatype.label}; leave it out")
    form = datatype.parts[0].form if datatype.parts else datatype.form
    if not _holds(form, missing):
        reason = f"{missing} is not a value of {datatype.label}, so that no element is equal to it"
        raise UsageError("`missing`", reason)
    result = op.rules.result_type
    if result is not None and not _holds(result.form, missing):
        reason = f"{missing} is not a value of {result.label}, the type of the result; take another `result_type`"
        raise UsageError("`missing`", reason)


def _holds(form: np.dtype, number: float) -> bool:
    """Return whether numbers of a form can equal `number`."""
    return form.kind not in "iu" or (number % 1 == 0 and np.iinfo(form).min <= number <= np.iinfo(form).max)


def _check_exact(op: Op, datatype: Datatype) -> None:
    integer = datatype.group not in Group.FLOATING_POINT | Group.COMPLEX
    if integer and op.section:
        raise OpError(str(op), f"of {datatype.label} is exact unless it overflows; leave `exact` out")
    if not integer and "LONG_DOUBLE" in datatype.name:
        reason = f"of {datatype.label} is not rounded once: NumPy has no wider arithmetic; leave `exact` out"
        raise OpError(str(op), reason)


def _check_wide(op: Op, datatype: Datatype) -> None:
    within, result = op.rules.accumulate_in, op.rules.result_type
    rounded = datatype.group in Group.FLOATING_POINT | Group.COMPLEX
    for option, wide in (("accumulate_in", within), ("result_type", result)):
        if wide is None:
            continue
        if datatype.group in Group.PAIR | Group.COMPLEX:
            raise UsageError(f"`{option}`", f"is for real numbers, and elements are {datatype.label}; leave it out")
        if (rounded or (op.gives and op.gives(datatype).form.kind == "f")) and wide.form.kind != "f":
            reason = f"{wide.label} would round {op} of {datatype.label} to integers; use double"
            raise UsageError(f"`{option}`", reason)


def check_buffers(op: Op, buffers: Iterable[tuple[str, Datatype]], use: Use, offers: Collection[str] = ()) -> None:
    """Let a legal request pass on buffers, which have names if they are columns; the one gate before any writing."""
    # `offers` are the options that may be a way out of it.
    if use not in op.uses:
        raise wrong_use(op, use)
    taken: list[str] = []
    others: list[str] = []
    refused: list[OpError] = []
    for name, datatype in buffers:
        if datatype.group in op.groups and (not op.datatypes or str(datatype) in op.datatypes):
            taken.append(name)
        else:
            refused.append(_refusal(op, datatype, use, f"{name!r}, " if name else "", offers))
            others.append(name)
    if refused:
        hint = f"; choose with `columns='{listed(taken)}'`" if taken else ""
        hint += f", and carry the others with `keep='{listed(others)}'`" if hint and "keep" in offers else ""
        raise OpError(refused[0].subject, f"{refused[0].reason}{hint}")


def _refusal(op: Op, datatype: Datatype, use: Use, where: str, offers: Collection[str]) -> OpError:
    """Return the error for a datatype that an op is not defined on; `where` is put before it."""
    if op.datatypes and str(datatype) not in op.datatypes:
        return OpError(str(op), f"is not defined for {where}{datatype.label}; it takes {', '.join(op.datatypes)}")
    rows = [*ops_for(use), *(STATISTICS if use is Use.REDUCE else ())]
    others = [row for row in rows if datatype.group in row.groups]
    hint = f"{datatype.label} takes {names_of(others)}" if others else f"{datatype.label} takes no predefined op"
    if datatype.is_bool and use is not Use.FETCH and (wide := widening(op, [[datatype]])):
        # A file that is changed has no place for numbers.
        way = f"with `accumulate_in={wide!r}`" if "accumulate_in" in offers else in_new_file(op, wide)
        hint = f"take true as 1 {way}; {hint}"
    if op.name == COMPARE_AND_SWAP.name:
        hint = f"`mpired fetch-and-op` takes {datatype.label}"
    if datatype.group is Group.DERIVED:
        takes, hint = "takes user-defined ops only (MPI-4.1, 6.9.2)", "`op='FILE.py:FUNCTION'`, or "
        if use is not Use.REDUCE:
            takes, hint = "no one-sided call takes it (MPI-4.1, 12.3.4)", ""
        hint = f"{datatype} is derived, and {takes}; use {hint}numbers out of it by `mpired pack`"
    if op.groups == Group.PAIR:
        is_paired = "index" in offers and datatype.group in ORDERED
        ways = ["`index='rank'` makes pairs of plain values"] if is_paired else []
        if where or not ways:
            ways.append(_to_pairs(datatype, use, is_column=bool(where)))
        hint = "; ".join([*ways, hint])
    what = f"{where}{datatype.label}, {datatype.group.title}"
    return OpError(str(op), f"is not defined for {what}; it takes {op.groups.title}; {hint}")


def in_new_file(op: Op, wide: str) -> str:
    """Return how an op is computed in a wider datatype, which a file that is changed does not get."""
    return f"in a new file by `mpired reduce --op {_label(op).replace('_', ':')} --accumulate-in {wide}`"


def _to_pairs(datatype: Datatype, use: Use, *, is_column: bool) -> str:
    """Return how an op on pairs gets some."""
    if is_column:
        hint = "structures of a value and an index are pairs"
        return f"{hint}, and `pair='VALUE,INDEX'` makes them of two columns" if use is Use.REDUCE else hint
    code = datatype.form.str[1:] if datatype.group in ORDERED else "f8"
    return f"an array with the dtype [('value', '{code}'), ('index', 'i8')] holds pairs"


def wrong_use(op: Op, use: Use) -> OpError:
    """Return the error for an op that is not for this family of calls."""
    names = {Use.REDUCE: "reductions", Use.ACCUMULATE: "accumulate", Use.FETCH: "fetch"}
    calls = " and ".join(name for each, name in names.items() if each in op.uses)
    return OpError(str(op), f"is for {calls} only (MPI-4.1, 12.3.4); use one of {names_of(ops_for(use))}")
