"""Packages with entry points, installed by hand into a folder that a test puts on `sys.path`."""

from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, name: str, entry_points: Mapping[str, str], *, group: str, **modules: str) -> Path:
    """Install a package with entry points of a group; `modules` are the texts of its modules."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{point} = {value}\n" for point, value in entry_points.items())
    (info / "entry_points.txt").write_text(f"[console_scripts]\nx = y:z\n[{group}]\n{lines}")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
    return info
