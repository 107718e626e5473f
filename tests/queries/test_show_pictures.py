"""Histograms of `mpired show` as text, and pictures: with NumPy's counts, and opened by another reader."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import PIP, installed, refused, run, unchanged
from matplotlib.text import Text
from PIL import Image
from rows import check_refused, each

import mpired
import mpired.queries.drawing


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of several kinds."""
    draw = np.random.default_rng(5)
    normal = draw.normal(size=500) * 1e-3
    normal[:5] = [np.nan, np.inf, -np.inf, np.inf, np.nan]
    np.save(tmp_path / "normal.npy", normal)
    np.save(tmp_path / "whole.npy", draw.integers(-(2**62), 2**62, 300))
    pairs = np.zeros((30, 40), np.dtype([("value", "f8"), ("index", "i4")], align=True))
    pairs["value"], pairs["index"] = draw.normal(size=(30, 40)), draw.integers(0, 5, (30, 40))
    np.save(tmp_path / "pairs.npy", pairs.ravel())
    np.save(tmp_path / "map of pairs.npy", pairs)
    np.save(tmp_path / "narrow.npy", np.arange(4000.0).reshape(2000, 2))
    fields = [pa.field("dose $a_b$", pa.float32(), metadata={"units": "Gy/h"}), pa.field("t", pa.timestamp("s"))]
    columns = [pa.array(draw.normal(size=50), pa.float32()), pa.array(range(50), pa.timestamp("s"))]
    pq.write_table(pa.table(columns, schema=pa.schema(fields)), tmp_path / "dose.parquet")
    return tmp_path


@each("bins", [1, 7, 20])
def test_counts_are_those_of_numpy(bins, folder):
    """Of numbers on the edges of bins too."""
    normal = np.load(folder / "normal.npy")
    for numbers in (normal, np.arange(7.0 * bins + 1), np.arange(-4.0 * bins, 8 * bins + 1, 3)):
        np.save(folder / "a.npy", numbers)
        edges, counts = mpired.show(folder / "a.npy", bins=bins).buffers[0].parts[0].histogram
        expected = np.histogram(numbers[np.isfinite(numbers)], bins)
        assert (list(edges), list(counts)) == (expected[1].tolist(), expected[0].tolist())


@each("bins", [1, 7, 20])
@each("code", ["i8", "u8", "i1", "u1"])
def test_bins_of_integers_have_as_many_numbers_each(code, bins, tmp_path):
    limits = np.iinfo(code)
    numbers = np.random.default_rng(6).integers(limits.min, limits.max, 200, code, endpoint=True)
    numbers[:2] = limits.min, limits.max
    np.save(tmp_path / "a.npy", numbers)
    edges, counts = mpired.show(tmp_path / "a.npy", bins=bins).buffers[0].parts[0].histogram
    assert len({b - a for a, b in itertools.pairwise(edges)}) == 1
    assert len(counts) <= bins
    whole = numbers.tolist()
    assert list(counts) == [sum(a <= each < b for each in whole) for a, b in itertools.pairwise(edges)]


def test_pairs_have_a_histogram_of_values_and_one_of_indices(folder):
    out = run("show", "--histogram", "--bins", "5", "pairs.npy", cwd=folder).out.decode()
    assert re.findall("^histogram of (.*)$", out, re.MULTILINE) == ["value", "index"]
    indices = np.load(folder / "pairs.npy")["index"]
    rows = [line.split()[:3] for line in out.split("\n\n")[-1].splitlines()[2:]]
    assert rows == [[str(i), str(i + 1), str((indices == i).sum())] for i in range(5)]


