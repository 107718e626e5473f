"""The faults that `make faults` tries still fit the code, and the tests that should notice them are there."""

import importlib.util
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("seeded", Path(__file__).parent / "gates/faults.py")
seeded = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(seeded)


def test_each_fits_the_tree():
    faults = seeded.table()
    found = {fault.name: list(seeded.staleness(fault)) for fault in faults}
    assert {name: reasons for name, reasons in found.items() if reasons} == {}
