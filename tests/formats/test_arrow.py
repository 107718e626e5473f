"""Arrow files and streams of any writer, from any element on, as pyarrow reads them."""

import base64
import contextlib
import zlib

import numpy as np
import pyarrow as pa
from command import refused, run
from rows import together
from tables import THREE, bytes_of

import mpired
from mpired.formats import columns

PLAIN = bytes_of(pa.table({"x": THREE}), "arrows")
# A stream of the same column by a later writer: with features and fields that pyarrow does not know.
LATER = zlib.decompress(base64.b85decode(
    "c-s5_|NnmpMg|561_<C`&|u(T5CHNOz<dFyI17|!gwhHOr~syq0Zkta$e{73AhAJa!t57dut2ik0B(*6n*GdB+5pX56Et%xplmjvNgP0$1IlM&z"
    "ywT4=ELNH!SnwH5$<Eb;Vua@I~Xy{VL&klre6n2+c01UjA(3T9R9%tP~G*x9?EclP#g{*e}h;6LShw9"
))  # fmt: skip
BYTE_ORDER, METADATA_VERSION = 96, 328  # where they are in it


def changed(at, octet):
    return LATER[:at] + bytes([octet]) + LATER[at + 1 :]


def with_metadata(metadata):
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"x": THREE})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata=metadata)
    return sink.getvalue().to_pybytes()


STREAMS = {
    "plain": PLAIN,
    "metadata": with_metadata({"by": "a test", "ARROWS": "2"}),
    "later metadata": with_metadata({"ARROW:later": ""}),
    "not compressed at all": with_metadata({"ARROW:experimental_compression": "zstd"}),
    "later": LATER,
    "big-endian": changed(BYTE_ORDER, 1),
    "unknown byte order": changed(BYTE_ORDER, 2),
    "version 1": changed(METADATA_VERSION, 0),
    "version 4": changed(METADATA_VERSION, 3),
    "version 6": changed(METADATA_VERSION, 5),
}


def by_library(content):
    """Return what pyarrow reads of a stream; None if it refuses it."""
    try:
        return pa.ipc.open_stream(content).read_all()["x"].to_numpy()
    except pa.ArrowException:
        return None


def test_streams_as_the_library_reads_them(tmp_path):
    """Their ends are marked or not."""
    words = ("reduce", "--op", "sum", "--to", "raw")
    with together(tmp_path) as case:
        for title, whole in STREAMS.items():
            for name, content in (("t.arrows", whole), ("t.arrows", whole[:-8]), ("-", whole)):
                with case(title, name, len(content)) as folder:
                    (folder / "t.arrows").write_bytes(content)
                    outcome, expected = run(*words, name, cwd=folder, stdin=content), by_library(content)
                    if expected is None:
                        refused(outcome, 3, name if name != "-" else "standard input")
                    else:
                        assert (outcome.status, outcome.out) == (0, expected.astype("f8").tobytes())
        with case("more behind the end, which the library does not read") as folder:
            (folder / "t.arrows").write_bytes(PLAIN * 2)
            refused(run(*words, "t.arrows", cwd=folder), 3, "t.arrows: ", "goes on behind the end of the stream")


def test_elements_from_any_one_on(tmp_path):
    """Beside columns of views, nulls and unions, whose buffers only the record batch counts."""
    random = np.random.default_rng(3)
    numbers = {
        "b": random.random(500) < 0.5, "i1": random.integers(-9, 9, 500, "i1"),
        "u8": random.integers(0, 2**63, 500, "u8"),
        "f2": random.normal(size=500).astype("f2"), "f8": random.normal(size=500),
    }  # fmt: skip
    views = pa.array([f"a string that is not short {i}" for i in range(500)], pa.string_view())
    union = pa.UnionArray.from_sparse(pa.array([0] * 500, pa.int8()), [pa.array(range(500))])
    table = pa.table({"v": views, "n": pa.nulls(500), "u": union, **numbers})
    path = tmp_path / "t.arrow"
    with together(tmp_path) as case:
        for compression in (None, "lz4", "zstd"):
            options = pa.ipc.IpcWriteOptions(compression=compression)
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=190)
            for name, values in numbers.items():
                (array,) = (each for each in mpired.info(path).buffers if each.name == name)
                with case(compression, name), contextlib.closing(array.open()) as reader:
                    for start, stop in ((0, 500), (0, 3), (3, 200), (189, 191), (77, 78), (380, 500), (499, 500)):
                        block = np.empty(stop - start, array.datatype.form)
                        reader.read(start, block)
                        assert block.tolist() == values[start:stop].tolist()


NUMBERS = [kind for kind in columns.DTYPES if not pa.types.is_boolean(kind)]
TIMES = [pa.timestamp("us"), pa.duration("ns"), pa.date32(), pa.time32("ms"), pa.time64("ns")]


def integers_of(kind):
    """Return the type of the integers that times are, and every other type itself."""
    return kind if kind not in TIMES else pa.int32() if kind.bit_width == 32 else pa.int64()


def with_nulls(kind):
    values = [None if i % 5 == 2 else i % 11 for i in range(77)]
    if pa.types.is_boolean(kind):
        return pa.array([None if each is None else each % 2 == 1 for each in values])
    return pa.array(values, pa.int64()).cast(integers_of(kind)).view(kind)


def test_values_with_nulls_of_a_part_of_an_array(tmp_path):
    with together(tmp_path) as case:
        for kind in (pa.bool_(), *NUMBERS, *TIMES):
            for start in (0, 3, 8, 13):
                with case(kind, start):
                    part = with_nulls(kind)[start:60]
                    values, valid = columns.nullable_values(part)
                    integers = part if kind not in TIMES else part.view(integers_of(kind))
                    zero = pa.scalar(0).cast(integers.type)
                    assert valid.tolist() == part.is_valid().to_pylist()
                    assert values.tolist() == [int(each) for each in integers.fill_null(zero).to_pylist()]
