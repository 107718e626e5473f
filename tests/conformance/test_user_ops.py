"""User-defined ops: a real MPI calls them on memory, mpired on files with the same bytes.

MPI_Reduce_local applied rank by rank is the left fold. For MPI_Reduce, which brackets as it likes, see
test_collectives.py.
"""

import ctypes
import itertools
import random
import subprocess

import pytest
import typemaps
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from needs import needs

import mpired

SOURCE = """
static const struct { long disp; int nbytes; } entries[] = { ENTRIES };
/* Of each byte that belongs to an entry the greater. */
void greater(unsigned char *in, unsigned char *inout, int *len, void *datatype) {
    for (long j = 0; j < *len; j++)
        for (unsigned k = 0; k < sizeof entries / sizeof *entries; k++)
            for (int i = 0; i < entries[k].nbytes; i++) {
                long at = j * EXTENT + entries[k].disp + i;
                if (in[at] > inout[at]) inout[at] = in[at];
            }
}
"""


@pytest.fixture(scope="module")
def library(mpi):
    """The library of the real MPI, for calls with addresses, which mpi4py does not let out of a buffer."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        path = next(line.split()[-1] for line in maps if "/libmpi.so" in line)
    return ctypes.CDLL(path)


def compiled(folder, twin):
    needs("gcc")
    entries = ",".join(f"{{{disp},{typemaps.BASIC[name][0]}}}" for name, disp in twin.entries)
    (folder / "op.c").write_text(SOURCE.replace("ENTRIES", entries).replace("EXTENT", str(twin.extent)))
    # A library under another name, because one that is loaded stays.
    made = folder / f"op{len(list(folder.glob('*.so')))}.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "op.c", "-o", made], cwd=folder, check=True)
    return made


def applied(library, function, datatype, images, at, count):
    """Let MPI fold the images of memory, with displacement 0 of the first element `at` bytes in each."""
    handle = ctypes.c_int()
    assert library.MPI_Op_create(function, 0, ctypes.byref(handle)) == 0
    running = images[0]
    for image in images[1:]:
        buffers = [ctypes.create_string_buffer(each, len(each)) for each in (running, image)]
        addresses = [ctypes.c_void_p(ctypes.addressof(buffer) + at) for buffer in buffers]
        assert library.MPI_Reduce_local(*addresses, count, datatype.py2f(), handle) == 0
        running = buffers[1].raw
    library.MPI_Op_free(ctypes.byref(handle))
    return running


@pytest.mark.parametrize("word", typemaps.WORDS)
@pytest.mark.sampled(3)
def test_a_function_sees_the_memory_of_an_mpi_program(mpi, library, tmp_path, word):
    @settings(max_examples=3, deadline=None, derandomize=True)
    @given(
        drawn=typemaps.types(list(typemaps.BASIC), like_mpich=True, outermost=word),
        count=st.integers(1, 5),
        seed=st.integers(0, 99),
    )
    def both(drawn, count, seed):
        spans = sorted(
            (disp + i * drawn.twin.extent, disp + i * drawn.twin.extent + typemaps.BASIC[name][0])
            for i in range(count)
            for name, disp in drawn.twin.entries
        )
        assume(spans and all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)))
        assume("long_double" not in {name for name, _ in drawn.twin.entries})  # whose padding mpired clears
        datatype = drawn.real(mpi).Commit()
        assume(datatype.Get_extent()[1] == drawn.twin.extent)
        draw = random.Random(seed)
        at = max(0, -spans[0][0]) + draw.randrange(9)
        images = [draw.randbytes(at + spans[-1][1] + max(0, drawn.twin.extent)) for _ in range(3)]
        made = compiled(tmp_path, drawn.twin)
        wanted = applied(library, ctypes.CDLL(str(made)).greater, datatype, images, at, count)
        paths = [tmp_path / f"{rank}.bin" for rank in range(3)]
        for path, image in zip(paths, images, strict=True):
            path.write_bytes(image)
        said = {"type": drawn.text, "offset": at, "count": count}
        mpired.reduce(paths, op=f"{made}:greater", root=2, in_place=True, **said)
        # Every byte: those of the entries, and those between, which are nobody's.
        assert paths[2].read_bytes() == wanted, drawn.text

    both()
