"""The bytes that pack takes and unpack puts back, by every constructor of datatypes, and those between that stay."""

import random

import numpy as np
import pytest
import typemaps
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import check_refused, each

import mpired
from mpired.datatypes import parse, transfer
from mpired.errors import DatatypeError


def overlap(places):
    used = [at for start, nbytes in places for at in range(start, start + nbytes)]
    return len(set(used)) < len(used)


@pytest.mark.parametrize("word", typemaps.WORDS)
@pytest.mark.sampled(2)
def test_pack_and_unpack_leave_the_bytes_between(tmp_path, word):
    """Every byte is followed: with the twin's positions, in files with something before and after."""

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(
        drawn=typemaps.types([*typemaps.BASIC, *typemaps.PAIRS], outermost=word),
        count=st.integers(1, 4),
        before=st.integers(0, 9),
        seed=st.integers(0, 99),
    )
    def there_and_back(drawn, count, before, seed):
        places = typemaps.positions(drawn.twin, count)
        low = min((start for start, _ in places), default=0)
        high = max((start + nbytes for start, nbytes in places), default=0)
        offset = max(0, -low) + before
        draw = random.Random(seed)
        octets = draw.randbytes(offset + max(high, 0) + draw.randrange(9))
        records, packed, target = (tmp_path / name for name in ("records.bin", "packed.bin", "target.bin"))
        records.write_bytes(octets)
        said = {"type": drawn.text, "count": count, "offset": offset}
        mpired.pack(records, output=packed, overwrite=True, **said)
        expected = b"".join(octets[offset + start :][:nbytes] for start, nbytes in places)
        assert packed.read_bytes() == expected
        other = draw.randbytes(len(octets) + 5)
        target.write_bytes(other)
        if overlap(places):
            with pytest.raises(DatatypeError, match="entries overlap"):
                mpired.unpack(packed, into=target, **said)
            assert target.read_bytes() == other
            return
        mpired.unpack(packed, into=target, **said)
        mpired.unpack(packed, output=tmp_path / "new.bin", overwrite=True, **said)
        expected, new = bytearray(other), bytearray(len(other))
        for start, nbytes in places:
            part = slice(offset + start, offset + start + nbytes)
            expected[part] = new[part] = octets[part]
        assert target.read_bytes() == bytes(expected)
        fresh = (tmp_path / "new.bin").read_bytes()
        assert fresh[: len(new)] == new[: len(fresh)]
        assert not places or len(fresh) >= offset + high

    there_and_back()


@each("block", [1, 7, 1000])
def test_blocks_do_not_show(block, tmp_path, monkeypatch):
    texts = ["vector(3,2,3,double)", "subarray([9,8,7],[5,4,3],[2,1,3],F,short)", "resized(0,8,vector(9,1,9,double))",
             "indexed([3,1,2],[9,0,5],struct([1,1],[0,9],[double,int8_t]))", "hvector(40,1,-13,byte)",
             "hindexed([1,1],[0,100000],int)"]  # fmt: skip
    for text in texts:
        typemap, count = parse(text)[0].typemap, 9
        low, high = typemap.elements(count).reach
        offset = max(0, -low)
        octets = np.random.default_rng(3).integers(0, 256, offset + high + 50, dtype=np.uint8).tobytes()
        (tmp_path / "a.bin").write_bytes(octets)
        said = {"type": text, "count": count, "offset": offset}
        for name in ("whole", "cut"):
            monkeypatch.setattr(transfer, "BLOCK_BYTES", 1 << 20 if name == "whole" else block)
            mpired.pack(tmp_path / "a.bin", output=tmp_path / f"{name}.bin", overwrite=True, **said)
            (tmp_path / f"{name}.rec").write_bytes(bytes(len(octets)))
            mpired.unpack(tmp_path / "whole.bin", into=tmp_path / f"{name}.rec", **said)
        assert (tmp_path / "whole.bin").read_bytes() == (tmp_path / "cut.bin").read_bytes()
        assert (tmp_path / "whole.rec").read_bytes() == (tmp_path / "cut.rec").read_bytes()


def test_types_that_are_no_array_go_into_raw_files(tmp_path):
    text = "struct([1,1200],[0,8],[double,struct([1,1],[0,2],[short,byte])])"
    octets = np.random.default_rng(2).integers(0, 256, parse(text)[0].typemap.extent, dtype=np.uint8).tobytes()
    (tmp_path / "a.bin").write_bytes(octets)
    mpired.pack(tmp_path / "a.bin", type=text, output=tmp_path / "packed.bin")
    expected = octets[:8] + b"".join(octets[8 + 4 * i : 11 + 4 * i] for i in range(1200))
    assert (tmp_path / "packed.bin").read_bytes() == expected
    (tmp_path / "b.bin").write_bytes(bytes(len(octets)))
    mpired.unpack(tmp_path / "packed.bin", type=text, into=tmp_path / "b.bin")
    mpired.pack(tmp_path / "b.bin", type=text, output=tmp_path / "again.bin")
    assert (tmp_path / "again.bin").read_bytes() == expected
    for words in ("-o a.npy", "--datarep external32 -o a.ext"):
        check_refused(tmp_path, f"pack --type {text} a.bin {words}", 3, "2401 entries do not make a structure")
