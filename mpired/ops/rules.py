"""The ops of a call: from names and options to ops with rules, and their checks (MPI-4.1, 6.9.2, 12.3.4).

An op is resolved by its name, gets its rules from the options of the call, and is checked against the datatypes of the
elements and against the family of the call.
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
from mpired.errors import OpError, UnknownOpError, UsageError, UserOpError, number
from mpired.ops import table
from mpired.ops.op import Op, Use, ruled
from mpired.ops.table import COMPARE_AND_SWAP, ORDERED, STATISTICS, UserIdentity, names_of, ops_for
from mpired.values import listed

if TYPE_CHECKING:  # few ops are user-defined
    from mpired.ops import user

_FILE = r".*(\.py|\.so(\.\d+)*)|.*/.*"
_IN_LIBRARY = r"(?P<path>.*\.so(?:\.\d+)*):(?P<symbol>[^:]+)(?P<variant>:[^:]*)?"


OpLike: TypeAlias = str | Op | Callable[..., Any]
"""An op of a Python call: its name or place, a predefined op, or a function."""
Ops: TypeAlias = OpLike | Sequence[OpLike]
"""One or more ops: an op, a list of ops, or names with commas between them."""

_SYNONYMS = {f"{synonym.__module__}:{synonym.__name__}": op for op in table.OPS for synonym in op.synonyms}
_SYNONYMS |= {op.name.lower(): op for op in (*table.OPS, *table.STATISTICS) if op.name != "QUANTILE"}


def op_of_function(function: Callable[..., Any], *, commute: bool | None = None) -> Op:
    """Return the op of a function of this process."""
    from mpired.ops import user  # noqa: PLC0415 - few ops are user-defined

    code = user.as_op(function)
    op = table.user_op(code.place, user.UserKernel(code.place, lambda _: code, isolated=False))
    return with_properties(op, code.properties, commute=commute)


def with_properties(op: Op, properties: user.Properties, *, commute: bool | None = None) -> Op:
    """Return a user-defined op with its properties; `commute` overrides that of the properties."""
    fields = properties._asdict() | {
        "name": properties.name or op.name,
        "commute": bool(properties.commute if commute is None else commute),
        "identity": None if properties.identity is None else UserIdentity(properties.identity),
    }
    return op._replace(**fields)


def resolve(op: OpLike, timeout: float | None = None, use: Use = Use.REDUCE) -> Op | None:
    """Return the op of a call without loading user-defined code; None for a function that is not a synonym."""
    # Functions such as `sum` take one array, so that they cannot be user-defined ops.
    if isinstance(op, Op):
        return op
    if isinstance(op, str) and op in _SYNONYMS:
        return _SYNONYMS[op]
    if use is Use.REDUCE and is_list(op):
        text = op if isinstance(op, str) else "`op`"
        raise UsageError(text, "is a list of ops, which `mpired reduce` and `mpired locate` take; name one op")
    if isinstance(op, str):
        return _op_of_text(op, timeout, use)
    if name := mpi4py_objects.op_name(op):
        return table.get(name)
    rows = (*table.OPS, *table.STATISTICS)
    return next((row for row in rows if any(op is function for function in row.synonyms)), None)


def _op_of_text(text: str, timeout: float | None, use: Use) -> Op:
    """Return the op with a name or place."""
    if ":" in text and not table.named(text):
        if use is not Use.REDUCE:
            raise OpError(text, "user-defined ops are for reductions only (MPI-4.1, 12.3.4); use a predefined op")
        return _op_at_place(text, timeout)
    try:
        return table.get(text, use)
    except UnknownOpError:
        from mpired.ops import user  # noqa: PLC0415 - few ops are user-defined

        points = user.entry_points().get(text, [])
        if len(points) > 1:
            raise UserOpError(text, user.ambiguity(points)) from None
        if points:
            return table.user_op(text, user.UserKernel(text, user.load, timeout=timeout))
        if re.fullmatch(_FILE, text, re.DOTALL):
            raise UnknownOpError(text, f"is the name of a file, not of an op; write {text}:FUNCTION") from None
        if function := re.fullmatch(r"(?:np|numpy)\.(\w+(?:\.\w+)*)", text):
            raise UnknownOpError(text, f"is not an op; write numpy:{function[1]}") from None
        raise


def _op_at_place(text: str, timeout: float | None) -> Op:
    """Return the op at a place: in a library, a Python file or a module."""
    from mpired.ops import clibrary, user  # noqa: PLC0415 - few ops are user-defined

    if library := re.fullmatch(_IN_LIBRARY, text, re.DOTALL):
        path, symbol, variant = library.groups(default="")
        if variant not in {"", ":count"}:
            raise UserOpError(text, f"has {variant!r} behind the symbol, where only :count can be")
        if "/" not in path:
            raise UserOpError(text, f"a library needs a path; write ./{text}")
        check_file(path, text)
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
    """Raise a `UserOpError` with the subject `text` unless `path` is a regular file."""
    if not os.path.exists(path):
        raise UserOpError(text, "the file does not exist; check its path")
    if not os.path.isfile(path):
        raise UserOpError(text, f"{path} is not a regular file")


def is_list(op: Ops) -> bool:
    """Return whether a call has a list of ops, of any length."""
    if not isinstance(op, str):
        return isinstance(op, Sequence) and not isinstance(op, Op)
    home, _, function = op.rpartition(":")
    return "," in op and ("," in function or not os.path.isfile(home))  # the name of a file may have a comma


def split_ops(op: Ops) -> list[OpLike]:
    """Return the ops of a call as a list."""
    items: Any = [op] if not is_list(op) else map(str.strip, op.split(",")) if isinstance(op, str) else op
    if not (ops := [*items]):
        raise UsageError("`op`", "has no op; name one at least")
    return ops


def labels(ops: Sequence[Op]) -> list[str]:
    """Return the name of the result of each op for arrays and files; a user-defined op has the name of its function."""
    names = [_label(op) for op in ops]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        reason = f"has two ops whose results would be named {twice!r}; leave one out, or combine in two calls"
        raise UsageError("`op`", reason)
    return names


def _label(op: Op) -> str:
    if op.user:
        name = op.name.removesuffix(":count").rpartition(":")[2]
        return re.sub(r"\W+", "_", name).strip("_")
    return op.name.lower() + ("" if op.rules.quantile is None else f"_{op.rules.quantile}")


def summary(ops: Sequence[Op]) -> tuple[str, ...]:
    """Return descriptions of the rules in use, except that for NaN; a rule of some ops is followed by their names."""
    names_by_rule: dict[str, list[str]] = {}
    for op in ops:
        rules, wide, result = op.rules, op.rules.accumulate_in, op.rules.result_type
        descriptions = (
            rules.quantile is not None and f"at {rules.quantile}",
            {"wrap": "overflow expected", "error": "overflow refused"}.get(rules.overflow),
            rules.missing is not None and f"{rules.missing} is missing",
            wide and f"computed in {wide.numpy_name or wide}",
            result and f"converted to {result.numpy_name or result}",
            {"ignore": "nulls left out", "propagate": "nulls propagate"}.get(rules.nulls),
            rules.exact and "rounded once",
            rules.ddof > 0 and f"ddof {rules.ddof}",
            rules.weights and "weighted",
        )
        for description in filter(None, descriptions):
            names_by_rule.setdefault(str(description), []).append(_label(op))
    return tuple(
        rule if len(names) == len(ops) else f"{rule} ({', '.join(names)})" for rule, names in names_by_rule.items()
    )


PURPOSES = {
    "exact": "rounds a sum once",
    "accumulate_in": "computes in a wider datatype",
    "result_type": "converts results",
    "ddof": "is for variances",
    "weights": "is for weighted means",
}
"""Effects of the options that only some ops take."""
_DEFAULTS: Mapping[str, Any] = {"nan": "propagate", "nulls": "error", "ddof": 0, "exact": False}


def with_rules(op: Op, options: Mapping[str, Any], *, window: bool = False) -> Op:
    """Return an op with the rules of the options of a call; `window` is true for a one-sided call."""
    names = ("overflow", "nan", "nulls", "missing", *PURPOSES)
    rules = {name: options[name] for name in names if options.get(name) not in (None, (), _DEFAULTS.get(name))}
    if not (rules or window):
        return op
    if "missing" in rules and math.isnan(rules["missing"]):  # no value equals NaN
        rules |= {"nan": "ignore", "missing": None}
    if op.user:
        raise UsageError(f"`{next(iter(rules))}`", f"is for predefined ops; {op} is user-defined")
    for name, purpose in PURPOSES.items():
        if name in rules and name not in op.takes:
            raise UsageError(f"`{name}`", f"{purpose}, and the op is {op}; leave it out")
    if "exact" in rules and "weights" in rules:
        raise UsageError("`exact`", "is not for weighted means, whose terms are rounded; leave it or `weights` out")
    if "exact" in rules and "accumulate_in" in rules:
        raise UsageError("`exact`", "rounds once whatever the datatype; leave `accumulate_in` out")
    if rules.get("nan") == "mpi" and op.mpi_kernel is None:
        raise UsageError("`nan='mpi'`", f"is for ops of MPI that see NaNs, and the op is {op}; leave it out")
    rules |= {name: real_type(rules[name]) for name in ("accumulate_in", "result_type") if name in rules}
    return ruled(op, op.rules._replace(window=window, **rules))


def real_type(name: str, option: str = "result_type") -> Datatype:
    """Return the predefined datatype of real numbers with a name."""
    from mpired.datatypes.text import parse  # noqa: PLC0415 - it loads the derived datatypes

    datatype, _ = parse("long_double" if name == "longdouble" else name)
    if datatype.group not in Group.C_INTEGER | Group.FLOATING_POINT:
        reason = f"{datatype.label} is not a type of real numbers; name one, such as double or int64_t"
        raise UsageError(f"`{option}`", reason)
    return datatype


def widest(op: Op, datatypes: Sequence[Datatype], wide: Datatype | None = None) -> Datatype | None:
    """Return the datatype to which the datatypes of the ranks convert without loss; None if there is none."""
    wide = wide or op.rules.accumulate_in
    if len({*datatypes}) == 1 and datatypes[0].group in op.groups:
        return datatypes[0]
    if wide is None or not all(datatype.is_bool or datatype.group in _REAL for datatype in datatypes):
        return None
    forms = [np.dtype(np.bool_) if datatype.is_bool else datatype.form for datatype in datatypes]
    for form in (np.result_type(*forms), np.dtype(np.int64), wide.form):  # a sum of truth values is an integer
        if all(has_values_of(form, narrow) for narrow in forms) and has_values_of(wide.form, form):
            datatype = wide if form == wide.form else from_dtype(form)
            if datatype.group in op.groups:
                return datatype
    return None


_REAL = Group.C_INTEGER | Group.FORTRAN_INTEGER | Group.FLOATING_POINT


def has_values_of(wide: np.dtype, form: np.dtype) -> bool:
    """Return whether a form has each value of another form; NumPy casts integers of 64 bits to double."""
    bits = np.iinfo(form).bits - (form.kind == "i") if form.kind in "iu" else 0
    return np.can_cast(form, wide) and not (wide.kind in "fc" and bits > np.finfo(wide).nmant + 1)


def holds(wide: Datatype, datatype: Datatype) -> bool:
    """Return whether a datatype of real numbers has each value of another datatype, with true as 1."""
    if wide.group not in _REAL or not (datatype.is_bool or datatype.group in _REAL):
        return wide == datatype
    return has_values_of(wide.form, np.dtype(np.bool_) if datatype.is_bool else datatype.form)


def widening(op: Op, buffers: Sequence[Sequence[Datatype]]) -> str:
    """Return a datatype for `accumulate_in` with which an op combines buffers of several datatypes; "" for none."""
    for name in ("int64_t", "uint64_t", "double", "longdouble") if "accumulate_in" in op.takes else ():
        wide = real_type(name)
        common = [datatype for datatypes in buffers if (datatype := widest(op, datatypes, wide)) is not None]
        results = [op.gives(datatype) for datatype in common] if op.gives else common
        is_real = wide.form.kind == "f"
        if len(common) == len(buffers) and (is_real or all(result.form.kind != "f" for result in results)):
            return name
    return ""


def check_rules(op: Op, datatypes: Sequence[Datatype], nranks: int) -> None:
    """Check the rules of an op against the datatypes of the elements and the number of ranks."""
    rules = op.rules
    if rules.weights:
        if len(rules.weights) != nranks:
            values, ranks = number(len(rules.weights), "value"), number(nranks, "rank")
            raise UsageError("`weights`", f"has {values} for {ranks}; give one for each rank")
        try:
            if not math.fsum(rules.weights):
                raise UsageError("`weights`", "add up to 0, by which nothing can be divided")
        except OverflowError:
            reason = "add up to more than a double holds; divide all by one number"
            raise UsageError("`weights`", reason) from None
    for datatype in datatypes:
        if rules.missing is not None:
            _check_missing(op, datatype, rules.missing)
        if rules.exact:
            _check_exact(op, datatype)
        if rules.accumulate_in is not None or rules.result_type is not None:
            _check_wide(op, datatype)


def null_result_error(op: Op, datatype: Datatype, form: str, hint: str) -> UsageError:
    """Return the error for results that may be null, in a format or file without a value for null."""
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
    rounded = datatype.group in Group.FLOATING_POINT | Group.COMPLEX
    for option in ("accumulate_in", "result_type"):
        wide = getattr(op.rules, option)
        if wide is None:
            continue
        if datatype.group in Group.PAIR | Group.COMPLEX:
            raise UsageError(f"`{option}`", f"is for real numbers, and elements are {datatype.label}; leave it out")
        if (rounded or (op.gives and op.gives(datatype).form.kind == "f")) and wide.form.kind != "f":
            reason = f"{wide.label} would round {op} of {datatype.label} to integers; use double"
            raise UsageError(f"`{option}`", reason)


def check_buffers(op: Op, buffers: Iterable[tuple[str, Datatype]], use: Use, offers: Collection[str] = ()) -> None:
    """Check that an op is defined on the datatypes of buffers, which have names if they are columns."""
    # Hints of the error name options among `offers` only.
    if use not in op.uses:
        raise use_error(op, use)
    legal: list[str] = []
    illegal: list[str] = []
    errors: list[OpError] = []
    for name, datatype in buffers:
        if datatype.group in op.groups and (not op.datatypes or str(datatype) in op.datatypes):
            legal.append(name)
        else:
            illegal.append(name)
            errors.append(_refusal(op, datatype, use, f"{name!r}, " if name else "", offers))
    if errors:
        hint = f"; choose with `columns='{listed(legal)}'`" if legal else ""
        hint += f", and carry the others with `keep='{listed(illegal)}'`" if hint and "keep" in offers else ""
        raise OpError(errors[0].subject, f"{errors[0].reason}{hint}")


def _refusal(op: Op, datatype: Datatype, use: Use, where: str, offers: Collection[str]) -> OpError:
    """Return the error for a datatype on which an op is not defined; `where` is the name of the buffer, or empty."""
    if op.datatypes and str(datatype) not in op.datatypes:
        return OpError(str(op), f"is not defined for {where}{datatype.label}; it takes {', '.join(op.datatypes)}")
    rows = [*ops_for(use), *(STATISTICS if use is Use.REDUCE else ())]
    legal = [row for row in rows if datatype.group in row.groups]
    hint = f"{datatype.label} takes {names_of(legal) if legal else 'no predefined op'}"
    if datatype.is_bool and use is not Use.FETCH and (wide := widening(op, [[datatype]])):
        # A target of truth values cannot hold sums.
        way = f"with `accumulate_in={wide!r}`" if "accumulate_in" in offers else in_new_file(op, wide)
        hint = f"take true as 1 {way}; {hint}"
    if op.name == COMPARE_AND_SWAP.name:
        hint = f"`mpired fetch-and-op` takes {datatype.label}"
    if datatype.group is Group.DERIVED:
        rule, way = "takes user-defined ops only (MPI-4.1, 6.9.2)", "`op='FILE.py:FUNCTION'`, or "
        if use is not Use.REDUCE:
            rule, way = "no one-sided call takes it (MPI-4.1, 12.3.4)", ""
        hint = f"{datatype} is derived, and {rule}; use {way}numbers out of it by `mpired pack`"
    if op.groups == Group.PAIR:
        is_paired = "index" in offers and datatype.group in ORDERED
        ways = ["`index='rank'` makes pairs of plain values"] if is_paired else []
        if where or not ways:
            ways.append(_to_pairs(datatype, use, is_column=bool(where)))
        hint = "; ".join([*ways, hint])
    elements = f"{where}{datatype.label}, {datatype.group.title}"
    return OpError(str(op), f"is not defined for {elements}; it takes {op.groups.title}; {hint}")


def in_new_file(op: Op, wide: str) -> str:
    """Return a hint on how to compute an op in a wider datatype, which the target of a one-sided call cannot have."""
    return f"in a new file by `mpired reduce --op {_label(op).replace('_', ':')} --accumulate-in {wide}`"


def _to_pairs(datatype: Datatype, use: Use, *, is_column: bool) -> str:
    """Return a hint on how to give pairs to an op on pairs."""
    if is_column:
        hint = "structures of a value and an index are pairs"
        return f"{hint}, and `pair='VALUE,INDEX'` makes them of two columns" if use is Use.REDUCE else hint
    code = datatype.form.str[1:] if datatype.group in ORDERED else "f8"
    return f"an array with the dtype [('value', '{code}'), ('index', 'i8')] holds pairs"


def use_error(op: Op, use: Use) -> OpError:
    """Return the error for an op that a family of calls does not take."""
    names = {Use.REDUCE: "reductions", Use.ACCUMULATE: "accumulate", Use.FETCH: "fetch"}
    calls = " and ".join(name for family, name in names.items() if family in op.uses)
    return OpError(str(op), f"is for {calls} only (MPI-4.1, 12.3.4); use one of {names_of(ops_for(use))}")
