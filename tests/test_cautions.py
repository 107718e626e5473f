"""What a command warns of is a warning in Python, in the same words, and recoveries are logged."""

import os
import re
import warnings
from pathlib import Path

import netCDF4
import numpy as np
import pytest
from command import run, unchanged

import mpired
from mpired import errors

ORDER = ["rank1.npy", "rank10.npy", "rank2.npy"]
# Of each case the category of the warning, a command, and the call in Python that does the same.
CASES = {
    "order": (errors.OrderWarning, "reduce --op sum rank1.npy rank10.npy rank2.npy -o out.npy",
              lambda: mpired.reduce(ORDER, "sum", output="out.npy")),
    "order of a scan": (errors.OrderWarning, "scan --op max rank1.npy rank10.npy rank2.npy -o out_{rank}.npy",
                        lambda: mpired.scan(ORDER, "max")),
    "ranks left out": (errors.SkippedWarning, "reduce -q --op max -k none.npy rank1.npy -o out.npy",
                       lambda: mpired.reduce(["none.npy", "rank1.npy"], "max", skip_bad=True)),
    "origins left out": (
        errors.SkippedWarning, "accumulate -q --op max -k rank1.npy none.npy rank2.npy",
        lambda: mpired.Window("rank1.npy").accumulate(["none.npy", "rank2.npy"], "max", skip_bad=True),
    ),
    "hard link": (
        errors.HardLinkWarning, "reduce --op max rank1.npy rank2.npy -f -o linked.npy",
        lambda: mpired.reduce(["rank1.npy", "rank2.npy"], "max", output="linked.npy", overwrite=True),
    ),
    "hard link of packed elements": (
        errors.HardLinkWarning, "pack --type double records.bin -f -o linked.npy",
        lambda: mpired.pack("records.bin", type="double", output="linked.npy", overwrite=True),
    ),
    "hard link of records": (errors.HardLinkWarning, "unpack --type double rank1.npy --into linked.bin",
                             lambda: mpired.unpack("rank1.npy", type="double", into="linked.bin")),
    "hard link of a window": (errors.HardLinkWarning, "accumulate --op max --commit rename linked.npy rank1.npy",
                              lambda: mpired.Window("linked.npy", commit="rename").accumulate("rank1.npy", "max")),
    "hard link of a picture": (errors.HardLinkWarning, "show -f rank1.npy --png linked.png",
                               lambda: mpired.show("rank1.npy", png="linked.png", overwrite=True)),
    "same file": (errors.SameFileWarning, "accumulate --op max rank1.npy rank1.npy",
                  lambda: mpired.Window("rank1.npy").accumulate(Path("rank1.npy"), mpired.MAX)),
    "same file twice": (errors.SameFileWarning, "accumulate --op max rank1.npy rank2.npy rank2.npy",
                        lambda: mpired.Window("rank1.npy").accumulate(["rank2.npy", "rank2.npy"], "max")),
    "same file, local": (errors.SameFileWarning, "reduce-local --op max rank1.npy ./rank1.npy",
                         lambda: mpired.reduce_local("rank1.npy", "./rank1.npy", "max")),
    "same content": (errors.SameContentWarning, "accumulate --op max --once keyed2.npy rank1.npy",
                     lambda: mpired.Window("keyed.npy").accumulate("rank1.npy", "max", once=True)),
    "not used": (errors.UnusedWarning, "get-accumulate --op no_op --to text rank1.npy rank2.npy",
                 lambda: mpired.Window("rank1.npy").get_accumulate("rank2.npy", "no_op")),
    "value that is not used": (errors.UnusedWarning, "fetch-and-op --op no_op one.npy 3",
                               lambda: mpired.Window("one.npy").fetch_and_op(3, mpired.NO_OP)),
    "read as missing": (errors.MaskedWarning, "reduce -q --op sum valid.nc valid.nc -o out.nc",
                        lambda: mpired.reduce(["valid.nc", "valid.nc"], "sum", output="out.nc")),
    "overflow": (errors.OverflowWarning, "reduce --op prod large.npy large.npy -o out.npy",
                 lambda: mpired.reduce(["large.npy", "large.npy"], "prod")),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    for number in (1, 2, 10):
        np.save(tmp_path / f"rank{number}.npy", np.full(4, number / 10))
    np.save(tmp_path / "linked.npy", np.zeros(4))
    os.link(tmp_path / "linked.npy", tmp_path / "other.npy")
    for name in ("records.bin", "linked.bin", "linked.png"):
        (tmp_path / name).write_bytes(bytes(32))
    os.link(tmp_path / "linked.bin", tmp_path / "other.bin")
    os.link(tmp_path / "linked.png", tmp_path / "other.png")
    np.save(tmp_path / "one.npy", np.zeros(1))
    np.save(tmp_path / "large.npy", np.full(4, 1e300))
    for name in ("keyed.npy", "keyed2.npy"):  # to which rank 1 was applied as an array
        np.save(tmp_path / name, np.zeros(4))
        mpired.Window(tmp_path / name, durability="process").accumulate(np.full(4, 0.1), "max", once=True)
    with netCDF4.Dataset(tmp_path / "valid.nc", "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("x", 4)
        file.createVariable("t", "f8", "x", fill_value=400.0)[:] = 200
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_a_warning_has_the_words_of_the_command(name, folder):
    """A filter that makes an error of it leaves everything as it was."""
    category, command, call = CASES[name]
    assert issubclass(category, errors.MpiredWarning)
    with unchanged(folder), warnings.catch_warnings():
        warnings.simplefilter("error", category)
        with pytest.raises(category):
            call()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    (warning,) = found
    assert (warning.category, warning.filename) == (category, __file__)
    for path in folder.glob("out*"):
        path.unlink()
    for suffix in (".npy", ".bin", ".png"):
        Path(f"linked{suffix}").unlink()
        os.link(f"other{suffix}", f"linked{suffix}")
    text = f"mpired: {warning.message.label}{warning.message}"
    told = re.sub("`(.*?)='(.*?)'`", lambda found: f"--{found[1].replace('_', '-')} {found[2]}", text)
    assert told in run(*command.split(), cwd=folder).err.splitlines()
