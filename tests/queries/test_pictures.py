"""Histograms and pictures of `mpired show` and `mpired diff`: NumPy's counts, maps, and what another reader opens."""

import os
from pathlib import Path

import numpy as np
import pytest
import xarray
from command import PIP, installed, refused, run, unchanged
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from rows import check_refused, each, together

import mpired
import mpired.queries.drawing

LAT, LON = np.linspace(-80, 80, 9), np.arange(0.0, 360, 30)
DRAW = np.random.default_rng(7)


def field(*, dims: tuple[str, ...] = ("time", "lat", "lon"), lat: np.ndarray = LAT, since: float = 0) -> xarray.Dataset:
    sizes = {"time": 2, "lat": len(lat), "lon": len(LON)}
    numbers = DRAW.random([sizes[name] for name in dims], np.float32) * 4 + 280 + since
    coordinates = {"lat": ("lat", lat, {"units": "degrees_north"}), "lon": ("lon", LON, {"units": "degrees_east"})}
    return xarray.Dataset({"tas": (dims, numbers, {"units": "K"})}, coordinates)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved, the last one at the end."""
    saved, save = [], Figure.savefig

    def keep(figure: Figure, *words: object, **settings: object) -> None:
        save(figure, *words, **settings)
        saved.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved


@each("bins", [1, 7, 20])
def test_counts_are_those_of_numpy(bins, tmp_path):
    """Of numbers on the edges of bins too."""
    normal = np.random.default_rng(5).normal(size=500) * 1e-3
    normal[:5] = [np.nan, np.inf, -np.inf, np.inf, np.nan]
    for numbers in (normal, np.arange(7.0 * bins + 1), np.arange(-4.0 * bins, 8 * bins + 1, 3)):
        np.save(tmp_path / "a.npy", numbers)
        edges, counts = mpired.show(tmp_path / "a.npy", bins=bins).buffers[0].parts[0].histogram
        expected = np.histogram(numbers[np.isfinite(numbers)], bins)
        assert (list(edges), list(counts)) == (expected[1].tolist(), expected[0].tolist())


def ticks(axis: object) -> dict[float, str]:
    return {at: axis.get_major_formatter()(at, None) for at in axis.get_ticklocs()}


def test_the_plane_of_a_field(tmp_path, figures):
    """By its latitudes and longitudes, the north above; else by the names of its dimensions."""

    def drawn(path: Path, slice_: str) -> Figure:
        mpired.show(path, png=path.parent / "x.png", overwrite=True, slice=slice_)
        return figures[-1]

    with together(tmp_path) as case:
        for suffix in ("nc", "zarr"):
            for lat in (LAT, LAT[::-1]):
                with case(suffix, lat[0]) as folder:
                    data, path = field(lat=lat), folder / f"a.{suffix}"
                    data.to_netcdf(path) if suffix == "nc" else data.to_zarr(path, zarr_format=2)
                    axes, bar = drawn(path, "1").axes
                    (image,) = axes.images
                    np.testing.assert_array_equal(image.get_array(), data["tas"].values[1])
                    assert (axes.get_xlabel(), axes.get_ylabel()) == ("lon [degrees_east]", "lat [degrees_north]")
                    assert bar.get_ylabel() == "tas (float32) [K]"
                    for axis, values in ((axes.xaxis, LON), (axes.yaxis, lat)):
                        shown = {at: text for at, text in ticks(axis).items() if text}
                        assert len(shown) > 2
                        assert all(float(text) == values[int(at)] for at, text in shown.items())
                    below, above = axes.get_ylim()
                    assert (below < above) == (lat[0] < 0)
        with case("other dimensions") as folder:
            field().to_netcdf(folder / "a.nc")
            axes, _ = drawn(folder / "a.nc", ":,2:6:2,0").axes
            assert (axes.get_xlabel(), axes.get_ylabel()) == ("lat [degrees_north]", "time")
            assert set(ticks(axes.xaxis).values()) - {""} == {f"{LAT[2]:g}", f"{LAT[4]:g}"}


@each("order", ["C", "F"])
def test_the_map_of_a_plane(order, tmp_path, figures):
    """It shows which elements differ."""
    a = np.zeros((1, 12, 9))
    b = a.copy()
    b[0, 3, 4], b[0, 5, 1], b[0, 7, 7] = 2.5, -1.0, np.nan
    np.save(tmp_path / "a.npy", np.asarray(a, order=order))
    np.save(tmp_path / "b.npy", b)
    png = tmp_path / "x.png"
    mpired.diff(tmp_path / "a.npy", tmp_path / "b.npy", png=png, overwrite=True)
    assert png.read_bytes().startswith(b"\x89PNG")
    image = figures[-1].axes[0].images[0].get_array()
    assert np.array_equal(image, a[0] != b[0])
    assert "axis 1" in figures[-1].axes[0].get_ylabel()
    check_refused(tmp_path, "diff a.npy b.npy --png x.png", 2, "already exists")
    assert mpired.diff(tmp_path / "a.npy", tmp_path / "a.npy", png=png, overwrite=True).equal


@each("form", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_a_map_has_the_places_of_its_file(form, tmp_path, figures):
    """It has latitudes and longitudes where a file is shown and where two are compared."""
    for name in "ab":
        encoding = {"lat": {"zlib": True}} if form == "NETCDF4" else {}
        field().isel(time=0).to_netcdf(tmp_path / f"{name}.nc", "w", form, engine="netcdf4", encoding=encoding)
    mpired.diff(tmp_path / "a.nc", tmp_path / "b.nc", png=tmp_path / f"{form}.png")
    mpired.show(tmp_path / "a.nc", diff=tmp_path / "b.nc", png=tmp_path / f"shown {form}.png")
    for axes in (figure.axes[0] for figure in figures[-2:]):
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("lon [degrees_east]", "lat [degrees_north]")
        for axis, values in ((axes.yaxis, LAT), (axes.xaxis, LON)):
            assert [axis.get_major_formatter()(i, None) for i in range(len(values))] == [f"{x:g}" for x in values]


def test_a_map_on_a_curvilinear_grid(tmp_path, figures):
    """Each cell is at its latitude and longitude, in any order of dimensions, on both sides of 180 degrees."""
    y, x = np.meshgrid(np.arange(6.0), np.arange(9.0), indexing="ij")
    lat, lon = 40 + y + 0.3 * x, (355 + x - 0.3 * y) % 360 - 180
    places = {"rlat": (("y", "x"), lat, {"units": "degree_north"}), "rlon": (("y", "x"), lon, {"units": "degrees_E"})}
    moving = {name: (("time", "y", "x"), np.stack([each * 0, each]), own) for name, (_, each, own) in places.items()}
    numbers = ("time", "y", "x"), DRAW.random((2, 6, 9), np.float32), {"units": "K"}
    still, turned = (xarray.Dataset({"t": numbers}, each) for each in (places, moving))
    for name, data, text, selected in (
        ("a.nc", still, "1", {"time": 1}),
        ("b.nc", still.transpose("x", "time", "y"), "2:,1", {"time": 1, "x": slice(2, 9)}),
        ("c.zarr", turned, "1,:,::2", {"time": 1, "x": slice(0, 9, 2)}),
        ("d.nc", still.isel(time=0), None, {}),
    ):
        path, expected = tmp_path / name, data["t"].isel(selected)
        data.to_netcdf(path) if name.endswith("nc") else data.to_zarr(path, zarr_format=2)
        if text is None:
            mpired.diff(path, path, png=tmp_path / "y.png")
        mpired.show(path, png=tmp_path / "x.png", overwrite=True, slice=text)
        np.testing.assert_array_equal(figures[-1].axes[0].collections[0].get_array(), expected)
        for axes in (figure.axes[0] for figure in figures[-1 if text else -2 :]):
            corners = axes.collections[0].get_coordinates()
            middles = (corners[:-1, :-1] + corners[1:, :-1] + corners[:-1, 1:] + corners[1:, 1:])[1:-1, 1:-1] / 4
            np.testing.assert_allclose(middles[..., 0] % 360, expected["rlon"].values[1:-1, 1:-1] % 360)
            np.testing.assert_allclose(middles[..., 1], expected["rlat"].values[1:-1, 1:-1])
            assert (axes.get_xlabel(), axes.get_ylabel()) == ("rlon [degrees_E]", "rlat [degree_north]")


def test_a_difference_is_of_one_grid_and_tells_of_units(tmp_path):
    """As of ranks that are combined."""
    for name, data in (("a", field()), ("b", field(lat=LAT + 1)), ("c", field())):
        data["tas"].attrs["units"] = "degC" if name == "c" else "K"
        data.isel(time=0).to_netcdf(tmp_path / f"{name}.nc")
    ways = "differs from that of OTHER ('b.nc') / with --ignore-coordinates lat / with --no-check-coordinates"
    check_refused(tmp_path, "show a.nc --diff b.nc --png x.png", 3, *ways.split(" / "))
    assert "--columns" not in run(*["show", "a.nc", "--diff", "b.nc", "--png", "x.png"], cwd=tmp_path).err
    check_refused(tmp_path, "show a.nc --ignore-coordinates lat", 2, "is of use with --diff only")
    for words, warning in (("b.nc --ignore-coordinates l*", ""), ("b.nc --coordinate-rtol 9", ""), ("c.nc", "in 'K'")):
        outcome = run("show", "a.nc", "--png", "x.png", "-f", "--diff", *words.split(), cwd=tmp_path)
        assert (outcome.status, bool(outcome.err)) == (0, bool(warning))
        assert warning in outcome.err


def test_the_first_arrays_that_differ(tmp_path, figures):
    for name, shift in (("a", 0), ("b", 1)):
        np.savez(tmp_path / f"{name}.npz", **{f"x{i:02}": np.full(5, shift if i > 2 else 0) for i in range(15)})
    mpired.diff(tmp_path / "a.npz", tmp_path / "b.npz", png=tmp_path / "x.png", jobs=2)
    assert [axes.get_xlabel().partition(" ")[0] for axes in figures[-1].axes] == [f"x{i:02}" for i in range(3, 11)]
    assert figures[-1].get_suptitle().endswith(", 8 of 12 arrays that differ")


def pixels(path):
    """Return the picture as another program reads it."""
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def test_a_picture_appears_as_every_result(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(40.0).reshape(20, 2))
    (tmp_path / "x.png").write_text("something else")
    check_refused(tmp_path, "show a.npy --png x.png", 2, "x.png: already exists; --force replaces it")
    check_refused(tmp_path, "show a.npy --png missing/x.png", 4, "missing/x.png")
    outcome = run("show", "a.npy", "-f", "--png", "x.png", cwd=tmp_path)
    assert (outcome.status, outcome.err) == (0, "")
    (tmp_path / "link.png").symlink_to("a.npy")
    refused(run("show", "a.npy", "--png", "link.png", "-f", cwd=tmp_path), 2, "is the file of the elements")


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
        mpired.show(tmp_path / f"{dims}.npy", png=tmp_path / f"{dims}.png", overwrite=True)
        assert pixels(tmp_path / f"{dims}.png").size
        texts = {each.get_text() for each in figures[-1].findobj(Text)}
        if name in {"huge", "subnormal", "tiny"}:
            assert f"from {numbers.min()} to {numbers.max()}: too close or too large to draw" in texts


def test_without_the_extra(tmp_path, tmp_path_factory):
    """The rest works without, and what needs it says how to get it."""
    blocked = tmp_path_factory.mktemp("blocked")
    (blocked / "matplotlib.py").write_text("raise ImportError('not installed')")
    env = os.environ | {"PYTHONPATH": str(blocked)}
    np.save(tmp_path / "a.npy", np.zeros(2))
    with unchanged(tmp_path):
        outcome = installed("show", "a.npy", "--png", "x.png", cwd=tmp_path, env=env)
        refused(outcome, 2, "--png: needs matplotlib", f"`{PIP} install 'mpired[plot]'`")
