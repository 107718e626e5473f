"""The table of options: complete, without twins, and the only place where an option is written."""

import inspect

import numpy as np
import pytest
from click_commands import COMMANDS
from click_commands import OPTIONS as PARAMETERS

import mpired
from mpired import options
from mpired.collectives.table import COLLECTIVES
from mpired.errors import UsageError
from mpired.options import FLAGS, OPTIONS, SECTIONS, checked, keyword, rows
from mpired.values import FLAG

GROUPS = {
    name: group
    for name, group in vars(options).items()
    if name.isupper() and isinstance(group, tuple) and set(group) <= set(OPTIONS)
}
ROWS = [(keyword(key), row) for key, row in OPTIONS.items() if row.flags]
# An option of two words, which no row has.
BY_THEMSELVES = {("types", "value_index")}


def test_every_option_of_a_command_is_a_row():
    for command, parameter in PARAMETERS:
        if (command, parameter.name) in BY_THEMSELVES:
            continue
        row, case = parameter.row, f"{command} {parameter.name}"
        assert (parameter.name, row) in ROWS, case
        assert (parameter.help or "").startswith(row.help), case
        assert set(row.flags.replace("/", " ").split()) == {*parameter.opts, *parameter.secondary_opts}, case
        assert list(row.variables) == list(parameter.envvar or []), case
        assert row.section in SECTIONS, case
    assert len(PARAMETERS) > len(ROWS)


def test_every_row_is_an_option_of_a_command():
    used = [(parameter.name, getattr(parameter, "row", None)) for _, parameter in PARAMETERS]
    assert [each for each in ROWS if each not in used] == []


def test_a_keyword_has_one_flag_and_a_flag_one_keyword():
    # `force` is the flag of `get-accumulate` and `recover` that is about another file than the result.
    long_flags = {(name, row.long_flags[0]) for name, row in ROWS} - {("force", "--force")}
    names, spelled = zip(*long_flags, strict=True)
    assert len(set(names)) == len(set(spelled)) == len(long_flags)
    assert dict(long_flags).items() <= FLAGS.items()


def test_defaults_are_values():
    found = [(name, row) for group in GROUPS.values() for name, row in rows(group).items()]
    for name, row in found:
        assert row.default is None or row.kind.check(row.default) == row.default, name
        assert row.kind is not FLAG or row.default in (False, None), name
    assert len(found) > len(ROWS)


def test_every_collective_has_a_command_and_a_function():
    for name, row in COLLECTIVES.items():
        known, taken = rows(row.options), inspect.signature(getattr(mpired, name.replace("-", "_"))).parameters
        assert set(known) <= set(taken), name
        assert set(known) <= {parameter.name for parameter in COMMANDS[name].params}, name


def test_values_that_python_gives():
    refusals = [
        ({"lock_timeout": -1}, "`lock_timeout`: -1 is not a time; give seconds, 0 to try once"),
        ({"op_timeout": float("nan")}, "`op_timeout`: nan is not a time; give seconds above 0"),
        ({"offset": 2**63}, "`offset`: 9223372036854775808 is not between 0 and 2**63 - 1"),
        ({"overwrite": "yes"}, "`overwrite`: 'yes' is neither true nor false"),
        ({"byte_order": "middle"}, "`byte_order`: 'middle' is none of little, big, native"),
        ({"group_b": "r.npy"}, "`group_b`: is one path; give a list of paths, one a rank"),
        ({"columns": [1, 2]}, "`columns`: [1, 2] are not names"),
        ({"columns": []}, "`columns`: [] has no name; leave it out for all"),
        ({"split": ["v.npy"]}, "`split`: needs the paths of two files, such as values.npy,indices.npy"),
        ({"counts": "3,0"}, "`counts`: '3,0' is one text; give a count for each rank"),
        ({"weights": 3}, "`weights`: 'int' object is not iterable"),
        ({"weights": [10**400]}, "`weights`: int too large to convert to float"),
    ]
    for given, reason in refusals:
        with pytest.raises(UsageError) as error:
            checked(mpired.options.CALL, given)
        assert str(error.value) == reason


def test_defaults_take_the_place_of_none():
    assert checked(mpired.options.CALL, {"columns": '"a,b",c'})["columns"] == ("a,b", "c")
    found = checked(mpired.options.CALL, {"jobs": None, "root": np.int8(3), "columns": "a,b"})
    assert (found["jobs"], found["root"], found["columns"], found["overwrite"]) == (0, 3, ("a", "b"), False)
    assert found.keys() == rows(mpired.options.CALL).keys()
