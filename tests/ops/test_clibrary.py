"""User-defined ops in C: compiled with gcc, called as MPI calls them."""

import json
import re
import subprocess
import sysconfig
from pathlib import Path

import matrix
import numpy as np
import pytest
import reference
import values
from command import refused, run, succeeded, unchanged
from needs import needs

import mpired
from mpired.datatypes import parse
from mpired.errors import UserOpError
from mpired.ops import clibrary
from mpired.ops.clibrary import LibraryKernel

EXAMPLE = Path(__file__).parents[2] / "examples" / "complex_product.c"
EXAMPLE_OPS = EXAMPLE.with_name("ops.py")
MPI_H = Path(sysconfig.get_path("data")) / "include" / "mpi_abi.h"

SOURCE = r"""
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* 3 * lower + upper in each byte: the datatype says how many there are. */
static int64_t extent_of(uintptr_t handle);

void mixed(unsigned char *in, unsigned char *inout, int *len, uintptr_t *datatype)
{
    for (int64_t i = 0; i < *len * extent_of(*datatype); i++)
        inout[i] += 3 * in[i];
}

void mixed_c(unsigned char *in, unsigned char *inout, int64_t *len, uintptr_t *datatype)
{
    for (int64_t i = 0; i < *len * extent_of(*datatype); i++)
        inout[i] += 3 * in[i];
}

void handle(uint64_t *in, uint64_t *inout, int *len, uintptr_t *datatype)
{
    for (int i = 0; i < *len; i++)
        inout[i] = *datatype;
}

/* The overloaded op: it looks at the datatype, and does nothing for others. */
void overloaded(void *in, void *inout, int *len, uintptr_t *datatype)
{
    for (int i = 0; i < *len; i++)
        if (*datatype == 0x209) /* MPI_INT */
            ((int *)inout)[i] = ((int *)in)[i] > ((int *)inout)[i] ? ((int *)in)[i] : ((int *)inout)[i];
        else if (*datatype == 0x214) /* MPI_DOUBLE */
            ((double *)inout)[i] += ((double *)in)[i];
}

/* Not elementwise. */
void adds_the_first(int64_t *in, int64_t *inout, int *len, void *datatype)
{
    for (int i = 0; i < *len; i++)
        inout[i] += in[0];
}

/* Each element becomes the count it came with. */
void count32(int64_t *in, int64_t *inout, int *len, void *datatype)
{
    for (int i = 0; i < *len; i++)
        inout[i] = *len;
}

void count64(int64_t *in, int64_t *inout, int64_t *len, void *datatype)
{
    for (int64_t i = 0; i < *len; i++)
        inout[i] = *len;
}

/* A symbol that is called like the variant. */
void count(int64_t *in, int64_t *inout, int *len, void *datatype)
{
    for (int i = 0; i < *len; i++)
        inout[i] -= in[i];
}

/* It may do what it likes with what is its own. */
void careless(int64_t *in, int64_t *inout, int *len, void **datatype)
{
    for (int i = 0; i < *len; i++) {
        inout[i] += in[i];
        in[i] = -1;
    }
    *len = 0;
    *datatype = 0;
}

void prints(int64_t *in, int64_t *inout, int *len, void *datatype)
{
    printf("printed without an end");
}

void concatenate(unsigned char *in, unsigned char *inout, int *len, void *datatype)
{
    for (int i = 0; i < *len; i++, in += 18, inout += 18) {
        memmove(inout + 1 + in[0], inout + 1, 17 - in[0]);
        memcpy(inout + 1, in + 1, in[0]);
        inout[0] += in[0];
    }
}
"""


def extents():
    """Return the C function that knows how many bytes an element has, from this test's own table."""
    handles = {row.name: row.handle for row in mpired.DATATYPES}
    cases = "\n".join(f"case {handles[name]}: return {reference.FORMS[name][1]};" for name in matrix.AVAILABLE)
    return f"static int64_t extent_of(uintptr_t handle) {{ switch (handle) {{ {cases} }} return -1; }}"


def gcc(source, library, *options):
    needs("gcc")
    words = ["gcc", "-Wall", "-Wno-unused-parameter", "-O2", "-ffp-contract=off", "-shared", "-fPIC", *options]
    subprocess.run([*words, "-x", "c", "-", "-o", library], input=source, text=True, check=True)
    return library


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return gcc(SOURCE + extents(), tmp_path_factory.mktemp("library") / "ops.so")


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return gcc(EXAMPLE.read_text(), tmp_path_factory.mktemp("example") / "libcomplex_product.so")


