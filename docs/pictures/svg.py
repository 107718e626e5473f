"""A picture in SVG: boxes, words and arrows, with colours for light and dark pages.

Colours are those of Okabe and Ito, which colour-blind people tell apart; what a colour says is written too. A picture
has a ground of its own, so that it can be read where a page and the system do not agree on light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

_STYLE = """
:root { --ink: #1c2128; --soft: #59636e; --ground: #ffffff; --edge: #d1d9e0; --quiet: #eef1f4; --fill: .28 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #f0f3f6; --soft: #a3adb8; --ground: #1a1d21; --edge: #3d444d; --quiet: #2a2f36; --fill: .42 }
}
text { font: 15px system-ui, "DejaVu Sans", sans-serif; fill: var(--ink) }
.mono { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 14px }
.soft { fill: var(--soft); font-size: 14px }
.strong { font-weight: 600 }
.ground { fill: var(--ground); stroke: var(--edge) }
.quiet { fill: var(--quiet); stroke: var(--edge) }
.none { fill: none; stroke: var(--soft); stroke-dasharray: 4 3 }
.line { fill: none; stroke: var(--soft); stroke-width: 1.5 }
.tip { fill: var(--soft) }
.c0, .c1, .c2, .c3, .c4 { fill-opacity: var(--fill); stroke-width: 1.5 }
.c0 { fill: #0072b2; stroke: #0072b2 }
.c1 { fill: #e69f00; stroke: #e69f00 }
.c2 { fill: #009e73; stroke: #009e73 }
.c3 { fill: #cc79a7; stroke: #cc79a7 }
.c4 { fill: #d55e00; stroke: #d55e00 }
.full { fill-opacity: 1 }
"""


class Picture:
    """A picture.

    Parameters
    ----------
    width, height
        Its size in pixels; words are 14 or 15 high.
    title
        Its content in words, for those who cannot see it.
    has_ground
        Whether it has a background and an edge.
    """

    def __init__(self, width: int, height: int, title: str, *, has_ground: bool = True) -> None:
        size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
        ]
        if has_ground:
            ground = f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" class="ground"/>'
            self._parts.append(ground)

    def box(self, x: float, y: float, width: float, height: float, look: str = "quiet") -> None:
        """Draw a rectangle."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{look}"/>')

    def words(self, x: float, y: float, text: str, look: str = "", anchor: str = "start") -> None:
        """Write a line; y is its foot, and anchor says which end x is: start, middle or end."""
        attributes = (f' class="{look}"' if look else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
        self._parts.append(f'<text x="{x:g}" y="{y:g}"{attributes}>{escape(text)}</text>')

    def cell(self, x: float, y: float, width: float, height: float, text: str, look: str = "quiet") -> None:
        """Draw a rectangle with a word in its middle."""
        self.box(x, y, width, height, look)
        self.words(x + width / 2, y + height / 2 + 5, text, "mono", "middle")

    def line(self, *points: tuple[float, float]) -> None:
        """Draw a line through points."""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path d="M{path}" class="line"/>')

    def arrow(self, *points: tuple[float, float]) -> None:
        """Draw a line through points, with a tip at the last one."""
        (x0, y0), (x1, y1) = points[-2:]
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        left, right = (x1 - 9 * dx - 4 * dy, y1 - 9 * dy + 4 * dx), (x1 - 9 * dx + 4 * dy, y1 - 9 * dy - 4 * dx)
        self.line(*points[:-1], (x1 - 8 * dx, y1 - 8 * dy))
        corners = " ".join(f"{x:.4g},{y:.4g}" for x, y in ((x1, y1), left, right))
        self._parts.append(f'<polygon points="{corners}" class="tip"/>')

    def fill(self, boxes: Iterable[tuple[float, float, float, float]], colour: str) -> None:
        """Fill boxes (x, y, width, height) with one colour."""
        path = "".join(f"M{x:g} {y:g}h{width:g}v{height:g}h{-width:g}z" for x, y, width, height in boxes)
        self._parts.append(f'<path d="{path}" fill="{colour}" shape-rendering="crispEdges"/>')

    def text(self) -> str:
        """Return the file."""
        return "\n".join([*self._parts, "</svg>", ""])
