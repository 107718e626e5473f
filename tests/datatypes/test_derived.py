"""Derived datatypes: the figures of the standard, the order of the bytes as a real MPI packs them, and the grammar."""

import contextlib
import gc
import pickle
import random
import resource
import sys
import time
import tracemalloc

import numpy as np
import pytest
import typemaps
from command import in_child
from hypothesis import given, settings
from hypothesis import strategies as st

import mpired
from mpired.datatypes import derived, parse
from mpired.datatypes.typemap import pieces, transfer
from mpired.datatypes.typemap.typemap import Run
from mpired.errors import DatatypeError, OpError, UnknownDatatypeError
from mpired.report import describe_datatype
from mpired.windows.options import component_of
from mpired.windows.runs import Runs

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


def test_words_of_mpi_are_taken():
    long = "darray(4,1,[10],[MPI_DISTRIBUTE_CYCLIC],[MPI_DISTRIBUTE_DFLT_DARG],[4],MPI_ORDER_FORTRAN,MPI_DOUBLE)"
    assert parse(long)[0] is parse("darray(4,1,[10],[cyclic],[dflt],[4],F,double)")[0]


@pytest.mark.parametrize("row", GOLDEN)
def test_there_is_one_instance_of_each(row):
    datatype = parse(row[0])[0]
    assert parse(f" MPI_{row[0].upper().replace(',', ' , ')} ")[0] is datatype
    assert parse(datatype.name)[0] is datatype
    assert pickle.loads(pickle.dumps(datatype)) is datatype


def test_a_million_entries_cost_nothing():
    steps = 0

    def count(frame, event, argument):
        nonlocal steps
        steps += event == "call"

    sys.setprofile(count)
    try:
        made = parse("contiguous(1000000,vector(1000000,1,2,double))")[0].typemap
        figures = made.entries, made.size, made.true_ub, made.external, made.entry(10**12 - 1).disp
    finally:
        sys.setprofile(None)
    assert figures == (10**12, 8 * 10**12, (2 * 10**6 - 1) * 8 * 10**6, 8 * 10**12, (2 * 10**6 - 1) * 8 * 10**6 - 8)
    assert steps < 1000


@pytest.mark.parametrize("word", typemaps.WORDS)
def test_as_the_standard_defines_it(word):
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(drawn=typemaps.types([*typemaps.BASIC, *typemaps.PAIRS], outermost=word))
    def as_defined(drawn):
        made, twin = parse(drawn.text)[0].typemap, drawn.twin
        assert [(typemaps.spelled(entry.name), entry.disp) for entry in made.walk()] == list(twin.entries)
        assert (made.size, made.lb, made.ub, made.extent) == (twin.size, twin.lb, twin.ub, twin.extent)
        assert (made.true_lb, made.true_extent) == (twin.true_lb, twin.true_extent)
        assert made.entries == len(twin.entries)
        assert [made.entry(i).disp for i in range(made.entries)] == [disp for _, disp in twin.entries]

    as_defined()


def addressed(mpi, real, twin, count):
    """Return `count` elements as one type whose bytes all lie behind its address: mpi4py checks its buffers."""
    whole = mpi.Datatype.Create_struct([1], [0], [real.Create_contiguous(count)])
    low = min(start for start, _ in typemaps.positions(twin, count))
    high = max(start + nbytes for start, nbytes in typemaps.positions(twin, count))
    moved = mpi.Datatype.Create_struct([1], [-low], [whole])
    return moved.Create_resized(0, high - low).Commit(), low, high - low


