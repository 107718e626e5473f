"""User-defined ops in C: compiled with gcc, called as MPI calls them."""

import itertools
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
from user_ops import saved

import mpired
from mpired.datatypes import get
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


def reduced(folder, op, arrays, *options):
    """Reduce by the command, and return the result."""
    paths = saved(folder, arrays)
    succeeded(run("reduce", "-q", "--force", "--op", op, *options, "-o", "result.npy", *paths, cwd=folder))
    return np.load(folder / "result.npy")


# ---- handles


def test_handles_are_those_of_mpi_h(tmp_path, mpi_h):
    assert len(mpi_h) > 60
    for row in mpired.DATATYPES:
        for name in (row.name, *row.synonyms):
            assert row.handle == mpi_h[name], name
    assert {row.name for row in mpired.DATATYPES} >= set(matrix.AVAILABLE)
    listed = json.loads(run("types", "--json", cwd=tmp_path).out)
    assert {row["name"]: row["handle"] for row in listed} == {f"MPI_{row.name}": row.handle for row in mpired.DATATYPES}


def test_the_op_sees_the_handle(tmp_path, library, mpi_h):
    """Of a structure that of no datatype."""
    for name in matrix.AVAILABLE:
        slots = np.zeros(3, np.uint64)  # the op writes handles, whatever the elements are
        LibraryKernel(str(library), "handle")(slots, slots, get(name))
        assert slots.tolist() == [mpi_h[name]] * 3, name
    form = np.dtype([("first", "u4"), ("second", "u4")])
    result = reduced(tmp_path, f"{library}:handle", [np.zeros(3, form)] * 2)
    assert set(result.view("u8").tolist()) == {mpi_h["DATATYPE_NULL"]}


# ---- calls


def without_padding(name, octets):
    return b"".join(reference.without_padding(name, element) for element in reference.elements(name, octets))


def mixed(name):
    """Return three ranks of a datatype, and the bytes of their fold by the op `mixed`."""
    ranks = [without_padding(name, rank) for rank in values.ranks(name, 3, 40)]
    return ranks, bytes((9 * a + 3 * b + c) % 256 for a, b, c in zip(*ranks, strict=True))


def test_every_datatype(library):
    wrong = []
    for name, symbol in itertools.product(matrix.AVAILABLE, (["mixed"], ["mixed_c", "count"])):
        ranks, expected = mixed(name)
        kernel = LibraryKernel(str(library), *symbol)
        lower, middle, upper = (np.frombuffer(bytearray(rank), get(name).form) for rank in ranks)
        kernel(lower, middle, get(name))
        kernel(middle, upper, get(name))
        wrong += [(name, symbol)] if upper.tobytes() != expected else []
    assert wrong == []


def test_counts_over_int_max_go_in_several_calls(library, monkeypatch):
    monkeypatch.setattr(clibrary, "_INT_MAX", 7)
    for symbol, expected in (["count32"], [7] * 14 + [6] * 6), (["count64", "count"], [20] * 20):
        invec, inoutvec = np.zeros(20, np.int64), np.zeros(20, np.int64)
        LibraryKernel(str(library), *symbol).apply(invec, inoutvec, mpired.datatypes.INT64_T)
        assert inoutvec.tolist() == expected, symbol


def test_a_symbol_called_count(tmp_path, library):
    """Also by a link to the library."""
    (tmp_path / "link.so").symlink_to(library)
    for path in library, "./link.so":
        assert reduced(tmp_path, f"{path}:count", [np.array([rank, 5]) for rank in (1, 3)]).tolist() == [2, 0]


