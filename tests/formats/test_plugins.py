"""Formats of installed packages, most of which are broken in some way."""

import pytest
from command import refused, unchanged
from format_files import RANKS, Bench
from packages import install
from rows import together


@pytest.fixture(scope="module")
def broken_site(tmp_path_factory):
    """A folder of packages beside that of a good one."""
    folder = tmp_path_factory.mktemp("broken")

    def package(name: str, text: str = "", *, place: str = "no_such_module") -> None:
        code = text or f'from mpired.formats import Format\nROW = Format("{name}", (".{name}",), place="{place}")'
        install(folder, f"mpired-{name}", {name: f"{name}_row:ROW"}, group="mpired.formats", **{f"{name}_row": code})

    install(folder, "mpired-absent", {"absent": "absent_package:ROW"}, group="mpired.formats")
    package("raising", "raise ValueError('at import')")
    package("exiting", "raise SystemExit(0)")
    package("norow", "ROW = 5")
    package("other", "from mpired.formats import Format\nROW = Format('another', ('.other',), place='x')")
    package("nomodule")
    package("failing", place="failing_code")
    (folder / "failing_code.py").write_text("def inspect(*_):\n    1 / 0\nprepare = inspect\n")
    package("npy", "raise ValueError('a name that is taken')")  # never loaded for npy files
    for home in ("one", "two"):
        install(folder, f"twice-{home}", {"twice": f"{home}:ROW"}, group="mpired.formats")
        row = f"from mpired.formats import Format\nROW = Format({home!r}, ('.both', '.npy'), b'BOTH', place='x')"
        install(folder, f"both-{home}", {home: f"{home}_row:ROW"}, group="mpired.formats", **{f"{home}_row": row})
    return folder


@pytest.fixture
def beside(tmp_path, broken_site):
    return Bench(tmp_path, broken_site)


REASONS = {
    "absent": "absent_package:ROW of mpired-absent cannot be loaded (ModuleNotFoundError: ",
    "raising": "raising_row:ROW of mpired-raising cannot be loaded (ValueError: at import)",
    "exiting": "exiting_row:ROW of mpired-exiting cannot be loaded (SystemExit: 0)",
    "norow": "norow_row:ROW of mpired-norow is not an mpired.formats.Format",
    "other": "other_row:ROW of mpired-other is not an mpired.formats.Format with this name",
    "nomodule": "the format nomodule of no_such_module failed (ModuleNotFoundError: ",
    "failing": "the format failing of failing_code failed (ZeroDivisionError: ",
    "twice": "is the format of 2 entry points (one:ROW of twice-one, two:ROW of twice-two)",
}


def test_packages_that_are_broken(beside):
    (npy,) = beside.write("npy", RANKS[:1])
    with together(beside.folder) as case:
        for name, reason in REASONS.items():
            (beside.folder / f"rank.{name}").write_bytes(b"what is in the file")
            for words in (("--from", name, npy), ("--to", name, npy), (f"rank.{name}",), ("-o", f"new.{name}", npy)):
                if (name, words[0]) == ("twice", "-o"):
                    continue
                with case(name, words), unchanged(beside.folder):
                    refused(beside.run("reduce", "--op", "sum", *words), 3, reason)


def test_several_formats_of_a_file(beside):
    (beside.folder / "rank.both").write_bytes(b"BOTH")
    (beside.folder / "rank.0").write_bytes(b"BOTH")
    for name, how in (("rank.both", "by its suffix"), ("rank.0", "by its first bytes")):
        outcome = beside.run("info", name)
        reason = f"is one and two {how}, which are installed formats; say which with --from"
        assert (outcome.status, f"mpired: {name}: {reason}" in outcome.err) == (3, True)
