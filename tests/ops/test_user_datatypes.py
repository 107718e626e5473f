"""User-defined ops on elements of any datatype: bytes, structures, columns, and the fields of derived datatypes."""

import itertools
import json
import random
import re
import struct

import matrix
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import reference
import tables
import typemaps
import values
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from user_ops import folded, greater, saved, upper

import mpired
from mpired.errors import OpError


def without_padding(name, octets):
    return b"".join(reference.without_padding(name, element) for element in reference.elements(name, octets))


def test_every_datatype(tmp_path):
    """An op on bytes that is neither commutative nor blind to one: 3 * lower + upper in each byte."""
    seen = set()

    def mixed(invec, inoutvec, count, datatype):
        seen.add(inoutvec.dtype)
        octets = inoutvec.view(np.uint8)
        octets += 3 * invec.view(np.uint8)

    def twin(lower, upper):
        return bytes((3 * a + b) % 256 for a, b in zip(lower, upper, strict=True))

    wrong = []
    for row in (row for row in mpired.DATATYPES if row.name in matrix.AVAILABLE):
        ranks = [without_padding(row.name, rank) for rank in values.ranks(row.name, 4, 50)]
        paths = [tmp_path / f"rank{rank}.bin" for rank in range(4)]
        for path, rank in zip(paths, ranks, strict=True):
            path.write_bytes(rank)
        seen.clear()
        mpired.reduce(paths, mixed, type=row.name, output=tmp_path / "result.bin", overwrite=True)
        found, expected = (tmp_path / "result.bin").read_bytes(), without_padding(row.name, folded(twin, ranks))
        wrong += [row.name] if (seen, found) != ({row.dtype}, expected) else []
    assert wrong == []


def test_byte_order_of_the_file_is_kept_and_not_seen(tmp_path):
    arrays = [np.arange(6, dtype=">f8") + rank for rank in range(3)]

    def add(invec, inoutvec):
        assert invec.dtype.isnative
        return invec + inoutvec

    mpired.reduce(saved(tmp_path, arrays), add, output=tmp_path / "result.npy")
    result = np.load(tmp_path / "result.npy")
    assert result.dtype == arrays[0].dtype
    assert result.tolist() == sum(arrays).tolist()


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


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("fields", [STRUCTURES["mixed"], STRUCTURES["one"]], ids=["mixed", "one"])
def test_columns_of_structures_keep_the_names_of_their_fields(tmp_path, fields, suffix):
    arrays = structured(fields, 20, 3)
    paths = [tmp_path / f"rank{rank}.{suffix}" for rank in range(3)]
    for path, array in zip(paths, arrays, strict=True):
        tables.write(path, table_of(array), 7)
    output = tmp_path / f"result.{suffix}"
    mpired.reduce(paths, take_turns, columns=["it"], output=output)
    result = tables.read(output)
    assert result.schema.field("it").type == table_of(arrays[0]).schema.field("it").type
    for position, name in enumerate(arrays[0].dtype.names):
        column = pc.struct_field(result["it"], name).to_pylist()
        assert column == arrays[0 if position % 2 == 0 else 2][name].tolist()


def test_a_pair_of_columns_has_value_and_index(tmp_path):
    tables = [pa.table({"energy": [1.0, 2.0], "cell": pa.array([rank, rank], pa.int32())}) for rank in range(2)]
    paths = [tmp_path / f"rank{rank}.parquet" for rank in range(2)]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path)

    def later(invec, inoutvec, count, datatype):
        assert datatype == mpired.datatypes.DOUBLE_INT
        assert set(inoutvec["value"].tolist()) <= {1.0, 2.0}
        inoutvec["index"] -= 5

    result = mpired.reduce(paths, later, pair=("energy", "cell"))
    assert result["index"].tolist() == [-4, -4]


def test_a_declared_type_of_pairs_renames_the_fields(tmp_path):
    paths = saved(tmp_path, structured(STRUCTURES["pair"], 5, 2))
    seen = []
    mpired.reduce(paths, lambda _, inoutvec: seen.append(inoutvec.dtype.names) or inoutvec, type="double_int")
    mpired.reduce(paths, lambda _, inoutvec: seen.append(inoutvec.dtype.names) or inoutvec)
    assert list(dict.fromkeys(seen)) == [("value", "index"), ("energy", "cell")]


def matrix_product(invec, inoutvec, count, datatype):
    shape = count, 40, 40
    inoutvec["f0"] = (invec["f0"].reshape(shape) @ inoutvec["f0"].reshape(shape)).reshape(count, -1)


def stacks_of_matrices(draw):
    """Three ranks of five matrices of integers, so that every product is exact."""
    return [draw.integers(-9, 9, (5, 40, 40)).astype(float) for _ in range(3)]


@pytest.mark.parametrize("suffix", ["bin", "npy"])
@pytest.mark.parametrize("byte_order", ["little", "big"])
def test_elements_of_many_entries_are_fields_with_a_shape(tmp_path, suffix, byte_order):
    stacks = stacks_of_matrices(np.random.default_rng(7))
    form = np.dtype([("f0", {"little": "<f8", "big": ">f8"}[byte_order], (1600,))])
    paths = [tmp_path / f"rank{rank}.{suffix}" for rank in range(3)]
    for path, stack in zip(paths, stacks, strict=True):
        array = stack.astype(form["f0"].base).reshape(5, 1600).view(form).reshape(5)
        np.save(path, array) if suffix == "npy" else array.tofile(path)
    said = {"type": "contiguous(1600,double)", "byte_order": byte_order} if suffix == "bin" else {}
    mpired.reduce(paths, matrix_product, output=tmp_path / f"result.{suffix}", **said)
    if suffix == "npy":
        assert np.load(tmp_path / "result.npy").dtype == form
        result = np.load(tmp_path / "result.npy")["f0"]
    else:
        result = np.fromfile(tmp_path / "result.bin", form["f0"].base)
    assert np.array_equal(result.reshape(5, 40, 40), stacks[0] @ stacks[1] @ stacks[2])


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
