"""Derived datatypes: the figures of the standard, the order of the bytes as a real MPI packs them, and the grammar."""

import contextlib
import pickle
import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpired
from mpired.datatypes import parse
from mpired.errors import OpError, UnknownDatatypeError

GOLDEN = [  # size, lb, extent, true lb, true extent
    ("struct([1,1],[0,8],[double,char])", 9, 0, 16, 0, 9),
    ("struct([1,1],[0,8],[char,double])", 9, 0, 16, 0, 16),
    ("struct([1,1],[0,4],[int,char])", 5, 0, 8, 0, 5),
    ("struct([1,1],[4,12],[double,char])", 9, 4, 16, 4, 9),
    ("struct([1],[3],[int])", 4, 3, 4, 3, 4),
    ("struct([1,1],[0,16],[char,long_double])", 17, 0, 32, 0, 32),
    ("vector(3,1,2,double)", 24, 0, 40, 0, 40),
    ("vector(3,1,-2,double)", 24, -32, 40, -32, 40),
    ("vector(3,2,0,double)", 48, 0, 16, 0, 16),
    ("indexed([3,1],[4,0],struct([1,1],[0,8],[double,char]))", 36, 0, 112, 0, 105),
    ("indexed([0,2],[-5,1],double)", 16, 8, 16, 8, 16),
    ("resized(-4,24,double)", 8, -4, 24, 0, 8),
    ("contiguous(2,resized(-4,24,double))", 16, -4, 48, 0, 32),
    ("resized(0,-8,double)", 8, 0, -8, 0, 8),
    ("subarray([4,6],[2,3],[1,2],C,double)", 48, 0, 192, 64, 72),
    ("subarray([4,6],[2,3],[1,2],F,double)", 48, 0, 192, 72, 80),
    ("darray(4,1,[10],[cyclic],[2],[4],C,double)", 16, 0, 80, 16, 16),
    ("darray(4,3,[10],[block],[dflt],[4],C,double)", 8, 0, 80, 72, 8),
    ("contiguous(2,double_int)", 24, 0, 32, 0, 28),
    ("hindexed([1,1],[0,9],int)", 8, 0, 16, 0, 13),
    ("vector(3,0,2,double)", 0, 0, 0, 0, 0),
]


@pytest.mark.parametrize(("text", "size", "lb", "extent", "true_lb", "true_extent"), GOLDEN)
def test_figures(text, size, lb, extent, true_lb, true_extent):
    made = parse(text)[0].typemap
    assert (made.size, made.lb, made.extent, made.true_lb, made.true_extent) == (size, lb, extent, true_lb, true_extent)


@pytest.mark.parametrize("row", GOLDEN)
def test_there_is_one_instance_of_each(row):
    datatype = parse(row[0])[0]
    assert parse(f" MPI_{row[0].upper().replace(',', ' , ')} ")[0] is datatype
    assert parse(datatype.name)[0] is datatype
    assert pickle.loads(pickle.dumps(datatype)) is datatype


def test_a_million_entries_cost_nothing():
    start = time.perf_counter()
    made = parse("contiguous(1000000,vector(1000000,1,2,double))")[0].typemap
    assert time.perf_counter() - start < 0.1
    assert (made.entries, made.size, made.true_ub) == (10**12, 8 * 10**12, (2 * 10**6 - 1) * 8 * 10**6)


def rows(draw, inner, sub):
    """Draw a constructor on a drawn type: its text, and the same by mpi4py."""
    count, length = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    text, make = inner
    disps = draw(st.lists(st.integers(-4, 9), min_size=count, max_size=count))
    lengths = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    stride = draw(st.integers(-4, 5))
    spell = "[{}]".format(",".join(map(str, disps)))
    spell_lengths = "[{}]".format(",".join(map(str, lengths)))
    far = [8 * disp for disp in disps]
    sizes = [length + stride % 3 for length in lengths]
    starts = [size - length for size, length in zip(sizes, lengths, strict=True)]
    order = draw(st.sampled_from("CF"))
    kind = draw(st.sampled_from(["cyclic", "block"]))
    rank = draw(st.integers(0, 3))
    return {
        "contiguous": (f"contiguous({count},{text})", lambda m: make(m).Create_contiguous(count)),
        "vector": (f"vector({count},{length},{stride},{text})", lambda m: make(m).Create_vector(count, length, stride)),
        "hvector": (
            f"hvector({count},{length},{8 * stride},{text})",
            lambda m: make(m).Create_hvector(count, length, 8 * stride),
        ),
        "indexed": (f"indexed({spell_lengths},{spell},{text})", lambda m: make(m).Create_indexed(lengths, disps)),
        "hindexed": (f"hindexed({spell_lengths},{far},{text})", lambda m: make(m).Create_hindexed(lengths, far)),
        "indexed_block": (
            f"indexed_block({length},{spell},{text})",
            lambda m: make(m).Create_indexed_block(length, disps),
        ),
        "hindexed_block": (
            f"hindexed_block({length},{far},{text})",
            lambda m: make(m).Create_hindexed_block(length, far),
        ),
        "struct": (
            f"struct({spell_lengths},{far},[{','.join([text] * count)}])",
            lambda m: m.Datatype.Create_struct(lengths, far, [make(m)] * count),
        ),
        "subarray": (
            f"subarray({sizes},{lengths},{starts},{order},{text})",
            lambda m: make(m).Create_subarray(sizes, lengths, starts, m.ORDER_C if order == "C" else m.ORDER_F),
        ),
        "darray": (
            f"darray(4,{rank},[9,8],[{kind},block],[dflt,dflt],[2,2],{order},{text})",
            lambda m: make(m).Create_darray(
                4,
                rank,
                [9, 8],
                [getattr(m, f"DISTRIBUTE_{kind.upper()}"), m.DISTRIBUTE_BLOCK],
                [m.DISTRIBUTE_DFLT_DARG] * 2,
                [2, 2],
                m.ORDER_C if order == "C" else m.ORDER_F,
            ),
        ),
        "resized": (
            f"resized({8 * stride},{8 * length},{text})",
            lambda m: make(m).Create_resized(8 * stride, 8 * length),
        ),
        "dup": (f"dup({text})", lambda m: make(m).Dup()),
    }[sub]  # fmt: skip


