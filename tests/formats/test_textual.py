"""Results as text: what readers of these formats make of elements with several components."""

import numpy as np
from command import run, succeeded


def test_more_elements_than_a_block(tmp_path):
    """Python reads the numbers back, each with all its bits."""
    array = np.random.default_rng(3).standard_normal(20_000)
    np.save(tmp_path / "a.npy", array)
    for form in ("text", "csv"):
        outcome = run("reduce", "-q", "--op", "sum", "a.npy", "--to", form, cwd=tmp_path)
        succeeded(outcome)
        assert [float(line) for line in outcome.out.split()[form == "csv" :]] == array.tolist()
