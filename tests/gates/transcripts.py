"""Record what 3,300 commands do, and compare it with what they do in another version of the tree.

A case is a line of bash in a folder with the sample data and the files of `folder_of`. Its record has the exit status,
both streams, and a digest of each file that is new or has changed; `transcripts.xz` has the records.
`accepted.toml` lists the differences that are meant; tests/gates/test_transcripts.py compares too.

    make transcripts                            print each difference from the record
    make transcripts ARGS='--part 10'           of a tenth of the cases
    make transcripts ARGS='--only "mpired pack"'  of the cases that have these words
    make transcripts ARGS=--add                 record new cases, forget those that are gone
    make transcripts ARGS=--record              record all, and print what differs from the record before
    make transcripts ARGS='/tmp/other.xz ...'   with another record
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import json
import lzma
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

import quick
from cases import cases
from contents import Known, changes, state
from files_of_cases import ROOT, folder_of

RECORD = Path(__file__).with_name("transcripts.xz")
ACCEPTED = Path(__file__).with_name("accepted.toml")
LONGEST = 30_000  # characters of a stream that are kept; of a longer one digests of its lines
LENGTH_OF_FOLDER = 60  # characters of the path of a case's folder, as tables and shortened messages count them
# Of the caller's environment only what a command cannot be started without.
KEPT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")
# What limits or signals a process, or has descriptors that a server knows nothing of, needs the installed command.
NEEDS_INSTALLED = re.compile(r"<\(|\bkill\b|\bulimit\b")
AT_ONCE = re.compile(r"\||<\(")  # several commands write messages in any order
# A line that bash would only split into words.
PLAIN = re.compile(r"mpired(?: (?:[\w./:,=%@+-]|\{rank\}|'[^']*')+)*")
Records = dict[str, dict[str, Any]]

CHANGING = (
    (re.compile(r'"seconds": [\d.]+'), '"seconds": S'),
    (re.compile(r"\b\d+\.\d+ s\b"), "N s"),
    (re.compile(r"in \d+(\.\d+)? seconds"), "in N seconds"),
    (re.compile(r"0x[0-9a-f]{8,}"), "0xN"),
    (re.compile(r"\b(pid|process) \d+"), r"\1 N"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r'"(version|host)": "[^"]*"'), r'"\1": "X"'),
    (re.compile(r"\b(mpired|mpi4py|distributed) \d+\.\d\S*"), r"\1 VERSION"),
    (re.compile(r"\.[0-9a-f]{8,16}(\.mpired-(?:tmp|together))"), r".RANDOM\1"),
    # What else differs between versions of libraries: sizes of files that they write, words of click, warnings.
    (re.compile(r"\b(parquet, |zarr, |parquet: )\d+ bytes"), r"\1N bytes"),
    (re.compile(r'("format": "(?:parquet|zarr)",\s*"nbytes": )\d+'), r"\1N"),
    (re.compile(r"No such option:? '?(-[\w-]+)'?"), r"No such option \1"),
    (re.compile(r"^PREFIX/lib/\S+: \w*Warning: .*\n(?:  .*\n)?", re.MULTILINE), ""),
)


def unchanging(text: str, folder: Path) -> str:
    """Return a text with a word in the place of what differs from run to run."""
    for place, word in ((folder, "FOLDER"), (folder.parent, "ABOVE"), (ROOT, "ROOT"), (Path(sys.prefix), "PREFIX")):
        text = text.replace(str(place), word)
    for pattern, word in CHANGING:
        text = pattern.sub(word, text)
    return text


def kept(stream: bytes, folder: Path) -> str:
    """Return a stream without what differs from run to run; of a long one a digest of each line."""
    text = unchanging(stream.decode(errors="backslashreplace"), folder)
    if len(text) <= LONGEST:
        return text
    lines = text.splitlines(keepends=True)
    return "\n".join(["digests of lines", *(hashlib.sha256(line.encode()).hexdigest()[:6] for line in lines)])


class Stage:
    """A server of commands, and the folder of which each case gets a copy."""

    def __init__(self, home: Path, bin_folder: Path) -> None:
        self._home, self._bin, self._model = home, bin_folder, home / "model"
        self._model.mkdir()
        folder_of(self._model)
        self._before: dict[str, Known] = {}
        self._before = state(self._model, {}, lambda text: text)

    def play(self, case: str) -> dict[str, Any]:
        """Run a case in a copy of the model, and return its record."""
        with tempfile.TemporaryDirectory(dir=self._home) as name:
            above = Path(name)
            folder = above / "f".ljust(LENGTH_OF_FOLDER - len(name) - 1, "f")
            subprocess.run(["cp", "-a", self._model, folder], check=True)
            for place in ("home", "tmp"):
                (above / place).mkdir()
            environment = self._environment(case, above)
            if PLAIN.fullmatch(case) and not NEEDS_INSTALLED.search(case):
                status, out, err = quick.run(shlex.split(case)[1:], self._bin, folder, environment)
            else:
                words = ["bash", "-o", "pipefail", "-c", case]
                done = subprocess.run(
                    words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
                )
                status, out, err = done.returncode, done.stdout, done.stderr
            masked = partial(unchanging, folder=folder)
            after = state(folder, self._before, masked)
            if AT_ONCE.search(case):
                err = b"".join(sorted(err.splitlines(keepends=True)))
            return {
                "status": status,
                "out": kept(out, folder),
                "err": kept(err, folder),
                "files": changes(self._before, after, masked),
            }

    def _environment(self, case: str, above: Path) -> dict[str, str]:
        places = [str(Path(sys.executable).parent), os.environ["PATH"]]
        if not NEEDS_INSTALLED.search(case):
            places.insert(0, str(self._bin))
        return {name: os.environ[name] for name in KEPT if name in os.environ} | {
            "PATH": os.pathsep.join(places),
            "HOME": str(above / "home"),
            "TMPDIR": str(above / "tmp"),
            "COLUMNS": "80",
            "LC_ALL": "C.UTF-8",
            "SOURCE_DATE_EPOCH": "1000000000",
            "TZ": "UTC",
            "SLURM_CPUS_PER_TASK": "1",  # as many workers on any machine
        }


@contextlib.contextmanager
def staged() -> Iterator[Stage]:
    """Give a stage; files get the usual rights on it, whatever those of the caller are."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) and "TMPDIR" not in os.environ else None
    mask = os.umask(0o022)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings(action="ignore"))  # of libraries that look at any file
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="mt-", dir=memory))
            yield Stage(Path(name), stack.enter_context(quick.commands(Path(name))))
    finally:
        os.umask(mask)