@pytest.fixture(scope="module")
def mpi_h():
    """The values of the datatypes in the mpi.h of an MPI with the ABI of MPI-5.0."""
    text = MPI_H.read_text()
    known = {name: int(value, 16) for name, value in re.findall(r"#define +(\w+) +\(\(MPI_Datatype\)(0x\w+)\)", text)}
    known |= {
        name: known[other]
        for name, other in re.findall(r"#define +(\w+) +(MPI_\w+)$", text, re.MULTILINE)
        if other in known
    }
    return {name.removeprefix("MPI_"): value for name, value in known.items()}


def saved(folder, arrays):
    paths = [str(folder / f"rank{rank}.npy") for rank in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array)
    return paths


def reduced(folder, op, arrays, *options):
    """Reduce by the command, and return the result."""
    paths = saved(folder, arrays)
    succeeded(run("reduce", "-q", "--force", "--op", op, *options, "-o", "result.npy", *paths, cwd=folder))
    return np.load(folder / "result.npy")


# ---- handles


def test_handles_are_those_of_mpi_h(mpi_h):
    assert len(mpi_h) > 60
    for row in mpired.DATATYPES:
        for name in (row.name, *row.synonyms):
            assert row.handle == mpi_h[name], name
    assert {row.name for row in mpired.DATATYPES} >= set(matrix.AVAILABLE)


def test_types_lists_the_handles(tmp_path, mpi_h):
    listed = json.loads(run("types", "--json", cwd=tmp_path).out)
    assert {row["name"]: row["handle"] for row in listed} == {f"MPI_{row.name}": row.handle for row in mpired.DATATYPES}
    assert {"name": "MPI_INT", "handle": 0x209}.items() <= next(
        row for row in listed if row["name"] == "MPI_INT"
    ).items()


@pytest.mark.parametrize("name", matrix.AVAILABLE)
def test_the_op_sees_the_handle(library, name, mpi_h):
    datatype, _ = parse(name)
    slots = np.zeros(3, np.uint64)  # the op writes handles, whatever the elements are
    LibraryKernel(str(library), "handle")(slots, slots, datatype)
    assert slots.tolist() == [mpi_h[name]] * 3


def test_the_handle_of_a_structure_is_null(tmp_path, library, mpi_h):
    form = np.dtype([("first", "u4"), ("second", "u4")])
    result = reduced(tmp_path, f"{library}:handle", [np.zeros(3, form)] * 2)
    assert set(result.view("u8").tolist()) == {mpi_h["DATATYPE_NULL"]}


def test_displacement_0_need_not_be_in_an_element(tmp_path):
    source = """
    void behind(double *in, double *inout, int *len, void **datatype)  /* vector(2,1,-2,double): 0 and -16 */
    {
        for (int i = 0; i < *len; i++) {
            inout[3 * i] += in[3 * i];
            inout[3 * i - 2] -= in[3 * i - 2];
        }
    }
    void ahead(char *in, char *inout, int *len, void **datatype)  /* struct([2],[5],[int8_t]): 5 and 6, extent 2 */
    {
        for (int i = 0; i < *len; i++) {
            inout[2 * i + 5] += in[2 * i + 5];
            inout[2 * i + 6] -= in[2 * i + 6];
        }
    }
    """
    library = gcc(source, tmp_path / "displaced.so")
    ranks = [np.arange(60.0), np.arange(60.0) ** 2]
    paths = [tmp_path / f"rank{rank}.bin" for rank in range(2)]
    for path, array in zip(paths, ranks, strict=True):
        path.write_bytes(array.tobytes())
    expected = np.zeros(60)
    expected[2::3], expected[0::3] = (ranks[0] + ranks[1])[2::3], (ranks[1] - ranks[0])[0::3]
    mpired.reduce(paths, f"{library}:behind", type="vector(2,1,-2,double)", offset=16, output=tmp_path / "behind.bin")
    assert np.fromfile(tmp_path / "behind.bin").tolist() == expected.tolist()

    octets = [array.astype(np.int8)[:45] for array in ranks]
    for path, array in zip(paths, octets, strict=True):
        path.write_bytes(array.tobytes())
    expected = np.zeros(45, np.int8)
    expected[5::2], expected[6::2] = (octets[0] + octets[1])[5::2], (octets[1] - octets[0])[6::2]
    mpired.reduce(paths, f"{library}:ahead", type="struct([2],[5],[int8_t])", output=tmp_path / "ahead.bin")
    assert np.fromfile(tmp_path / "ahead.bin", np.int8).tolist() == expected.tolist()