def pixels(path):
    """Return the picture as another program reads it."""
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def test_a_picture_appears_as_every_result(folder):
    (folder / "x.png").write_text("something else")
    check_refused(folder, "show narrow.npy --png x.png", 2, "x.png: already exists; --force replaces it")
    check_refused(folder, "show narrow.npy --png missing/x.png", 4, "missing/x.png")
    outcome = run("show", "narrow.npy", "-f", "--png", "x.png", cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    (folder / "link.png").symlink_to("narrow.npy")
    refused(run("show", "narrow.npy", "--png", "link.png", "-f", cwd=folder), 2, "is the file of the elements")


def test_a_plane_of_a_cube_is_drawn(tmp_path):
    """As the same numbers in a file of their own, but for the names of the axes."""
    cube = np.random.default_rng(0).random((3, 20, 30))
    np.save(tmp_path / "cube.npy", cube)
    images = []
    for sliced, plane in (("1", cube[1]), (":,4,2:30", cube[:, 4, 2:30])):
        np.save(tmp_path / "plane.npy", plane)
        for words in (("cube.npy", "--slice", sliced), ("plane.npy",)):
            assert run("show", *words, "-f", "--png", "p.png", cwd=tmp_path).status == 0
            images.append(pixels(tmp_path / "p.png")[60:430, 75:590])  # the map alone
        assert np.array_equal(*images[-2:])
    assert not np.array_equal(images[0], images[2])


def texts_of(figures, path, **options):
    """Return the texts of a picture."""
    mpired.show(path, overwrite=True, **options)
    return {each.get_text() for each in figures[-1].findobj(Text)}


def test_axes_name_the_column_the_datatype_and_the_unit(folder, figures, monkeypatch):
    monkeypatch.chdir(folder)
    texts = texts_of(figures, "dose.parquet", png="x.png")
    assert {"dose.parquet", "dose $a_b$ (float32) [Gy/h]", "elements"} <= texts
    texts = texts_of(figures, "map of pairs.npy", png="y.png")
    assert {"value (MPI_DOUBLE_INT)", "index (MPI_DOUBLE_INT)", "axis 0", "axis 1"} <= texts
    assert "t (timestamp[ms])" in texts_of(figures, "dose.parquet", columns="t", png="z.png")
    out = run("show", "dose.parquet", cwd=folder).out.decode()
    assert re.search(r"^ +unit +Gy/h$", out, re.MULTILINE)


EXTREME = {
    "huge": np.array([1e308, -1e308, 1.7e308, 0]),
    "equal": np.full(4, -1.7e308),
    "subnormal": np.array([5e-324, 1e-323, 0, 5e-324]),
    "tiny": np.array([2e-300, 0, 1e-300, 0]),
    "close": np.array([1, np.nextafter(1, 2), 1, 1]),
    "not finite": np.array([np.inf, -np.inf, np.nan, np.inf]),
    "long double": np.array(["1e4000", "1", "-1e4000", "2"], np.longdouble),
    "int64": np.array([-(2**63), 2**63 - 1, 0, 1]),
    "uint64": np.array([2**64 - 1, 2**64 - 2, 2**64 - 1, 2**64 - 3], np.uint64),
    "dates": np.array(["2020-01-01", "NaT", "2020-01-01", "2021-05-06"], "M8[D]"),
    "far dates": np.array([-(2**63) + 1, 2**63 - 1, 0, 1], "M8[D]"),
    "margins of dates": np.array(["0001-01-01", "9999-12-31", "NaT", "2000-01-01"], "M8[s]"),
    "close dates": np.array([1, 2, 3, 4], "M8[ns]"),
    "no date": np.full(4, "NaT", "M8[us]"),
    "durations": np.array([-(2**63) + 1, 2**63 - 1, 0, "NaT"], "m8[s]"),
}


@each("name", EXTREME)
def test_extreme_numbers_are_drawn(name, tmp_path, figures, monkeypatch):
    monkeypatch.setattr(mpired.queries.drawing, "_DPI", 20)
    numbers = EXTREME[name]
    for dims in (1, 2):
        np.save(tmp_path / f"{dims}.npy", numbers if dims == 1 else numbers.reshape(2, 2))
        texts = texts_of(figures, tmp_path / f"{dims}.npy", png=tmp_path / f"{dims}.png")
        assert pixels(tmp_path / f"{dims}.png").size
        if name in {"huge", "subnormal", "tiny"}:
            assert f"from {numbers.min()} to {numbers.max()}: too close or too large to draw" in texts


def test_times_of_day_are_drawn_and_a_picture_is_the_same_each_time(tmp_path):
    pq.write_table(pa.table({"t": pa.array([1, 5, None], pa.time64("us"))}), tmp_path / "a.parquet")
    for name in ("a.png", "b.png"):
        mpired.show(tmp_path / "a.parquet", columns="t", png=tmp_path / name)
    assert pixels(tmp_path / "a.png").size
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_without_the_extra(folder, tmp_path_factory):
    """The rest works without, and what needs it says how to get it."""
    blocked = tmp_path_factory.mktemp("blocked")
    (blocked / "matplotlib.py").write_text("raise ImportError('not installed')")
    env = os.environ | {"PYTHONPATH": str(blocked)}
    with unchanged(folder):
        outcome = installed("show", "narrow.npy", "--png", "x.png", cwd=folder, env=env)
        refused(outcome, 2, "--png: needs matplotlib", f"`{PIP} install 'mpired[plot]'`")
