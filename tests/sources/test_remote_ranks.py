"""Ranks that are objects of a store: the same bits as of files, one version of each, few requests."""

import json

import numpy as np
import pyarrow as pa
import pytest
from command import run, succeeded
from object_store import BYTES, MEBIBYTE, big
from rows import together
from tables import bytes_of

RANKS = [np.arange(1000.0) * 3**rank + 0.1 for rank in range(5)]


@pytest.fixture
def ranks(remote):
    """Put ranks as npy, raw, parquet and arrow, in the folder and in the bucket."""
    for rank, values in enumerate(RANKS):
        np.save(remote.folder / f"r{rank}.npy", values)
        values.tofile(remote.folder / f"r{rank}.bin")
        table = pa.table({"x": values, "y": values.astype("i4")})
        for suffix in ("parquet", "arrow"):
            (remote.folder / f"r{rank}.{suffix}").write_bytes(bytes_of(table, suffix))
    for path in remote.folder.glob("r*"):
        remote.store.put(f"run 7/{path.name}", path.read_bytes())
    return remote


def test_the_same_bits_as_of_files(ranks):
    """And what mpired writes into a store is read again."""
    for suffix in ("npy", "bin", "parquet", "arrow"):
        words = ["-f", "--op", "sum", "--to", "npz", *(["--type", "double"] if suffix == "bin" else [])]
        ranks.reduced(*words, "-o", "remote", f"s3://bucket/run 7/r*.{suffix}")
        ranks.reduced(*words, "-o", "local", *(f"r{rank}.{suffix}" for rank in range(5)))
        assert (ranks.folder / "remote").read_bytes() == (ranks.folder / "local").read_bytes(), suffix
    for suffix in ("npy.gz", "npz", "h5", "zarr.zip"):
        url = f"s3://bucket/out.{suffix}"
        ranks.reduced("--op", "sum", "-o", url, *(f"r{rank}.npy" for rank in range(5)))
        read = ranks.reduced("--op", "sum", "-o", "-", "--to", "csv", url)
        expected = RANKS[0] + RANKS[1] + RANKS[2] + RANKS[3] + RANKS[4]
        assert [float(line) for line in read.split()[1:]] == expected.tolist(), suffix


def test_small_ranks_are_asked_for_once(remote):
    for rank in range(40):
        remote.store.put(f"r{rank}.bin", bytes([rank]))
    remote.store.put("empty.bin", b"")
    remote.store.log()
    assert remote.reduced(*BYTES, "-o", "-", "s3://bucket/r{0..39}.bin") == bytes([0])
    assert len(remote.store.asked()) == 40
    assert remote.reduced(*BYTES, "-o", "-", "s3://bucket/empty.bin") == b""


OBJECTS = ["top.bin", "a/1.bin", "a/2.bin", "a/deep/1.bin", "a/.hidden", "b/1.bin", "b/with[1].bin", "b/with1.bin"]
GLOBS = {
    "*": ["top.bin"], "a/?.bin": ["a/1.bin", "a/2.bin"], "a/[2-9].bin": ["a/2.bin"], "*/1.bin": ["a/1.bin", "b/1.bin"],
    "**/1.bin": ["a/1.bin", "a/deep/1.bin", "b/1.bin"], "a/**": ["a/1.bin", "a/2.bin", "a/deep/1.bin"],
    "a/*": ["a/1.bin", "a/2.bin"], "a/.*": ["a/.hidden"], "b/with[1].bin": ["b/with[1].bin"],
}  # fmt: skip


def test_globs_are_those_of_files(remote):
    for name in OBJECTS:
        remote.store.put(name, b"\1")
    with together(remote.folder) as case:
        for pattern, names in GLOBS.items():
            with case(pattern):
                out = remote.reduced(*BYTES, "--dry-run", "--json", f"s3://bucket/{pattern}").decode()
                assert [each for each in OBJECTS if f's3://bucket/{each}"' in out] == names


def test_an_object_is_an_origin_but_no_target(ranks):
    url = "s3://bucket/run 7/r1.npy"
    succeeded(ranks.run("accumulate", "-q", "--op", "sum", "r0.npy", url))
    assert np.array_equal(np.load(ranks.folder / "r0.npy"), RANKS[0] + RANKS[1])
    with together(ranks.folder) as case:
        for words in (
            ("accumulate", "--op", "sum", url, "r0.npy"),
            ("get-accumulate", "--op", "sum", "r0.npy", "r1.npy", "--fetch", "s3://bucket/old.npy"),
            ("fetch-and-op", "--op", "sum", url, "1"),
            ("unpack", "--type", "double", "--into", url, "r0.bin"),
            ("reduce", "--op", "sum", "--in-place", url, "r0.npy"),
            ("allreduce", "--op", "sum", "--in-place", "r0.npy", url),
        ):
            with case(words):
                ranks.refuses(2, "is an object of a store, of which no part can be changed", words=words)
        with case("input"):
            words = ("reduce", "--op", "sum", "-f", "-o", url, url, "r2.npy")
            ranks.refuses(2, f"{url}: is the file of rank 0, an input of this command", words=words)


def test_other_schemes_lead_to_their_stores(remote):
    """The server understands the requests of all of them for ranks; those of http are without credentials."""
    expected, url = big(remote.store, 2, 5 * MEBIBYTE), remote.store.url
    key = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    google = json.dumps({"gcs_base_url": url, "disable_oauth": True, **key})
    with together(remote.folder) as case:
        for pattern, environment in (
            ("gs://bucket/r*.bin", {"GOOGLE_SERVICE_ACCOUNT_KEY": google, "GOOGLE_ALLOW_HTTP": "true",
                                    "GOOGLE_SKIP_SIGNATURE": "true"}),
            ("az://bucket/r{0..1}.bin", {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ENDPOINT": url,
                                         "AZURE_ALLOW_HTTP": "true", "AZURE_SKIP_SIGNATURE": "true"}),
            (f"{url}/bucket/r{{0..1}}.bin", remote.store.environment),
        ):  # fmt: skip
            with case(pattern) as folder:
                remote.store.log()
                words = ("reduce", "-q", *BYTES, "-o", "out", pattern)
                succeeded(run(*words, cwd=folder, env={"no_proxy": "127.0.0.1", **environment}))
                assert (folder / "out").read_bytes() == expected
                assert not any(each["authorization"] for each in remote.store.log())
