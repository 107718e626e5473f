"""`--json`: one line for a program, where it is not in the way of the result."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command import run

import mpired


@pytest.fixture
def folder(tmp_path):
    """Ranks out of order, and one that overflows."""
    for name in ("rank10", "rank2"):
        np.save(tmp_path / f"{name}.npy", np.array([100, 2], "i1"))
    return tmp_path


def _line(text):
    (line,) = text.splitlines()
    return json.loads(line)


@pytest.mark.parametrize("output", ["out.npy", "-"])
def test_a_summary_goes_to_standard_output_if_that_is_free(output, folder):
    outcome = run("reduce", "--json", "--op", "sum", "rank10.npy", "rank2.npy", "-o", output, "--to", "npy", cwd=folder)
    free = output != "-"
    summary = _line(outcome.out if free else outcome.err)
    assert outcome.err == "" if free else outcome.out.startswith(b"\x93NUMPY")
    assert (summary["inputs"], summary["output"]) == (["rank10.npy", "rank2.npy"], output)
    assert summary["version"] == mpired.__version__
    assert summary["seconds"] > 0
    assert summary["overflow"] == [{"count": 1, "element": 0, "rank": 1, "file": "rank2.npy", "buffer": ""}]
    (warning,) = summary["warnings"]
    assert "overflow" in warning


def test_warnings_are_in_it(folder):
    for name in ("rank10", "rank2"):
        np.save(folder / f"{name}.npy", np.array([0.5]))
    outcome = run("scan", "--json", "--op", "sum", "rank10.npy", "rank2.npy", "-o", "s_{rank}.npy", cwd=folder)
    (warning,) = _line(outcome.out)["warnings"]
    assert "rank10.npy came before rank2.npy" in warning
    outcome = run("accumulate", "--json", "--op", "max", "rank2.npy", "rank2.npy", cwd=folder)
    (warning,) = _line(outcome.out)["warnings"]
    assert "same file" in warning


def test_old_elements_go_to_standard_output_before_the_summary(folder):
    words = ("get-accumulate", "--json", "--op", "max", "rank2.npy", "rank10.npy")
    outcome = run(*words, "--to", "text", cwd=folder)
    assert outcome.out == b"100\n2\n"
    summary = _line(outcome.err)
    assert [summary[name] for name in ("call", "windows", "output")] == ["MPI_Get_accumulate", ["rank2.npy"], "-"]
    outcome = run(*words, "--fetch", "old.npy", cwd=folder)
    assert (outcome.err, _line(outcome.out)["inputs"]) == ("", ["rank10.npy"])
    assert [_line(outcome.out)[name] for name in ("windows", "output")] == [["rank2.npy"], "old.npy"]


def test_what_an_update_changes_is_its_output(folder):
    words = ("accumulate", "--json", "--op", "max")
    summary = _line(run(*words, "rank2.npy", "rank10.npy", cwd=folder).out)
    assert [summary[name] for name in ("call", "output")] == ["MPI_Accumulate", "rank2.npy"]
    words = (*words, "--window", "rank2.npy", "--window", "rank10.npy", "--target-rank", "0", "rank10.npy")
    assert _line(run(*words, cwd=folder).out)["output"] == "in place"


def test_an_error_is_json_in_the_place_of_the_summary(folder):
    words = ("reduce", "--json", "--op", "sum", "rank2.npy", "nix.npy", "also.npy")
    outcome = run(*words, "-o", "out.npy", cwd=folder)
    failure = _line(outcome.out)
    assert outcome.err == "mpired: 2 of 3 ranks: No such file or directory: nix.npy, also.npy\n"
    assert (outcome.status, failure["exit_status"]) == (4, 4)
    assert (failure["error"], failure["subject"]) == ("RanksError", "2 of 3 ranks")
    assert [(each["error"], each["subject"]) for each in failure["ranks"]] == [
        ("FileNotFoundError", "nix.npy"),
        ("FileNotFoundError", "also.npy"),
    ]
    assert (failure["inputs"], failure["output"]) == (["rank2.npy", "nix.npy", "also.npy"], "out.npy")
    outcome = run(*words, cwd=folder)
    failure |= {"output": "-"}
    assert outcome.out == b""
    assert {**_line(outcome.err), "seconds": 0} == {**failure, "seconds": 0}


@pytest.mark.parametrize(
    ("words", "error", "reason"),
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
def test_errors_of_use_are_json_too_with_flags_of_the_command_line(words, error, reason, folder):
    for flags, variables in ((["--json"], {}), ([], {"MPIRED_JSON": "1"})):
        outcome = run("reduce", *flags, *words.split(), cwd=folder, env=variables)
        is_free = any(word.startswith(("-o", "--in-place")) for word in words.split())
        failure = _line(outcome.out if is_free else outcome.err)
        assert outcome.err.startswith("mpired: ") if is_free else outcome.out == b""
        assert (outcome.status, failure["exit_status"], failure["error"]) == (2, 2, error)
        assert reason in failure["reason"]


@pytest.mark.parametrize("words", [("reduce", "-o", "out.npy"), ("accumulate", "--create", "like", "rank2.npy")])
def test_errors_are_json_if_the_environment_says_so(words, folder):
    outcome = run(*words, "--op", "sum", "nix.npy", cwd=folder, env={"MPIRED_JSON": "1"})
    assert _line(outcome.out)["exit_status"] == outcome.status > 0
    assert "from the environment: --json (MPIRED_JSON)" in outcome.err or words[0] == "accumulate"


def test_a_command_without_json_has_none(folder):
    outcome = run("completion", "nix", cwd=folder, env={"MPIRED_JSON": "1"})
    assert (outcome.status, outcome.out) == (2, b"")
    assert outcome.err.startswith("mpired: ")


def test_calls_on_one_element(folder):
    """The old element is on standard output, and so the summary is not."""
    words = ("fetch-and-op", "--json", "--op", "sum", "--target-disp", "1", "rank2.npy", "5")
    outcome = run(*words, cwd=folder)
    summary = _line(outcome.err)
    assert (outcome.status, outcome.out, summary["old"]) == (0, b"2\n", 2)
    assert [summary[name] for name in ("call", "op", "windows", "inputs", "output", "warnings")] == [
        "MPI_Fetch_and_op", "MPI_SUM", ["rank2.npy"], ["5"], "-", []
    ]  # fmt: skip
    outcome = run("compare-and-swap", "--json", "--at", "1", "rank2.npy", "7", "3", cwd=folder)
    assert (outcome.out, _line(outcome.err)["old"]) == (b"7\n", 7)
    assert np.load(folder / "rank2.npy").tolist() == [100, 3]
    for name, element, old in (
        ("pair", np.array([(2.5, 4)], [("value", "f8"), ("index", "i4")]), [2.5, 4]),
        ("flag", np.array([True]), True),
        ("nan", np.array([np.nan]), "nan"),
        ("day", np.array(["2024-05-17"], "M8[ns]"), "2024-05-17T00:00:00.000000000"),
    ):
        np.save(folder / f"{name}.npy", element)
        outcome = run("fetch-and-op", "--json", "--op", "no_op", f"{name}.npy", cwd=folder)
        assert _line(outcome.err)["old"] == old
    outcome = run(*words[:-1], "x", cwd=folder)
    failure = _line(outcome.err)
    assert (outcome.status, outcome.out, failure["exit_status"]) == (2, b"", 2)
    assert (failure["inputs"], failure["output"]) == (["x"], "rank2.npy")


def test_packing(folder):
    np.arange(6.0).tofile(folder / "records.bin")
    words = ("pack", "--json", "--type", "resized(0,16,double)", "records.bin", "-o", "p.npy")
    summary = _line(run(*words, cwd=folder).out)
    named = ("call", "inputs", "output", "datatype", "dtype", "unit", "unit_dtype", "units", "warnings")
    assert [summary[name] for name in named] == [
        "MPI_Pack", ["records.bin"], "p.npy", "resized(0,16,double)", None, "MPI_DOUBLE", "float64", 3, []
    ]  # fmt: skip
    failure = _line(run(*words, cwd=folder).out)
    assert (failure["error"], failure["inputs"], failure["output"]) == ("OutputExistsError", ["records.bin"], "p.npy")
    words = ("unpack", "--json", "--type", "resized(0,16,double)", "p.npy", "--into", "records.bin")
    summary = _line(run(*words, cwd=folder).out)
    assert [summary[name] for name in ("call", "output", "kept")] == ["MPI_Unpack", "records.bin", True]


def test_recovery_and_examples(folder):
    outcome = run("recover", "--json", "rank2.npy", "nix.npy", "rank10.npy", cwd=folder)
    *lines, failure = map(json.loads, (outcome.out.decode() + outcome.err).splitlines())
    assert [(each["file"], each["words"], each["changed"]) for each in lines] == [
        ("rank2.npy", [], False),
        ("rank10.npy", [], False),
    ]
    assert (failure["exit_status"], failure["subject"]) == (outcome.status, "nix.npy")
    assert failure["inputs"] == ["rank2.npy", "nix.npy", "rank10.npy"]
    assert _line(run("examples", "--json", "new", cwd=folder).out)["output"] == "new"
    assert _line(run("examples", "--json", "new", cwd=folder).out)["output"] == "new"


def test_an_error_has_the_warnings_before_it(folder):
    for name in ("rank10", "rank2"):
        np.save(folder / f"{name}.npy", np.array([0.5]))
    words = ("scan", "--json", "--op", "sum", "rank10.npy", "rank2.npy", "-o", "nowhere/s_{rank}.npy")
    failure = _line(run(*words, cwd=folder).out)
    (warning,) = failure["warnings"]
    assert "rank10.npy came before rank2.npy" in warning
    assert (failure["exit_status"], failure["output"]) == (4, "nowhere/s_{rank}.npy")


def test_a_file_called_json_is_no_option(folder):
    outcome = run("reduce", "--op", "max", "--", "nix.npy", "--json", cwd=folder)
    assert outcome.status == 4
    assert outcome.err.startswith("mpired: 2 of 2 ranks: No such file or directory: nix.npy, --json")


def test_a_stream_under_a_name_is_not_free(folder):
    words = ("reduce", "--json", "--op", "max", "rank2.npy", "--to", "npy", "-o", "/dev/stdout")
    with open(folder / "out.npy", "wb") as file:
        outcome = run(*words, cwd=folder, stdout=file.fileno())
    assert np.load(folder / "out.npy").tolist() == [100, 2]
    assert (folder / "out.npy").read_bytes().count(b"{") == 1  # that of the header
    assert _line(outcome.err)["output"] == "/dev/stdout"


def test_warnings_have_the_flags_of_the_command_line(folder):
    outcome = run("reduce", "--json", "--op", "sum", "rank10.npy", "rank2.npy", "-o", "out.npy", cwd=folder)
    (warning,) = _line(outcome.out)["warnings"]
    assert "--overflow error" in warning
    assert "`" not in warning
