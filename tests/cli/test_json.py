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
    assert _line(outcome.err)["windows"] == ["rank2.npy"]
    outcome = run(*words, "--fetch", "old.npy", cwd=folder)
    assert (outcome.err, _line(outcome.out)["inputs"]) == ("", ["rank10.npy"])


def test_an_error_is_json_in_the_place_of_the_summary(folder):
    words = ("reduce", "--json", "--op", "sum", "rank2.npy", "nix.npy", "also.npy")
    outcome = run(*words, "-o", "out.npy", cwd=folder)
    failure = _line(outcome.out)
    assert outcome.err == "mpired: 2 of 3 ranks cannot be used: nix.npy, also.npy: No such file or directory\n"
    assert (outcome.status, failure["exit_status"]) == (4, 4)
    assert (failure["error"], failure["subject"]) == ("RanksError", "2 of 3 ranks cannot be used")
    assert [(each["error"], each["subject"]) for each in failure["ranks"]] == [
        ("FileNotFoundError", "nix.npy"),
        ("FileNotFoundError", "also.npy"),
    ]
    outcome = run(*words, cwd=folder)
    assert outcome.out == b""
    assert {**_line(outcome.err), "seconds": 0} == {**failure, "seconds": 0}


@pytest.mark.parametrize(
    ("words", "error", "reason"),
    [
        ("--op max rank2.npy -o out.npy --to nix", "BadParameter", "'nix' is not one of"),
        ("--op max rank2.npy --nix", "NoSuchOption", "--nix"),
        ("--op max rank2.npy -o out.npy -j -1", "UsageError", "-1 is negative"),
        ("--op land rank2.npy -o rank2.npy", "UsageError", "--in-place"),
    ],
)
def test_errors_of_use_are_json_too_with_flags_of_the_command_line(words, error, reason, folder):
    outcome = run("reduce", "--json", *words.split(), cwd=folder)
    failure = _line(outcome.out or outcome.err)
    assert (outcome.status, failure["exit_status"], failure["error"]) == (2, 2, error)
    assert reason in failure["reason"]


def test_a_file_called_json_is_no_option(folder):
    outcome = run("reduce", "--op", "max", "--", "nix.npy", "--json", cwd=folder)
    assert outcome.status == 4
    assert outcome.err.startswith("mpired: 2 of 2 ranks cannot be used: nix.npy, --json: ")


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
