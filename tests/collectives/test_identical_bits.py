"""The same bits for any number of workers, any blocks and any position of an element in the buffer."""

import pytest
import reference
import values
from four_formats import FORMATS, SUFFIXES, save

import mpired

NRANKS = 3
every_format = pytest.mark.parametrize("form", FORMATS)


def ranks_of(name, count, nranks=NRANKS):
    """Return the buffers of some ranks, a third of the elements values that bite, in this order for any count."""
    return [rank[: count * reference.FORMS[name][1]] for rank in values.ranks(name, nranks, 150)]


def said_of(form, name):
    return {"type": name} if form == "raw" else {}


# ---- small data: the plan's constants are made small, and the segments run here in a random order


@every_format
def test_the_file_that_is_written_has_the_same_bytes(directory, engine, cut_into, form):
    paths = save(directory, form, ranks_of("DOUBLE", 150), "f8")
    for to, suffix in SUFFIXES.items():
        output = directory / f"result.{suffix}"
        contents = set()
        for nbytes, jobs in (8, 7), (64, 2), (1 << 20, 1):
            cut_into(nbytes)
            mpired.reduce(paths, "SUM", output=output, overwrite=True, jobs=jobs, to=to, **said_of(form, "DOUBLE"))
            contents.add(output.read_bytes())
        assert len(contents) == 1, to


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_batches_of_any_size(directory, engine, cut_into, monkeypatch, form):
    ranks = ranks_of("DOUBLE", 150)
    paths = save(directory, form, ranks, "f8")
    for batch_rows, nbytes, jobs in (1, 8, 1), (3, 8, 7), (7, 72, 2), (64, 1 << 20, 1):
        monkeypatch.setattr(f"mpired.formats.{form}._BATCH_ROWS", batch_rows)
        cut_into(nbytes)
        array = mpired.reduce(paths, "SUM", jobs=jobs)
        assert array.tobytes() == reference.reduce("SUM", "DOUBLE", ranks), (batch_rows, nbytes, jobs)


# ---- every position: NaNs of different payloads and zeros of different sign, wherever they lie in a vector

LONGEST = 70  # over two of the longest vectors of the smallest elements


def some(long):
    """Return numbers up to the longest; an odd step has every remainder by the length of a vector."""
    return range(0, LONGEST, 1 if long else 5)


# ---- real workers