@settings(max_examples=300, deadline=None, derandomize=True)
@given(drawn=typemaps.types([*typemaps.BASIC, *typemaps.PAIRS], like_mpich=True), count=st.integers(1, 3))
def test_as_a_real_mpi(drawn, count):
    from mpi4py import MPI

    typemap, real = parse(drawn.text)[0].typemap, drawn.real(MPI).Commit()
    assert (typemap.lb, typemap.extent) == real.Get_extent(), drawn.text
    assert (typemap.true_lb, typemap.true_extent) == real.Get_true_extent(), drawn.text
    assert typemap.size == real.Get_size(), drawn.text
    whole, low, nbytes = addressed(MPI, real, drawn.twin, count)
    buffer = np.random.default_rng(7).integers(0, 256, nbytes, dtype=np.uint8)
    packed = np.zeros(count * typemap.size, np.uint8)
    whole.Pack(buffer, packed, 0, MPI.COMM_SELF)
    run = Run(typemap, -low, count, typemap.extent)
    ours = np.zeros_like(packed)
    if count * typemap.size:
        transfer.whole(run).gather(buffer[transfer.reach(run)[0] :], ours)
    packed, ours = (without_x87_padding(drawn.twin, count, each.tobytes()) for each in (packed, ours))
    assert ours == packed, drawn.text


def without_x87_padding(twin, count, packed):
    """Clear what is no value in packed long doubles, which MPICH copies or not."""
    octets, at = bytearray(packed), 0
    for _ in range(count):
        for name, _ in twin.entries:
            if name == "long_double":
                octets[at + 10 : at + 16] = bytes(6)
            at += typemaps.BASIC[name][0]
    return bytes(octets)


def packed_externally(folder, text, count, low, buffer):
    (folder / "records.bin").write_bytes(bytes(max(low, 0)) + buffer.tobytes())
    options = {"type": text, "count": count, "offset": max(-low, 0), "overwrite": True}
    mpired.pack(folder / "records.bin", output=folder / "packed.ext", datarep="external32", **options)
    return (folder / "packed.ext").read_bytes()


# Of several types in one MPICH packs nothing, or stops the process.
CONVERTED = ["double", "int", "short", "int8_t", "float", "uint16_t", "byte", "logical", "c_float_complex",
             "c_double_complex", "int64_t", "count", "char", "c_bool"]  # fmt: skip


@pytest.mark.parametrize("name", CONVERTED)
def test_external32_as_a_real_mpi(tmp_path, name):
    from mpi4py import MPI

    @settings(max_examples=20, deadline=None, derandomize=True)
    @given(drawn=typemaps.types([name], like_mpich=True), count=st.integers(1, 3))
    def as_mpi(drawn, count):
        whole, low, nbytes = addressed(MPI, drawn.real(MPI), drawn.twin, count)
        buffer = np.random.default_rng(8).integers(0, 256, nbytes, dtype=np.uint8)
        theirs = np.zeros(count * drawn.twin.size, np.uint8)
        assert whole.Pack_external("external32", buffer, theirs, 0) == len(theirs)
        assert packed_externally(tmp_path, drawn.text, count, low, buffer) == theirs.tobytes(), drawn.text

    as_mpi()


PARTS = {"c_float_complex": 2, "c_double_complex": 2}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(drawn=typemaps.types([*CONVERTED, "double_int", "short_int", "float_int"]), count=st.integers(1, 3))
def test_external32_of_several_types(tmp_path_factory, drawn, count):
    places = typemaps.positions(drawn.twin, count)
    if not places:
        return
    low, high = min(start for start, _ in places), max(start + nbytes for start, nbytes in places)
    buffer = np.random.default_rng(9).integers(0, 256, high - low, dtype=np.uint8)
    expected = b""
    for (start, nbytes), name in zip(places, [name for name, _ in drawn.twin.entries] * count, strict=True):
        part = nbytes // PARTS.get(name, 1)
        for at in range(start - low, start - low + nbytes, part):
            expected += buffer[at : at + part].tobytes()[::-1]
    folder = tmp_path_factory.getbasetemp()
    assert packed_externally(folder, drawn.text, count, low, buffer) == expected, drawn.text


ALPHABET = ["(", ")", "[", "]", ",", " ", "-1", "0", "3", "9" * 30, "9223372036854775807", "double", "int", "<f8",
            ">i4", "pair", "C", "f", "cyclic", "dflt", "é", "\0", "\n", "1e3", "?", *typemaps.WORDS]  # fmt: skip


