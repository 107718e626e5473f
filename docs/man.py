"""Writes the man pages, made of the help of the commands: `python docs/man.py DIRECTORY`. A build of the wheel does."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from mpired import __version__
from mpired.cli import cli
from mpired.cli.messages import STATUSES
from mpired.options import SECTIONS

# What roff would take for a command, or print as another character.
_ESCAPES = {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
_TITLE = re.compile(r"\x08\n([A-Z][a-z ]*): ?")
_TYPED = re.compile(r"-.+|[a-z][a-z-]*")


def _escaped(text: str) -> str:
    escaped = "".join(_ESCAPES.get(each, each) for each in text)
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


def _term(text: str) -> str:
    """Return what a list explains: what is typed in bold, and what stands for something else in italics."""
    parts = re.split(r"([] ,/[]+)", text) if "|" not in text else re.split(r"( )", text)
    parts[::2] = (rf"\f{'B' if _TYPED.fullmatch(word) else 'I'}{_escaped(word)}\fR" for word in parts[::2])
    return "".join(parts)


_PARTS = {*SECTIONS}


class _Page(click.HelpFormatter):
    """Formats help as a man page."""

    _has_options = _is_new = False

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:  # noqa: ARG002 - click's
        """Write the synopsis."""
        self.write_heading("Synopsis")
        self.write(rf"\fB{_escaped(prog)}\fR {_term(args)}" + "\n")
        self.write_heading("Description")

    def write_heading(self, heading: str) -> None:
        """Begin a section; those of options are parts of one."""
        if heading in _PARTS and not self._has_options:
            self._has_options = True
            self.write_heading("Options")
        self.write(f".SS {heading}\n" if heading in _PARTS else f".SH {heading.upper()}\n")
        self._is_new = True

    def write_paragraph(self) -> None:
        """Write nothing: the sections are apart."""

    def write_text(self, text: str) -> None:
        """Write paragraphs; those that have a title are sections, behind the others."""
        for paragraph in sorted(text.split("\n\n"), key=lambda each: _TITLE.match(each) is not None):
            as_it_is, lines = paragraph.startswith("\b"), paragraph.removeprefix("\b\n").split("\n")
            if title := _TITLE.match(paragraph):
                self.write_heading(title[1])
                lines = paragraph[title.end() :].split("\n")
                as_it_is = not lines[0]
            shown = "\n".join(_escaped(line if as_it_is else line.strip()) for line in lines if line)
            self.write("" if self._is_new else ".PP\n")
            self.write(f".nf\n{shown}\n.fi\n" if as_it_is else f"{shown}\n")
            self._is_new = False

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:  # noqa: ARG002
        """Write a list of options or commands."""
        for term, text in rows:
            self.write(f".TP\n{_term(term)}\n{_escaped(text)}\n")


def page(context: click.Context) -> str:
    """Return the man page of a command."""
    name = context.command_path.replace(" ", "-")
    formatter = _Page()
    formatter.write(f'.TH {name.upper()} 1 "" "mpired {__version__}" "mpired manual"\n.nh\n')
    formatter.write_heading("Name")
    formatter.write(rf"{name} \- {_escaped(context.command.get_short_help_str(200).rstrip('.'))}" + "\n")
    context.command.format_help(context, formatter)
    if name != "mpired-diff":  # whose help has its own
        formatter.write_heading("Exit status")
        formatter.write_dl(list(STATUSES.items()))
    return formatter.getvalue()


def pages() -> dict[str, str]:
    """Return all man pages by name."""
    above = click.Context(cli, info_name="mpired", **cli.context_settings)
    commands = (cli.get_command(above, name) for name in cli.list_commands(above))
    contexts = [above, *(click.Context(command, above, command.name) for command in commands if command)]
    found = {each.command_path.replace(" ", "-"): page(each) for each in contexts}
    for name in found:
        others = [other for other in found if other != name] if name == "mpired" else ["mpired"]
        found[name] += ".SH SEE ALSO\n" + ",\n".join(rf"\fB{_escaped(other)}\fR(1)" for other in others) + "\n"
    return found


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    for each, text in pages().items():
        (directory / f"{each}.1").write_text(text)
