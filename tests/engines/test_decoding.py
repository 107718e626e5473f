"""A library that ends its process while it decodes a file: the process is a worker, and the file is to blame."""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import refused, run, unchanged
from tables import bytes_of

import mpired
from mpired.errors import BufferFileError

# Decoding ends the process at a file with "bad" in its name, and copying the other columns at one with "worse".
ABORTING = """
import os, sys
import mpired, numpy as np
from mpired.formats import arrow, parquet
from mpired.errors import MpiredError

def abort(kind, method, at):
    opened, decode = kind.__init__, getattr(kind, method)
    def remember(self, source, *rest):
        self.path = source.name
        opened(self, source, *rest)
    kind.__init__ = remember
    def aborting(self, *rest, **more):
        return os.abort() if at in os.path.basename(self.path) else decode(self, *rest, **more)
    setattr(kind, method, aborting)

abort(parquet.ParquetFile, "arrays", "bad")
abort(parquet.ParquetFile, "group", "worse")
abort(arrow.ArrowFile, "arrays", "bad")
abort(arrow.ArrowFile, "batches", "worse")
"""
COMMAND = ABORTING + "from mpired.cli import main; os._exit(main())"


def aborting(program, *words, cwd):
    """Run a program in which decoding aborts; OpenBLAS without threads lets it fork."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", program, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(params=["parquet", "arrow"])
def folder(request, tmp_path):
    """Return a folder with good.X, bad.X, worse.X, whose column x has elements of 1, and target.npy."""
    content = bytes_of(pa.table({"x": np.ones(5)}), request.param)
    for name in ("good", "bad", "worse"):
        (tmp_path / f"{name}.{request.param}").write_bytes(content)
    np.save(tmp_path / "target.npy", np.zeros(5))
    return tmp_path


@pytest.mark.parametrize("words", [
    "reduce --op sum --columns x good.X bad.X -o new.npy",
    "reduce-local --op sum bad.X good.X",
    "accumulate --op sum --columns x target.npy good.X bad.X",
    "accumulate --op sum --columns x bad.X target.npy",
    "accumulate --op sum --columns x worse.X target.npy",
    "get-accumulate --op sum --columns x bad.X target.npy --fetch old.npy",
    "accumulate --op sum --map bad.X target.npy target.npy",
    "fetch-and-op --op sum --columns x --target-disp 1 bad.X 2",
    "unpack --type double --columns x bad.X -o new.bin",
])  # fmt: skip
@pytest.mark.sampled(3)
def test_a_library_that_aborts(words, folder):
    """One line and status 3, which name the file, and nothing has changed."""
    suffix = next(path.suffix for path in folder.glob("good.*"))
    words = words.replace(".X", suffix).split()
    if words[0] == "fetch-and-op" and words[-1].startswith("bad"):
        np.save(folder / "target.npy", np.zeros(1))
        (folder / words[-1]).write_bytes(bytes_of(pa.table({"x": np.ones(1)}), suffix[1:]))
    if "--map" in words:
        (folder / f"bad{suffix}").write_bytes(bytes_of(pa.table({"x": np.arange(5)}), suffix[1:]))
    with unchanged(folder):
        outcome = aborting(COMMAND, *words, cwd=folder)
    which = "worse" if f"worse{suffix}" in words else "bad"
    reason = "cannot be decoded, the file is damaged (a worker died: it was killed by SIGABRT)"
    assert outcome.stderr == f"mpired: {which}{suffix}: {reason}\n"
    assert outcome.returncode == 3


def test_nulls_and_damage_are_told_by_the_worker(tmp_path):
    pq.write_table(pa.table({"x": [1.0, None, 3.0]}), tmp_path / "nulls.parquet", write_statistics=False)
    np.save(tmp_path / "target.npy", np.zeros(3))
    with unchanged(tmp_path):
        refused(run("accumulate", "--op", "sum", "target.npy", "nulls.parquet", cwd=tmp_path), 3, "'x' has 1 null")
    content = bytearray(
        bytes_of(pa.table({"x": np.arange(3.0)}), "parquet", compression="none", write_page_checksum=True)
    )
    content[content.index(np.float64(2).tobytes())] ^= 1
    (tmp_path / "bits.parquet").write_bytes(content)
    with pytest.raises(BufferFileError, match=r"bits.parquet: cannot be read, the file is damaged .*checksum"):
        mpired.Window(tmp_path / "target.npy").accumulate(tmp_path / "bits.parquet", "sum")
