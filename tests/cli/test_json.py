"""The summary of a command: a line for a person, or with `--json` one for a program, which is not in the way."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command import run
from rows import each

import mpired


@pytest.fixture
def ranks(tmp_path):
    """Ranks out of order, of which the second overflows the sum."""
    for name in ("rank10", "rank2"):
        np.save(tmp_path / f"{name}.npy", np.array([100, 2], "i1"))
    return tmp_path


def _line(text):
    (line,) = text.splitlines()
    return json.loads(line)


def test_quiet_and_verbose(folder):
    words = ("reduce", "--op", "sum", "a.npy", "b.npy", "-o", "out.npy", "-f")
    for flag in ("-q", "--quiet"):
        assert run(*words, flag, cwd=folder).err == ""
    for flag in ("-v", "--verbose"):
        lines = run(*words, flag, cwd=folder).err.splitlines()
        assert all(line.startswith("mpired: ") for line in lines)
        assert "segment" in lines[1]
        assert lines[-1].endswith(" s in all")
    for words in (("reduce", "-o", "out.npy.xz"), ("scan", "-o", "out_{rank}.npy.gz")):
        outcome = run(*words, "-v", "--op", "sum", "a.npy", "b.npy", cwd=folder)
        assert (outcome.status, outcome.err.count(" s compressing results\n")) == (0, 1)


def test_verbose_names_the_steps_in_their_order(folder, cut_into):
    """Each once, with its seconds, which sum to less than all."""
    cut_into(8)
    words = ("reduce", "-v", "--op", "sum", "a.npy", "b.npy", "-o", "out.parquet", "-f", "-j", "2")
    (folder / "out.parquet").touch()
    told = [line.split(" ", 3)[1:] for line in run(*words, cwd=folder).err.splitlines() if " s " in line]
    assert [step for _, _, step in told] == [
        "opening and checking the ranks",
        "waiting for locks",
        "combining the ranks",
        "starting workers",
        "encoding results",
        "bringing results to the disk",
        "putting results in place",
        "in all",
    ]
    *steps, (whole, _, _) = told
    assert all(float(seconds) >= 0 for seconds, _, _ in steps)
    assert sum(float(seconds) - 0.001 for seconds, _, _ in steps) <= float(whole)


@each("output", ["out.npy", "-"])
def test_a_summary_goes_to_standard_output_if_that_is_free(output, ranks):
    outcome = run("reduce", "--json", "--op", "sum", "rank10.npy", "rank2.npy", "-o", output, "--to", "npy", cwd=ranks)
    free = output != "-"
    summary = _line(outcome.out if free else outcome.err)
    assert outcome.err == "" if free else outcome.out.startswith(b"\x93NUMPY")
    assert (summary["inputs"], summary["output"]) == (["rank10.npy", "rank2.npy"], output)
    assert summary["version"] == mpired.__version__
    assert summary["seconds"] > 0
    assert summary["overflow"] == [{"count": 1, "element": 0, "rank": 1, "file": "rank2.npy", "buffer": ""}]
    (warning,) = summary["warnings"]
    assert "overflow" in warning
    assert "--overflow error" in warning
    assert "`" not in warning


def test_warnings_are_in_it(ranks):
    for name in ("rank10", "rank2"):
        np.save(ranks / f"{name}.npy", np.array([0.5]))
    words = ("scan", "--json", "--op", "sum", "rank10.npy", "rank2.npy", "-o")
    for output, status in (("s_{rank}.npy", 0), ("nowhere/s_{rank}.npy", 4)):
        told = _line(run(*words, output, cwd=ranks).out)
        (warning,) = told["warnings"]
        assert "rank10.npy came before rank2.npy" in warning
        assert told.get("exit_status", 0) == status
    outcome = run("accumulate", "--json", "--op", "max", "rank2.npy", "rank2.npy", cwd=ranks)
    (warning,) = _line(outcome.out)["warnings"]
    assert "same file" in warning


def test_old_elements_go_to_standard_output_before_the_summary(ranks):
    words = ("get-accumulate", "--json", "--op", "max", "rank2.npy", "rank10.npy")
    outcome = run(*words, "--to", "text", cwd=ranks)
    assert outcome.out == b"100\n2\n"
    summary = _line(outcome.err)
    assert [summary[name] for name in ("call", "windows", "output")] == ["MPI_Get_accumulate", ["rank2.npy"], "-"]
    outcome = run(*words, "--fetch", "old.npy", cwd=ranks)
    assert (outcome.err, _line(outcome.out)["inputs"]) == ("", ["rank10.npy"])
    assert [_line(outcome.out)[name] for name in ("windows", "output")] == [["rank2.npy"], "old.npy"]


def test_what_an_update_changes_is_its_output(ranks):
    words = ("accumulate", "--json", "--op", "max")
    summary = _line(run(*words, "rank2.npy", "rank10.npy", cwd=ranks).out)
    assert [summary[name] for name in ("call", "output")] == ["MPI_Accumulate", "rank2.npy"]
    words = (*words, "--window", "rank2.npy", "--window", "rank10.npy", "--target-rank", "0", "rank10.npy")
    assert _line(run(*words, cwd=ranks).out)["output"] == "in place"


def test_an_error_is_json_in_the_place_of_the_summary(ranks):
    words = ("reduce", "--json", "--op", "sum", "rank2.npy", "nix.npy", "also.npy")
    outcome = run(*words, "-o", "out.npy", cwd=ranks)
    failure = _line(outcome.out)
    assert outcome.err == "mpired: 2 of 3 ranks: No such file or directory: nix.npy, also.npy\n"
    assert (outcome.status, failure["exit_status"]) == (4, 4)
    assert (failure["error"], failure["subject"]) == ("RanksError", "2 of 3 ranks")
    assert [(each["error"], each["subject"]) for each in failure["ranks"]] == [
        ("FileNotFoundError", "nix.npy"),
        ("FileNotFoundError", "also.npy"),
    ]
    outcome = run(*words, cwd=ranks)
    assert outcome.out == b""
    assert {**_line(outcome.err), "seconds": 0} == {**failure, "seconds": 0}


@each(
    "words, error, reason",
    [
        ("--op max rank2.npy -o out.npy --to nix", "BadParameter", "'nix' is not one of"),
        ("--op max rank2.npy --nix", "NoSuchOption", "--nix"),
        ("--nix -o out.npy", "NoSuchOption", "--nix"),
        ("--op max rank2.npy -oout.npy --count 2x", "BadParameter", "'2x' is not an integer"),
        ("--op max rank2.npy --in-place --root", "BadOptionUsage", "--root"),
        ("--op max rank2.npy -o out.npy -j -1", "UsageError", "-1 is negative"),
        ("--op land rank2.npy -o rank2.npy", "UsageError", "--in-place"),
    ],
)
def test_errors_of_use_are_json_too_with_flags_of_the_command_line(words, error, reason, ranks):
    for flags, variables in ((["--json"], {}), ([], {"MPIRED_JSON": "1"})):
        outcome = run("reduce", *flags, *words.split(), cwd=ranks, env=variables)
        is_free = any(word.startswith(("-o", "--in-place")) for word in words.split())
        failure = _line(outcome.out if is_free else outcome.err)
        assert outcome.err.startswith("mpired: ") if is_free else outcome.out == b""
        assert (outcome.status, failure["exit_status"], failure["error"]) == (2, 2, error)
        assert reason in failure["reason"]


def test_a_command_without_json_has_none(ranks):
    outcome = run("completion", "nix", cwd=ranks, env={"MPIRED_JSON": "1"})
    assert (outcome.status, outcome.out) == (2, b"")
    assert outcome.err.startswith("mpired: ")
    outcome = run("reduce", "--op", "max", "--", "nix.npy", "--json", cwd=ranks)  # the name of a file
    assert outcome.status == 4
    assert outcome.err.startswith("mpired: 2 of 2 ranks: No such file or directory: nix.npy, --json")


def test_calls_on_one_element(ranks):
    """The old element is on standard output, and so the summary is not."""
    words = ("fetch-and-op", "--json", "--op", "sum", "--target-disp", "1", "rank2.npy", "5")
    outcome = run(*words, cwd=ranks)
    summary = _line(outcome.err)
    assert (outcome.status, outcome.out, summary["old"]) == (0, b"2\n", 2)
    assert [summary[name] for name in ("call", "op", "windows", "inputs", "output", "warnings")] == [
        "MPI_Fetch_and_op", "MPI_SUM", ["rank2.npy"], ["5"], "-", []
    ]  # fmt: skip
    outcome = run("compare-and-swap", "--json", "--at", "1", "rank2.npy", "7", "3", cwd=ranks)
    assert (outcome.out, _line(outcome.err)["old"]) == (b"7\n", 7)
    assert np.load(ranks / "rank2.npy").tolist() == [100, 3]
    failure = _line(run(*words[:-1], "x", cwd=ranks).err)
    assert failure["exit_status"] == 2
    for element, old in (
        (np.array([(2.5, 4)], [("value", "f8"), ("index", "i4")]), [2.5, 4]),
        (np.array([True]), True),
        (np.array([np.nan]), "nan"),
        (np.array(["2024-05-17"], "M8[ns]"), "2024-05-17T00:00:00.000000000"),
    ):
        np.save(ranks / "e.npy", element)
        assert _line(run("fetch-and-op", "--json", "--op", "no_op", "e.npy", cwd=ranks).err)["old"] == old


def test_recovery_and_examples(ranks):
    outcome = run("recover", "--json", "rank2.npy", "nix.npy", "rank10.npy", cwd=ranks)
    *lines, failure = map(json.loads, (outcome.out.decode() + outcome.err).splitlines())
    assert [(each["file"], each["words"], each["changed"]) for each in lines] == [
        ("rank2.npy", [], False),
        ("rank10.npy", [], False),
    ]
    assert (failure["exit_status"], failure["subject"]) == (outcome.status, "nix.npy")
    assert _line(run("examples", "--json", "new", cwd=ranks).out)["output"] == "new"
    assert _line(run("examples", "--json", "new", cwd=ranks).out)["exit_status"] == 2


def test_a_stream_under_a_name_is_not_free(ranks):
    words = ("reduce", "--json", "--op", "max", "rank2.npy", "--to", "npy", "-o", "/dev/stdout")
    with open(ranks / "out.npy", "wb") as file:
        outcome = run(*words, cwd=ranks, stdout=file.fileno())
    assert np.load(ranks / "out.npy").tolist() == [100, 2]
    assert (ranks / "out.npy").read_bytes().count(b"{") == 1  # that of the header
    assert _line(outcome.err)["output"] == "/dev/stdout"
