"""`mpired types TYPE`: the figures, the type map, and the picture, for every sort of type."""

import json

import matrix
import numpy as np
import pytest
import typemaps
from command import run
from hypothesis import given, settings
from rows import check_refused, each

from mpired import datatypes
from mpired.datatypes import parse
from mpired.datatypes.typemap import picture


def shown(text, cwd):
    """Return the lines of a type by their labels."""
    outcome = run("types", text, cwd=cwd)
    assert (outcome.status, outcome.err) == (0, "")
    return {line[2:14].strip(): line[14:] for line in outcome.out.decode().splitlines()[1:]}


@each(
    "text, drawn",
    [
        ("double_int", "|000000001111....|  bytes 0 to 16"),
        ("resized(-4,24,double)", "|....00000000............|  bytes -4 to 20"),
        ("resized(2,4,double)", "00|0000|00  bytes 0 to 8"),
        ("hvector(3,1,-1,short)", "|2210|  bytes -2 to 2"),
        ("contiguous(0,int)", "none: there are no bytes, or too many pieces"),
        ("resized(0,64,byte)", f"|0{'.' * 63}|  bytes 0 to 64"),
        ("darray(4,3,[9],[block],[dflt],[4],C,double)", f"|{'.' * 36}|  bytes 0 to 72, 2 bytes a character"),
        ("contiguous(600,resized(0,0,byte))", "|#  bytes 0 to 1"),
        ("vector(1000000,1,2,double)", "none: there are no bytes, or too many pieces"),
        ("vector(2,32,64,int)", f"|{'#' * 21}+{'.' * 20}+{'#' * 21}|  bytes 0 to 384, 6 bytes a character"),
    ],
)
def test_picture(text, drawn, tmp_path):
    assert shown(text, tmp_path)["picture"] == drawn


@settings(max_examples=150, deadline=None, derandomize=True)
@given(drawn=typemaps.types(["int8_t", "short", "double", "short_int"]))
def test_a_picture_shows_every_byte(drawn):
    found = picture.draw(parse(drawn.text)[0].typemap)
    places = typemaps.positions(drawn.twin, 1)
    used = {at for start, nbytes in places for at in range(start, start + nbytes)}
    if found is None:
        assert not used
        return
    cells = found.text.replace("|", "")
    assert found.start + len(cells) * found.nbytes >= found.stop
    for i, cell in enumerate(cells):
        low = found.start + i * found.nbytes
        inside = [at in used for at in range(low, min(low + found.nbytes, found.stop))]
        if found.nbytes > 1:
            assert cell == ("#" if all(inside) else "+" if any(inside) else "."), drawn.text
        else:
            assert (cell != ".") == inside[0], drawn.text


@each(
    "text", ["hvector(1,1,9223372036854775807,resized(0,99,vector(2,1,2,byte)))",
             "hindexed([1],[9223372036854775800],hindexed([1,1],[-9223372036854775000,0],byte))",
             "contiguous(1,resized(-9223372036854775808,9223372036854775807,vector(2,1,2,byte)))"]
)  # fmt: skip
def test_figures_at_the_limit(tmp_path, text):
    assert shown(text, tmp_path)["size"] == "2"


@each(
    "text, numpy",
    [(">i4", ">i4"), ("<i4", "<i4"), ("=i4", "<i4"), ("contiguous(2,>i4)", "(>i4, >i4)"), (">i1", "|i1"),
     ("struct([1,1],[0,4],[>i4,short])", "(>i4, >i2)"), ("pair(>f8,>i4)", "(>f8, >i4)"), (">c8", ">c8")],
)  # fmt: skip
def test_the_byte_order_is_that_of_the_text(tmp_path, text, numpy):
    assert shown(text, tmp_path)["NumPy"] == numpy


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """The rows of all types, by their names."""
    outcome = run("types", "--json", cwd=tmp_path_factory.mktemp("listed"))
    return {row["name"]: row for row in json.loads(outcome.out)}


@each("name", matrix.AVAILABLE)
def test_every_predefined_type(name, listed, tmp_path):
    row = listed[f"MPI_{name}"]
    told = json.loads(run("types", name, "--json", cwd=tmp_path).out)
    assert (told["name"], told["size"], told["extent"]) == (row["name"], row["size"], row["extent"])
    assert told["combiner"] == "MPI_COMBINER_NAMED"
    assert told["numpy"] == row["numpy"]
    assert told["entries"] == (2 if name in matrix.PAIR else 1)
    narrow = {"LONG": 4, "UNSIGNED_LONG": 4, "WCHAR": 2, "LONG_INT": 8}
    assert told["external32"] == narrow.get(name, row["size"])


