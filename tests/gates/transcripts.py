"""Transcripts: run 3,500 commands, and compare their results with the record of an earlier version.

A case is a line of bash. It runs in a folder with the sample data and the files of `folder_of`. Its record has the exit
status, both streams, and a digest of each new or changed file. The records are in `transcripts.xz`; `accepted.toml`
lists intended differences. tests/gates/test_transcripts.py compares too.

    make transcripts                              print each difference from the record
    make transcripts ARGS='--part 10'             of a tenth of the cases
    make transcripts ARGS='--only "mpired pack"'  of the cases with this text
    make transcripts ARGS=--add                   record new cases, remove records without a case
    make transcripts ARGS=--record                record all cases, print the differences from the old record
    make transcripts ARGS='/tmp/other.xz ...'     use another record
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
import signal
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
LONGEST = 30_000  # characters; of a longer stream the record has digests of the lines
LENGTH_OF_FOLDER = 60  # of its path; tables and shortened messages depend on it
# The variables of the caller that a command needs to start.
KEPT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")
# Limits, signals and further descriptors do not pass through a server: these cases use the installed command.
NEEDS_INSTALLED = re.compile(r"<\(|\bkill\b|\bulimit\b")
AT_ONCE = re.compile(r"\||<\(")  # messages of concurrent commands have no order
# A line that bash would only split into arguments.
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
    # Differences between versions of libraries: sizes of files, messages of click, warnings.
    (re.compile(r"\b(parquet, |zarr, |parquet: )\d+ bytes"), r"\1N bytes"),
    (re.compile(r'("format": "(?:parquet|zarr)",\s*"nbytes": )\d+'), r"\1N"),
    (re.compile(r"No such option:? '?(-[\w-]+)'?"), r"No such option \1"),
    (re.compile(r"\A.*_MPIRED_COMPLETE=(bash|zsh|fish)_complete.*\Z", re.DOTALL), r"the script of \1\n"),
    (re.compile(r"^PREFIX/lib/\S+: \w*Warning: .*\n(?:  .*\n)?", re.MULTILINE), ""),
)


def masked(text: str, folder: Path) -> str:
    """Replace the parts of a text that differ from run to run."""
    for place, word in ((folder, "FOLDER"), (folder.parent, "ABOVE"), (ROOT, "ROOT"), (Path(sys.prefix), "PREFIX")):
        text = text.replace(str(place), word)
    for pattern, word in CHANGING:
        text = pattern.sub(word, text)
    return text


def recorded_stream(stream: bytes, folder: Path) -> str:
    """Return the recorded form of a stream: its masked text, or digests of the lines if it is long."""
    text = masked(stream.decode(errors="backslashreplace"), folder)
    if len(text) <= LONGEST:
        return text
    lines = text.splitlines(keepends=True)
    return "\n".join(["digests of lines", *(hashlib.sha256(line.encode()).hexdigest()[:6] for line in lines)])


class Stage:
    """A server of commands, and the model of the folder of a case."""

    def __init__(self, home: Path, bin_folder: Path) -> None:
        self._home, self._bin, self._model = home, bin_folder, home / "model"
        self._model.mkdir()
        folder_of(self._model)
        self._before: dict[str, Known] = {}
        self._before = state(self._model, {}, lambda text: text)

    def run(self, case: str) -> dict[str, Any]:
        """Run a case in a copy of the model; return its record."""
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
                words, settings = ["bash", "-o", "pipefail", "-c", case], {"cwd": folder, "env": environment}
                done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, **settings)
                status, out, err = done.returncode, done.stdout, done.stderr
            mask = partial(masked, folder=folder)
            after = state(folder, self._before, mask)
            if AT_ONCE.search(case):
                err = b"".join(sorted(err.splitlines(keepends=True)))
            streams = {"out": recorded_stream(out, folder), "err": recorded_stream(err, folder)}
            return {"status": status, **streams, "files": changes(self._before, after, mask)}

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
            "SLURM_CPUS_PER_TASK": "1",  # the same number of workers on any machine
        }


def restore_signals() -> None:
    """Let commands react to SIGINT and SIGHUP if this process ignores them, in the background or under nohup."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # a new program has the default in the place of a function


