"""What holds for the options of all commands, and options from the environment, which are always told."""

from __future__ import annotations

import numpy as np
from click_commands import OPTIONS
from command import refused, run
from rows import each

_LONG = "9x" * 21_000
_WORDS = {
    "reduce-scatter": "--op sum --counts 3 a.npy",
    "fetch-and-op": "--op sum a.npy 1",
    "compare-and-swap": "a.npy 1 2",
    "reduce-local": "--op sum a.npy b.npy",
    "accumulate": "--op sum a.npy b.npy",
    "get-accumulate": "--op sum a.npy b.npy",
    "pack": "--type double a.npy -o out.bin",
    "unpack": "--type double a.npy -o out.bin",
    "diff": "a.npy b.npy",
    "locate": "--op maxloc a.npy",
    **dict.fromkeys(("info", "show", "recover"), "missing.npy"),
    **dict.fromkeys(("ops", "types", "help", "examples", "completion"), ""),
    **dict.fromkeys(("reduce", "allreduce", "scan", "exscan", "reduce-scatter-block"), "--op sum a.npy -o out{rank}"),
}


def _kind(option):
    return id(getattr(getattr(option, "row", None), "kind", option))


_LONG_WORDS = [
    [f"--{_LONG}"],
    *([name, *words.split(), _LONG] for name, words in _WORDS.items()),
    *{
        (_kind(option), option.nargs): [name, *_WORDS[name].split(), option.opts[-1], *[_LONG] * option.nargs]
        for name, option in OPTIONS
        if name in _WORDS and not option.is_flag
    }.values(),  # an option of each kind
    ["fetch-and-op", "--op", "no_op", "a.npy", _LONG],
]


@each("words", _LONG_WORDS)
def test_a_message_has_an_end_however_long_a_word_is(words, tmp_path):
    """Its beginning and its end are there: what it is about, and the way out."""
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.arange(3.0))
    outcome = run(*words, cwd=tmp_path)
    assert len(outcome.err) < 6000
    assert all(line.startswith("mpired: ") for line in outcome.err.splitlines())
    if outcome.status:
        refused(outcome, outcome.status)
        assert outcome.status in {2, 3, 4, 7}


@each(
    "words, env, told",
    [
        ("info --json a.npy", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
        ("reduce -q --op sum a.npy --to text", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
        ("accumulate -q --op sum a.npy b.npy", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
        ("accumulate --json --op sum a.npy b.npy", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
        ("fetch-and-op --op sum a.npy 1", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
        ("pack -q a.bin -o d.npy", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
        ("reduce --op sum a.npy -o new.npy", {"MPIRED_QUIET": "1"}, "--quiet (MPIRED_QUIET)"),
        ("reduce -v --op sum a.npy b.npy -o c.npy", {"MPIRED_FORCE": "1"}, "--overwrite (MPIRED_FORCE)"),
        ("reduce --json --op sum a.npy b.npy -o c.npy", {"MPIRED_OVERWRITE": "1"}, "--overwrite (MPIRED_OVERWRITE)"),
    ],
)
def test_an_option_of_the_environment_is_told_once_by_every_command(words, env, told, folder):
    outcome = run(*words.split(), cwd=folder, env=env)
    assert outcome.status == 0, outcome.err
    assert outcome.err.count("from the environment: ") == 1
    assert outcome.err.endswith(f"from the environment: {told}\n") or "-v" in words
