"""The files of the cases, written without mpired."""

import itertools
import json
import shutil
import subprocess
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
import zarr

ROOT = Path(__file__).parents[2]
FORMATS = ("bin", "npy", "parquet", "arrow", "arrows", "npz", "safetensors", "h5", "nc", "n4", "zarr")


def write(path: Path, array: np.ndarray) -> None:
    """Write a file of a format, by its suffix, without mpired; `.n4` is netCDF-4."""
    match path.suffix:
        case ".bin":
            path.write_bytes(array.tobytes())
        case ".npy":
            np.save(path, array)
        case ".parquet":
            pq.write_table(pa.table({"v": array, "n": np.arange(len(array))}), path)
        case ".arrow" | ".arrows":
            table = pa.table({"v": array, "n": np.arange(len(array))})
            new = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
            with new(path, table.schema) as writer:
                writer.write_table(table)
        case ".npz":
            np.savez(path, v=array, n=np.arange(len(array)))
        case ".safetensors":
            safetensors.numpy.save_file({"v": array, "n": np.arange(len(array))}, path)
        case ".h5":
            with h5py.File(path, "w") as file:
                file["v"] = array
                file.create_dataset("n", data=np.arange(len(array)), chunks=(5,), compression="gzip")
                file["v"].attrs["units"] = "K"
        case ".nc" | ".n4":
            form = "NETCDF3_64BIT_OFFSET" if path.suffix == ".nc" else "NETCDF4"
            with netCDF4.Dataset(path, "w", format=form) as file:
                file.createDimension("time", None)
                file.createDimension("x", len(array) // 2)
                v = file.createVariable("v", array.dtype, ("time", "x"), fill_value=array.dtype.type(-999))
                v[:] = array.reshape(2, -1)
                file.createVariable("x", "f8", ("x",))[:] = np.arange(len(array) // 2)
                file["x"].axis = "X"
        case ".zarr":
            group = zarr.create_group(zarr.storage.LocalStore(path))
            group.create_array("v", data=array, chunks=(5,))
            group.create_array("n", data=np.arange(len(array)))


def checkpoint(folder: Path, rank: int) -> None:
    """Write a checkpoint in two shards."""
    folder.mkdir()
    tensors = {"w": np.arange(6.0) * (rank + 1), "mask": np.array([True, False])}
    shards = {name: f"model-{number}-of-2.safetensors" for number, name in enumerate(tensors, 1)}
    for name, shard in shards.items():
        safetensors.numpy.save_file({name: tensors[name]}, folder / shard, {"format": "pt"})
    index = {"metadata": {"total_size": 50}, "weight_map": shards}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def folder_of(folder: Path) -> None:
    """Fill a folder with the sample data, and with ranks of each format."""
    for name in ("sample_data", "examples"):  # their modes depend on the checkout
        subprocess.run(["cp", "-r", "--no-preserve=all", ROOT / name, folder], check=True)
    for rank, suffix in itertools.product(range(3), FORMATS):
        write(folder / f"d{rank}.{suffix}", np.array([1.5, 2, -3, 4, 1e300, 6, 7, 8, 9, 10]) * (rank + 1))
        if suffix not in {"h5", "zarr"} or rank < 2:
            write(folder / f"i{rank}.{suffix}", (np.arange(10, dtype="i4") - 4) * (rank + 2))
    for rank in range(3):
        floats = np.array([1, np.nan, -0.0, 0.0, np.inf, -np.inf, 3, 2.5, 1e-310, 7])
        floats[3:] += rank
        np.save(folder / f"f{rank}.npy", floats)
        np.save(folder / f"m{rank}.npy", np.arange(12, dtype="f4").reshape(3, 4) * (rank + 1))
        np.save(folder / f"t{rank}.npy", np.array([f"2020-01-0{rank + 1}", "NaT"], "M8[D]"))
        checkpoint(folder / f"checkpoint{rank}", rank)
        values = [1.0 + rank, None, 3.0, None] if rank else [1.0, 2.0, None, None]
        pq.write_table(pa.table({"v": values, "key": ["a", "b", "c", "d"]}), folder / f"null{rank}.parquet")
        (folder / f"r{rank}.bin").write_bytes(b"HEAD" * 2 + np.arange(12, dtype=">i2").tobytes())
        with netCDF4.Dataset(folder / f"packed{rank}.nc", "w", format="NETCDF3_CLASSIC") as file:
            file.createDimension("x", 4)
            v = file.createVariable("v", "i2", ("x",), fill_value=-1)
            v.scale_factor, v.add_offset = 0.5, 10.0
            v.set_auto_maskandscale(False)
            v[:] = [1 + rank, 2, -1, 4]
    for suffix in (".npy", ".bin", ".parquet", ".h5", ".nc"):  # compare-and-swap takes integers
        write(folder / f"z{suffix}", np.arange(10, dtype="i4"))
    (folder / "both.bin").write_bytes(np.arange(24, dtype="f8").tobytes())
    (folder / "records.bin").write_bytes(np.arange(40, dtype="u1").tobytes())
    (folder / "weights.txt").write_text("0.5\n0.25\n")
    (folder / "list.txt").write_text("d0.npy\nd1.npy\n")
    (folder / "list0.txt").write_text("d0.npy\0d1.npy\0")
    (folder / "types.toml").write_text('rec = "struct([1,1],[0,8],[double,int])"\nnum = "double"\n')
    for name in ("ops", "failing", "locked"):
        shutil.copyfile(Path(__file__).parent / "programs" / f"{name}.py", folder / f"{name}.py")
    np.save(folder / "map.npy", np.array([9, 0, 3, 1, 2, 4, 5, 6, 7, 8]))
    (folder / "cut.npy").write_bytes((folder / "d0.npy").read_bytes()[:150])
    (folder / "noise.parquet").write_bytes(b"PAR1" + bytes(50) + b"PAR1")
    (folder / "empty").write_bytes(b"")
    subprocess.run("gzip -nk d0.npy d1.npy", shell=True, cwd=folder, check=True)
    subprocess.run(["chmod", "-R", "u=rwX,go=rX", folder], check=True)  # some libraries choose the modes of files
