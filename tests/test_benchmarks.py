"""The benchmarks run: a few cases on little data. What they take is not looked at."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
CASES = ("start", "columns", "update-numpy")


def test_a_few_cases(tmp_path):
    words = [word for case in CASES for word in ("--case", case)]
    words = ("--quick", "--json", tmp_path / "history", "--dir", tmp_path, *words)
    command = [sys.executable, BENCHMARKS / "run.py", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    records = [json.loads(line) for line in (tmp_path / "history").read_text().splitlines()]
    assert [record["case"] for record in records] == list(CASES)
    assert all(record["ours"]["processor_seconds"] > 0 and record["ratios"] for record in records)
    assert [path.name for path in tmp_path.iterdir()] == ["history"]
