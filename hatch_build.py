"""What a wheel has besides the package: man pages, the data of `mpired examples`, and links in README.md that lead."""

import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class CustomMetadataHook(MetadataHookInterface):
    """The hook of the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the long description, which is read where there is no repository: its links lead to the site."""
        text = runpy.run_path(f"{self.root}/docs/site/addresses.py")["readme"](metadata["urls"]["Homepage"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class CustomBuildHook(BuildHookInterface[Any]):
    """The hook of the wheel. An editable installation has what the clone has."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the man pages, and say what goes where."""
        if version == "editable":
            return
        self._directory = tempfile.TemporaryDirectory()
        sys.path.insert(0, self.root)  # the commands whose help is read are those of this tree
        for name, page in runpy.run_path(f"{self.root}/docs/man.py")["pages"]().items():
            Path(self._directory.name, f"{name}.1").write_text(page)
        sys.path.remove(self.root)
        build_data["shared_data"][self._directory.name] = "share/man/man1"
        for name in ("sample_data", "examples"):
            build_data["force_include"][f"{self.root}/{name}"] = f"mpired/_examples/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatch's
        """Remove the man pages: they are in the wheel."""
        if version != "editable":
            self._directory.cleanup()
