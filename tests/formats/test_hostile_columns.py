"""Parquet and arrow files that somebody made to do harm, and faults of the system while such files are read."""

from __future__ import annotations

import base64
import errno
import io
import os
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import reduce, refused, run, succeeded, unchanged
from tables import SMALLEST, SUFFIXES, THREE, bytes_of

import mpired
from mpired.errors import BufferFileError, MpiredError


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
    if run("info", "bad.parquet", cwd=tmp_path).status == 0:  # an old pyarrow does not look at the type of the chunk
        assert mpired.reduce([tmp_path / "bad.parquet"], "sum").tobytes() == THREE.tobytes()
        return
    for words in (
        ("info",), ("reduce", "--op", "sum", "--to", "raw"), ("accumulate", "--op", "sum", "bad.parquet", "o.npy"),
        ("accumulate", "--op", "sum", "o.npy"),
    ):  # fmt: skip
        with unchanged(tmp_path):
            refused(
                run(*words, *([] if "bad.parquet" in words else ["bad.parquet"]), cwd=tmp_path),
                3,
                "bad.parquet",
                "damaged",
            )


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


@pytest.mark.parametrize("nullable", [True, False])
def test_an_encrypted_column_ends_its_worker_without_a_word(nullable, tmp_path):
    """The footer is readable, and so are the other columns; pyarrow ends the process that asks for this one."""
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        def __init__(self, _settings):
            super().__init__()

        def wrap_key(self, key, _name):
            return base64.b64encode(key)

    keys = encryption.EncryptionConfiguration("a", column_keys={"b": ["x"]}, plaintext_footer=True)
    settings = encryption.CryptoFactory(Keys).file_encryption_properties(encryption.KmsConnectionConfig(), keys)
    schema = pa.schema([pa.field("x", pa.float64(), nullable), pa.field("y", pa.float64(), nullable=False)])
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": THREE, "y": THREE}, schema), path, encryption_properties=settings)
    for words in (("reduce", "--op", "sum", "--to", "raw"), ("show",)):
        refused(run(*words, "--columns", "x", path.name, cwd=tmp_path), 3, "t.parquet: cannot be decoded")
    if not nullable:
        assert mpired.reduce([path] * 2, "sum", columns=["y"]).tolist() == (2 * THREE).tolist()


def test_arrow_that_declares_more_than_there_is(tmp_path):
    """A buffer of a tebibyte is damage, and no want of memory; an old pyarrow takes the bytes that its rows need."""
    content = bytearray(SMALLEST["plain.arrow"])
    at = content.index(struct.pack("<qq", 0, 24))  # where the values are in the body, and how many bytes
    struct.pack_into("<q", content, at + 8, 1 << 40)
    (tmp_path / "bad.arrow").write_bytes(content)
    outcome = reduce("--op", "sum", "bad.arrow", "--to", "raw", cwd=tmp_path)
    if outcome.out != THREE.tobytes():
        refused(outcome, 3, "bad.arrow", "damaged")


def test_structures_without_fields(tmp_path):
    path = tmp_path / "t.arrow"
    path.write_bytes(bytes_of(pa.table({"x": THREE, "e": pa.array([{}] * 3, pa.struct([]))}), "arrow"))
    assert [buffer.name for buffer in mpired.info(path).buffers] == ["x"]
    with pytest.raises(MpiredError, match=r"'e' holds struct<>, not numbers"):
        mpired.reduce([path], "sum")
    assert mpired.reduce([path], "sum", columns=["x"]).tolist() == THREE.tolist()


def test_arrow_of_more_rows_than_values(tmp_path):
    """Nothing is kept free on the disk for a result that never comes."""
    content = bytearray(SMALLEST["plain.arrow"])
    at = content.rindex(struct.pack("<q", 3), 0, content.index(struct.pack("<qq", 3, 0)))  # the rows of the batch
    struct.pack_into("<q", content, at, 1 << 50)
    (tmp_path / "bad.arrow").write_bytes(content)
    refused(reduce("--op", "sum", "bad.arrow", "--to", "raw", cwd=tmp_path), 3, "bad.arrow", "damaged")


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
@pytest.mark.parametrize(("call", "numbers"), [("preadv", (1, 2, 3))])
def test_errors_of_the_system_keep_their_number(call, numbers, error, suffix, tmp_path):
    table = pa.table({"x": THREE}).replace_schema_metadata({"filler": "x" * 8192})  # not read at once, as few bytes are
    (tmp_path / f"t.{suffix}").write_bytes(bytes_of(table, suffix))
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
