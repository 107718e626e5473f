"""User-defined ops on elements that reach into one another: what each call makes of them, and what it refuses."""

import itertools
import subprocess

import numpy as np
import pytest
from command import refused, run
from needs import needs

import mpired
from mpired.datatypes import transfer
from mpired.errors import DatatypeError, RanksError, UsageError

ROWS, COLS = 30, 20
COLUMN = f"resized(0,8,vector({ROWS},1,{COLS},double))"

PYTHON = """
import numpy as np
def longer(invec, inoutvec, count, datatype):
    def square(block):
        return sum(block[name] ** 2 for name in block.dtype.names)
    kept = square(invec) > square(inoutvec)
    inoutvec[kept] = invec[kept]
"""
C = """
void longer(void *invec, void *inoutvec, int *len, void *datatype) {
    for (int j = 0; j < *len; j++) {
        double *a = (double *)invec + j, *b = (double *)inoutvec + j, x = 0, y = 0;
        for (int i = 0; i < ROWS * COLS; i += COLS) { x += a[i] * a[i]; y += b[i] * b[i]; }
        for (int i = 0; x > y && i < ROWS * COLS; i += COLS) b[i] = a[i];
    }
}
"""


def compiled(folder, source, **sizes):
    needs("gcc")
    (folder / "ops.c").write_text(source)
    defined = [f"-D{name}={value}" for name, value in sizes.items()]
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", *defined, "ops.c", "-o", "ops.so"], cwd=folder, check=True)


def matrices(folder, count):
    """Save a matrix a rank, of small whole numbers, so that squares are exact in any order."""
    made = np.random.default_rng(3).integers(-9, 10, (count, ROWS, COLS)).astype("=f8")
    for rank, matrix in enumerate(made):
        matrix.tofile(folder / f"m{rank}.bin")
    return made


def folded(made):
    """The fold of whole matrices by columns: a column of the lower ranks stays if it is longer."""
    found = made[0]
    for upper in made[1:]:
        found = np.where((found**2).sum(0) > (upper**2).sum(0), found, upper)
    return found


def greater(invec, inoutvec):
    """The greater number of each field on its own, by value alone."""
    result = inoutvec.copy()
    for name in inoutvec.dtype.names:
        result[name] = np.where(invec[name] > inoutvec[name], invec[name], inoutvec[name])
    return result


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ops.py").write_text(PYTHON)
    compiled(tmp_path, C, ROWS=ROWS, COLS=COLS)
    return tmp_path


def add(invec, inoutvec):
    result = inoutvec.copy()
    for name in invec.dtype.names:
        result[name] += invec[name]
    return result


IN_PLACE = {
    "reduce": ([22, 24, 26, 28], [20, 21, 22, 23]),
    "allreduce": ([22, 24, 26, 28], [22, 24, 26, 28]),
    "scan": ([2, 3, 4, 5], [22, 24, 26, 28]),
    "reduce_scatter_block": ([22, 24], [26, 28]),
}


def test_byte_orders_in_place(tmp_path):
    """Four bytes, eight bytes apart, then four numbers: the first field may be one that has no byte order."""
    entries = "[0,32],[int8_t,int64_t]", "[32,0],[int64_t,int8_t]"
    for verb, fields, byte_order in itertools.product(IN_PLACE, entries, ("big", "little")):
        form = np.dtype("i8").newbyteorder(byte_order)
        paths = [tmp_path / "0.bin", tmp_path / "1.bin"]
        for rank, path in enumerate(paths):
            path.write_bytes(b"\1......." * 4 + (np.arange(4) + (2, 20)[rank]).astype(form).tobytes())
        said = {"type": f"resized(0,8,struct([1,1],{fields}))", "byte_order": byte_order, "count": 4}
        getattr(mpired, verb)(paths, add, in_place=True, **said)
        for path, wanted in zip(paths, IN_PLACE[verb], strict=True):
            found, count = path.read_bytes(), len(wanted)
            assert np.frombuffer(found, form, offset=32)[:count].tolist() == wanted, (verb, fields, byte_order)
            octet = b"\1" if (verb, path) in {("reduce", paths[1]), ("scan", paths[0])} else b"\2"
            assert found[: 8 * count] == (octet + b".......") * count, (verb, fields, byte_order)


PADDED = {"resized(0,5,byte)": 1, "double_int": 12, "resized(0,24,struct([1,1],[4,12],[int,int8_t]))": 13}


