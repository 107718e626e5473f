"""Messages of old, foreign and later writers of arrow: what pyarrow reads is read, and what it refuses is refused."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from command import refused, run, succeeded, unchanged
from rows import together
from tables import THREE

import mpired

V4 = pa.ipc.MetadataVersion.V4
THOUSAND = np.arange(1000.0)


def table(*fields):
    """Return what appends a table of flatbuffers; a field is None, a format with a number, or what appends another."""

    def append(data):
        data += bytes(-len(data) % 8)
        start, count = len(data), len(fields)
        slots = [0 if field is None else 8 + 8 * i for i, field in enumerate(fields)]
        data += struct.pack(f"<{2 + count}H", 4 + 2 * count, 8 + 8 * count, *slots)
        data += bytes(-len(data) % 8)
        at = len(data)
        data += struct.pack("<i4x", at - start) + bytes(8 * count)
        for slot, field in zip(slots, fields, strict=True):
            if callable(field):
                struct.pack_into("<I", data, at + slot, field(data) - at - slot)
            elif field is not None:
                struct.pack_into(field[0], data, at + slot, field[1])
        return at

    return append


def vector(form, *elements):
    """Return what appends a vector of numbers or structures, which `form` is of."""

    def append(data):
        data += bytes(4 - len(data) % 8 if len(data) % 8 <= 4 else 12 - len(data) % 8)
        at = len(data)
        data += struct.pack("<I", len(elements)) + b"".join(struct.pack(form, *each) for each in elements)
        return at

    return append


def tables(*appends):
    """Return what appends a vector of other tables."""

    def append(data):
        at = vector("<I", *[(0,)] * len(appends))(data)
        for slot, each in enumerate(appends):
            place = at + 4 + 4 * slot
            struct.pack_into("<I", data, place, each(data) - place)
        return at

    return append


def text(content):
    return vector("<B", *((octet,) for octet in content.encode() + b"\0"))


def string(content):
    """Return what appends a string, which ends with a zero that is not counted."""

    def append(data):
        at = text(content)(data)
        struct.pack_into("<I", data, at, len(content))
        return at

    return append


def message(content, body=b""):
    """Return a message of a stream."""
    data = bytearray(4)
    struct.pack_into("<I", data, 0, content(data))
    data += bytes(-len(data) % 8)
    return b"\xff" * 4 + struct.pack("<I", len(data)) + data + body


def stream(version=4, metadata=None, *, more=(), more_of_batch=(), compression=None, schema=(0, ())):
    """Return a stream with a column `x` of three doubles, made by hand; perhaps with another field after that."""
    field = table(string("x"), ("<B", 1), ("<B", 3), table(("<h", 2)), None, tables())
    order, features, *beside = schema
    others, node, buffers = beside or ((), (), ())
    schema = table(("<h", order), tables(field, *others), None, vector("<q", *((each,) for each in features)))
    vectors = vector("<qq", (3, 0), *node), vector("<qq", (0, 0), (0, 24), *buffers)
    batch = table(("<q", 3), *vectors, compression, None, *more_of_batch)
    keys = metadata and tables(*(table(string(key), string(value)) for key, value in metadata.items()))
    return b"".join([
        message(table(("<h", 4), ("<B", 1), schema, ("<q", 0))),
        message(table(("<h", version), ("<B", 3), batch, ("<q", 24), keys, *more), THREE.tobytes()),
        b"\xff" * 4 + bytes(4),
    ])  # fmt: skip


def by_library(content):
    """Return what pyarrow reads of a stream; None if it refuses it."""
    try:
        return pa.ipc.open_stream(content).read_all()["x"].to_numpy()
    except pa.ArrowException:
        return None


WRITERS = [
    {},
    {"metadata": {"by": "a test", "ARROWS": "2"}},
    {"metadata": {"ARROW:later": ""}},
    {"schema": (0, [1, 2])},
    {"schema": (1, [])},  # big-endian
    {"schema": (2, [])},
    {"version": 3},
    {"version": 0},
    {"version": 5},
    {"more": [("<q", 1)]},
    {"more_of_batch": [("<q", 1)]},
    {"compression": table(None, ("<b", 1))},
    {"metadata": {"ARROW:experimental_compression": "zstd"}},
]


def test_streams_as_the_library_reads_them(tmp_path):
    """Their ends are marked or not."""
    words = ("reduce", "--op", "sum", "--to", "raw")
    with together(tmp_path) as case:
        for number, settings in enumerate(WRITERS):
            whole = stream(**settings)
            for name, content in (("t.arrows", whole), ("t.arrows", whole[:-8]), ("-", whole)):
                with case(number, settings.keys(), name, len(content)) as folder:
                    (folder / "t.arrows").write_bytes(content)
                    outcome, expected = run(*words, name, cwd=folder, stdin=content), by_library(content)
                    if expected is None:
                        refused(outcome, 3, name if name != "-" else "standard input")
                    else:
                        assert (outcome.status, outcome.out) == (0, expected.astype("f8").tobytes())
        with case("more behind the end, which the library does not read") as folder:
            (folder / "t.arrows").write_bytes(stream() * 2)
            refused(run(*words, "t.arrows", cwd=folder), 3, "t.arrows: ", "goes on behind the end of the stream")


MONTHS = [table(string("y"), ("<B", 1), ("<B", 11), table(("<h", 0)), None, tables())], [(3, 0)], [(0, 0), (0, 12)]
NOTHING = [table(string("y"), ("<B", 0), ("<B", 1), table(), None, tables())], [(3, 3)], []  # nulls, and no nulls


@pytest.mark.parametrize(("beside", "kind"), [(MONTHS, "month_interval"), (NOTHING, "null")])
def test_types_that_python_cannot_name(beside, kind, tmp_path):
    """The library reads them; it cannot make such a type, nor arrays of months."""
    path, kept = tmp_path / "t.arrows", tmp_path / "kept.arrows"
    path.write_bytes(stream(schema=(0, (), *beside)))
    assert pa.ipc.open_stream(path.read_bytes()).read_all()["x"].to_pylist() == THREE.tolist()
    info = run("info", path.name, cwd=tmp_path)
    assert (info.status, info.err) == (0, "")
    assert f"  y: 3 x {kind}" in info.out.decode()
    assert (b"--keep y" in info.out) == (kind == "null")
    assert mpired.reduce([path] * 2, "sum", columns=["x"]).tolist() == (2 * THREE).tolist()
    words = "reduce", "-q", "--op", "sum", "--columns", "x", "--keep", "y", path.name, "-o", kept.name
    if kind == "null":
        succeeded(run(*words, cwd=tmp_path))
        assert pa.ipc.open_stream(kept.read_bytes()).read_all()["y"].null_count == len(THREE)
    else:
        refused(run(*words, cwd=tmp_path), 3, "column 'y' is month_interval, which pyarrow cannot copy")


def test_a_target_with_a_column_that_cannot_be_copied(tmp_path):
    content = stream(schema=(0, (), *MONTHS))
    with pa.ipc.open_stream(content) as old, pa.ipc.new_file(tmp_path / "t.arrow", old.schema) as new:
        for batch in old:
            new.write_batch(batch)
    np.save(tmp_path / "o.npy", THREE)
    with unchanged(tmp_path):
        words = "accumulate", "--op", "sum", "--columns", "x", "t.arrow", "o.npy"
        refused(run(*words, cwd=tmp_path), 3, "column 'y' is month_interval, which pyarrow cannot copy")


def compressed_as_once(values):
    """Return a column that is compressed as Arrow 0.17 did, which only the metadata of the message tells."""
    frame = pa.compress(values.tobytes(), codec="zstd", asbytes=True)
    rest = values.nbytes - 16 - len(frame)  # as many bytes as the values have, at the end a frame that is skipped
    body = struct.pack("<q", values.nbytes) + frame + struct.pack("<II", 0x184D2A50, rest) + bytes(rest)
    return pa.Array.from_buffers(pa.float64(), len(values), [None, pa.py_buffer(body)])


def test_files_from_before_arrow_1(tmp_path):
    np.save(tmp_path / "o.npy", THOUSAND)
    with together(tmp_path) as case:
        for suffix, is_compressed in (("arrow", True), ("arrow", False), ("arrows", True), ("arrows", False)):
            with case(suffix, is_compressed) as folder:
                is_file, path = suffix == "arrow", folder / f"t.{suffix}"
                new, read = (pa.ipc.new_file, pa.ipc.open_file) if is_file else (pa.ipc.new_stream, pa.ipc.open_stream)
                batch = pa.record_batch({"x": compressed_as_once(THOUSAND) if is_compressed else THOUSAND})
                said = {"ARROW:experimental_compression": "zstd"} if is_compressed else None
                with new(path, batch.schema, options=pa.ipc.IpcWriteOptions(metadata_version=V4)) as writer:
                    writer.write_batch(batch, custom_metadata=said)
                assert read(path).read_all()["x"].to_numpy().tolist() == THOUSAND.tolist()
                assert mpired.reduce([path] * 2, "sum").tolist() == (2 * THOUSAND).tolist()
                if is_file:
                    mpired.Window(path).accumulate(tmp_path / "o.npy", "sum")
                    assert read(path).read_all()["x"].to_numpy().tolist() == (2 * THOUSAND).tolist()