def seconds(text):
    """Return the processor time that telling what a text means takes, the least of a few: only its own work counts.

    It is counted in seconds of a machine that has nothing else to do, by what a fixed piece of work takes meanwhile.
    """
    times = []
    while len(times) < 20 and (not times or min(times) > LIMIT):
        started = time.process_time()
        with contextlib.suppress(UnknownDatatypeError):
            describe_datatype(parse(text)[0])
        times.append(time.process_time() - started)
        if times[-1] > LIMIT:
            times[-1] *= min(1, WORK / worked())
    return min(times)


def worked():
    """Return the processor time that a fixed piece of work takes, which is like that of the reader of texts."""
    started = time.process_time()
    for _ in range(20_000):
        _ = [list(map(str, (1, 2))), {"a": 1}, "b(c)".partition("(")]
    return time.process_time() - started


LIMIT = 0.1  # seconds that a text may take
MOST_BYTES = 50 << 20
WORK = 0.015  # seconds that the fixed piece of work takes


def fuzzed(count):
    draw = random.Random(4)
    for _ in range(count):
        kind = draw.random()
        if kind < 0.4:
            yield "".join(draw.choices(ALPHABET, k=draw.randrange(1, 14)))
        elif kind < 0.5:  # long
            yield "".join(draw.choices(ALPHABET, k=draw.randrange(1, 3000)))
        else:
            letters = list(draw.choice(GOLDEN)[0])
            for _ in range(draw.randrange(1, 4)):
                letters[draw.randrange(len(letters))] = draw.choice(ALPHABET)
            yield "".join(letters)


def scattered(*counts, of="byte", reach=100_000):
    """Return blocks at random displacements, of blocks at random displacements, ..."""
    draw = random.Random(5)
    for count in counts:
        of = f"hindexed_block(1,[{','.join(str(draw.randrange(reach)) for _ in range(count))}],{of})"
    return of


def some(count, item):
    return f"[{','.join([str(item)] * count)}]"


def many(count, text):
    return f"struct({some(count, 1)},{some(count, 1)},{some(count, text)})"


def nested(before, after, inner="byte"):
    """Return a type in a type in a type, as deep as the length of a text allows, and how deep that is."""
    depth = (derived.MAX_LENGTH - len(inner)) // len(before + after)
    return before * depth + inner + after * depth, depth


DEEP = {
    "dup": ("dup(", ")"),
    "contiguous": ("contiguous(1,", ")"),
    "resized": ("resized(0,8,", ")"),
    "vector": ("vector(1,1,1,", ")"),
    "lines": ("vector(1,1,2,resized(0,9,", "))"),
    "hindexed": ("hindexed([1],[1],", ")"),
    "distributed": ("darray(1,0,[1],[none],[dflt],[1],C,", ")"),
    "structures": ("struct([1,1],[1,0],[byte,", "])"),
    "structures after": ("struct([1,1],[1,0],[", ",byte])"),
    "structures between": ("struct([1,1,1],[1,0,9],[byte,", ",char])"),
    "without gaps": ("struct([1,1],[0,1],[char,", "])"),
    "far apart": ("struct([1,1],[9000000,0],[char,", "])"),
    "with pairs": ("struct([1,1,1],[1,0,7],[byte,", ",pair(int,short)])"),
    "empty": ("struct([1,1],[0,1],[resized(0,9,contiguous(0,int)),", "])"),
    "of all sorts": ("dup(struct([1,1],[1,0],[byte,resized(0,9,vector(1,1,2,", "))]))"),
    "twice": ("hindexed_block(1,[0,0],", ")"),  # too much after 63
}
BOMBS = {
    **{name: nested(*around)[0] for name, around in DEEP.items()},
    "open dup": "dup(" * 8000,
    "open": "struct(" * 4000,
    "open lists": "struct([1],[1],[" * 2000,
    "closed": ")" * 30_000,
    "brackets": "struct(" + "[" * 30_000,
    "digits": f"contiguous({'9' * 30_000},int)",
    "spaces": "dup(" + " " * 30_000 + "int)",
    "letters": "x" * 30_000,
    "longer": "x" * 10_000_000,
    "much": "contiguous(1000000000," * 7 + "byte" + ")" * 7,
    "doubling": "hvector(2,1,0," * 62 + "byte" + ")" * 62,
    "struct": many(4000, "int"),
    "structs": many(1500, "contiguous(999,int)"),
    "various": f"struct([{'1,' * 699}1],[{'1,' * 699}1],[{','.join(f'vector({i},1,2,int)' for i in range(700))}])",
    "pairs": many(1500, "pair(int,short)"),
    "chains": many(350, "hvector(9,1,9,resized(0,9,dup(dup(contiguous(3,int)))))"),
    "indexed": f"indexed_block(3,[{','.join(map(str, range(5000)))}],double)",
    "levels": "contiguous(2," * 20 + many(3000, "int") + ")" * 20,
    "subarray": f"subarray({some(5000, 1)},{some(5000, 1)},{some(5000, 0)},C,int)",
    "box": f"subarray({some(5000, 2)},{some(5000, 1)},{some(5000, 0)},F,int)",
    "darray": f"darray(1,0,{some(2500, 1)},{some(2500, 'none')},{some(2500, 1)},{some(2500, 1)},C,int)",
    "scattered": scattered(100, 100, 100, 100),
    "scattered far": scattered(100, 100, 100, 100, reach=10**9),
    "scattered wide": scattered(900, 900),
    "scattered near": scattered(2500, 2500, of="resized(0,1,int)", reach=60),
    "scattered pieces": scattered(360, 360, reach=10**9),
    "wrapped": "struct([1,1],[9,0],[byte," * 25 + scattered(360, 360, reach=10**9) + "])" * 25,
    "in one": f"hindexed_block(1,[{'0,' * 2500}0],{many(1000, 'int')})",
}


