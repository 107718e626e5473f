"""Builds the site of the documents: `make site` runs it.

    python docs/site/build.py [DIRECTORY]

The pages are those of the repository, at the addresses of addresses.py; the lists of docs/README.md become the
navigation. The pages of the commands and of the Python API are made from the code.
Warnings of Sphinx are errors, and so are links and anchors that lead nowhere and files that come from another host.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from addresses import LISTS, ROOT, pages, with_links
from check import problems
from sphinx.cmd.build import build_main

import mpired
from mpired import errors
from mpired.cli import cli
from mpired.collectives.table import COLLECTIVES
from mpired.ops import Op
from mpired.options import RUNNING, SECTIONS

HERE = Path(__file__).resolve().parent

# Pages for those who change mpired: the search of its users leaves them out.
_NOT_SEARCHED = {"CHANGELOG.md", "CONTRIBUTING.md", "docs/design.md"}
# Pages below others in the navigation.
_BELOW = {
    "command-line": [f"commands/{name}" for name in cli.list_commands(click.Context(cli))],
    "python": ["api"],
    "formats": ["mpired-mini", "mpired-bundle"],
    "user-ops": ["mpired-quaternion"],
}


class Site:
    """The sources of the site, which Sphinx reads.

    Parameters
    ----------
    folder
        Where they are written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = pages()

    def write(self, name: str, text: str) -> None:
        """Write a page."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def put(self, source: str) -> None:
        """Write a page of the repository with the links that it has on the site."""
        name = self.names[source]
        text = with_links(source, lambda inside: self._moved(source, inside))
        below = _BELOW.get(Path(name).stem, [])
        head = "---\nno-search: true\n---\n\n" if source in _NOT_SEARCHED else ""
        self.write(name, head + text + (_toctree("", below) if below else ""))

    def _moved(self, source: str, inside: str) -> str:
        """Return where a link leads: to a page, or to a file, which becomes a part of the site."""
        name = self.names.get(inside) or self.names.get(f"{inside}/README.md")
        if name is None:
            name = inside.removeprefix("docs/")
            if (ROOT / inside).is_file():
                self.folder.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / inside, self.folder / name)
        return os.path.relpath(name, Path(self.names[source]).parent)


def _toctree(caption: str, entries: list[str]) -> str:
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return "\n```{toctree}\n" + options + "\n" + "\n".join(entries) + "\n```\n"


def navigation(names: dict[str, str]) -> Iterator[str]:
    """Yield a table of contents for each list of docs/README.md."""
    for part in (ROOT / LISTS).read_text().split("\n## ")[1:]:
        links = re.findall(r"^- \[([^]]+)\]\(([^)#]+)\)", part, re.MULTILINE)
        entries = [f"{title} <{names[os.path.normpath(f'docs/{link}')]}>" for title, link in links]
        yield _toctree(part.partition("\n")[0], entries)


def command_page(name: str, command: click.Command) -> str:
    """Return the page of a command, from what click knows of it."""
    context = click.Context(command, info_name=f"mpired {name}")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    first, *others = inspect.cleandoc(command.help or "").split("\n\n")
    lines = [f"# mpired {name}", _plain(first), f"```text\n{usage}\n```"]
    shown = sorted(others, key=lambda each: each.startswith("\b"))  # the examples last
    lines += [_examples(paragraph) if paragraph.startswith("\b") else _plain(paragraph) for paragraph in shown]
    options = [each for each in command.get_params(context) if isinstance(each, click.Option) and not each.hidden]
    lines += ["## Options", _variables(options), "```{program} " + f"mpired {name}\n```"]
    for section in SECTIONS:
        those = [each for each in options if _section(each) == section]
        lines += [f"### {section}"] * bool(those) + [_option(each, context) for each in those]
    return "\n\n".join(lines) + "\n"


def _section(option: click.Option) -> str:
    row = getattr(option, "row", None)
    return row.section if row else RUNNING


def _examples(paragraph: str) -> str:
    """Return the examples of the help as they are typed; a line that goes on is further in."""
    lines = [line.removeprefix("  ") for line in paragraph.splitlines()[2:]]
    typed = [f"> {line}" if line.startswith(" ") else f"$ {line}" for line in lines]
    return "\n".join(["## Examples", "", "```console", *typed, "```"])


def _plain(text: str) -> str:
    """Return paragraphs of the help as Markdown."""
    return re.sub(r"([*_<>\[\]])", r"\\\1", text)


def _option(option: click.Option, context: click.Context) -> str:
    """Return an option: its spellings and its meaning."""
    flags, meaning = option.get_help_record(context) or ("", "")
    return "\n".join(["````{option} " + flags.replace(" / ", ", "), "", _plain(meaning), "````"])


def _variables(options: list[click.Option]) -> str:
    """Return the rule for the environment variables, and the options of a command that have none."""
    others = [
        f"`{max(option.opts, key=len)}`" for option in options if not option.envvar and getattr(option, "row", None)
    ]
    except_for = f", except {', '.join(others)}" if others else ""
    return (
        f"The [environment variable](../command-line.md#environment-variables) `MPIRED_<OPTION>` sets an"
        f" option{except_for}. A flag overrides it."
    )


def _exit(kind: type[Exception]) -> str:
    """Return a paragraph for an error: the exit status of the command, and the error class of MPI."""
    return (
        f"\n\n   Exit status {kind.exit_status}, ``{kind.mpi_class}``." if issubclass(kind, mpired.MpiredError) else ""
    )


def api_page() -> str:
    """Return the page of the Python API, with each public name: a new function or class is there by itself."""
    public = {name: getattr(mpired, name) for name in mpired.__all__}
    collectives = [name.replace("-", "_") for name in COLLECTIVES]
    functions = [name for name, value in public.items() if inspect.isroutine(value) and name not in collectives]
    classes = [name for name, value in public.items() if isinstance(value, type) and not issubclass(value, Exception)]
    own = {name: value for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__}
    exceptions = {name: kind for name, kind in own.items() if isinstance(kind, type) and issubclass(kind, Exception)}
    ops = ", ".join(f"``{name}``" for name, value in public.items() if isinstance(value, Op))
    blocks = [
        _title("Functions and classes"),
        "Made from the docstrings. :doc:`python` shows how they are used.",
        f"The rows of :doc:`ops` are ``mpired.OPS`` and ``mpired.DATATYPES``. Each op has a name in ``mpired``: {ops}.",
        _title("Collectives", "-"),
        *(f".. autofunction:: mpired.{name}" for name in collectives),
        _title("Other functions", "-"),
        *(f".. autofunction:: mpired.{name}" for name in functions),
        _title("Classes", "-"),
        *(f".. autoclass:: mpired.{name}\n   :members:" for name in reversed(classes)),
        _title("Errors", "-"),
        ".. automodule:: mpired.errors",
        *(
            f".. autoexception:: mpired.errors.{name}\n   :show-inheritance:{_exit(kind)}"
            for name, kind in exceptions.items()
        ),
    ]
    return "\n\n".join(blocks) + "\n"


def _title(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}"


def assemble(folder: Path) -> None:
    """Write the sources of the site."""
    shutil.rmtree(folder, ignore_errors=True)
    site = Site(folder)
    for source in site.names.keys() - {LISTS}:
        site.put(source)
    with (folder / "index.md").open("a") as front:
        front.writelines(navigation(site.names))
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None  # noqa: S101 - it is listed
        site.write(f"commands/{name}.md", command_page(name, command))
    site.write("api.rst", api_page())


def main() -> int:
    """Build the site, and return the exit status."""
    site = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "build" / "site"
    source, cache = (site.with_name(f"{site.name}-{what}") for what in ("source", "cache"))
    shutil.rmtree(site, ignore_errors=True)
    assemble(source)
    words = ["-q", "-W", "--keep-going", "-c", str(HERE), "-d", str(cache), "-j", "auto"]
    status: int = build_main([*words, str(source), str(site)])
    found = list(problems(site)) if status == 0 else []
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"{site}/index.html")
    return int(status != 0 or bool(found))


if __name__ == "__main__":
    sys.exit(main())