WORDS = ["contiguous", "vector", "hvector", "indexed", "hindexed", "indexed_block", "hindexed_block", "struct",
         "subarray", "darray", "resized", "dup"]  # fmt: skip


@st.composite
def nested(draw):
    """Draw a type of types of eight bytes, where a library's rounding cannot differ from the standard's."""
    made = ("double", lambda m: m.DOUBLE)
    for word in draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3)):
        made = rows(draw, made, word)
    return made


@settings(max_examples=300, deadline=None)
@given(made=nested())
def test_as_a_real_mpi(made):
    from mpi4py import MPI

    text, make = made
    typemap, real = parse(text)[0].typemap, make(MPI).Commit()
    assert (typemap.lb, typemap.extent) == real.Get_extent(), text
    assert (typemap.true_lb, typemap.true_extent) == real.Get_true_extent(), text
    assert typemap.size == real.Get_size(), text
    if typemap.true_extent > 1 << 20:
        return
    # The library packs the bytes in its own order of the map: give it an address within a larger buffer.
    buffer = np.random.default_rng(7).integers(0, 256, typemap.true_extent, dtype=np.uint8)
    shifted = make(MPI)
    moved = MPI.Datatype.Create_struct([1], [-typemap.true_lb], [shifted])
    whole = moved.Create_resized(0, typemap.true_extent).Commit()
    packed = np.zeros(typemap.size, np.uint8)
    whole.Pack(buffer, packed, 0, MPI.COMM_SELF)
    expected = b"".join(
        bytes(buffer[entry.disp - typemap.true_lb :][: entry.form.itemsize]) for entry in typemap.walk()
    )
    assert packed.tobytes() == expected, text


ALPHABET = ["(", ")", "[", "]", ",", " ", "-1", "0", "3", "9" * 30, "9223372036854775807", "double", "int", "<f8",
            ">i4", "pair", "C", "f", "cyclic", "dflt", "é", "\0", "\n", "1e3", "?", *WORDS]  # fmt: skip


def test_no_text_does_more_than_the_one_error():
    draw = random.Random(4)
    for _ in range(20_000):
        if draw.random() < 0.5:
            text = "".join(draw.choices(ALPHABET, k=draw.randrange(1, 14)))
        else:
            letters = list(draw.choice(GOLDEN)[0])
            for _ in range(draw.randrange(1, 4)):
                letters[draw.randrange(len(letters))] = draw.choice(ALPHABET)
            text = "".join(letters)
        start = time.perf_counter()
        with contextlib.suppress(UnknownDatatypeError):
            parse(text)
        assert time.perf_counter() - start < 0.1 + 5  # the limit with room for a busy machine


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("vector(3,1,double)", "vector(3,1,^double)"),
        ("contiguous(-1,int)", "contiguous(^-1,int)"),
        ("contiguous(9223372036854775808,int)", "contiguous(^92233"),
        ("contiguous(9223372036854775807,int)", "^contiguous("),
        ("struct([1,1],[0],[int,int])", "^struct("),
        ("subarray([4],[5],[0],C,int)", "^subarray("),
        ("subarray([4],[2],[0],X,int)", "[0],^X,int)"),
        ("dup(" * 40 + "int" + ")" * 40, "dup(^dup("),
        ("contiguous(2,real16)", "contiguous(2,^real16)"),
        ("struct([1,1],[0,8],[<i4,>i4])", "[<i4,^>i4])"),
        ("contiguous(1," + "x" * 70_000, "..."),
    ],
)
def test_an_error_shows_the_place(text, place):
    with pytest.raises(UnknownDatatypeError) as caught:
        parse(text)
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


def write(directory, *ranks):
    paths = []
    for i, rank in enumerate(ranks):
        paths.append(directory / f"rank{i}.rec")
        paths[-1].write_bytes(rank)
    return paths


def add_fields(invec, inoutvec, count, datatype):
    for name in inoutvec.dtype.names:
        inoutvec[name] += invec[name]


def test_a_user_op_sees_the_fields_and_gaps_come_out_as_zeros(tmp_path):
    form = np.dtype({"names": ["a", "b"], "formats": ["<f8", "<i2"], "offsets": [8, 2], "itemsize": 24})
    ranks = []
    for value in (1, 2, 3):
        block = np.frombuffer(bytes([value]) * 96, form).copy()
        block["a"], block["b"] = value, 10 * value
        ranks.append(block.tobytes())
    ranks[1] = ranks[1][:-8]  # the last element ends with its last component
    text = "resized(0,24,struct([1,1],[8,2],[double,short]))"
    output = tmp_path / "sum.rec"
    mpired.reduce(write(tmp_path, *ranks), add_fields, type=text, format="raw", to="raw", output=output)
    expected = np.zeros(4, form)
    expected["a"], expected["b"] = 6, 60
    assert output.read_bytes() == expected.tobytes()


@pytest.mark.parametrize("text", ["contiguous(1,double)", "dup(double)", "resized(0,16,double)"])
def test_predefined_ops_refuse_derived_types(tmp_path, text):
    paths = write(tmp_path, bytes(16), bytes(16))
    with pytest.raises(OpError, match="takes user-defined ops only"):
        mpired.reduce(paths, "sum", type=text, format="raw")
