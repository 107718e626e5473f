"""Settings of Sphinx for the site that `build.py` assembles; no page loads anything from another host."""

import re
from typing import Any

from docutils import nodes
from sphinx.pycode import ModuleAnalyzer

import mpired

project = "mpired"
author = "the authors of mpired"
version = release = mpired.__version__
root_doc = "index"
language = "en"
smartquotes = False  # they would make one dash of the two of an option
nitpicky = True
# Public names have to be there. Types of other packages are described elsewhere, those of inner modules nowhere.
nitpick_ignore_regex = [("py:.*", r"(?!mpired\.).*"), ("py:.*", r"mpired\.(?!errors\.)\w+\..*")]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # a quoted text of several lines in a shell is fine
default_role = "code"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"mpired {release}"
html_logo = "../pictures/logo.svg"
html_favicon = "../pictures/logo.svg"
html_static_path = ["style"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_last_updated_fmt = None
pygments_style = "default"
pygments_dark_style = "github-dark"
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}


def _analyze(analyzer: ModuleAnalyzer) -> None:
    """Read a module, but not its overloads: they are for type checkers, and lack the keywords of `with_options`."""
    _read(analyzer)
    analyzer.overloads = {}


_read, ModuleAnalyzer.analyze = ModuleAnalyzer.analyze, _analyze


def _as_restructured(_app: Any, _what: str, _name: str, _thing: Any, _options: Any, lines: list[str]) -> None:
    """Change what Sphinx would misread in a docstring.

    `jobs, default 0` would be two parameters; the signature has the default too.
    """
    lines[:] = [re.sub(r"^(\w+), default .*$", r"\1", line) for line in lines]


def _with_dashes(_app: Any, doctree: nodes.document, _name: str) -> None:
    """Set a dash between a parameter and its description, which else `smartquotes` does."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


_SHORT = 30  # characters of code that fit into a line of a phone


def _short_code(_app: Any, doctree: nodes.document, _name: str) -> None:
    """Mark short pieces of code, which the style keeps on one line."""
    for code in doctree.findall(nodes.literal):
        if len(code.astext()) <= _SHORT:
            code["classes"].append("short")


# Lists of the left bar that are open when a page is opened.
_OPEN = {"Learn", "How to"}
_LIST = re.compile(
    r'<p class="caption"[^>]*>(<span class="caption-text">(.*?)</span>)</p>\s*(.*?)(?=<p class="caption"|\Z)', re.DOTALL
)


def _folded(_app: Any, _page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """Let readers open and close the lists of the left bar; the list of the current page is open too."""

    def details(found: re.Match[str]) -> str:
        is_open = " open" if found[2] in _OPEN or "current-page" in found[3] else ""
        return f'<details{is_open}><summary class="caption">{found[1]}</summary>{found[3]}</details>\n'

    context["furo_navigation_tree"] = _LIST.sub(details, context["furo_navigation_tree"])


def setup(app: Any) -> None:
    """Connect what happens before napoleon reads a docstring, and before a page is written."""
    app.connect("autodoc-process-docstring", _as_restructured, priority=100)
    app.connect("doctree-resolved", _with_dashes)
    app.connect("doctree-resolved", _short_code)
    app.connect("html-page-context", _folded, priority=900)  # after the theme, which makes the tree