def played(chosen: list[str], workers: int = 1) -> Records:
    """Run cases."""
    with staged() as stage, ThreadPoolExecutor(workers) as pool:
        return dict(zip(chosen, pool.map(stage.play, chosen), strict=True))


def in_part(case: str, part: int, parts: int) -> bool:
    """Tell whether a case is in a part: whatever other cases there are, it stays in it."""
    return zlib.crc32(case.encode()) % parts == part


class Accepted(NamedTuple):
    """An entry of `accepted.toml`."""

    case: str  # "" if it has a pattern
    command: re.Pattern[str]
    differs: frozenset[str]
    reason: str

    @staticmethod
    def listed(path: Path = ACCEPTED) -> list[Accepted]:
        """Return the entries."""
        return [Accepted.of(entry) for entry in tomllib.loads(path.read_text()).get("accepted", [])]

    @staticmethod
    def of(entry: dict[str, Any]) -> Accepted:
        """Return an entry from its table; each of its keys has a meaning."""
        exact, pattern = entry.pop("command", None), entry.pop("pattern", None)
        found = Accepted(
            exact or "",
            re.compile(re.escape(exact) if pattern is None else pattern, re.DOTALL),
            frozenset(entry.pop("differs")),
            f"{entry.pop('issue')}: {entry.pop('reason')}",
        )
        assert not entry, f"accepted.toml: {entry} means nothing"
        return found

    def accepts(self, case: str, differing: set[str]) -> bool:
        """Tell whether it is about this case, and about all that differs."""
        return differing <= self.differs and self.command.fullmatch(case) is not None


def differing(old: Records, new: Records) -> dict[str, set[str]]:
    """Return the cases of `new` that differ, each with the parts of its record that do; a new one differs in all."""
    found = {case: {key for key in record if old.get(case, {}).get(key) != record[key]} for case, record in new.items()}
    return {case: keys for case, keys in found.items() if keys}


def described(old: dict[str, Any] | None, new: dict[str, Any]) -> Iterator[str]:
    """Yield lines that say how the record of a case differs."""
    if old is None:
        yield "  is not in the record: `make transcripts ARGS=--add`"
        return
    for key in (key for key, value in new.items() if old[key] != value):
        before, after = (_lines(record[key]) for record in (old, new))
        yield f"  {key}:"
        yield from (f"    {line}" for line in list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:])


def _lines(recorded: object) -> list[str]:
    if isinstance(recorded, dict):
        return [f"{name}: {each}" for name, each in recorded.items()]
    return str(recorded).splitlines()


def compared(old: Records, new: Records, accepted: list[Accepted]) -> tuple[list[str], set[Accepted]]:
    """Return a text for each difference that is not accepted, and the entries that accept one."""
    texts, used = [], set()
    for case, keys in differing(old, new).items():
        by = next((entry for entry in accepted if entry.accepts(case, keys)), None)
        if by is None:
            texts.append("\n".join([f"$ {case}", *described(old.get(case), new[case])]))
        else:
            used.add(by)
    return texts, used


def read(path: Path = RECORD) -> Records:
    """Return the records in a file."""
    return json.loads(lzma.decompress(path.read_bytes()))


def write(path: Path, records: Records) -> None:
    """Write records, those of one command next to each other, which makes the file smaller."""
    text = json.dumps(dict(sorted(records.items())), separators=(",", ":"), ensure_ascii=False)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def _chosen(options: argparse.Namespace, old: Records) -> list[str]:
    chosen = [case for case in cases() if in_part(case, 0, options.part) and options.only in case]
    return [case for case in chosen if case not in old] if options.add else chosen


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="?", default=RECORD)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--add", action="store_true")
    parser.add_argument("--part", type=int, default=1, metavar="N")
    parser.add_argument("--only", default="", metavar="WORDS")
    options = parser.parse_args()
    old = read(options.records) if options.records.exists() else {}
    new = played(_chosen(options, old), os.cpu_count() or 1)
    complete = not options.add and options.part == 1 and not options.only
    accepted = [] if options.record or options.add else Accepted.listed()
    texts, used = compared(old, new, accepted)
    if complete:
        texts += [f"$ {case}\n  is gone: `make transcripts ARGS=--add`" for case in sorted(old.keys() - new.keys())]
        texts += [f"accepted.toml: no difference is accepted by {e}" for e in accepted if e not in used]
    for text in texts if old else ():
        print(f"{text}\n")
    print(f"{len(new)} cases, {len(texts)} differences")
    if not (options.record or options.add):
        return bool(texts)
    there = set(cases())
    write(options.records, {case: each for case, each in (old | new).items() if case in there})
    print(f"{options.records} has {options.records.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
