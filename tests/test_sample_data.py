"""sample_data holds what its README says; the answers told there are run by test_docs.py."""

from pathlib import Path

import netCDF4
import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import feather
from rows import each

DATA = Path(__file__).parent.parent / "sample_data"
RANKS = range(4)
UNIT_POWERS = (complex(1, 0), complex(0, 1), complex(-1, 0), complex(0, -1))
DOUBLE_INT = np.dtype({"names": ["value", "index"], "formats": ["<f8", "<i4"], "offsets": [0, 8], "itemsize": 16})


def pairs(rank):
    """The elements of maxloc_R, with zeros in the padding."""
    array = np.zeros(30, DOUBLE_INT)
    array["value"] = [(i * (rank + 1) % 7) / 2 for i in range(30)]
    array["index"] = rank
    return array


def counts(rank):
    return np.array([(4 * i + rank + 2) % 9 for i in range(12)], "<i4")


def flags(rank):
    return np.array([i % (rank + 2) != 0 for i in range(16)])


def waves(rank):
    return np.array([UNIT_POWERS[rank * i % 4] for i in range(8)], "<c16").reshape(2, 4)


def tas(rank):
    i, j = np.mgrid[0:12, 0:24]
    return (300 - (2 * i - 11) ** 2 // 4 + (5 * i + 3 * j + 7 * rank) % 17 / 4).astype("<f4")


@each("rank", RANKS)
def test_raw_and_npy(rank):
    header = f"mpired sample {rank}\n".encode()
    assert len(header) == 16
    for name, content in {
        "maxloc": pairs(rank).tobytes(),
        "flags": flags(rank).tobytes(),
        "dump": header + counts(rank).astype(">i4").tobytes(),
    }.items():
        assert (DATA / f"{name}_{rank}.bin").read_bytes() == content, name
    for name, values in {"counts": counts(rank), "flags": flags(rank), "waves": waves(rank)}.items():
        array = np.load(DATA / f"{name}_{rank}.npy")
        assert array.dtype == values.dtype
        assert np.array_equal(array, values), name
    path = DATA / f"maxloc_{rank}.npy"
    array = np.load(path)
    assert (array.shape, array.dtype.itemsize) == ((30,), 16)
    assert [(name, array.dtype.fields[name][1]) for name in array.dtype.names] == [("value", 0), ("index", 8)]
    assert path.read_bytes().endswith(pairs(rank).tobytes())


@each("rank", RANKS)
def test_columns(rank, tmp_path):
    for suffix, read in (("parquet", pq.read_table), ("arrow", feather.read_table)):
        table = read(DATA / f"maxloc_{rank}.{suffix}")
        assert str(table.schema.field("peak").type) == "struct<value: double, index: int32>"
        assert [(row["value"], row["index"]) for row in table["peak"].to_pylist()] == pairs(rank).tolist()
    with pq.ParquetFile(DATA / f"cells_{rank}.parquet") as file:
        table = file.read()
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert groups == [[10], [8, 2], [6, 4], [4, 4, 2]][rank]
    assert [str(field.type) for field in table.schema] == ["double", "int32", "int64"]
    assert table.to_pydict() == {
        "energy": [i * (rank + 1) % 5 + 0.5 for i in range(10)],
        "cell": [10 * rank + i for i in range(10)],
        "hits": [i + rank for i in range(10)],
    }
    for stem in ("maxloc", "cells"):  # whose pages have checksums
        with pq.ParquetFile(DATA / f"{stem}_{rank}.parquet") as file:
            chunk = file.metadata.row_group(0).column(0)
        octets = bytearray((DATA / f"{stem}_{rank}.parquet").read_bytes())
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        octets[start + chunk.total_compressed_size - 1] ^= 1  # in the last page of the first column
        damaged = tmp_path / "damaged.parquet"
        damaged.write_bytes(octets)
        with pytest.raises(OSError, match="CRC"):
            pq.read_table(damaged, page_checksum_verification=True)


@each("rank", RANKS)
def test_netcdf(rank):
    with netCDF4.Dataset(DATA / f"tas_{rank}.nc") as file:
        assert file.data_model == "NETCDF3_CLASSIC"
        assert file["tas"].dimensions == ("lat", "lon")
        assert file["tas"][:].tobytes() == tas(rank).tobytes()
        assert [file[name].units for name in ("tas", "lat", "lon")] == ["K", "degrees_north", "degrees_east"]
        assert file["lat"][:].tolist() == [-82.5 + 15 * i for i in range(12)]
        assert file["lon"][:].tolist() == [7.5 + 15 * j for j in range(24)]
