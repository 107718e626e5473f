"""What `make bench ARGS='--json docs/plots/pairs.jsonl'` has measured: a line for each run of a case.

`benchmarks/run.py` says what a line has.
"""

import json
from pathlib import Path
from typing import Any

_LINES = Path(__file__).resolve().parent / "pairs.jsonl"


def measured() -> dict[str, dict[str, Any]]:
    """Return the last line of each case, by the name of the case."""
    return {line["case"]: line for line in map(json.loads, _LINES.read_text().splitlines())}


def beside_others() -> list[dict[str, Any]]:
    """Return the cases of other programs that combine the same 16 files, for the pictures and the table beside them."""
    names = ("numpy", "dask", "mpi", "polars", "duckdb", "nces", "cdo")
    lines = measured()
    return [lines[f"sum16-{name}"] for name in names]