def test_no_text_does_more_than_the_one_error():
    def slow_ones():
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, used + MOST_BYTES))
        return [text[:60] for text in [*fuzzed(20_000), *BOMBS.values()] if seconds(text) > LIMIT]

    parse("double")
    assert in_child(slow_ones) == []


def test_no_text_takes_much_memory():
    tracemalloc.start()
    try:
        for text in BOMBS.values():
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with contextlib.suppress(UnknownDatatypeError):
                datatype = parse(text)[0]
                _ = datatype.typemap.unit, describe_datatype(datatype)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < MOST_BYTES, text[:60]
    finally:
        tracemalloc.stop()


def test_types_that_nobody_uses_are_forgotten():
    for i in range(3000):
        parse(f"vector({i},1,2,contiguous({i},int))")
    kept = parse("vector(4,1,2,contiguous(77,int))")[0]
    gc.collect()
    assert len(derived._instances) < 100  # noqa: SLF001 - there is no other way to see it
    assert parse("vector(4,1,2,contiguous(77,int))")[0] is kept


def test_a_subarray_of_many_dimensions_is_no_deep_tree():
    ones, zeros = some(3000, 1)[:-1], some(3000, 0)[:-1]
    made = parse(f"subarray({ones},4],{ones},2],{zeros},1],C,int)")[0]
    assert [entry.disp for entry in made.typemap.walk()] == [4, 8]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("vector(3,1,double)", "vector(3,1,^double)"),
        ("contiguous(-1,int)", "contiguous(^-1,int)"),
        ("contiguous(9223372036854775808,int)", "contiguous(^92233"),
        ("contiguous(9223372036854775807,int)", "^contiguous("),
        ("struct([1,1],[0],[int,int])", "struct([1,1],^[0],[int,int])"),
        ("struct([1,1],[0,4],[int])", "struct([1,1],[0,4],^[int])"),
        ("indexed([1,2],[0],int)", "indexed([1,2],^[0],int)"),
        ("hindexed([1],[0,1],int)", "hindexed([1],^[0,1],int)"),
        ("subarray([4],[5],[0],C,int)", "subarray([4],[^5],[0],C,int)"),
        ("subarray([4,6],[2,3],[3,2],C,double)", "subarray([4,6],[2,3],[^3,2],C,double)"),
        ("subarray([4,6],[2,3],[1 , 4],F,double)", ",[2,3],[1 , ^4],F,double)"),
        ("subarray([4,6],[2,0],[1,4],F,double)", "[2,^0],[1,4],F,double)"),
        ("subarray([4,6],[2],[1,4],F,double)", "subarray([4,6],^[2],[1,4],F"),
        ("darray(4,1,[10],[cyclic],[2,2],[4],C,double)", "[cyclic],^[2,2],[4],C"),
        ("darray(4,7,[10],[cyclic],[2],[4],C,double)", "darray(4,^7,"),
        ("darray(5,1,[10],[cyclic],[2],[4],C,double)", "[2],^[4],C"),
        ("darray(4,1,[10,3],[cyclic,none],[2,dflt],[2,2],C,double)", "[2,^2],C"),
        ("darray(4,1,[10,3],[block,none],[dflt,0],[4,1],C,double)", "[dflt,^0],[4"),
        ("darray(4,1,[10],[block],[1],[4],C,double)", "[^1],[4]"),
        ("darray(4,1,[0],[block],[1],[4],C,double)", "darray(4,1,[^0],"),
        ("bogus", "^bogus: no datatype"),
        ("  bogus", "  ^bogus: no datatype"),
        ("doubel", "did you mean double"),
        ("", "^: expected"),
        ("vector", "^vector: vector has 4 arguments"),
        ("MPI_vector", "^MPI_vector: vector has 4 arguments"),
        ("double,", "double^,: expected the end"),
        ("<f9", "^<f9: no datatype"),
        ("pair(int,byte)", "pair(int,^byte)"),
        ("pair(byte,int)", "pair(^byte,int)"),
        ("dup(pair(double,double))", "dup(pair(double,^double))"),
        ("subarray([4],[2],[0],X,int)", "[0],^X,int)"),
        ("dup(" * 8000 + "in" + ")" * 100, "(dup(^in))"),
        ("dup(" * 6000 + "int" + ")" * 5999, ")))^: expected a closing parenthesis"),
        ("struct([1,1],[1,0],[byte," * 1000 + "byte" + "])" * 999 + "]", "])]^: expected a closing"),
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


