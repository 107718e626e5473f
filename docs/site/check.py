"""Checks a built site without a network: links, anchors, pictures, and that nothing is loaded from another host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself; a link is fetched when it is followed.
_LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}


class _Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[str, str]] = []
        self.without_text: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember what the tag names and where it leads."""
        values = {name: value or "" for name, value in attrs}
        self.ids.update(values[name] for name in ("id", "name") if name in values)
        attribute = "href" if tag == "a" else _LOADED.get(tag, "")
        if attribute in values:
            self.links.append((tag, values[attribute]))
        if tag == "img" and not values.get("alt", "").strip():
            self.without_text.append(values.get("src", ""))


def problems(site: Path) -> Iterator[str]:
    """Yield a line for each link that leads nowhere, each file of another host, and each picture without a text."""
    found = {path: _Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in found.items():
        name = path.relative_to(site)
        yield from (f"{name}: {picture} has no text for those who cannot see it" for picture in page.without_text)
        for tag, link in page.links:
            if reason := _reason(path, tag, link, found):
                yield f"{name}: {link}: {reason}"


def _reason(path: Path, tag: str, link: str, found: dict[Path, _Page]) -> str:
    """Return what is wrong with a link, empty if nothing is."""
    parts = urlsplit(link)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        return "" if tag == "a" else "comes from another host"
    target = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
    if not target.exists():
        return "is not there"
    page = found.get(target)
    if page and parts.fragment and unquote(parts.fragment) not in page.ids:
        return "is not on that page"
    return ""
