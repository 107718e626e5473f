"""Parquet and arrow files that somebody made to do harm, and faults of the system while such files are read."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import in_child, measured, reduce, refused, run, succeeded, unchanged
from tables import bytes_of

import mpired
from mpired.buffers import footer, parquet
from mpired.buffers.source import LocalSource
from mpired.errors import BufferFileError, MpiredError

SUFFIXES = ("parquet", "arrow")
THREE = np.array([1.0, 2.0, 3.0])
PAIRS = pa.array([{"v": 1.5, "i": 1}, {"v": -2.0, "i": 2}, {"v": 0.0, "i": 3}], pa.struct([("v", "f8"), ("i", "i4")]))


SMALLEST = {
    "plain.parquet": bytes_of(pa.table({"x": THREE}), "parquet"),
    "pages2.parquet": bytes_of(
        pa.table({"x": THREE, "p": PAIRS}),
        "parquet",
        data_page_version="2.0",
        write_page_index=True,
        compression="zstd",
    ),
    "plain.arrow": bytes_of(pa.table({"x": THREE}), "arrow"),
    "zstd.arrow": bytes_of(pa.table({"x": THREE, "p": PAIRS}), "arrow", compression="zstd"),
}


# Damage


def test_a_footer_that_contradicts_itself(tmp_path):
    """The type of the chunk is another than that of the schema, which ended the process by SIGABRT."""
    damaged = bytearray(SMALLEST["plain.parquet"])
    (at,) = (
        at
        for at in range(len(damaged))
        if at > damaged.index(b"schema") and damaged[at : at + 4] == bytes([0x15, 0x0A, 0x19, 0x35])
    )
    damaged[at + 1] = 0x08  # FLOAT
    (tmp_path / "bad.parquet").write_bytes(damaged)
    np.save(tmp_path / "o.npy", THREE)
    for words in (
        ("info",), ("reduce", "--op", "sum", "--to", "raw"), ("accumulate", "--op", "sum", "bad.parquet", "o.npy"),
        ("accumulate", "--op", "sum", "o.npy"),
    ):  # fmt: skip
        with unchanged(tmp_path):
            refused(run(*words, *([] if "bad.parquet" in words else ["bad.parquet"]), cwd=tmp_path), 3, "another type")


@pytest.mark.parametrize("name", SMALLEST)
def test_every_bit_flipped(name, tmp_path, long, record_property):
    """Nothing but a result or one of our errors, and never the end of the process."""
    whole, path, out = SMALLEST[name], tmp_path / name, tmp_path / "progress"
    bits = range(0, 8 * len(whole), 1 if long else 83)

    def look(some):
        outcomes = []
        for bit in some:
            out.write_text(str(bit))
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            try:
                for buffer in mpired.info(path).buffers:
                    mpired.reduce([path], "max", columns=[buffer.name])
                outcomes.append(0)
            except MpiredError as error:
                outcomes.append(error.exit_status if "\n" not in str(error) else str(error))
        return outcomes

    for start in range(0, len(bits), 500):
        try:
            outcomes = in_child(lambda start=start: look(bits[start : start + 500]))
        except AssertionError as error:
            pytest.fail(f"bit {out.read_text()}: {error}")
        assert set(outcomes) <= {0, 3}
    record_property("tried", len(bits))


@pytest.mark.parametrize("name", ["plain.parquet", "pages2.parquet"])
def test_parquet_with_fields_of_other_types(name, tmp_path):
    """Each byte that may be the type of a field says another: a reason, or what every reader expects."""
    types = {5, 6, 8, 9, 12}  # numbers of 32 and of 64 bits, bytes, a list, a structure
    whole, path, refusals = SMALLEST[name], tmp_path / name, 0
    path.write_bytes(whole)
    with open(path, "r+b", buffering=0) as file, contextlib.closing(LocalSource.of(name, str(path)).open()) as opened:
        fd = file.fileno()
        for at in (at for at in range(4, len(whole) - 8) if whole[at] & 15 in types):
            for kind in types - {whole[at] & 15}:
                os.pwrite(fd, bytes([whole[at] & 0xF0 | kind]), at)
                try:
                    leaves = footer.read(opened, len(whole)).leaves
                    chunks = [chunk for leaf in leaves for chunk in leaf.chunks]
                    pages = [page for chunk in chunks for page in footer.pages(opened, chunk).data]
                except ValueError:
                    refusals += 1
                    continue
                assert all(isinstance(value, int | None) for chunk in chunks for value in chunk), (at, kind)
                assert all(isinstance(part, bytes) for leaf in leaves for part in (*leaf.path, leaf.created_by)), at
                assert all(isinstance(page.decoded, int) for page in pages), (at, kind)
            os.pwrite(fd, whole[at : at + 1], at)
    assert refusals > 100


@pytest.mark.parametrize("what", ["encrypted", "footer of another length", "no groups", "a page of other values"])
def test_parquet_that_is_refused(what, tmp_path):
    content = bytearray(SMALLEST["plain.parquet"])
    if what == "encrypted":
        content[-4:] = b"PARE"
    elif what == "footer of another length":
        content[-8:-4] = struct.pack("<I", 2**31)
    elif what == "no groups":
        content = bytearray(b"PAR1\x15\x02\x00\x03\x00\x00\x00PAR1")
    else:
        chunk = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0).column(0)
        at = content.index(b"\x15\x06", chunk.data_page_offset + 4)  # three values
        content[at + 1] = 0x04
    path = tmp_path / "bad.parquet"
    path.write_bytes(content)
    with pytest.raises(BufferFileError) as caught:
        mpired.reduce([path], "sum")
    assert caught.value.exit_status == 3
    assert str(path) in str(caught.value)


def test_arrow_that_declares_more_than_there_is(tmp_path):
    """A buffer of a tebibyte is damage, and no want of memory."""
    content = bytearray(SMALLEST["plain.arrow"])
    at = content.index(struct.pack("<qq", 0, 24))  # where the values are in the body, and how many bytes
    struct.pack_into("<q", content, at + 8, 1 << 40)
    (tmp_path / "bad.arrow").write_bytes(content)
    refused(reduce("--op", "sum", "bad.arrow", "--to", "raw", cwd=tmp_path), 3, "bad.arrow", str(1 << 40))


def test_arrow_with_nulls_that_it_does_not_tell_of(tmp_path):
    table = pa.table({"x": pa.array([1.0, None, 3.0])})
    content = bytearray(bytes_of(table, "arrow"))
    at = content.index(struct.pack("<qq", 3, 1))  # the rows and the nulls
    struct.pack_into("<q", content, at + 8, 0)
    (tmp_path / "bad.arrow").write_bytes(content)
    refused(reduce("--op", "sum", "bad.arrow", "--to", "raw", cwd=tmp_path), 3, "bad.arrow", "nulls")


def test_structures_without_fields(tmp_path):
    path = tmp_path / "t.arrow"
    path.write_bytes(bytes_of(pa.table({"x": THREE, "e": pa.array([{}] * 3, pa.struct([]))}), "arrow"))
    assert [buffer.name for buffer in mpired.info(path).buffers] == ["x"]
    with pytest.raises(MpiredError, match=r"'e' is struct<>, no number"):
        mpired.reduce([path], "sum")
    assert mpired.reduce([path], "sum", columns=["x"]).tolist() == THREE.tolist()


def test_arrow_of_more_rows_than_values(tmp_path):
    """Nothing is kept free on the disk for a result that never comes."""
    content = bytearray(SMALLEST["plain.arrow"])
    at = content.rindex(struct.pack("<q", 3), 0, content.index(struct.pack("<qq", 3, 0)))  # the rows of the batch
    struct.pack_into("<q", content, at, 1 << 50)
    (tmp_path / "bad.arrow").write_bytes(content)
    refused(reduce("--op", "sum", "bad.arrow", "--to", "raw", cwd=tmp_path), 3, "bad.arrow", "too short")


@pytest.fixture(params=SUFFIXES)
def suffix(request):
    return request.param


# Memory


def test_a_page_that_unfolds_to_more_than_memory(tmp_path):
    count = 10 << 20
    table = pa.table({"x": np.zeros(count)})
    settings = {"row_group_size": count, "data_page_size": 1 << 30, "use_dictionary": False, "compression": "zstd"}
    try:
        content = bytes_of(table, "parquet", max_rows_per_page=count, **settings)
    except TypeError:  # an old pyarrow has no such limit
        content = bytes_of(table, "parquet", **settings)
    assert len(content) < 10_000
    (tmp_path / "page.parquet").write_bytes(content)
    np.save(tmp_path / "o.npy", np.zeros(1))
    words = ("reduce", "-q", "--op", "sum", "page.parquet", "--to", "raw", "-o", "out", "-j", "1")
    with unchanged(tmp_path):
        refused(run(*words, cwd=tmp_path), 3, "page.parquet", "unfolds to 83886", "--max-memory")
        refused(run(*words, "--max-memory", "190M", cwd=tmp_path), 3, "page.parquet", "unfolds to")
        accumulate = ("accumulate", "--op", "sum", "--target-disp", "0", "page.parquet", "o.npy")
        refused(run(*accumulate, cwd=tmp_path), 3, "page.parquet", "unfolds to")
    status, peak, err = measured(*words, "--max-memory", "300M", cwd=tmp_path)
    assert (status, err) == (0, "")
    assert peak < 300 << 20


def test_a_string_beside_that_unfolds_to_more_than_memory(suffix, tmp_path):
    content = bytes_of(
        pa.table({"x": [1.0], "s": ["a" * (80 << 20)]}), suffix, compression="zstd",
        **({"use_dictionary": False, "write_statistics": False} if suffix == "parquet" else {}),
    )  # fmt: skip
    (tmp_path / f"t.{suffix}").write_bytes(content)
    assert len(content) < 10_000
    np.save(tmp_path / "o.npy", np.ones(1))
    with unchanged(tmp_path):
        words = ("accumulate", "--op", "sum", "--columns", "x", f"t.{suffix}", "o.npy")
        refused(run(*words, cwd=tmp_path), 3, f"t.{suffix}", "unfolds to", "smaller parts")
    for words in (("info",), ("reduce", "-q", "--op", "sum", "--columns", "x", "--to", "raw", "-o", "out")):
        status, peak, err = measured(*words, f"t.{suffix}", cwd=tmp_path)
        assert (status, err) == (0, "")
        assert peak < 110 << 20


def test_a_record_batch_larger_than_memory_is_streamed(tmp_path):
    count = 30 << 20
    content = bytes_of(pa.table({"x": np.ones(count, "i1"), "y": np.ones(count)}), "arrow", compression="zstd")
    assert len(content) < 100_000
    (tmp_path / "t.arrow").write_bytes(content)
    del content
    for words in (("info",), ("reduce", "-q", "--op", "max", "--columns", "y", "--to", "raw", "-o", "out", "-j", "1")):
        status, peak, err = measured(*words, "t.arrow", cwd=tmp_path)
        assert (status, err) == (0, "")
        assert peak < 150 << 20
    found = np.memmap(tmp_path / "out", np.float64, "r")
    assert len(found) == count
    assert found[:: count // 100].tolist() == [1.0] * len(found[:: count // 100])


def test_a_long_row_group_is_written_again_in_pieces(tmp_path):
    count = 12 << 20
    pq.write_table(pa.table({"x": np.zeros(count)}), tmp_path / "t.parquet", row_group_size=count)
    np.save(tmp_path / "o.npy", np.ones(1))
    words = ("accumulate", "-q", "--op", "sum", "--target-disp", "5", "t.parquet", "o.npy")
    status, peak, err = measured(*words, cwd=tmp_path)
    assert (status, err) == (0, "")
    assert peak < 210 << 20
    assert np.flatnonzero(pq.read_table(tmp_path / "t.parquet")["x"].to_numpy()).tolist() == [5]


# What it costs


def test_a_long_column_is_read_in_pieces(tmp_path):
    """pyarrow reads a piece whole: one of more pages would be in memory at once, or copied for each of its pages."""
    values = np.random.default_rng(1).integers(0, 1 << 60, 1_000_000)
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet", use_dictionary=False, data_page_size=100_000)
    with contextlib.closing(LocalSource.of("a", str(tmp_path / "a.parquet")).open()) as file:
        (leaf,) = footer.read(file, os.path.getsize(tmp_path / "a.parquet")).leaves
        (chunk,) = leaf.chunks
        found = footer.pages(file, chunk)
        pieces = list(found.cut(1 << 20))
    assert [page for piece in pieces for page in piece.data] == list(found.data)
    assert 5 < len(pieces) < 20
    assert all(sum(page.extent.nbytes for page in piece.data) <= 1 << 20 for piece in pieces)
    assert [piece.data for piece in found.cut(1)] == [[page] for page in found.data]
    assert np.array_equal(mpired.reduce([tmp_path / "a.parquet"], "max"), values)


@pytest.mark.parametrize("ncolumns", [3, 60])
def test_columns_cost_the_same_each(ncolumns, tmp_path, monkeypatch, engine):
    """The footer is read as often as for one column, and pyarrow sees a single column for each, once a rank."""
    table = pa.table({f"c{i}": THREE * i for i in range(ncolumns)})
    for name in ("a", "b"):
        (tmp_path / f"{name}.parquet").write_bytes(bytes_of(table, "parquet"))
    footers, opened = [], []
    monkeypatch.setattr(parquet, "read_footer", lambda *words: footers.append(words) or footer.read(*words))
    plain = pq.ParquetFile
    monkeypatch.setattr(pq, "ParquetFile", lambda *words, **more: opened.append(plain(*words, **more)) or opened[-1])
    mpired.reduce([tmp_path / "a.parquet", tmp_path / "b.parquet"], "sum", output=tmp_path / "out.parquet", jobs=1)
    assert len(footers) == 3  # of both ranks, and of the first again, for the result is to be like it
    seen = [len(file.schema_arrow.names) for file in opened]
    assert seen.count(ncolumns) == 3
    assert seen.count(1) == 2 * ncolumns
    assert pq.read_table(tmp_path / "out.parquet")["c2"].to_pylist() == (THREE * 4).tolist()


@pytest.mark.parametrize("blocks", [2, 20])
def test_a_long_row_group_as_origin_is_decoded_once(blocks, suffix, tmp_path, monkeypatch):
    count = 1000 * blocks
    monkeypatch.setattr("mpired.windows.origin._BLOCK_NBYTES", 8000)
    values = np.random.default_rng(2).normal(size=count)
    (tmp_path / f"o.{suffix}").write_bytes(bytes_of(pa.table({"x": values}), suffix))
    np.save(tmp_path / "t.npy", np.zeros(count))
    opened = []
    plain = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: opened.append(path) or plain(path, *rest, **more))
    mpired.Window(tmp_path / "t.npy").accumulate(tmp_path / f"o.{suffix}", "sum", once=True)
    monkeypatch.undo()
    assert sum(str(path).endswith(suffix) for path in opened) <= 5
    assert np.array_equal(np.load(tmp_path / "t.npy"), values)


def test_reading_starts_at_any_page(tmp_path, monkeypatch):
    """What lies before a page is not decoded, with a dictionary too."""
    count = 100_000
    values = np.arange(count) % 1000 * 0.5
    (tmp_path / "t.parquet").write_bytes(
        bytes_of(pa.table({"x": values}), "parquet", data_page_size=1, write_batch_size=1000)
    )
    (buffer,) = mpired.info(tmp_path / "t.parquet").buffers
    decoded = []
    plain = parquet.values_of
    monkeypatch.setattr(parquet, "values_of", lambda column: decoded.append(len(column)) or plain(column))
    for start in (0, 1, 999, 1000, 54_321, 99_999):
        block = np.empty(min(10, count - start))
        with contextlib.closing(buffer.open()) as reader:
            reader.read(start, block)
        assert block.tolist() == values[start : start + 10].tolist()
    assert sum(decoded) < 6 * 66_000


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_from_any_element(compression, tmp_path, monkeypatch):
    monkeypatch.setattr("mpired.buffers.arrow._STREAM_NBYTES", 64)
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
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=190)
    for name, values in numbers.items():
        (buffer,) = (each for each in mpired.info(path).buffers if each.name == name)
        with contextlib.closing(buffer.open()) as reader:
            for start, stop in ((0, 500), (0, 3), (3, 200), (189, 191), (77, 78), (380, 500), (499, 500)):
                block = np.empty(stop - start, buffer.datatype.form)
                reader.read(start, block)
                assert block.tolist() == values[start:stop].tolist()


def test_arrow_in_the_byte_order_that_it_says(tmp_path):
    """Numbers are taken as the file says, whatever they look like."""
    content = bytearray(bytes_of(pa.table({"x": THREE}), "arrow"))
    swapped = content.replace(THREE.tobytes(), THREE.byteswap().tobytes())
    assert swapped != content
    (tmp_path / "little.arrow").write_bytes(swapped)
    assert mpired.reduce([tmp_path / "little.arrow"], "sum").tolist() == THREE.view("f8").byteswap().tolist()


# Faults


def failing(call, number, error):
    """Return a setup that lets a call on the file `t.*` fail from its n-th time on."""

    def setup():
        plain_open, plain, mine, made = os.open, getattr(os, call), set(), [0]

        def opened(path, *rest, **more):
            fd = plain_open(path, *rest, **more)
            if str(path).endswith(SUFFIXES):
                mine.add(fd)
            return fd

        def faulty(fd, *rest):
            if fd not in mine:
                return plain(fd, *rest)
            made[0] += 1
            if call == "close":
                mine.discard(fd)
                plain(fd)
            if made[0] >= number:
                raise OSError(error, os.strerror(error))
            return plain(fd, *rest) if call != "close" else None

        os.open = opened
        setattr(os, call, faulty)

    return setup


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
@pytest.mark.parametrize(("call", "numbers"), [("preadv", (1, 2, 3, 4))])
def test_errors_of_the_system_keep_their_number(call, numbers, error, suffix, tmp_path):
    (tmp_path / f"t.{suffix}").write_bytes(SMALLEST["zstd.arrow" if suffix == "arrow" else "plain.parquet"])
    np.save(tmp_path / "o.npy", THREE)
    for number in numbers:
        for words in (("reduce", "-q", "--op", "sum", "--columns", "x", f"t.{suffix}", "--to", "raw"),
                      ("accumulate", "-q", "--op", "sum", "--columns", "x", f"t.{suffix}", "o.npy")):  # fmt: skip
            with unchanged(tmp_path):
                outcome = run(*words, cwd=tmp_path, setup=failing(call, number, error))
                refused(outcome, 4, f"t.{suffix}: {os.strerror(error)}")


def test_closing_what_was_read_changes_no_status(suffix, tmp_path):
    (tmp_path / f"t.{suffix}").write_bytes(SMALLEST[f"plain.{suffix}"])
    words = ("--op", "sum", f"t.{suffix}", f"t.{suffix}", "-o", "sum.npy")
    succeeded(reduce(*words, cwd=tmp_path, setup=failing("close", 1, errno.EIO)))
    assert np.load(tmp_path / "sum.npy").tolist() == (2 * THREE).tolist()


# Names


def test_a_name_that_is_not_utf_8(suffix, tmp_path):
    name = os.fsdecode(b"t\xff." + suffix.encode())
    (tmp_path / name).write_bytes(SMALLEST[f"plain.{suffix}"])
    np.save(tmp_path / "o.npy", THREE)
    assert reduce("--op", "sum", name, name, "--to", "raw", cwd=tmp_path).out == (2 * THREE).tobytes()
    succeeded(run("accumulate", "-q", "--op", "sum", name, "o.npy", cwd=tmp_path))
    assert reduce("--op", "sum", name, "--to", "raw", cwd=tmp_path).out == (2 * THREE).tobytes()


@pytest.mark.parametrize("to", ["csv", "table", "json"])
def test_control_characters_in_names_of_columns(to, suffix, tmp_path):
    (tmp_path / f"t.{suffix}").write_bytes(bytes_of(pa.table({"a\x1b[31m\n\x9b": THREE}), suffix))
    outcome = reduce("--op", "sum", f"t.{suffix}", "--to", to, cwd=tmp_path)
    assert outcome.status == 0
    assert all(character.isprintable() or character == "\n" for character in outcome.out.decode())
    assert outcome.out.count(b"31m") == 1