# Of so many levels around a byte, by the rules of the standard: size, lb, extent, true lb, true extent, displacements.
FIGURES = {
    ("dup(", ")"): lambda n: (1, 0, 1, 0, 1, [0]),
    ("vector(1,1,1,", ")"): lambda n: (1, 0, 1, 0, 1, [0]),
    ("hindexed([1],[3],", ")"): lambda n: (1, 3 * n, 1, 3 * n, 1, [3 * n]),
    ("resized(-4,9,hindexed([1],[3],", "))"): lambda n: (1, -4, 9, 3 * n, 1, [3 * n]),
    ("struct([1,1],[1,0],[byte,", "])"): lambda n: (n + 1, 0, 2, 0, 2, [1] * n + [0]),
    ("struct([1,1],[0,3],[byte,", "])"): lambda n: (n + 1, 0, 3 * n + 1, 0, 3 * n + 1, range(0, 3 * n + 1, 3)),
    ("struct([1,1],[-5,0],[", ",short])"):
        lambda n: (2 * n + 1, -5 * n, 5 * n + 2 + n % 2, -5 * n, 5 * n + 2, [-5 * n, *range(5 - 5 * n, 1, 5)]),
}  # fmt: skip


@pytest.mark.parametrize("around", FIGURES)
def test_types_are_nested_as_deep_as_a_text_is_long(around):
    text, depth = nested(*around)
    datatype = parse(text)[0]
    made = datatype.typemap
    found = made.size, made.lb, made.extent, made.true_lb, made.true_extent
    *figures, places = FIGURES[around](depth)
    assert depth > 700
    assert found == tuple(figures)
    assert [entry.disp for entry in made.walk()] == list(places)
    assert datatype.name == text
    assert pickle.loads(pickle.dumps(datatype)) is datatype
    with pytest.raises(UnknownDatatypeError, match="longer than 32768 characters"):
        parse(f"{around[0]}{text}{around[1]}")