@pytest.mark.parametrize("verb", ["reduce", "allreduce", "scan", "exscan", "reduce_local"])
def test_a_file_without_the_last_padding_keeps_its_length(tmp_path, verb):
    for text, last in PADDED.items():
        nbytes = 2 * mpired.datatypes.parse(text)[0].extent + last
        paths = [tmp_path / "0.bin", tmp_path / "1.bin"]
        for path in paths:
            path.write_bytes(bytes(nbytes))
        op = "maxloc" if text == "double_int" else add
        if verb == "reduce_local":
            mpired.reduce_local(*paths, op, type=text)
        else:
            getattr(mpired, verb)(paths, op, type=text, in_place=True)
        assert [path.stat().st_size for path in paths] == [nbytes] * 2, text


@pytest.mark.parametrize(("op", "jobs"), [("ops.py:longer", 1), ("ops.so:longer", 2)])
def test_workers_and_blocks_do_not_show(folder, monkeypatch, cut_into, engine, op, jobs):
    made = matrices(folder, 4)
    cut_into(3)
    monkeypatch.setattr(transfer, "BLOCK_BYTES", 100)
    monkeypatch.setattr(transfer, "INTERLEAVED_BYTES", 700)
    said = {"op": f"{folder}/{op}", "type": COLUMN, "jobs": jobs}
    mpired.reduce([folder / f"m{rank}.bin" for rank in range(4)], output=folder / "out.bin", **said)
    assert (folder / "out.bin").read_bytes() == folded(made).tobytes()


def test_overlapping_elements_can_be_read_and_not_written(tmp_path):
    """A window that moves along: elements of three numbers, one number apart."""
    for i in range(2):
        np.arange(10.0)[:: 1 - 2 * i].tofile(tmp_path / f"{i}.bin")
    text, ranks = "resized(0,8,contiguous(3,double))", [tmp_path / "0.bin", tmp_path / "1.bin"]
    with pytest.raises(DatatypeError, match="in 8 elements of it entries overlap"):
        mpired.reduce(ranks, op=greater, type=text, output=tmp_path / "out.bin")
    assert not (tmp_path / "out.bin").exists()
    found = mpired.reduce(ranks, op=greater, type=text)
    up, down = (np.lib.stride_tricks.sliding_window_view(np.fromfile(rank), 3) for rank in ranks)
    assert found.view("f8").reshape(8, 3).tolist() == np.maximum(up, down).tolist()
    # A function in C gets elements that overlap one at a time.
    compiled(tmp_path, """
        void last(double *a, double *b, int *len, void *t) {
            for (int j = 0; j < *len; j++) for (int i = 0; i < 3; i++) b[j + i] = 100 * a[j + i] + b[j + i];
        }""")  # fmt: skip
    found = mpired.reduce(ranks, op=f"{tmp_path}/ops.so:last", type=text)
    assert found.view("f8").reshape(8, 3).tolist() == (100 * up + down).tolist()


MISFITS = [
    ({"type": "resized(0,0,int)"}, UsageError, "`count`: is needed"),
    ({"type": "resized(0,-8,vector(2,1,2,int))"}, UsageError, "`count`: is needed"),
    ({"type": COLUMN, "count": COLS + 1}, RanksError, "21 elements of .* end at byte 4808"),
    ({"type": COLUMN, "offset": 4}, RanksError, "4 bytes are left after 19 elements"),
    ({"type": "resized(0,8,vector(2,1,-2,double))"}, UsageError, "start 16 bytes before the file; give `offset`"),
    ({"type": COLUMN, "offset": 5000}, RanksError, "fewer than `offset=5000` skips"),
]


def test_what_does_not_fit_is_refused(tmp_path):
    matrices(tmp_path, 2)
    for said, error, reason in MISFITS:
        with pytest.raises(error, match=reason):
            mpired.reduce([tmp_path / "m0.bin", tmp_path / "m1.bin"], op=greater, output=tmp_path / "out.bin", **said)
        assert not (tmp_path / "out.bin").exists()


def test_what_a_function_writes_beside_its_elements_is_noticed(folder):
    matrices(folder, 2)
    compiled(
        folder, "void beside(double *a, double *b, int *len, void *t) { b[ROWS * COLS] = 1; }", ROWS=ROWS, COLS=COLS
    )
    words = ["--op", "./ops.so:beside", "--type", COLUMN, "m0.bin", "m1.bin", "-o", "out.bin"]
    refused(run("reduce", *words, cwd=folder), 7, "wrote outside its buffers of 20 elements")
