"""Named datatypes from a file: what they mean, and errors that name file, entry and place."""

import json
import pickle

import pytest
from command import refused, run, unchanged

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
    assert parse("best", named)[0] is parse("pair(double,int64_t)")[0]
    assert parse("double", named)[0] is parse("double")[0]
    assert pickle.loads(pickle.dumps(parse("row", named)[0])) is parse("row", named)[0]


def test_every_command_takes_them(file, tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(16) + b"\1" + bytes(15))
    words = ["--types", "cells.toml", "--type", "best"]
    outcome = run("reduce", "-q", "--op", "maxloc", *words, "a.bin", "a.bin", "--to", "csv", cwd=tmp_path)
    assert outcome.out == b"value,index\n0.0,0\n5e-324,0\n"
    assert b"2 x pair(double,int64_t)" in run("info", *words, "a.bin", cwd=tmp_path).out
    assert mpired.pack(tmp_path / "a.bin", types=file, type="best").shape == (2,)
    shown = run("types", "--types", "cells.toml", "row", "--json", cwd=tmp_path)
    assert json.loads(shown.out)["extent"] == 72
    shown = run("types", "--types", "cells.toml", "--json", cwd=tmp_path)
    assert [(row["name"], row["size"], row["extent"]) for row in json.loads(shown.out)] == [
        ("row", 36, 72), ("cell", 12, 24), ("Energy", 8, 24), ("big", 8, 8), ("best", 16, 16)
    ]  # fmt: skip
    shown = run("types", "--types", "cells.toml", "--value-index", "big", "int", cwd=tmp_path)
    assert shown.out == b"MPI_DOUBLE_INT\n"


def test_a_file_of_the_environment(file, tmp_path):
    environment = {"MPIRED_TYPES": "cells.toml"}
    assert run("types", "row", cwd=tmp_path, env=environment).out.startswith(b"contiguous(3,")
    assert run("types", cwd=tmp_path, env=environment).out == run("types", cwd=tmp_path).out


def nested(depth, count):
    """Return definitions that are so deep, each made of the next."""
    return "\n".join(f'a{i} = "{"dup(" * depth}a{i + 1}{")" * depth}"' for i in range(count))


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        (
            'a = "struct([1],[8],[doubel])"',
            ("a: struct([1],[8],[^doubel])", "no datatype has this name", "character 17"),
        ),
        ('a = "dup(b)"\nb = "vector(1,2,int)"', ("b: vector(1,2,^int)",)),
        ('a = "b"', ("a: ^b", "no datatype has this name")),
        ('a = "dup(a)"', ("a: is defined by itself", "a -> a")),
        ('a = "dup(b)"\nb = "dup(d)"\nd = "dup(a)"', ("a: is defined by itself: a -> b -> d -> a",)),
        ("a = 3", ("a: a definition is a text in quotes",)),
        ('[a]\nb = "int"', ("a: a definition is a text in quotes",)),
        ('double = "int"', ("double: this name is taken",)),
        ('MPI_DOUBLE = "int"', ("MPI_DOUBLE: this name is taken",)),
        ('vector = "int"', ("vector: this name is taken",)),
        ('f8 = "int"', ("f8: this name is taken",)),
        ('a = "int"\nA = "int"', ("A: this name is taken",)),
        ('a = "int"\na = "int"', ("is not TOML",)),
        ('"1a" = "int"', ("1a: a name is letters",)),
        ('"" = "int"', ("a name is letters",)),
        ('"a\\nb" = "int"', ("a name is letters",)),
        ("a = int", ("is not TOML", "line 1")),
        ("a = " + "[" * 5000, ("is not TOML",)),
        ("#" * (1 << 20) + "\n", ("is larger than",)),
        ('a = "struct([1,1],[0,8],[<i4,>i4])"', ("a: struct([1,1],[0,8],[<i4,^>i4])",)),
        ("\n".join(f'a{i} = "a{i + 1}"' for i in range(400)) + '\na400 = "int"', ("too long a chain",)),
        (nested(4, 32) + '\na32 = "int"', ("nested deeper than 100",)),
        (nested(60, 60) + '\na60 = "int"', ("nested too deep",)),
    ],
)
def test_an_error_names_file_and_entry(tmp_path, text, reasons):
    (tmp_path / "bad.toml").write_text(text)
    with unchanged(tmp_path):
        refused(run("types", "--types", "bad.toml", "int", cwd=tmp_path), 2, "bad.toml: ", *reasons)


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "bad.toml").write_bytes(b'a = "\xff"')
    with pytest.raises(DefinitionError, match="is not TOML"):
        definitions(str(tmp_path / "bad.toml"))


@pytest.mark.parametrize(("path", "reason"), [("missing.toml", "No such file"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read(tmp_path, path, reason):
    refused(run("types", "--types", path, cwd=tmp_path), 4, path, reason)


def test_definitions_that_grow_are_refused_and_take_little(tmp_path):
    lines = ['a0 = "struct([1,1],[0,8],[int,int])"']
    lines += [f'a{i} = "struct([1,1,1],[0,8,9],[a{i - 1},a{i - 1},a{i - 1}])"' for i in range(1, 30)]
    (tmp_path / "bomb.toml").write_text("\n".join(lines))
    with pytest.raises(DefinitionError, match="is written with more than 32768 characters"):
        definitions(str(tmp_path / "bomb.toml"))