@contextlib.contextmanager
def open_stage() -> Iterator[Stage]:
    """Open a stage. Its files do not depend on the umask of the caller."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) and "TMPDIR" not in os.environ else None
    mask = os.umask(0o022)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings(action="ignore"))  # of libraries that read the results
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="mt-", dir=memory))
            yield Stage(Path(name), stack.enter_context(quick.commands(Path(name))))
    finally:
        os.umask(mask)


def records_of(chosen: list[str], workers: int = 1) -> Records:
    """Run cases; return their records."""
    with open_stage() as stage, ThreadPoolExecutor(workers) as pool:
        return dict(zip(chosen, pool.map(stage.run, chosen), strict=True))


def in_part(case: str, part: int, parts: int) -> bool:
    """Return whether a case is in a part. The other cases make no difference."""
    return zlib.crc32(case.encode()) % parts == part


class Accepted(NamedTuple):
    """An entry of `accepted.toml`."""

    case: str  # empty if the entry has a pattern
    command: re.Pattern[str]
    differs: frozenset[str]
    reason: str

    @staticmethod
    def read(path: Path = ACCEPTED) -> list[Accepted]:
        """Return the entries of a file."""
        return [Accepted.of(entry) for entry in tomllib.loads(path.read_text()).get("accepted", [])]

    @staticmethod
    def of(entry: dict[str, Any]) -> Accepted:
        """Return an entry from its table. Unknown keys are an error."""
        exact, pattern = entry.pop("command", None), entry.pop("pattern", None)
        result = Accepted(
            exact or "",
            re.compile(re.escape(exact) if pattern is None else pattern, re.DOTALL),
            frozenset(entry.pop("differs")),
            f"{entry.pop('issue')}: {entry.pop('reason')}",
        )
        assert not entry, f"accepted.toml: unknown keys: {entry}"
        return result

    def accepts(self, case: str, differing: set[str]) -> bool:
        """Return whether it accepts these differences of a case."""
        return differing <= self.differs and self.command.fullmatch(case) is not None


def differing(old: Records, new: Records) -> dict[str, set[str]]:
    """Return the differing fields of the cases of `new`: all of a case without an old record."""
    fields = {
        case: {key for key in record if old.get(case, {}).get(key) != record[key]} for case, record in new.items()
    }
    return {case: keys for case, keys in fields.items() if keys}


def described(old: dict[str, Any] | None, new: dict[str, Any]) -> Iterator[str]:
    """Describe the differences between two records of a case, in lines."""
    if old is None:
        yield "  has no record: `make transcripts ARGS=--add`"
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
    """Return the unaccepted differences as text, and the entries that accept others."""
    texts, used = [], set()
    for case, keys in differing(old, new).items():
        by = next((entry for entry in accepted if entry.accepts(case, keys)), None)
        if by is None:
            texts.append("\n".join([f"$ {case}", *described(old.get(case), new[case])]))
        else:
            used.add(by)
    return texts, used


def read(path: Path = RECORD) -> Records:
    """Return the records of a file."""
    return json.loads(lzma.decompress(path.read_bytes()))


def write(path: Path, records: Records) -> None:
    """Write records, sorted by command: the file is smaller then."""
    text = json.dumps(dict(sorted(records.items())), separators=(",", ":"), ensure_ascii=False)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="?", default=RECORD)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--add", action="store_true")
    parser.add_argument("--part", type=int, default=1, metavar="N")
    parser.add_argument("--only", default="", metavar="WORDS")
    options = parser.parse_args()
    restore_signals()
    old = read(options.records) if options.records.exists() else {}
    chosen = [case for case in cases() if in_part(case, 0, options.part) and options.only in case]
    chosen = [case for case in chosen if case not in old] if options.add else chosen
    new = records_of(chosen, os.cpu_count() or 1)
    complete = not options.add and options.part == 1 and not options.only
    accepted = [] if options.record or options.add else Accepted.read()
    texts, used = compared(old, new, accepted)
    if complete:
        texts += [
            f"$ {case}\n  is no longer a case: `make transcripts ARGS=--add`"
            for case in sorted(old.keys() - new.keys())
        ]
        texts += [f"accepted.toml: no case has the difference of {e}" for e in accepted if e not in used]
    for text in texts if old else ():
        print(f"{text}\n")
    print(f"{len(new)} cases, {len(texts)} differences")
    if not (options.record or options.add):
        return bool(texts)
    current = set(cases())
    write(options.records, {case: each for case, each in (old | new).items() if case in current})
    print(f"{options.records} has {options.records.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
