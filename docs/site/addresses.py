"""Where the pages of the repository are on the site. It imports no package: the build of the wheel asks, too.

The pages are at other addresses: README.md becomes the front page, docs/NAME.md the page NAME.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LISTS = "docs/README.md"

# Pages outside of docs/, and their names on the site.
_OUTSIDE = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "sample_data/README.md": "sample-data.md",
    "examples/mpired-mini/README.md": "mpired-mini.md",
    "examples/mpired-bundle/README.md": "mpired-bundle.md",
    "examples/mpired-quaternion/README.md": "mpired-quaternion.md",
}
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")


def pages() -> dict[str, str]:
    """Return the page of the site for each page of the repository; both are paths from the top."""
    own = {f"docs/{path.name}": path.name for path in sorted(ROOT.glob("docs/*.md"))}
    return _OUTSIDE | own | {LISTS: "index.md"}


def with_links(source: str, moved: Callable[[str], str]) -> str:
    """Return the text of a page with other links; `moved` gets what they lead to, from the top of the repository."""

    def link(found: re.Match[str]) -> str:
        return moved(os.path.relpath(ROOT / source / ".." / found[1], ROOT))

    parts = _FENCE.split((ROOT / source).read_text())
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts)


def readme(site: str) -> str:
    """Return README.md for a reader who has no repository, with links to the pages of a site and to its pictures.

    Raises
    ------
    KeyError
        If something else is linked, which has no address there.
    """
    names = pages()

    def moved(inside: str) -> str:
        if inside.endswith(".svg"):
            return f"{site}_images/{os.path.basename(inside)}"  # where Sphinx puts pictures
        return f"{site}{names[inside].removesuffix('.md')}.html"

    return with_links("README.md", moved)
