"""Compiles mpired/ops/native/kernels.c for an installation: `python build_kernels.py [LIBRARY]`.

`make` and hatch_build.py use it. CC, CFLAGS and LDFLAGS of the environment say how. Without a compiler mpired works
with the kernels of NumPy alone.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "mpired/ops/native/kernels.c"
LIBRARY = Path(f"{SOURCE}.so")
# The flags that the bits depend on come last.
_FLAGS = ["-std=c11", "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-fno-fast-math"]


def build(library: Path = LIBRARY) -> str:
    """Compile, and return "", or why that was not possible; then no library is left."""
    compiler, given, linked = (shlex.split(os.environ.get(name, "")) for name in ("CC", "CFLAGS", "LDFLAGS"))
    draft = library.with_suffix(".draft")
    compiler = compiler or [*filter(shutil.which, ("cc", "gcc", "clang"))][:1]
    if not compiler:
        library.unlink(missing_ok=True)
        return "there is no C compiler"
    words = [*compiler, *given, *_FLAGS, str(SOURCE), "-o", str(draft), *linked, "-s", "-lm"]
    try:
        subprocess.run(words, check=True, capture_output=True, text=True)  # noqa: S603 - what who installs has chosen
    except (OSError, subprocess.CalledProcessError) as error:
        library.unlink(missing_ok=True)
        draft.unlink(missing_ok=True)
        told = getattr(error, "stderr", None) or ""
        return "\n".join([f"{shlex.join(words)}: {error}", *told.splitlines()[:5]])
    draft.replace(library)
    return ""


if __name__ == "__main__":
    reason = build(*map(Path, sys.argv[1:]))
    print(f"no compiled kernels, NumPy does all: {reason}" if reason else "compiled kernels.c")  # noqa: T201 - a script
