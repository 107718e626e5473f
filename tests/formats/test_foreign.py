"""Files of other programs are known as such, and no numbers are taken for one."""

import io
import itertools
import pickle
import tarfile

import numpy as np
import pytest
from bad_files import npy_of, zip_of
from command import run
from rows import check_refusals, together

import mpired
from mpired.errors import BufferFileError
from mpired.formats import foreign

NUMBERS = np.arange(1000.0)
RAW = NUMBERS.tobytes()


def _tar(form: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        entry = tarfile.TarInfo("x")
        entry.size = len(RAW)
        archive.addfile(entry, io.BytesIO(RAW))
    return file.getvalue()


FITS = b"SIMPLE  =                    T".ljust(80) + b"BITPIX  =                  -64".ljust(80)
FILES = [
    ("zip", "a zip archive", zip_of(("x", RAW))),
    ("empty zip", "a zip archive", b"PK\5\6" + bytes(18)),
    ("tar of POSIX", "a tar archive", _tar(tarfile.USTAR_FORMAT)),
    ("tar of GNU", "a tar archive", _tar(tarfile.GNU_FORMAT)),
    ("ROOT", "a ROOT file", b"root\0\0\xf3\xc0\0\0\0d\0\0\x1a\xb4" + RAW),
    ("large ROOT", "a ROOT file", b"root\0\x10\x36\x02\0\0\0d" + RAW),
    ("FITS", "FITS", FITS.ljust(2880) + RAW),
    ("GRIB", "GRIB", b"GRIB\0\0\0\x02" + bytes(8) + RAW),
    ("MATLAB 5", "a MATLAB file", b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\1IM" + RAW),
    ("compress", "compress", b"\x1f\x9d\x90" + RAW),
    *(
        (f"pickle of a {type(value).__name__}, protocol {protocol}", "a pickle", pickle.dumps(value, protocol))
        for value in (NUMBERS, [1.5] * 100, [7], {"x": 1.5, "y": [2]}, {"x": 1})
        for protocol in (2, 3, 4, 5)
    ),
]  # fmt: skip


def test_a_file_of_another_program_is_not_raw(tmp_path):
    path = tmp_path / "r.bin"
    with together(tmp_path) as case:
        for name, kind, content in FILES:
            with case(name):
                path.write_bytes(content)
                with pytest.raises(BufferFileError, match=f"r.bin: is {kind}.*;"):
                    mpired.reduce([path] * 2, "sum", type="uint8_t")
                found = mpired.reduce([path] * 2, "max", type="uint8_t", format="raw")
                assert found.tobytes() == content


def test_small_numbers_are_of_no_other_program():
    """Of any form, all alike or each with its neighbours."""
    for form in ("u1", "i1", "<i2", ">i2", "<i4", ">i4", "<i8", ">i8", "<f4", ">f4", "<f8", ">f8"):
        for first, step in itertools.product(range(0 if form == "u1" else -300, 301), (0, 1, 8)):
            content = (np.arange(64, dtype="i8") * step + first).astype(form).tobytes()
            assert not foreign.by_content(content, len(content)), (form, first, step)


def test_records_are_not_in_a_file_of_something_else(tmp_path):
    (tmp_path / "e.bin").write_bytes(bytes(8))
    (tmp_path / "n.bin").write_bytes(npy_of(NUMBERS))
    (tmp_path / "z.bin").write_bytes(zip_of(("x", RAW)).ljust(8 * 1024, b"\0"))
    hint = "a file of records is raw binary; save their bytes alone"
    rows = [
        (f"{line} --type int64_t{more}", 3, f"{name}: is {kind} / {hint}")
        for name, kind, more in (("n.bin", "npy", ""), ("z.bin", "a zip archive", " --offset 8"))
        for line in (f"unpack e.bin --into {name}", f"unpack --from raw e.bin --into {name}", f"pack {name} --to raw")
    ]
    check_refusals(tmp_path, [*rows, ("unpack --type int64_t z.bin -o o.bin", 3, "z.bin: is a zip archive")])
    words = ("unpack", "-q", "--type", "int64_t", "z.bin", "--from", "raw")
    assert run(*words, cwd=tmp_path) == (0, (tmp_path / "z.bin").read_bytes(), "")
