"""A machine without the tools: in CI what needs them fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path


def test_in_ci_nothing_is_skipped(tmp_path):
    """There is a shell here, but no compiler."""
    (tmp_path / "sh").symlink_to(shutil.which("sh"))
    test = "tests/cli/test_user_op_faults.py::test_a_worker_does_not_outlive_the_command"
    words, environment = [sys.executable, "-m", "pytest", test], os.environ | {"PATH": str(tmp_path), "CI": "true"}
    root = Path(__file__).parent.parent
    done = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "with CI=true nothing may be skipped: Skipped: needs gcc" in done.stdout
