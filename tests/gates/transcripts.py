"""Record what 2,600 commands do, and compare it with what they do in another version of the tree.

A case is a line of bash in a folder with the sample data and the files of `folder_of`. Its record has the exit status,
both streams, and a digest of each file that is new or has changed. Files with more than one form of the same content
are digested by their content, as the library of the format reads it.

    make transcripts ARGS='--record /tmp/before.xz'   in the one tree
    make transcripts ARGS='/tmp/before.xz'            in the other: print each difference
    make transcripts ARGS='/tmp/before.xz --part 10'  of every tenth command
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import quick
import zarr
from cases import cases
from files_of_cases import ROOT, folder_of

LONGEST = 4000  # characters of a stream that are kept; of a longer one the digest


def _array(found: Any) -> list[object]:
    array = np.ma.getdata(found)
    if array.dtype.names:  # without the padding, which nobody has to read
        return [name for field in array.dtype.names for name in (field, *_array(array[field]))]
    data = array.tobytes() if array.dtype != object else repr(array.tolist()).encode()
    return [str(array.dtype), array.shape, hashlib.sha256(data).hexdigest()]


def _attributes(found: Any) -> dict[str, str]:
    return {name: repr(np.asarray(found[name]).tolist()) for name in sorted(found) if "DIMENSION" not in name.upper()}


def content(path: Path) -> object:
    """Return what is in a file, as its library reads it; None for one that none reads."""
    head = b"" if path.is_dir() else path.read_bytes()[:8]
    if path.is_dir() or path.suffix == ".zip":
        store = zarr.storage.ZipStore(path, mode="r") if path.suffix == ".zip" else zarr.storage.LocalStore(path)
        group = zarr.open_group(store, mode="r")
        return [[name, *_array(array[...]), _attributes(dict(array.attrs))] for name, array in sorted(group.arrays())]
    if head[:4] == b"\x89HDF":
        found: list[object] = []
        with h5py.File(path) as file:
            found.append(_attributes(file.attrs) if "_NCProperties" not in file.attrs else {})
            file.visititems(
                lambda name, each: found.append(
                    [name, *(_array(each[()]) if isinstance(each, h5py.Dataset) else []), _attributes(each.attrs)]
                )
            )
        return found
    if head[:4] == b"PAR1":
        return [str(pq.read_schema(path)), hashlib.sha256(repr(pq.read_table(path).to_pydict()).encode()).hexdigest()]
    if head[:6] == b"ARROW1":
        with pa.ipc.open_file(path) as file:
            return [str(file.schema), repr(file.read_all().to_pydict())]
    if path.suffix == ".npz":
        with np.load(path) as file:
            return [[name, *_array(file[name])] for name in file.files]
    return None


def state(folder: Path) -> dict[str, str]:
    """Return a digest of each file in a folder; a Zarr store is one file."""
    found = {}
    for path in sorted(folder.iterdir()):
        try:
            what = content(path)
        except Exception as error:  # noqa: BLE001 - a file that its library cannot read, or no store
            what = None if path.is_file() else type(error).__name__
        data = path.read_bytes() if what is None else repr(what).encode()
        if what is not None or path.suffix == ".json":
            data = unchanging(data.decode(errors="backslashreplace"), folder).encode()
        found[path.name] = hashlib.sha256(data).hexdigest()[:16]
    return found


CHANGING = (
    (re.compile(r'"seconds": [\d.]+'), '"seconds": S'),
    (re.compile(r"\b\d+\.\d+ s\b"), "N s"),
    (re.compile(r"in \d+(\.\d+)? seconds"), "in N seconds"),
    (re.compile(r"0x[0-9a-f]{8,}"), "0xN"),
    (re.compile(r"\b(pid|process) \d+"), r"\1 N"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
)


def unchanging(text: str, folder: Path) -> str:
    """Return a text with a word in the place of what differs from run to run."""
    text = text.replace(str(folder), "FOLDER").replace(str(ROOT), "ROOT")
    for pattern, word in CHANGING:
        text = pattern.sub(word, text)
    return text


def plain(stream: bytes, folder: Path) -> str:
    """Return a stream without what differs from run to run; of a long one the digest."""
    text = unchanging(stream.decode(errors="backslashreplace"), folder)
    return text if len(text) <= LONGEST else f"{len(text)} characters {hashlib.sha256(text.encode()).hexdigest()}"


def play(case: str, model: Path, before: dict[str, str], bin_folder: Path) -> dict[str, object]:
    """Run a case in a copy of the model, and return its record."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "f")
        subprocess.run(["cp", "-a", model, folder], check=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MPIRED_")}
        environment |= {
            "PATH": f"{bin_folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "80",
            "LC_ALL": "C.UTF-8",
            "SOURCE_DATE_EPOCH": "1000000000",
            "TZ": "UTC",
        }
        if "<(" in case:  # of whose descriptors a server knows nothing
            environment["PATH"] = environment["PATH"].partition(os.pathsep)[2]
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", case], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, check=False, timeout=300,
        )  # fmt: skip
        after = state(folder)
        files = {file: digest for file, digest in after.items() if before.get(file) != digest}
        files |= dict.fromkeys(before.keys() - after.keys(), "removed")
        return {
            "status": done.returncode,
            "out": plain(done.stdout, folder),
            "err": plain(done.stderr, folder),
            "files": dict(sorted(files.items())),
        }


def played(chosen: list[str]) -> dict[str, dict[str, object]]:
    """Run cases, two at a time."""
    with tempfile.TemporaryDirectory() as name, quick.commands(Path(name)) as bin_folder:
        model = Path(name, "model")
        model.mkdir()
        folder_of(model)
        before = state(model)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return dict(zip(chosen, pool.map(lambda case: play(case, model, before, bin_folder), chosen), strict=True))


def differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each case that differs, with how."""
    for case, record in new.items():
        if case not in old:
            yield case, "is new: record it"
        elif old[case] != record:
            changed = (key for key in record if old[case][key] != record[key])
            yield case, "\n".join(f"  {key}:\n    - {old[case][key]!r}\n    + {record[key]!r}" for key in changed)


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--part", type=int, default=1, metavar="N", help="every N-th case")
    options = parser.parse_args()
    new = played(cases()[:: options.part])
    if options.record:
        options.records.write_bytes(lzma.compress(json.dumps(new, indent=0, sort_keys=True).encode(), preset=9))
        print(f"{len(new)} cases recorded")
        return 0
    old = json.loads(lzma.decompress(options.records.read_bytes()))
    found = dict(differences(old, new))
    if options.part == 1:
        found |= dict.fromkeys(old.keys() - new.keys(), "is gone")
    for case, how in found.items():
        print(f"$ {case}\n{how}\n")
    print(f"{len(new)} cases, {len(found)} differences")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