def test_code_that_is_compiled_with_the_mpi_h_of_the_abi(tmp_path):
    source = """
    #include <mpi.h>
    void names(void *in, void *inout, int *len, MPI_Datatype *datatype)
    {
        for (int i = 0; i < *len; i++)
            if (*datatype == MPI_DOUBLE)
                ((double *)inout)[i] += ((double *)in)[i];
            else if (*datatype == MPI_2INT)
                ((int *)inout)[2 * i] += 10 * ((int *)in)[2 * i];
    }
    MPI_User_function *checked = names;
    """
    library = gcc(source, tmp_path / "names.so", "-DMPI_ABI", f"-I{MPI_H.parent}")
    assert reduced(tmp_path, f"{library}:names", [np.ones(3)] * 3).tolist() == [3.0] * 3
    form = np.dtype([("value", "i4"), ("index", "i4")])
    result = reduced(tmp_path, f"{library}:names", [np.ones(2, form)] * 2)
    assert result.tolist() == [(11, 1)] * 2


# ---- calls


@pytest.mark.parametrize("name", matrix.AVAILABLE)
@pytest.mark.parametrize("symbol", ["mixed", "mixed_c:count"])
def test_every_datatype(library, symbol, name):
    ranks = [without_padding(name)(rank) for rank in values.ranks(name, 3, 40)]
    expected = bytes((9 * a + 3 * b + c) % 256 for a, b, c in zip(*ranks, strict=True))
    kernel = LibraryKernel(str(library), *symbol.split(":"))
    datatype, _ = parse(name)
    lower, middle, upper = (np.frombuffer(bytearray(rank), datatype.form) for rank in ranks)
    kernel(lower, middle, datatype)
    kernel(middle, upper, datatype)
    assert upper.tobytes() == expected


def without_padding(name):
    return lambda octets: b"".join(
        reference.without_padding(name, element) for element in reference.elements(name, octets)
    )


@pytest.mark.parametrize("name", ["INT", "DOUBLE", "LONG_DOUBLE_INT", "C_DOUBLE_COMPLEX"])
def test_the_command_applies_it(tmp_path, library, name):
    ranks = [without_padding(name)(rank) for rank in values.ranks(name, 3, 40)]
    for rank, octets in enumerate(ranks):
        (tmp_path / f"rank{rank}.bin").write_bytes(octets)
    words = ("--type", name, "-o", "result.bin", "rank0.bin", "rank1.bin", "rank2.bin")
    succeeded(run("reduce", "-q", "--op", f"{library}:mixed", *words, cwd=tmp_path))
    expected = bytes((9 * a + 3 * b + c) % 256 for a, b, c in zip(*ranks, strict=True))
    assert (tmp_path / "result.bin").read_bytes() == without_padding(name)(expected)


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [("int", "i4", [9, 8, 9]), ("double", "f8", [15.0, 15.0, 15.0]), ("long", "i8", [1, 8, 6])],
)
def test_overloaded_op(tmp_path, library, name, code, expected):
    arrays = [np.array(row, code) for row in ([9, 2, 4], [5, 5, 5], [1, 8, 6])]
    arrays[2][2] = 9 if name == "int" else 6
    assert reduced(tmp_path, f"{library}:overloaded", arrays, "--type", name).tolist() == expected


@pytest.mark.parametrize(("symbol", "most"), [("count32", 7), ("count64:count", 20)])
def test_counts_over_int_max_go_in_several_calls(library, monkeypatch, symbol, most):
    monkeypatch.setattr(clibrary, "_INT_MAX", 7)
    invec, inoutvec = np.zeros(20, np.int64), np.zeros(20, np.int64)
    LibraryKernel(str(library), *symbol.split(":")).apply(invec, inoutvec, mpired.datatypes.INT64_T)
    expected = [most] * 20 if most == 20 else [7] * 14 + [6] * 6
    assert inoutvec.tolist() == expected


def test_a_symbol_called_count(tmp_path, library):
    arrays = [np.array([rank, 5]) for rank in (1, 3)]
    assert reduced(tmp_path, f"{library}:count", arrays).tolist() == [2, 0]


def test_an_op_that_looks_at_neighbours_is_refused(tmp_path, library):
    paths = saved(tmp_path, [np.arange(4), np.arange(4)])
    words = ("reduce", "--op", f"{library}:adds_the_first", "-o", "out.npy", *map(str, paths))
    reason = ":adds_the_first: gives other bits for 4 elements at once than for 2 and the rest"
    refused(run(*words, cwd=tmp_path), 7, reason)
    assert not (tmp_path / "out.npy").exists()


