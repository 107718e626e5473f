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
from rows import together
from tables import SMALLEST, SUFFIXES, THREE, bytes_of

import mpired


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
        ("info", "bad.parquet"), ("reduce", "--op", "sum", "--to", "raw", "bad.parquet"),
        ("accumulate", "--op", "sum", "bad.parquet", "o.npy"), ("accumulate", "--op", "sum", "o.npy", "bad.parquet"),
    ):  # fmt: skip
        with unchanged(tmp_path):
            refused(run(*words, cwd=tmp_path), 3, "bad.parquet", "damaged")


def test_bytes_that_are_refused(tmp_path):
    """Nothing is kept free on the disk for a result that never comes; want of memory is another error."""
    plain = SMALLEST["plain.parquet"]
    page = plain.index(b"\x15\x06", pq.read_metadata(io.BytesIO(plain)).row_group(0).column(0).data_page_offset + 4)
    arrow = SMALLEST["plain.arrow"]
    values = arrow.index(struct.pack("<qq", 0, 24))  # where the values are in the body, and how many bytes
    nrows = arrow.rindex(struct.pack("<q", 3), 0, arrow.index(struct.pack("<qq", 3, 0)))  # of the batch
    contents = {
        "encrypted.parquet": plain[:-4] + b"PARE",
        "length_of_footer.parquet": plain[:-8] + struct.pack("<I", 2**31) + plain[-4:],
        "no_groups.parquet": b"PAR1\x15\x02\x00\x03\x00\x00\x00PAR1",
        "two_values.parquet": plain[: page + 1] + b"\4" + plain[page + 2 :],
        "a_tebibyte.arrow": arrow[: values + 8] + struct.pack("<q", 1 << 40) + arrow[values + 16 :],
        "more_rows.arrow": arrow[:nrows] + struct.pack("<q", 1 << 50) + arrow[nrows + 8 :],
    }
    with together(tmp_path) as case:
        for name, content in contents.items():
            with case(name) as folder:
                (folder / name).write_bytes(content)
                outcome = reduce("--op", "sum", name, "--to", "raw", cwd=folder)
                if name == "a_tebibyte.arrow" and outcome.out == THREE.tobytes():
                    continue  # an old pyarrow takes the bytes that its rows need
                refused(outcome, 3, name, "damaged" if name.endswith("arrow") else "")


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


def test_errors_of_the_system_keep_their_number(suffix, tmp_path):
    table = pa.table({"x": THREE}).replace_schema_metadata({"filler": "x" * 8192})  # not read at once, as few bytes are
    (tmp_path / f"t.{suffix}").write_bytes(bytes_of(table, suffix))
    np.save(tmp_path / "o.npy", THREE)
    words = ("-q", "--op", "sum", "--columns", "x", f"t.{suffix}")
    with together(tmp_path) as case:
        for command in (("reduce", *words, "--to", "raw"), ("accumulate", *words, "o.npy")):
            for number, error in ((1, errno.EIO), (2, errno.ESTALE), (3, errno.EIO)):
                with case(command, number), unchanged(tmp_path):
                    outcome = run(*command, cwd=tmp_path, setup=failing("preadv", number, error))
                    refused(outcome, 4, f"t.{suffix}: {os.strerror(error)}")


def test_closing_what_was_read_changes_no_status(suffix, tmp_path):
    (tmp_path / f"t.{suffix}").write_bytes(SMALLEST[f"plain.{suffix}"])
    words = ("--op", "sum", f"t.{suffix}", f"t.{suffix}", "-o", "sum.npy")
    succeeded(reduce(*words, cwd=tmp_path, setup=failing("close", 1, errno.EIO)))
    assert np.load(tmp_path / "sum.npy").tolist() == (2 * THREE).tolist()


def test_a_name_that_is_not_utf_8(suffix, tmp_path):
    name = os.fsdecode(b"t\xff." + suffix.encode())
    (tmp_path / name).write_bytes(SMALLEST[f"plain.{suffix}"])
    np.save(tmp_path / "o.npy", THREE)
    assert reduce("--op", "sum", name, name, "--to", "raw", cwd=tmp_path).out == (2 * THREE).tobytes()
    succeeded(run("accumulate", "-q", "--op", "sum", name, "o.npy", cwd=tmp_path))
    assert reduce("--op", "sum", name, "--to", "raw", cwd=tmp_path).out == (2 * THREE).tobytes()


def test_control_characters_in_names_of_columns(suffix, tmp_path):
    (tmp_path / f"t.{suffix}").write_bytes(bytes_of(pa.table({"a\x1b[31m\n\x9b": THREE}), suffix))
    for to in ("csv", "table", "json"):
        outcome = reduce("--op", "sum", f"t.{suffix}", "--to", to, cwd=tmp_path)
        assert outcome.status == 0
        assert all(character.isprintable() or character == "\n" for character in outcome.out.decode()), to
        assert outcome.out.count(b"31m") == 1
