"""Derived datatypes: their figures, and types that are as deep as is allowed."""

import pickle

import numpy as np
from rows import each
from type_texts import DEEP, GOLDEN, nested

from mpired.cli.reference import describe_datatype
from mpired.datatypes import parse, transfer
from mpired.datatypes.typemap import Run, overlaps
from mpired.windows.call import component_of
from mpired.windows.placement import WindowSelection


@each("row", GOLDEN)
def test_figures(row):
    """Those of the standard; and there is one instance of each type."""
    text, *figures = row
    datatype = parse(text)[0]
    made = datatype.typemap
    assert [made.size, made.lb, made.extent, made.true_lb, made.true_extent] == figures
    assert parse(f" MPI_{text.upper().replace(',', ' , ')} ")[0] is datatype
    assert parse(datatype.name)[0] is datatype
    assert pickle.loads(pickle.dumps(datatype)) is datatype


@each("name", [name for name in DEEP if name not in {"structures between", "with pairs", "twice"}])
def test_everything_that_goes_through_a_type_takes_a_hundred_levels(name):
    text = nested(*(part.replace("char", "byte") for part in DEEP[name]))[0]
    datatype = parse(text)[0]
    typemap = datatype.typemap
    entries = list(typemap.walk())
    assert [typemap.entry(i) for i in (0, typemap.entries - 1)] == [entries[0], entries[-1]]
    _ = describe_datatype(datatype), typemap.unit, typemap.memory.fields, repr(datatype), overlaps(typemap, 2)
    assert pickle.loads(pickle.dumps(datatype)) is datatype
    low, high = typemap.true_lb, typemap.true_ub
    octets = np.random.default_rng(6).integers(0, 256, high - low, dtype=np.uint8)
    packed = np.zeros(typemap.size, np.uint8)
    for run in transfer.cut(Run(typemap, -low)):
        for window in transfer.windows(run):
            window.gather(octets[window.starts[0] :], packed)
    assert packed.tobytes() == b"".join(bytes(octets[entry.disp - low :][: entry.form.itemsize]) for entry in entries)
    component = component_of(datatype)
    assert WindowSelection.of(typemap, component, component.size).entries == typemap.entries


@each("pair, stride", [("double_int", 12), ("double_int", 16), ("short_int", 8), ("short_int", 11), ("2int", 8)])
def test_places_of_pairs(pair, stride):
    """They are an extent long, and may begin in the padding of those before."""
    typemap, component = parse(f"contiguous(5,resized(0,{stride},{pair}))")[0].typemap, parse(pair)[0]
    places = WindowSelection.of(typemap, component, component.extent).positions()
    assert places.tolist() == [stride * number for number in range(5)]
