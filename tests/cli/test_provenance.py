"""`--provenance`: a result says, in itself or in a file beside it, how it was made and of what."""

import gzip
import hashlib
import io
import json
import os
import shlex
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
from command import run
from rows import each

from mpired import __version__

RANKS = ("a.npy", "b.npy", "c.npy")


def record_in(path):
    """Read a record without mpired."""
    if path.suffix == ".gz":
        return json.loads(pq.read_schema(io.BytesIO(gzip.decompress(path.read_bytes()))).metadata[b"mpired"])
    if path.suffix == ".arrows":
        return json.loads(pa.ipc.open_stream(path.read_bytes()).schema.metadata[b"mpired"])
    if path.suffix == ".parquet":
        return json.loads(pq.read_schema(path).metadata[b"mpired"])
    return json.loads(path.with_name(path.name + ".json").read_text())


def digests(folder, names=RANKS):
    """Return the digests of files by another program."""
    done = subprocess.run(["sha256sum", *names], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.split()[::2]


@each("suffix", ["npy", "csv", "arrows", "parquet.gz"])
def test_a_result_says_where_it_comes_from(suffix, folder):
    words = ("reduce", "-q", "--provenance", "--op", "sum", "--nan", "ignore", *RANKS, "-o", f"out.{suffix}")
    assert run(*words, cwd=folder) == (0, b"", "")
    record = record_in(folder / f"out.{suffix}")
    assert (record["argv"], record["version"]) == (["mpired", *words], __version__)
    assert (record["function"], record["op"]) == ("MPI_Reduce", "MPI_SUM")
    assert record["policies"]["nan"] == "ignore"
    assert record["buffers"] == [{"name": "", "datatype": "MPI_DOUBLE", "count": 3}]
    assert record["host"] == os.uname().nodename
    inputs = [(each["as"], each["file"], each["nbytes"], each["sha256"]) for each in record["inputs"]]
    assert inputs == [
        (f"rank {rank}", name, (folder / name).stat().st_size, digest)
        for rank, (name, digest) in enumerate(zip(RANKS, digests(folder), strict=True))
    ]
    told = run("info", f"out.{suffix}", cwd=folder).out.decode()
    assert "older than" not in told
    assert f"by {shlex.join(['mpired', *words])}\n" in told


@each("suffix, pack", [("npy", gzip.compress), ("parquet", bytes)])
def test_the_digest_of_a_stream_is_of_the_bytes_that_passed(suffix, pack, folder):
    sent = pack((folder / "b.npy").read_bytes())
    words = ("reduce", "-q", "--provenance", "--op", "sum", "a.npy", "-", "-o", f"out.{suffix}")
    read, write = os.pipe()
    os.write(write, sent)
    os.close(write)
    assert run(*words, cwd=folder, stdin=read).status == 0
    os.close(read)
    streamed = record_in(folder / f"out.{suffix}")["inputs"][1]
    assert (streamed["nbytes"], streamed["sha256"]) == (len(sent), hashlib.sha256(sent).hexdigest())
    assert streamed["of"] == "content"


def test_a_record_does_not_outlive_what_it_is_of(folder):
    """A result that is modelled on a file, and a target that has changed, come from something else."""
    words = ("reduce", "-q", "--op", "sum", "--provenance", "a.parquet", "-o")
    for suffix in ("parquet", "arrow", "npy"):
        assert run(*words, f"first.{suffix}", cwd=folder).status == 0
    for suffix in ("parquet", "arrow"):
        assert run("reduce", "-q", "--op", "sum", f"first.{suffix}", "-o", f"second.{suffix}", cwd=folder).status == 0
        assert run("accumulate", "-q", "--op", "sum", f"first.{suffix}", "b.parquet", cwd=folder).status == 0
    for name in ("first.parquet", "second.parquet"):
        assert b"mpired" not in (pq.read_schema(folder / name).metadata or {})
    for name in ("first.arrow", "second.arrow"):
        assert b"mpired" not in (pa.ipc.open_file(folder / name).schema.metadata or {})
    assert "older than" not in run("info", "first.npy", cwd=folder).out.decode()
    assert run("accumulate", "-q", "--op", "sum", "first.npy", "b.npy", cwd=folder).status == 0
    assert "first.npy.json; older than the file" in run("info", "first.npy", cwd=folder).out.decode()