# The same in the grammar and of mpi4py; MPICH takes the padding of a part for an entry, so there is none.
LAYERS = {
    "dup": ("dup(", ")", lambda mpi, inner: inner.Dup()),
    "contiguous": ("contiguous(1,", ")", lambda mpi, inner: inner.Create_contiguous(1)),
    "vector": ("vector(1,1,3,", ")", lambda mpi, inner: inner.Create_vector(1, 1, 3)),
    "hindexed": ("hindexed([1],[2],", ")", lambda mpi, inner: inner.Create_hindexed([1], [2])),
    "resized": ("resized(-2,40,", ")", lambda mpi, inner: inner.Create_resized(-2, 40)),
    "struct": ("struct([1,1],[0,4],[byte,", "])", lambda mpi, inner: mpi.Datatype.Create_struct(
        [1, 1], [0, 4], [mpi.BYTE, inner])),
    "pairs": ("struct([1,1],[12,0],[", ",short_int])", lambda mpi, inner: mpi.Datatype.Create_struct(
        [1, 1], [12, 0], [inner, mpi.SHORT_INT])),
}  # fmt: skip


@pytest.mark.parametrize(
    "layers", [*([name] for name in LAYERS), ["struct", "dup", "contiguous"], ["resized", "vector"]]
)
def test_five_hundred_levels_as_a_real_mpi(layers):
    from mpi4py import MPI

    text, real = "int", MPI.INT
    for i in range(500):
        before, after, wrap = LAYERS[layers[i % len(layers)]]
        text, real = f"{before}{text}{after}", wrap(MPI, real)
    made = parse(text)[0].typemap
    assert made.size == real.Get_size()
    assert (made.lb, made.extent) == real.Get_extent()
    assert (made.true_lb, made.true_extent) == real.Get_true_extent()
    # Where the entries are shows in the bytes that are packed.
    buffer = np.random.default_rng(6).integers(0, 256, made.true_extent, dtype=np.uint8)
    packed = np.zeros(made.size, np.uint8)
    moved = MPI.Datatype.Create_struct([1], [-made.true_lb], [real]).Create_resized(0, made.true_extent).Commit()
    moved.Pack(buffer, packed, 0, MPI.COMM_SELF)
    entries = [(entry.disp, entry.disp + entry.form.itemsize) for entry in made.walk()]
    for places in (entries, pieces.pieces(made)):
        assert packed.tobytes() == b"".join(buffer[start - made.true_lb : end - made.true_lb] for start, end in places)


@contextlib.contextmanager
def few_frames(count):
    """Allow so many calls in one another from here on."""
    depth, frame = 0, sys._getframe()  # noqa: SLF001 - documented, and there is no other way to see it
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    kept = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + count)
    try:
        yield
    finally:
        sys.setrecursionlimit(kept)


def looked_at(text):
    """Do with a type what needs to go through it from end to end."""
    datatype = parse(text)[0]
    typemap = datatype.typemap
    entries = list(typemap.walk())
    assert [typemap.entry(i) for i in (0, typemap.entries - 1)] == [entries[0], entries[-1]]
    shown = describe_datatype(datatype), typemap.unit, datatype.memory.fields, len(pieces.pieces(typemap))
    overlap = pieces.overlaps(typemap, 2)
    assert pickle.loads(pickle.dumps(datatype)) is datatype
    low, high = typemap.true_lb, typemap.true_ub
    octets = np.random.default_rng(6).integers(0, 256, high - low, dtype=np.uint8)
    packed = np.zeros(typemap.size, np.uint8)
    for run in transfer.cut(Run(typemap, -low)):
        for window in transfer.windows(run):
            window.gather(octets[window.starts[0] :], packed)
    assert packed.tobytes() == b"".join(bytes(octets[entry.disp - low :][: entry.form.itemsize]) for entry in entries)
    component = component_of(datatype)
    assert Runs.of(typemap, component.size).entries == typemap.entries
    with pytest.raises(UnknownDatatypeError):
        parse(text[:-1])
    return repr(datatype), shown, overlap


