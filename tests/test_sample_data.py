"""sample_data holds what its README says, and the answers told there are right."""

from pathlib import Path

import netCDF4
import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

import mpired

DATA = Path(__file__).parent.parent / "sample_data"
RANKS = range(4)
UNIT_POWERS = (complex(1, 0), complex(0, 1), complex(-1, 0), complex(0, -1))
DOUBLE_INT = np.dtype({"names": ["value", "index"], "formats": ["<f8", "<i4"], "offsets": [0, 8], "itemsize": 16})


def files(stem, suffix):
    return [DATA / f"{stem}_{rank}.{suffix}" for rank in RANKS]


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


every_rank = pytest.mark.parametrize("rank", RANKS)


@every_rank
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


@every_rank
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


@every_rank
def test_netcdf(rank):
    with netCDF4.Dataset(DATA / f"tas_{rank}.nc") as file:
        assert file.data_model == "NETCDF3_CLASSIC"
        assert file["tas"].dimensions == ("lat", "lon")
        assert file["tas"][:].tobytes() == tas(rank).tobytes()
        assert [file[name].units for name in ("tas", "lat", "lon")] == ["K", "degrees_north", "degrees_east"]
        assert file["lat"][:].tolist() == [-82.5 + 15 * i for i in range(12)]
        assert file["lon"][:].tolist() == [7.5 + 15 * j for j in range(24)]


# The values are written out as the README tells them.


def test_answers_of_pairs():
    for op, values, indices in (
        ("maxloc", [0.0, 2.0, 3.0, 3.0, 2.5, 3.0, 3.0], [0, 3, 2, 1, 2, 3, 0]),
        ("minloc", [0.0, 0.5, 0.5, 1.0, 0.5, 0.5, 1.5], [0, 0, 3, 2, 1, 2, 3]),
    ):
        for suffix in ("bin", "npy", "parquet", "arrow"):
            result = mpired.reduce(files("maxloc", suffix), op, type="double_int")
            assert result["value"].tolist() == (values * 5)[:30], (op, suffix)
            assert result["index"].tolist() == (indices * 5)[:30], (op, suffix)


ANSWERS = [
    ("counts", "sum", [14, 21, 10, 26, 6, 22, 11, 18, 16, 14, 21, 10]),
    ("counts", "max", [5, 8, 4, 8, 3, 7, 8, 6, 8, 5, 8, 4]),
    ("flags", "land", [0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0]),
    ("flags", "lor", [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
    ("flags", "lxor", [0, 0, 1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0]),
    ("waves", "sum", [[4, 0, 0, 0], [4, 0, 0, 0]]),
    ("waves", "prod", [[1, -1, 1, -1], [1, -1, 1, -1]]),
]


def test_answers_of_arrays():
    raw = {"counts": ("dump", {"type": ">i4", "offset": 16}), "flags": ("flags", {"type": "c_bool"})}
    for stem, op, answer in ANSWERS:
        assert mpired.reduce(files(stem, "npy"), op).tolist() == answer, (stem, op)
        if stem in raw:
            name, more = raw[stem]
            assert mpired.reduce(files(name, "bin"), op, **more).tolist() == answer, (name, op)
    assert mpired.reduce(files("counts", "npy")[:2], op="max")[:3].tolist() == [3, 7, 2]


def test_answers_of_cells_and_tas():
    sums = mpired.reduce(files("cells", "parquet"), "sum")
    assert {name: column.tolist() for name, column in sums.items()} == {
        "energy": [2.0, 12.0, 12.0, 12.0, 12.0, 2.0, 12.0, 12.0, 12.0, 12.0],
        "cell": [60, 64, 68, 72, 76, 80, 84, 88, 92, 96],
        "hits": [6, 10, 14, 18, 22, 26, 30, 34, 38, 42],
    }
    best = mpired.reduce(files("cells", "parquet"), "maxloc", pair=("energy", "cell"))
    assert best.tolist()[:3] == [(0.5, 0), (4.5, 31), (4.5, 12)]
    members = np.stack([tas(rank) for rank in RANKS])
    assert mpired.reduce(files("tas", "nc"), "mean")["tas"].tolist() == members.mean(axis=0).tolist()
    warmest = mpired.reduce(files("tas", "nc"), "maxloc", index="rank")["tas"]
    assert warmest["value"].tolist() == members.max(axis=0).tolist()
    assert warmest["index"].tolist() == members.argmax(axis=0).tolist()
