"""Messages of arrow files that would be read wrongly if a part of them that is not known were taken as absent."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from command import refused, run, unchanged
from tables import THREE, bytes_of

import mpired
from mpired.errors import BufferFileError

V4 = pa.ipc.MetadataVersion.V4
THOUSAND = np.arange(1000.0)
WAY_OUT = "write it again with pyarrow 1.0 or later"


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
    """Return a stream with a column `x` of three doubles, made by hand."""
    field = table(string("x"), ("<B", 1), ("<B", 3), table(("<h", 2)), None, tables())
    order, features = schema
    schema = table(("<h", order), tables(field), None, vector("<q", *((each,) for each in features)))
    vectors = vector("<qq", (3, 0)), vector("<qq", (0, 0), (0, 24))
    batch = table(("<q", 3), *vectors, compression, None, *more_of_batch)
    keys = metadata and tables(*(table(string(key), string(value)) for key, value in metadata.items()))
    return b"".join([
        message(table(("<h", 4), ("<B", 1), schema, ("<q", 0))),
        message(table(("<h", version), ("<B", 3), batch, ("<q", 24), keys, *more), THREE.tobytes()),
        b"\xff" * 4 + bytes(4),
    ])  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"metadata": {"by": "a test", "ARROWS": "2"}}, {"schema": (0, [1, 2])}])
def test_what_changes_no_meaning(settings, tmp_path):
    """The metadata of users are none of the format's business."""
    path = tmp_path / "t.arrows"
    path.write_bytes(stream(**settings))
    assert pa.ipc.open_stream(path).read_all()["x"].to_pylist() == THREE.tolist()
    assert mpired.reduce([path] * 2, "sum").tolist() == (2 * THREE).tolist()
    outcome = run("reduce", "--op", "sum", "-", "--to", "raw", cwd=tmp_path, stdin=stream(**settings))
    assert outcome.out == THREE.tobytes()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"version": 3}, "version 4 of Arrow's metadata"),
        ({"version": 0}, "version 1 of Arrow's metadata"),
        ({"version": 5}, "version 6 of Arrow's metadata"),
        ({"metadata": {"by": "a test", "ARROW:experimental_compression": "zstd"}}, "metadata of Arrow's own"),
        ({"metadata": {"ARROW:later": ""}}, "metadata of Arrow's own"),
        ({"more": [("<q", 1)]}, "fields that mpired does not know"),
        ({"more_of_batch": [("<q", 1)]}, "fields that mpired does not know"),
        ({"compression": table(None, None, ("<q", 1))}, "fields that mpired does not know"),
        ({"compression": table(None, ("<b", 1))}, "makes no sense"),
        ({"schema": (2, [])}, "a byte order or a feature that mpired does not know"),
        ({"schema": (0, [1, 3])}, "a byte order or a feature that mpired does not know"),
    ],
)
def test_what_may_change_the_meaning_is_refused(settings, reason, tmp_path):
    content = stream(**settings)
    (tmp_path / "t.arrows").write_bytes(content)
    np.save(tmp_path / "o.npy", THREE)
    with unchanged(tmp_path):
        for words in (("info",), ("reduce", "--op", "sum", "--to", "raw"), ("accumulate", "--op", "sum", "o.npy")):
            outcome = run(*words, "t.arrows", cwd=tmp_path)
            refused(outcome, 3, reason, *([] if "sense" in reason else [WAY_OUT]))
        refused(run("reduce", "--op", "sum", "-", "--to", "raw", cwd=tmp_path, stdin=content), 3, reason)


def compressed_as_once(values):
    """Return a column that is compressed as Arrow 0.17 did, which only the metadata of the message tells."""
    frame = pa.compress(values.tobytes(), codec="zstd", asbytes=True)
    rest = values.nbytes - 16 - len(frame)  # as many bytes as the values have, at the end a frame that is skipped
    body = struct.pack("<q", values.nbytes) + frame + struct.pack("<II", 0x184D2A50, rest) + bytes(rest)
    return pa.Array.from_buffers(pa.float64(), len(values), [None, pa.py_buffer(body)])


@pytest.mark.parametrize("suffix", ["arrow", "arrows"])
@pytest.mark.parametrize("old", [True, False], ids=["compressed", "plain"])
def test_files_from_before_arrow_1(old, suffix, tmp_path):
    """What pyarrow reads is refused, and read when pyarrow has written it again."""
    path, again = tmp_path / f"t.{suffix}", tmp_path / f"again.{suffix}"
    batch = pa.record_batch({"x": compressed_as_once(THOUSAND) if old else THOUSAND})
    new, read = (pa.ipc.new_file, pa.ipc.open_file) if suffix == "arrow" else (pa.ipc.new_stream, pa.ipc.open_stream)
    with new(path, batch.schema, options=pa.ipc.IpcWriteOptions(metadata_version=V4)) as writer:
        writer.write_batch(batch, custom_metadata={"ARROW:experimental_compression": "zstd"} if old else None)
    table = read(path).read_all()
    assert table["x"].to_numpy().tolist() == THOUSAND.tolist()
    np.save(tmp_path / "o.npy", THOUSAND)
    with unchanged(tmp_path):
        for words in (
            ("reduce", "--op", "sum", "--to", "raw", path.name),
            ("accumulate", "--op", "sum", "o.npy", path.name),
            *([("accumulate", "--op", "sum", path.name, "o.npy")] if suffix == "arrow" else []),
            ("diff", path.name, "o.npy"),
        ):
            refused(run(*words, cwd=tmp_path), 3, path.name, "version 4", WAY_OUT)
    again.write_bytes(bytes_of(table, suffix))
    assert mpired.reduce([again], "sum").tolist() == THOUSAND.tolist()


def test_a_later_field_of_the_footer(tmp_path):
    """The table at the end of the file says that it has more fields."""
    content = bytearray(bytes_of(pa.table({"x": THREE}), "arrow"))
    (length,) = struct.unpack_from("<i", content, len(content) - 10)
    start = len(content) - 10 - length
    root = start + struct.unpack_from("<I", content, start)[0]
    struct.pack_into("<H", content, root - struct.unpack_from("<i", content, root)[0], 16)
    (tmp_path / "t.arrow").write_bytes(content)
    with pytest.raises(BufferFileError, match=f"fields that mpired does not know; {WAY_OUT}$"):
        mpired.info(tmp_path / "t.arrow")
