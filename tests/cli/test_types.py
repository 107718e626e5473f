"""`mpired types TYPE`: the figures, the type map, and the picture, for every sort of type."""

import json

from command import run
from rows import check_refused, each


def shown(text, cwd):
    """Return the lines of a type by their labels."""
    outcome = run("types", text, cwd=cwd)
    assert (outcome.status, outcome.err) == (0, "")
    return {line[2:14].strip(): line[14:] for line in outcome.out.decode().splitlines()[1:]}


@each("text, drawn", [
    ("double_int", "|000000001111....|  bytes 0 to 16"),
    ("resized(-4,24,double)", "|....00000000............|  bytes -4 to 20"),
    ("resized(2,4,double)", "00|0000|00  bytes 0 to 8"),
    ("hvector(3,1,-1,short)", "|2210|  bytes -2 to 2"),
    ("darray(4,3,[9],[block],[dflt],[4],C,double)", f"|{'.' * 36}|  bytes 0 to 72, 2 bytes a character"),
    ("contiguous(600,resized(0,0,byte))", "|#  bytes 0 to 1"),
    ("vector(1000000,1,2,double)", "none: there are no bytes, or too many pieces"),
    ("vector(2,32,64,int)", f"|{'#' * 21}+{'.' * 20}+{'#' * 21}|  bytes 0 to 384, 6 bytes a character"),
])  # fmt: skip
def test_picture(text, drawn, tmp_path):
    assert shown(text, tmp_path)["picture"] == drawn


@each(
    "text, numpy",
    [(">i4", ">i4"), ("<i4", "<i4"), ("=i4", "<i4"), ("contiguous(2,>i4)", "(>i4, >i4)"), (">i1", "|i1"),
     ("struct([1,1],[0,4],[>i4,short])", "(>i4, >i2)"), ("pair(>f8,>i4)", "(>f8, >i4)"), (">c8", ">c8")],
)  # fmt: skip
def test_the_byte_order_is_that_of_the_text(tmp_path, text, numpy):
    assert shown(text, tmp_path)["NumPy"] == numpy


@each("text, form", [
    ("resized(0,16,vector(2,1,2,double))", "(<f8, <f8)"),
    ("resized(0,4,vector(2,1,2,complex4))", "(<f2[2], <f2[2])"),
    ("struct([1,1],[0,9004],[vector(1200,1,2,int),vector(1500,1,4,short)])", "(<i4[1200], <i2[1500])"),
])  # fmt: skip
def test_what_is_spread_is_packed_in_arrays(tmp_path, text, form):
    told = json.loads(run("types", text, "--json", cwd=tmp_path).out)
    assert (told["numpy"], told["numpy_is_packed"], told["no_numpy"]) == (form, True, None)
    assert shown(text, tmp_path)["NumPy"] == f"{form}, packed"


@each("words, status, reason", [
    (["int", "--value-index", "int", "int"], 2, "takes the place of TYPE"),
    (["--value-index", "int", "nothing"], 2, "nothing"),
    (["int", "double"], 2, "double"),
])  # fmt: skip
def test_wrong_words(words, status, reason, tmp_path):
    check_refused(tmp_path, ("types", *words), status, reason)