def test_operands_are_copies(tmp_path, library):
    arrays = [np.arange(5) + rank for rank in range(4)]
    assert reduced(tmp_path, f"{library}:careless", arrays).tolist() == sum(arrays).tolist()
    invec = np.arange(3)
    LibraryKernel(str(library), "careless")(invec, np.arange(3), mpired.datatypes.INT64_T)
    assert invec.tolist() == [0, 1, 2]


def test_what_it_prints_goes_to_standard_error(tmp_path, library):
    paths = saved(tmp_path, [np.arange(3)] * 2)
    outcome = run("reduce", "-q", "--op", f"{library}:prints", "--to", "text", *paths, cwd=tmp_path)
    assert (outcome.status, outcome.out, outcome.err) == (0, b"0\n1\n2\n", "printed without an end" * 3)


@pytest.mark.parametrize("jobs", ["1", "2", "7"])
@pytest.mark.parametrize("nranks", [2, 3, 16, 17])
@pytest.mark.parametrize("option", ["--commute", "--no-commute"])
def test_order(tmp_path, library, monkeypatch, jobs, nranks, option):
    monkeypatch.setattr("mpired.collectives.plan._BLOCK_BYTES", 8 * 18)
    monkeypatch.setattr("mpired.collectives.plan.SMALL_NBYTES", 0)
    form = np.dtype([("length", "u1"), *((f"letter{i}", "u1") for i in range(17))])
    octets = np.zeros((nranks, 129, 18), np.uint8)
    octets[:, :, 0] = 1
    octets[:, :, 1] = np.random.default_rng(nranks).permuted(np.tile(np.arange(1, 130), (nranks, 1)), axis=1)
    result = reduced(tmp_path, f"{library}:concatenate", [rank.view(form)[:, 0] for rank in octets], "-j", jobs, option)
    expected = np.zeros((129, 18), np.uint8)
    expected[:, 0] = nranks
    expected[:, 1 : 1 + nranks] = octets[:, :, 1].T
    assert result.tobytes() == expected.tobytes()


def test_a_link_to_a_library(tmp_path, library):
    (tmp_path / "link.so").symlink_to(library)
    arrays = [np.array([1]), np.array([3])]
    assert reduced(tmp_path, "./link.so:count", arrays).tolist() == [2]


def test_no_library_is_searched_for(tmp_path, library, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    paths = saved(tmp_path, [np.arange(3)] * 2)
    with unchanged(tmp_path):
        refused(run("reduce", "--op", "ops.so:count", *paths, cwd=tmp_path), 7, "write ./ops.so:count")


def test_a_missing_symbol(library):
    with pytest.raises(UserOpError, match=r"ops.so:nothing: there is no symbol 'nothing' in "):
        LibraryKernel(str(library), "nothing").properties()


# ---- the complex product of the standard


def complexes(nranks, count):
    return np.random.default_rng(3).normal(size=(nranks, count, 2))


FORMS = {
    "complex numbers": (np.dtype("c16"), ()),
    "structures": (np.dtype([("re", "f8"), ("im", "f8")]), ()),
    "declared": (np.dtype([("re", "f8"), ("im", "f8")]), ("--type", "2double_precision")),
}


@pytest.mark.parametrize("symbol", ["complex_product", "complex_product_c:count"])
@pytest.mark.parametrize(("form", "options"), FORMS.values(), ids=FORMS)
def test_complex_product_in_c_and_in_python(tmp_path, example, form, options, symbol):
    arrays = [rank.view(form)[:, 0] for rank in complexes(5, 1000)]
    in_c = reduced(tmp_path, f"{example}:{symbol}", arrays, *options)
    in_python = reduced(tmp_path, f"{EXAMPLE_OPS}:complex_product", arrays, *options)
    predefined = reduced(tmp_path, "prod", [rank.view("c16")[:, 0] for rank in complexes(5, 1000)])
    assert in_c.tobytes() == in_python.tobytes() == predefined.tobytes()


@pytest.mark.parametrize("code", ["i4", "f8"])
def test_op_for_several_types_in_c_and_in_python(tmp_path, example, code):
    arrays = [np.array([4, 7, rank], code) for rank in range(4)]
    in_c = reduced(tmp_path, f"{example}:sum_or_max", arrays)
    in_python = reduced(tmp_path, f"{EXAMPLE_OPS}:sum_or_max", arrays)
    assert in_c.tolist() == in_python.tolist() == ([4, 7, 3] if code == "i4" else [16.0, 28.0, 6.0])
