"""The text of a datatype: what no text may cost, and the place that an error shows."""

import contextlib
import random
import resource
import time

import pytest
import typemaps
from command import in_child
from rows import each
from type_texts import DEEP, GOLDEN, nested, some

from mpired.cli.reference import describe_datatype
from mpired.datatypes import parse
from mpired.errors import UnknownDatatypeError

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


def many(count, text):
    return f"struct({some(count, 1)},{some(count, 1)},{some(count, text)})"


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


def test_no_text_does_more_than_the_one_error(long):
    def slow_ones():
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, used + MOST_BYTES))
        return [text[:60] for text in [*fuzzed(20_000 if long else 5_000), *BOMBS.values()] if seconds(text) > LIMIT]

    parse("double")
    assert in_child(slow_ones) == []


@each("text, place", [
    ("vector(3,1,double)", "vector(3,1,^double)"),
    ("contiguous(-1,int)", "contiguous(^-1,int)"),
    ("indexed([1,-1],[0,1],int)", "indexed(^[1,-1],[0,1],int)"),
    ("indexed([1,1],[0,x],int)", "indexed([1,1],^[0,x],int)"),
    ("contiguous(9223372036854775808,int)", "contiguous(^92233"),
    ("contiguous(9223372036854775807,int)", "^contiguous("),
    ("struct([1,1],[0],[int,int])", "^struct([1,1],[0],["),
    ("struct([1,1],[0,4],[int])", "^struct([1,1],[0,4],["),
    ("indexed([1,2],[0],int)", "^indexed([1,2],[0],int)"),
    ("hindexed([1],[0,1],int)", "^hindexed([1],[0,1],int)"),
    ("subarray([4],[5],[0],C,int)", "^subarray([4],[5],["),
    ("subarray([4,6],[2,3],[3,2],C,double)", "^subarray([4,6],[2,3],["),
    ("darray(4,7,[10],[cyclic],[2],[4],C,double)", "^darray(4,7,"),
    ("darray(4,1,[0],[block],[1],[4],C,double)", "^darray(4,1,[0],"),
    ("bogus", "unknown datatype 'bogus'"),
    ("  bogus", "unknown datatype 'bogus'"),
    ("doubel", "did you mean double"),
    ("", "^: expected"),
    ("vector", "^vector: vector has 4 arguments"),
    ("MPI_vector", "^MPI_vector: vector has 4 arguments"),
    ("double,", "double^,: expected the end"),
    ("<f9", "unknown datatype '<f9'"),
    ("pair(int,byte)", "^pair(int,byte)"),
    ("dup(pair(double,double))", "dup(^pair(double,double))"),
    ("subarray([4],[2],[0],X,int)", "[0],^X,int)"),
    ("dup(" * 100 + "in" + ")" * 100, "(dup(^in))"),
    ("dup(" * 100 + "int" + ")" * 99, ")))^: expected a closing parenthesis"),
    ("struct([1,1],[1,0],[byte," * 100 + "byte" + "])" * 99 + "]", "])]^: expected a closing"),
    ("dup(" * 8000, ": types are nested deeper than 100 levels, at the caret (character 401)"),
    ("contiguous(2,real16)", "contiguous(2,^real16)"),
    ("struct([1,1],[0,8],[<i4,>i4])", "[<i4,^>i4])"),
    ("contiguous(1," + "x" * 70_000, "..."),
])  # fmt: skip
def test_an_error_shows_the_place(text, place):
    with pytest.raises(UnknownDatatypeError) as caught:
        parse(text)
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)