@each("name", ["bool", "int8", "uint8", "int64", "float16", "complex128"])
def test_a_name_of_numpy(name, tmp_path):
    """MPI's name stands beside it, and the other types that are the same number; NumPy says which these are."""
    wanted = {each for each in matrix.AVAILABLE if getattr(datatypes, each).numpy_name == name}
    first, *lines = run("types", name, cwd=tmp_path).out.decode().splitlines()
    told = dict(line.split(None, 1) for line in lines)
    shown = {first.removesuffix(f" ({name})"), *told.get("same", "form").removeprefix("form").strip().split(", ")}
    assert {each.removeprefix("MPI_") for each in shown - {""}} == wanted
    assert name == "bool" or np.dtype(told["NumPy"]).name == name
    assert json.loads(run("types", name, "--json", cwd=tmp_path).out)["numpy_name"] == name


def test_a_long_map_is_shortened(tmp_path):
    told = shown("contiguous(1000,vector(1000,1,2,double))", tmp_path)
    assert told["type map"].startswith("(double,0) (double,16) ")
    assert told["type map"].endswith(" ... 999992 more ... (double,15991992)")
    assert told["NumPy"] == "(<f8[1000000]), packed"
    assert shown("contiguous(600,double)", tmp_path)["NumPy"].endswith("<f8, ... 600 in all)")


@each(
    "before, after, drawn",
    [
        ("dup(", ")", "|0|"),
        ("struct([1,1],[1,0],[byte,", "])", "|sr|"),  # of entries 100 and 99, counted from 0 to z
        ("struct([1,1],[0,2],[byte,", "])", f"|{'+' * 50}#|"),
        ("struct([1,1],[0,1],[byte,", "])", f"|{'#' * 51}|"),
        ("struct([1,1],[0,70],[byte,", "])", f"|{'+' * 64}|"),
    ],
)
def test_types_of_a_hundred_levels_are_shown(before, after, drawn, tmp_path):
    text = f"{before * 100}byte{after * 100}"
    told = json.loads(run("types", text, "--json", cwd=tmp_path).out)
    entries = 1 if before == "dup(" else 101
    assert (told["name"], told["entries"], told["size"], told["external32"]) == (text, entries, entries, entries)
    assert told["picture"]["text"] == drawn
    assert shown(text, tmp_path)["picture"].startswith(f"{drawn}  bytes 0 to {told['extent']}")


@each(
    "text, why",
    [
        ("contiguous(0,int)", "it has no entries"),
        ("vector(3,2,0,double)", "its entries overlap"),
        ("hvector(2,1,1,resized(0,16,int))", "its entries overlap"),
        ("resized(0,9223372036854775807,vector(2,2147483648,2147483649,byte))", "4294967296 bytes are more than"),
        ("vector(501,1,2,struct([1,1],[0,8],[double,int]))", "its 1002 entries of several types would be more than"),
        ("hindexed_block(1,[0,1],vector(600,1,2,short))", "its entries overlap"),
    ],
)
def test_why_there_is_no_array(tmp_path, text, why):
    told = json.loads(run("types", text, "--json", cwd=tmp_path).out)
    assert told["numpy"] is None
    assert why in told["no_numpy"]


@each(
    "text, form",
    [
        ("resized(0,9223372036854775807,byte)", "(|u1)"),
        ("resized(0,16,vector(2,1,2,double))", "(<f8, <f8)"),
        ("resized(0,0,int)", "(<i4)"),
        ("resized(0,4,vector(2,1,2,complex4))", "(<f2[2], <f2[2])"),
        ("struct([1,1],[0,9004],[vector(1200,1,2,int),vector(1500,1,4,short)])", "(<i4[1200], <i2[1500])"),
    ],
)
def test_what_is_spread_is_packed_in_arrays(tmp_path, text, form):
    told = json.loads(run("types", text, "--json", cwd=tmp_path).out)
    assert (told["numpy"], told["numpy_is_packed"], told["no_numpy"]) == (form, True, None)
    assert shown(text, tmp_path)["NumPy"] == f"{form}, packed"


@each(
    "words, status, reason",
    [
        (["vector(3,1,2,doubel)"], 2, "vector(3,1,2,^doubel)"),
        (["nothing"], 2, "unknown datatype 'nothing': `mpired types` lists"),
        ([""], 2, "^: expected a datatype"),
        (["x" * 5000], 2, "unknown datatype 'xxxxxxxxxxxxxxxxxxxxxxxx"),
        (["real16"], 3, "is not available"),
        (["int", "--value-index", "int", "int"], 2, "takes the place of TYPE"),
        (["--value-index", "int", "nothing"], 2, "nothing"),
        (["int", "double"], 2, "double"),
    ],
)
def test_wrong_words(words, status, reason, tmp_path):
    check_refused(tmp_path, ("types", *words), status, reason)