def test_what_is_refused(tmp_path, library, monkeypatch):
    """An op that looks at neighbours, a library that would have to be searched for, and a symbol that is not there."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    paths = saved(tmp_path, [np.arange(4), np.arange(4)])
    rows = {
        f"{library}:adds_the_first": ":adds_the_first: gives other bits for 4 elements at once than for 2 and the rest",
        "ops.so:count": "write ./ops.so:count",
        f"{library}:nothing": "ops.so:nothing: there is no symbol 'nothing' in ",
    }
    for op, reason in rows.items():
        with unchanged(tmp_path):
            refused(run("reduce", "--op", op, "-o", "out.npy", *paths, cwd=tmp_path), 7, reason)


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


CONCATENATE = """
import numpy as np
def concatenate(invec, inoutvec, count, datatype):
    lower, upper = (vec.view("u1").reshape(count, -1) for vec in (invec, inoutvec))
    place = np.arange(1, 18) - lower[:, :1]
    moved = np.take_along_axis(upper, np.clip(place, 0, None), 1)
    upper[:, 1:] = np.where(place > 0, moved, lower[:, 1:])
    upper[:, 0] += lower[:, 0]
"""


@pytest.mark.parametrize(
    ("nranks", "words"), [(2, ("-j", "7", "--commute")), (3, ("-j", "2")), (17, ("-j", "1", "--no-commute"))]
)
def test_order(tmp_path, library, monkeypatch, nranks, words):
    """Texts of the ranks, how many letters and then the letters, joined in C and in Python."""
    (tmp_path / "ops.py").write_text(CONCATENATE)
    monkeypatch.setattr("mpired.collectives.plan._BLOCK_BYTES", 8 * 18)
    monkeypatch.setattr("mpired.collectives.plan.SMALL_NBYTES", 0)
    form = np.dtype([("length", "u1"), *((f"letter{i}", "u1") for i in range(17))])
    octets = np.zeros((nranks, 129, 18), np.uint8)
    octets[:, :, 0] = 1
    octets[:, :, 1] = np.random.default_rng(nranks).permuted(np.tile(np.arange(1, 130), (nranks, 1)), axis=1)
    expected = np.zeros((129, 18), np.uint8)
    expected[:, 0] = nranks
    expected[:, 1 : 1 + nranks] = octets[:, :, 1].T
    for place in library, "ops.py":
        result = reduced(tmp_path, f"{place}:concatenate", [rank.view(form)[:, 0] for rank in octets], *words)
        assert result.tobytes() == expected.tobytes(), place


# ---- examples


def test_the_examples_for_several_datatypes_in_c_and_in_python(tmp_path):
    """conformance/test_user_ops.py compares the complex product with that of MPI, and here it is that of `prod`."""
    example = gcc(EXAMPLE.read_text(), tmp_path / "libcomplex_product.so")
    arrays = list(np.random.default_rng(3).normal(size=(5, 1000, 2)).view("c16")[..., 0])
    found = reduced(tmp_path, f"{example}:complex_product", arrays)
    assert found.tobytes() == reduced(tmp_path, "prod", arrays).tobytes()
    for code, expected in ("i4", [4, 7, 3]), ("f8", [16.0, 28.0, 6.0]):
        for place in example, EXAMPLE_OPS:
            arrays = [np.array([4, 7, rank], code) for rank in range(4)]
            assert reduced(tmp_path, f"{place}:sum_or_max", arrays).tolist() == expected, (place, code)


def test_the_example_for_several_datatypes_refuses_another(tmp_path):
    paths = saved(tmp_path, [np.ones(2, np.float32)] * 2)
    with unchanged(tmp_path):
        outcome = run("reduce", "--op", f"{EXAMPLE_OPS}:sum_or_max", *paths, cwd=tmp_path)
        refused(outcome, 7, "aborted: sum_or_max takes no MPI_FLOAT")


def test_a_subroutine_in_fortran_is_an_op(tmp_path):
    """Compared with NumPy, whose complex product may round its sums otherwise."""
    needs("gfortran")
    library, source = tmp_path / "ops.so", EXAMPLE.with_suffix(".f90")
    flags = ("-O2", "-ffp-contract=off", "-shared", "-fPIC")
    subprocess.run(["gfortran", *flags, "-o", library, source], check=True)
    arrays = list(np.random.default_rng(5).normal(size=(5, 1000, 2)).view("c16")[..., 0])
    result = reduced(tmp_path, f"{library}:complex_product", arrays)
    np.testing.assert_allclose(result, np.prod(arrays, axis=0), rtol=1e-13)
