"""What a wheel has besides the package: compiled kernels, man pages, the data of `mpired examples`, links that lead."""

import runpy
import sys
import sysconfig
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
    """The hook of the wheel. An editable installation has what the clone has, and compiled kernels in its place."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernels, make the man pages, and say what goes where."""
        kernels = runpy.run_path(f"{self.root}/build_kernels.py")
        if version == "editable":
            self._tell(kernels["build"]())
            return
        self._directory = tempfile.TemporaryDirectory()
        self._libraries = tempfile.TemporaryDirectory()
        library = Path(self._libraries.name, "kernels.so")
        if not self._tell(kernels["build"](library)):
            build_data["force_include"][str(library)] = str(kernels["LIBRARY"].relative_to(self.root))
            # One library for all Pythons: it does not use theirs.
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        sys.path.insert(0, self.root)  # the commands whose help is read are those of this tree
        for name, page in runpy.run_path(f"{self.root}/docs/man.py")["pages"]().items():
            Path(self._directory.name, f"{name}.1").write_text(page)
        sys.path.remove(self.root)
        build_data["shared_data"][self._directory.name] = "share/man/man1"
        for name in ("sample_data", "examples"):
            build_data["force_include"][f"{self.root}/{name}"] = f"mpired/_examples/{name}"

    def _tell(self, reason: str) -> str:
        if reason:
            self.app.display_warning(f"no compiled kernels, NumPy does all: {reason}")
        return reason

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatch's
        """Remove what is in the wheel."""
        if version != "editable":
            self._directory.cleanup()
            self._libraries.cleanup()
