"""What the program tells of its use: help and version."""

from __future__ import annotations

import click
import pytest
from command import refused, run

from mpired.cli import cli, params


def test_a_command_has_the_short_and_the_whole_help_without_those_of_the_group():
    context = params.Command(name="other", callback=lambda: None, help="Do it.").make_context("other", [])
    assert [each.opts for each in context.command.get_params(context)] == [["-h"], ["--help"]]


@pytest.mark.parametrize(
    "words", [(), ("reduce",), ("ops",), ("types",), ("info",), ("pack",), ("unpack",)], ids=" ".join
)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(words, flag, tmp_path):
    outcome = run(*words, flag, cwd=tmp_path)
    assert (outcome.status, outcome.err) == (0, "")
    text = outcome.out.decode()
    assert text.startswith(f"Usage: {' '.join(('mpired', *words))} [OPTIONS]")
    assert "\b" not in text
    assert "\\b" not in text
    if words:
        assert f"\n    mpired {words[0]}" in text.replace("      ", "    ")


def test_help_has_every_option(tmp_path):
    text = run("reduce", "--help", cwd=tmp_path).out.decode()
    for option in (
        *("--op", "--type", "--from", "--to", "-o, --output", "-f, -O, --force, --overwrite", "-j, --jobs"),
        *(
            "-q, --quiet",
            "-v, --verbose",
            "--columns, --variables",
            "--pair",
            "--offset",
            "--count",
            "--byte-order",
            "--root",
        ),
        *("--in-place", "--max-memory", "--json", "--types", "--datarep"),
    ):
        assert f"  {option} " in text


def test_every_command_has_a_line_of_help(tmp_path):
    text = run("--help", cwd=tmp_path).out.decode()
    context = click.Context(cli)
    for name in cli.list_commands(context):
        assert f"\n  {name} " in text
        assert run(name, "--help", cwd=tmp_path).status == 0


def test_version(tmp_path):
    import mpired

    assert run("--version", cwd=tmp_path) == (0, f"mpired {mpired.__version__}\n".encode(), "")


def test_completion_without_a_shell_names_the_shells(tmp_path):
    message = "mpired: Missing argument 'SHELL'. It is one of bash, zsh, fish; see `mpired completion --help`\n"
    assert run("completion", cwd=tmp_path) == (2, b"", message)
    refused(run("completion", "csh", cwd=tmp_path), 2, "'csh' is not one of 'bash', 'zsh', 'fish'")


def test_no_command_is_answered_with_help(tmp_path):
    outcome = run(cwd=tmp_path)
    assert (outcome.status, outcome.out) == (2, b"")
    assert outcome.err.startswith("Usage: mpired")
    refused(run("reduse", cwd=tmp_path), 2, "reduse")
