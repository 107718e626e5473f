"""Folders of broken ops, in files and in installed packages."""

import os
import subprocess
import sys

import numpy as np
import pytest
from needs import needs
from op_faults import GOOD, OPS, RANKS, distribution

# Files that cannot be loaded, each with a function in it.
FILES = {
    "syntax.py": "def f(:\n",
    "import_error.py": "import nonexistent_package\ndef f(a, b): pass\n",
    "ends.py": "import os; os._exit(0)\n",
    "hangs.py": "import time; time.sleep(600)\n",
    "datatype.py": "import mpired\n@mpired.op(datatypes=['duble'])\ndef f(a, b): pass\n",
    "bytes.py": "x = '\udcff'\n",
    "empty.py": "",
    "text.txt": "def f(a, b): pass\n",
    "text.so": "this is no library\n",
}

C = """
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#define OP(name) void name(double *in, double *inout, int *len, void **datatype)
OP(segv) { *(volatile int *)0 = 1; }
OP(after) { inout[*len] = 1; }
OP(far_after) { ((char *)(inout + *len))[63] = 1; }
OP(before_in) { in[-1] = 1; }
OP(loops) { for (volatile int i = 0;; i = 0) {} }
"""
CONSTRUCTOR = "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }\n"


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A folder of installed packages, most of them broken in some way."""
    folder = tmp_path_factory.mktemp("site")
    distribution(folder, "good", {"good": "good_package:f"}, good_package=GOOD)
    distribution(folder, "one", {"doubled": "first:f"})
    distribution(folder, "other", {"doubled": "second:f"})
    distribution(folder, "shadow", {"sum": "good_package:f", "MPI_PROD": "good_package:f"})
    distribution(folder, "absent", {"absent": "absent_package:f"})
    distribution(folder, "ending", {"ending": "ending_package:f"}, ending_package="import os; os._exit(0)")
    distribution(folder, "printing", {"printing": "printing:f"}, printing=f"print('printed')\n{GOOD}")
    distribution(folder, "strange", {"module": "good_package", "senseless": "3:::4"})
    (distribution(folder, "torn", {"torn": "good_package:f"}) / "entry_points.txt").write_text("[mpired.ops]\ntorn\n")
    (distribution(folder, "binary", {"binary": "x:y"}) / "entry_points.txt").write_bytes(b"[mpired.ops]\n\xff = \xff\n")
    return folder


def gcc(source, library):
    subprocess.run(
        ["gcc", "-w", "-O1", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=source, text=True, check=True
    )


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    """A folder with ranks, an existing output, and all that is broken."""
    needs("gcc")
    folder = tmp_path_factory.mktemp("workshop")
    for rank, name in enumerate(RANKS):
        np.save(folder / name, np.arange(4.0) + rank)
    (folder / "output.npy").write_bytes(b"what was there before")
    (folder / "ops.py").write_text(OPS)
    for name, text in FILES.items():
        (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    os.mkfifo(folder / "fifo.py")
    gcc(C, folder / "faults.so")
    gcc(CONSTRUCTOR, folder / "constructor.so")
    library = (folder / "faults.so").read_bytes()
    (folder / "cut.so").write_bytes(library[:100])
    return folder


@pytest.fixture(autouse=True)
def without_mpi4py(monkeypatch):
    """Forget what another test has imported into this process: with it functions of three arguments are ops."""
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
