"""A machine without the tools: what needs them is skipped and listed, and fails in CI."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run_without_gcc(folder, ci, *words):
    """Run a few tests where there is a shell but no compiler."""
    (folder / "sh").symlink_to(shutil.which("sh"))
    environment = os.environ | {"PATH": str(folder), "CI": ci}
    test = "tests/cli/test_user_op_faults.py::test_a_worker_does_not_outlive_the_command"
    words = (sys.executable, "-m", "pytest", *words, test)
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_what_a_machine_lacks_is_skipped_and_listed(tmp_path):
    done = run_without_gcc(tmp_path, "", "-n", "1")
    assert done.returncode == 0, done.stdout
    words = done.stdout.partition("not tested on this machine")[2].split()
    assert words[1:9] == ["1", "tests:", "needs", "gcc", "(apt-get", "install", "gcc", "libc6-dev)"]


def test_in_ci_nothing_is_skipped(tmp_path):
    done = run_without_gcc(tmp_path, "true")
    assert done.returncode == 1, done.stdout
    assert "with CI=true nothing may be skipped: Skipped: needs gcc" in done.stdout
    assert "not tested on this machine" not in done.stdout
