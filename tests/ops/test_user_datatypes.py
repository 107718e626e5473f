"""User-defined ops on elements of any datatype: bytes, structures, columns, and the fields of derived datatypes."""

import itertools
import re

import matrix
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from user_ops import saved, upper

import mpired
from mpired.errors import OpError

STRUCTURES = {
    "quaternion": [("w", "f8"), ("x", "f8"), ("y", "f8"), ("z", "f8")],
    "complex": [("re", "f8"), ("im", "f8")],
    "mixed": [("flag", "?"), ("small", "i1"), ("number", "f4"), ("large", "u8"), ("half", "f2")],
    "pair": [("energy", "f8"), ("cell", "i4")],
    "one": [("only", "f4"), ("other", "i8")],
}


def structured(fields, count, nranks, *, align=False):
    draw = np.random.default_rng(count)
    dtype = np.dtype(fields, align=align)
    arrays = [np.zeros(count, dtype) for _ in range(nranks)]
    for array in arrays:
        for name in dtype.names:
            array[name] = draw.integers(0, 2 if dtype[name].kind == "b" else 100, count)
    return arrays


def take_turns(invec, inoutvec, count, datatype):
    """Every other field of the lower rank, the others of the upper: not commutative."""
    for name in inoutvec.dtype.names[::2]:
        inoutvec[name] = invec[name]


def test_structures_of_npy_keep_the_names_of_their_fields(tmp_path):
    for fields, align in itertools.product(STRUCTURES.values(), (False, True)):
        arrays = structured(fields, 20, 3, align=align)
        mpired.reduce(saved(tmp_path, arrays), take_turns, output=tmp_path / "result.npy", overwrite=True)
        result = np.load(tmp_path / "result.npy")
        assert result.dtype == arrays[0].dtype
        for position, name in enumerate(result.dtype.names):
            assert result[name].tolist() == arrays[0 if position % 2 == 0 else 2][name].tolist(), (fields, align)


def table_of(array):
    fields = [pa.array(array[name]) for name in array.dtype.names]
    return pa.table(
        {"first": pa.array(np.arange(len(array))), "it": pa.StructArray.from_arrays(fields, array.dtype.names)}
    )


def test_every_number_of_a_field_with_a_shape_is_in_the_text(tmp_path):
    array = np.arange(12.0).reshape(2, 6).view([("w", "f8", (2, 2)), ("n", "f8"), ("m", "f8", (1,))]).reshape(2)
    np.save(tmp_path / "rank.npy", array)
    for to in "csv", "json", "text":
        mpired.reduce([tmp_path / "rank.npy"] * 2, upper, to=to, output=tmp_path / f"result.{to}")
        text = (tmp_path / f"result.{to}").read_text()
        assert to != "csv" or text.startswith("w[0][0],w[0][1],w[1][0],w[1][1],n,m[0]\n")
        assert re.findall(r"\d+\.0", text) == [f"{number}.0" for number in range(12)], to


def test_long_doubles_in_a_field_keep_their_padding_and_go_to_external32(tmp_path):
    numbers = np.arange(1, 2401, dtype=np.longdouble) / 3
    octets = numbers.view(np.uint8).reshape(-1, 16).copy()
    octets[:, 10:] = 0xFF
    (tmp_path / "rank.bin").write_bytes(octets.tobytes())
    said = {"type": "contiguous(1200,long_double)"}

    def keep(invec, inoutvec):
        return inoutvec

    mpired.reduce([tmp_path / "rank.bin"] * 2, keep, output=tmp_path / "native.bin", **said)
    octets[:, 10:] = 0
    assert (tmp_path / "native.bin").read_bytes() == octets.tobytes()
    mpired.pack(tmp_path / "native.bin", output=tmp_path / "packed.bin", datarep="external32", **said)
    external = {"datarep": "external32", "to": "raw", **said}
    mpired.reduce([tmp_path / "packed.bin"] * 2, keep, output=tmp_path / "result.bin", **external)
    assert (tmp_path / "result.bin").read_bytes() == (tmp_path / "packed.bin").read_bytes()


BAD_SHAPES = [
    ("[('a', '<f8', (0,))]", "the field 'a' has no number, or more than 1048576"),
    ("[('a', '<f8', (True,))]", "the header cannot be read"),
    ("[('a', '<f8', (1048577,))]", "the field 'a' has no number, or more than 1048576"),
    ("[('a', '<f8', (65536, 65536, 65536, 65536))]", "the header cannot be read"),
    (f"[('a', '<f8', {(1,) * 70})]", "the header cannot be read"),
    ("[('a', [('b', '<f8')])]", "which no MPI datatype has"),
    (f"{[(f'f{i}', '<f8', (1048576,)) for i in range(300)]}", "the header cannot be read"),
]


def test_fields_with_a_bad_shape(tmp_path):
    for descr, reason in BAD_SHAPES:
        header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (0,), }}\n".encode()
        (tmp_path / "rank.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        with pytest.raises(mpired.MpiredError, match=reason):
            mpired.reduce([tmp_path / "rank.npy"] * 2, take_turns)


def test_predefined_ops_refuse_structures(tmp_path):
    array = structured(STRUCTURES["quaternion"], 5, 1)[0]
    np.save(tmp_path / "rank.npy", array)
    pq.write_table(table_of(array), tmp_path / "rank.parquet")
    cases = [*itertools.product(matrix.REDUCE_OPS, ["rank.npy"], [{}])]
    cases += [("SUM", "rank.parquet", {"columns": ["it"]}), ("MAXLOC", "rank.parquet", {"columns": ["it"]})]
    for op, name, options in cases:
        with pytest.raises(OpError, match=r"struct\(f8 w, f8 x, f8 y, f8 z\)") as e:
            mpired.reduce([tmp_path / name] * 2, op, **options)
        assert (e.value.exit_status, e.value.mpi_class) == (3, "MPI_ERR_OP"), (op, name)


def test_structures_that_differ_in_a_name_are_not_of_one_datatype(tmp_path):
    arrays = [structured(STRUCTURES[name], 5, 1)[0] for name in ("complex", "complex")]
    arrays[1].dtype.names = ("real", "imag")
    with pytest.raises(mpired.MpiredError, match="f8 real, f8 imag"):
        mpired.reduce(saved(tmp_path, arrays), take_turns)


# Fields of derived datatypes


BACKWARDS = {"vector(2,1,-1,int)": "resized(0,4,vector(2,1,-2,int))"}
BACKWARDS |= {"struct([1,1],[4,0],[float,int])": "resized(0,8,struct([1,1],[12,0],[float,int]))"}
