"""Named datatypes from a file: what they mean, and errors that name file, entry and place."""

import json
import pickle

import pytest
from command import run
from rows import check_refused, each

import mpired
from mpired.datatypes import definitions, parse
from mpired.errors import DefinitionError

CELLS = """
# defined in any order
row = "contiguous(3,cell)"
cell = "resized(0,24,struct([1,1],[8,0],[double,int]))"
Energy = "resized(0,24,struct([1],[8],[double]))"
big = ">f8"
"best" = "pair(double,int64_t)"
"""


@pytest.fixture
def file(tmp_path):
    """A file of definitions."""
    path = tmp_path / "cells.toml"
    path.write_text(CELLS)
    return path


def test_a_name_stands_for_its_text(file):
    named = definitions(str(file))
    assert list(named) == ["row", "cell", "Energy", "big", "best"]
    cell = parse("resized(0,24,struct([1,1],[8,0],[double,int]))")[0]
    for text in ("cell", "CELL", " Cell "):
        assert parse(text, named)[0] is cell
    assert parse("row", named)[0] is parse(f"contiguous(3,{cell})")[0]
    assert parse("vector(2,1,3,energy)", named)[0] is parse(f"vector(2,1,3,{named['energy'][0]})")[0]
    assert str(parse("dup(big)", named)[0]) == "dup(double)"
    assert parse("big", named)[1] == "big"
    assert parse("double", named)[0] is parse("double")[0]
    assert pickle.loads(pickle.dumps(parse("row", named)[0])) is parse("row", named)[0]


def test_every_command_takes_them(file, tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(16) + b"\1" + bytes(15))
    words = ["--types", "cells.toml", "--type", "best"]
    outcome = run("reduce", "-q", "--op", "maxloc", *words, "a.bin", "a.bin", "--to", "csv", cwd=tmp_path)
    assert outcome.out == b"value,index\n0.0,0\n5e-324,0\n"
    assert b"2 x pair(double,int64_t)" in run("info", *words, "a.bin", cwd=tmp_path).out
    assert mpired.pack(tmp_path / "a.bin", types=file, type="best").shape == (2,)
    shown = json.loads(run("types", "--types", "cells.toml", "--json", cwd=tmp_path).out)
    assert [(row["name"], row["size"], row["extent"]) for row in shown] == [
        ("row", 36, 72), ("cell", 12, 24), ("Energy", 8, 24), ("big", 8, 8), ("best", 16, 16)
    ]  # fmt: skip
    shown = run("types", "--types", "cells.toml", "--value-index", "big", "int", cwd=tmp_path)
    assert shown.out == b"MPI_DOUBLE_INT\n"
    env = {"MPIRED_TYPES": "cells.toml"}
    assert run("types", "row", cwd=tmp_path, env=env).out.startswith(b"contiguous(3,")
    assert run("types", cwd=tmp_path, env=env).out == run("types", cwd=tmp_path).out


def chain(depth, count, last):
    """Return definitions from a0 on that are so deep, each made of the next."""
    return "\n".join(
        [*(f'a{i} = "{"dup(" * depth}a{i + 1}{")" * depth}"' for i in range(count)), f'a{count} = "{last}"']
    )


TAKEN = ("double", "MPI_DOUBLE", "vector", "f8", "c", "Block", "MPI_ORDER_C", "dflt", "datatype_null")


@each("text, reasons", [
    ('a = "struct([1],[8],[doubel])"', ("a: struct([1],[8],[^doubel])", "unknown datatype", "character 17")),
    ('a = "dup(b)"\nb = "vector(1,2,int)"', ("b: vector(1,2,^int)",)),
    ('a = "b"', ("a: unknown datatype 'b'",)),
    ('a = "dup(a)"', ("a: is defined by itself", "a -> a")),
    ('a = "dup(b)"\nb = "dup(d)"\nd = "dup(a)"', ("a: is defined by itself: a -> b -> d -> a",)),
    ("a = 3", ("a: a definition is a text in quotes",)),
    ('[a]\nb = "int"', ("a: a definition is a text in quotes",)),
    *((f'{name} = "int"', (f"{name}: this name is taken",)) for name in TAKEN),
    ('a = "int"\nA = "int"', ("A: this name is taken",)),
    ('a = "int"\na = "int"', ("is not TOML",)),
    ('"1a" = "int"', ("1a: a name is letters",)),
    ('"" = "int"', (": '': a name is letters",)),
    ('"\u017fhort" = "int"', ("a name is letters",)),
    ('a = "\u017fhort"', ("a: ^\u017fhort",)),
    ('"a\\nb" = "int"', ("a name is letters",)),
    ("a = int", ("is not TOML", "line 1")),
    ("a = " + "[" * 5000, ("is not TOML",)),
    (b'a = "\xff"', ("is not TOML",)),
    ("#" * (1 << 17) + "\n", ("is larger than",)),
    ('a = "struct([1,1],[0,8],[<i4,>i4])"', ("a: struct([1,1],[0,8],[<i4,^>i4])",)),
    ('a = "struct([1],[0],[b])"\nb = "dup(a(1))"', ("b: dup(^a(1))", "the words that take arguments")),
    ('a = "dup(b) & dup(a)"\nb = "int"', ("a: dup(b) ^& dup(a)", "this character has no meaning")),
    (chain(0, 80, "a0"), ("is defined by itself: a0 -> a1 -> a2 -> a3 -> ... -> a78 -> a79 -> a80 -> a0",)),
    (chain(20, 6, "int"), ("a0: ", "types are nested deeper than 100 levels")),
    (chain(0, 101, "int"), ("a100: is nested deeper than 100 levels, in a0",)),
    (chain(0, 99, "in"), ("a99: unknown datatype 'in'",)),
    ("\n".join(['a0 = "struct([1,1],[0,8],[int,int])"', *(
        f'a{i} = "struct([1,1,1],[0,8,9],[a{i - 1},a{i - 1},a{i - 1}])"' for i in range(1, 30))]),
     ("is written with more than 32768 characters",)),
])  # fmt: skip
def test_an_error_names_file_and_entry(text, reasons, tmp_path):
    (tmp_path / "bad.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    check_refused(tmp_path, "types --types bad.toml int", 2, "bad.toml: ", *reasons)


@each("text", ["a" + ".a" * 40_000 + '="int"', "[" + "a." * 40_000 + "a]", "b = {" + "a." * 40_000 + "a = 1}"])
def test_keys_of_very_many_parts_are_refused(text, tmp_path):
    fits = f'# {"." * 1000}\nx = "int"\n'
    (tmp_path / "dots.toml").write_text(fits + text)
    with pytest.raises(DefinitionError, match="more than 100 dots in a line"):
        definitions(str(tmp_path / "dots.toml"))
    (tmp_path / "dots.toml").write_text(fits)
    assert str(definitions(str(tmp_path / "dots.toml"))["x"][0]) == "MPI_INT"
