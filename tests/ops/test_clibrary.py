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
from command import run, succeeded
from needs import needs
from user_ops import saved

import mpired

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


# ---- calls


def without_padding(name, octets):
    return b"".join(reference.without_padding(name, element) for element in reference.elements(name, octets))


def mixed(name):
    """Return three ranks of a datatype, and the bytes of their fold by the op `mixed`."""
    ranks = [without_padding(name, rank) for rank in values.ranks(name, 3, 40)]
    return ranks, bytes((9 * a + 3 * b + c) % 256 for a, b, c in zip(*ranks, strict=True))


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
