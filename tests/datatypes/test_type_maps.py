"""Type maps as the standard defines them, and their bytes in the order in which a real MPI packs them."""

import numpy as np
import typemaps
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from rows import each

from mpired.datatypes import parse, transfer
from mpired.datatypes.typemap import Run


@each("word", typemaps.WORDS)
def test_as_the_standard_defines_it(word, long):
    @settings(max_examples=1000 if long else 20, deadline=None, derandomize=True)
    @given(drawn=typemaps.types([*typemaps.BASIC, *typemaps.PAIRS], outermost=word))
    def as_defined(drawn):
        made, twin = parse(drawn.text)[0].typemap, drawn.twin
        assert [(typemaps.spelled(entry.name), entry.disp) for entry in made.walk()] == list(twin.entries)
        assert (made.size, made.lb, made.ub, made.extent) == (twin.size, twin.lb, twin.ub, twin.extent)
        assert (made.true_lb, made.true_extent) == (twin.true_lb, twin.true_extent)
        assert made.entries == len(twin.entries)
        assert [made.entry(i).disp for i in range(made.entries)] == [disp for _, disp in twin.entries]

    as_defined()


def addressed(real, twin, count):
    """Return `count` elements as one type whose bytes all lie behind its address: mpi4py checks its buffers."""
    whole = MPI.Datatype.Create_struct([1], [0], [real.Create_contiguous(count)])
    low = min(start for start, _ in typemaps.positions(twin, count))
    high = max(start + nbytes for start, nbytes in typemaps.positions(twin, count))
    moved = MPI.Datatype.Create_struct([1], [-low], [whole])
    return moved.Create_resized(0, high - low).Commit(), low, high - low


@settings(max_examples=100, deadline=None, derandomize=True)
@given(drawn=typemaps.types([*typemaps.BASIC, *typemaps.PAIRS], like_mpich=True), count=st.integers(1, 3))
def test_as_a_real_mpi(drawn, count):
    typemap, real = parse(drawn.text)[0].typemap, drawn.real(MPI).Commit()
    assert (typemap.lb, typemap.extent) == real.Get_extent(), drawn.text
    assert (typemap.true_lb, typemap.true_extent) == real.Get_true_extent(), drawn.text
    assert typemap.size == real.Get_size(), drawn.text
    whole, low, nbytes = addressed(real, drawn.twin, count)
    buffer = np.random.default_rng(7).integers(0, 256, nbytes, dtype=np.uint8)
    packed = np.zeros(count * typemap.size, np.uint8)
    whole.Pack(buffer, packed, 0, MPI.COMM_SELF)
    run = Run(typemap, -low, count, typemap.extent)
    ours = np.zeros_like(packed)
    if count * typemap.size:
        transfer.whole_window(run).gather(buffer[run.reach[0] :], ours)
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
