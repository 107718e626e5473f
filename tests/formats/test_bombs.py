"""Files of few bytes that unfold to very many: one line, and little memory."""

import inspect
import warnings
import zipfile
import zlib

import h5py
import numcodecs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from command import measured, unchanged
from rows import together
from tables import bytes_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import zarr

COUNT = 36 << 20  # of 8 bytes: 288 MiB
WRITER = inspect.signature(pq.ParquetWriter).parameters


def parquet_page(path):
    settings = {"row_group_size": COUNT, "data_page_size": 1 << 30, "use_dictionary": False, "compression": "zstd"}
    settings |= {"max_rows_per_page": COUNT} if "max_rows_per_page" in WRITER else {}  # which an old pyarrow has not
    path.write_bytes(bytes_of(pa.table({"x": np.zeros(COUNT)}), "parquet", **settings))


def arrow_batch(path):
    count = COUNT if "small" in path.name else 100 << 20
    path.write_bytes(bytes_of(pa.table({"x": np.zeros(count)}), "arrow", compression="zstd"))


def text(path):
    """Write a short column of numbers beside one long string."""
    settings = {"use_dictionary": False, "write_statistics": False} if path.suffix == ".parquet" else {}
    table = pa.table({"x": [1.0], "s": ["a" * (8 * COUNT)]})
    path.write_bytes(bytes_of(table, path.suffix[1:], compression="zstd", **settings))


def arrow_header(path):
    path.write_bytes(b"\xff" * 4 + (1 << 30).to_bytes(4, "little") + bytes(1000))


def npz_member(path):
    content = bytearray(np.lib.format.MAGIC_PREFIX + b"\1\0")
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }\n"
    content += len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(content) + bytes(1 << 28))


def hdf5_chunk(path):
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (1000,), "f8", chunks=(1000,), compression="gzip")
        dataset.id.write_direct_chunk((0,), zlib.compress(bytes(400 << 20), 1))


def zarr_chunk(path):
    codec = "gzip" if "gzip" in path.name else "zstd"
    compressor = numcodecs.get_codec({"id": codec, "level": 1})
    group = zarr.create_group(path, zarr_format=2)
    group.create_array("v", data=np.arange(1 << 16, dtype="f8"), chunks=(1 << 16,), compressors=compressor)
    content = compressor.encode(np.zeros((64 if codec == "gzip" else 400) << 17))
    (path / "v/0").write_bytes(content * 3 if codec == "gzip" else content)


REDUCE = "reduce -q --op sum --to raw -j 1 {}"
ACCUMULATE = "accumulate -q --op sum --target-disp 0 {} o.npy"
OF_X = "accumulate -q --op sum --columns x {} o.npy"
LIMIT = " --max-memory 200M"
LONG, OF_CHUNK = "smaller parts", "a chunk of array 'v' unfolds to more than the 524288 bytes of its shape"
REFUSED = [  # the writer of a file, its name, commands, the reason, and the most MiB that they may take
    (parquet_page, "page.parquet", [REDUCE + LIMIT, ACCUMULATE + LIMIT], LONG, 150),
    (arrow_batch, "small.arrow", [ACCUMULATE + LIMIT], LONG, 150),
    (arrow_batch, "large.arrow", [REDUCE], LONG, 150),
    (text, "text.parquet", [OF_X], LONG, 150),
    (text, "text.arrow", [OF_X], LONG, 150),
    (arrow_header, "header.arrows", [REDUCE], "", 110),
    (npz_member, "member.npz", [REDUCE + LIMIT], "24 data bytes for the shape (3,), found 268435456", 150),
    (hdf5_chunk, "chunk.h5", [REDUCE], "chunk.h5: cannot be read", 400),
    (zarr_chunk, "zstd.zarr", [REDUCE], OF_CHUNK, 250),
    (zarr_chunk, "gzip.zarr", [REDUCE], OF_CHUNK, 250),
]


def test_bombs(tmp_path):
    np.save(tmp_path / "o.npy", np.zeros(1))
    with together(tmp_path) as case:
        for write, name, commands, reason, most in REFUSED:
            write(tmp_path / name)
            for command in commands:
                with case(name, command), unchanged(tmp_path):
                    status, peak, err = measured(*command.format(name).split(), cwd=tmp_path)
                    assert (status, err.count("\n"), peak < most << 20) == (3, 1, True), f"{peak} bytes: {err}"
                    assert reason in err
        for name in ("text.parquet", "text.arrow"):
            with case("numbers beside a string", name):
                status, peak, err = measured(*REDUCE.format(name).split(), "--columns", "x", cwd=tmp_path)
                assert (status, err, peak < 110 << 20) == (0, "", True)
