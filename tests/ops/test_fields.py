"""The fields in which a user-defined op gets the entries of a derived datatype."""

import itertools
import json
import random
import struct

import numpy as np
import pytest
import typemaps
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from user_ops import greater

import mpired

NUMBERS = {"double": "d", "int": "i", "short": "h", "int8_t": "b", "float": "f", "uint16_t": "H"}


@pytest.mark.parametrize("word", [*typemaps.WORDS, None])
@pytest.mark.sampled(3)
def test_every_type_is_folded_entry_by_entry(tmp_path, word):
    """Every byte of the result is followed, with the positions of the slow twin."""

    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(
        drawn=typemaps.types(list(NUMBERS), outermost=word) if word else typemaps.types(list(NUMBERS)),
        count=st.integers(1, 4),
        before=st.integers(0, 9),
        seed=st.integers(0, 99),
    )
    def both_ways(drawn, count, before, seed):
        places = [(name, at + i * drawn.twin.extent) for i in range(count) for name, at in drawn.twin.entries]
        spans = sorted((at, at + typemaps.BASIC[name][0]) for name, at in places)
        assume(spans and all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)))
        offset = max(0, -spans[0][0]) + before
        draw = random.Random(seed)
        ranks = [bytearray(draw.randbytes(offset + spans[-1][1])) for _ in range(3)]
        wanted = bytearray(len(ranks[0]))
        for name, at in places:
            # Small numbers, of which every type has the same.
            values = [draw.randrange(100) for _ in ranks]
            for rank, value in zip(ranks, values, strict=True):
                struct.pack_into(NUMBERS[name], rank, offset + at, value)
            struct.pack_into(NUMBERS[name], wanted, offset + at, max(values))
        paths = [tmp_path / f"r{i}.bin" for i in range(3)]
        for path, rank in zip(paths, ranks, strict=True):
            path.write_bytes(rank)
        said = {"op": greater, "type": drawn.text, "count": count, "offset": offset}
        mpired.reduce(paths, output=tmp_path / "out.bin", overwrite=True, **said)
        found = (tmp_path / "out.bin").read_bytes()
        low = min(0, spans[0][0])  # a new file has displacement 0 as far in as it needs
        assert found[: spans[-1][1] - low] == bytes(wanted[offset + low :]), drawn.text
        assert not any(found[spans[-1][1] - low :]), drawn.text
        mpired.reduce(paths, in_place=True, root=0, **said)
        kept = bytearray(ranks[0])
        for name, at in places:
            end = offset + at + typemaps.BASIC[name][0]
            kept[offset + at : end] = wanted[offset + at : end]
        # The padding behind the last element, which was not there, may be now.
        assert paths[0].read_bytes().startswith(kept), drawn.text
        assert not any(paths[0].read_bytes()[len(kept) :]), drawn.text

    both_ways()


def test_many_entries_of_several_types_are_a_field_a_kind(tmp_path):
    """Whole numbers of 4 bytes in every 8 from 0 on, and of 2 bytes in every 8 from 9004 on, between those."""
    text = "struct([1,1],[0,9004],[vector(1200,1,2,int),vector(1500,1,4,short)])"
    form = np.dtype([("f0", "i4", (1200,)), ("f1", "i2", (1500,))])
    seen = []

    def greatest(invec, inoutvec):
        seen.append(inoutvec.dtype)
        return greater(invec, inoutvec)

    rng = np.random.default_rng(2)
    ranks = rng.integers(0, 256, (2, 9004 + 8 * 1500), dtype=np.uint8)
    for i, rank in enumerate(ranks):
        rank.tofile(tmp_path / f"{i}.bin")
    paths = [tmp_path / "0.bin", tmp_path / "1.bin"]
    mpired.reduce(paths, op=greatest, type=text, count=1, root=1, in_place=True)
    assert seen == [form]
    ints, shorts = (ranks[:, : 8 * 1200].view("i4")[:, ::2].max(0), ranks[:, 9004:].view("i2")[:, ::4].max(0))
    ranks[1, : 8 * 1200].view("i4")[::2] = ints
    ranks[1, 9004:].view("i2")[::4] = shorts
    assert paths[1].read_bytes() == ranks[1].tobytes()


def upper(_invec, inoutvec):
    return inoutvec.copy()


BACKWARDS = {"vector(2,1,-1,int)": "resized(0,4,vector(2,1,-2,int))"}
BACKWARDS |= {"struct([1,1],[4,0],[float,int])": "resized(0,8,struct([1,1],[12,0],[float,int]))"}


@pytest.mark.parametrize("form", ["json", "csv", "npy", "parquet", "arrow"])
@pytest.mark.parametrize("text", BACKWARDS)
@pytest.mark.sampled(2)
def test_fields_are_those_of_the_type_map_wherever_they_lie(tmp_path, text, form):
    """The first entry lies behind the second one; read as a type that has them elsewhere, it is the first again."""
    first, second = (2.0, 1) if "float" in text else (2, 1)
    path, kind = tmp_path / "one.bin", "if" if "float" in text else "ii"
    path.write_bytes(struct.pack(f"={kind}", second, first))
    out = tmp_path / f"out.{form}"
    offset = 0 if "float" in text else 4
    mpired.reduce([path, path], upper, type=text, offset=offset, count=1, output=out)
    if form == "json":
        assert json.loads(out.read_text())["buffers"][0]["data"] == [[first, second]]
    elif form == "csv":
        names, numbers = (line.split(",") for line in out.read_text().splitlines())
        assert (names, [float(number) for number in numbers]) == (["f0", "f1"], [first, second])
    else:
        for other in (text, BACKWARDS[text], None):
            found = mpired.reduce([out, out], upper, **({"type": other} if other else {}))
            assert (found["f0"].item(), found["f1"].item()) == (first, second)