@pytest.mark.parametrize("name", [name for name in DEEP if name not in {"structures between", "with pairs", "twice"}])
def test_nothing_calls_itself_for_types_in_types(name):
    before, after = (part.replace("char", "byte") for part in DEEP[name])
    for depth in (2, 500):  # the first imports what is needed
        with few_frames(60 if depth > 2 else 900):
            looked_at(before * depth + "byte" + after * depth)


@pytest.mark.parametrize(
    ("names", "entries", "unit"),
    [(("int", "char"), 300, 300), (("int", "char"), 1001, None), (("int", "int"), 1001, 1), (("2int", "2int"), 1001, 2),
     (("int", "2int"), 300, 1), (("int", "pair(short,int)"), 700, 701)],
)  # fmt: skip
def test_the_unit_of_deep_types(names, entries, unit):
    text = names[1]
    for _ in range(entries - 1):
        text = f"struct([1,1],[0,4],[{names[0]},{text}])"
    found = parse(text)[0].typemap.unit
    assert (found and len(found)) == unit


def test_levels_are_packed(tmp_path):
    levels = 1000
    text = "struct([1,1],[1,0],[int8_t," * levels + "uint8_t" + "])" * levels
    datatype = parse(text)[0]
    assert (datatype.size, datatype.extent, datatype.typemap.unit) == (levels + 1, 2, None)
    assert describe_datatype(datatype)["external32"] == levels + 1
    (tmp_path / "a.bin").write_bytes(b"ab")
    mpired.pack(tmp_path / "a.bin", type=text, to="raw", output=tmp_path / "b.bin")
    assert (tmp_path / "b.bin").read_bytes() == b"b" * levels + b"a"
    with pytest.raises(DatatypeError, match="entries overlap"):
        mpired.unpack(tmp_path / "b.bin", type=text, format="raw", output=tmp_path / "c.bin")
    apart = text.replace("[1,0]", "[0,3]")
    mpired.unpack(tmp_path / "b.bin", type=apart, format="raw", output=tmp_path / "c.bin")
    assert (tmp_path / "c.bin").read_bytes() == b"b\0\0" * levels + b"a"


def test_levels_are_reduced(tmp_path):
    text = "struct([1,1],[0,3],[int8_t," * 900 + "uint8_t" + "])" * 900
    ranks = np.random.default_rng(4).integers(0, 50, (2, 2701), dtype=np.uint8)
    wanted = np.zeros(2701, np.uint8)
    wanted[::3] = ranks.sum(0)[::3]
    mpired.reduce(write(tmp_path, *map(bytes, ranks)), op=add_fields, type=text, output=tmp_path / "out.bin")
    assert (tmp_path / "out.bin").read_bytes() == wanted.tobytes()


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


@pytest.mark.parametrize("op", ["sum", "maxloc"])
def test_an_op_that_is_not_defined_is_said_before_what_is_wrong_with_the_files(tmp_path, op):
    paths = write(tmp_path, bytes(72), bytes(71))
    with pytest.raises(OpError, match="is derived"):
        mpired.reduce([*paths, tmp_path / "missing"], op, type="struct([1,1],[0,8],[double,int])", format="raw")


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("struct([1,1],[0,8],[double,int])", "use `type='MPI_DOUBLE_INT'`, which has the same layout"),
        ("struct([1,1],[0,8],[double,int64_t])", "use `type='pair(double,int64_t)'`, which has"),
        ("struct([1,1],[8,0],[double,int])", "by `mpired pack`"),
        ("resized(0,24,struct([1,1],[0,8],[double,int]))", "by `mpired pack`"),
        ("struct([1,1],[0,8],[int,double])", "by `mpired pack`"),
        ("contiguous(2,double_int)", "by `mpired pack`"),
    ],
)
def test_what_maxloc_takes_instead_of_a_structure(tmp_path, text, way_out):
    with pytest.raises(OpError) as caught:
        mpired.reduce(write(tmp_path, bytes(96)), "maxloc", type=text, format="raw")
    assert way_out in str(caught.value)
