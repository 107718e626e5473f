"""Maps of `mpired show`: latitudes and longitudes, missing values, and differences of two files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray
from matplotlib.figure import Figure
from rows import check_refusals, together

import mpired
import mpired.queries.drawing
from mpired.errors import UsageError

LAT, LON = np.linspace(-80, 80, 9), np.arange(0.0, 360, 30)
DRAW = np.random.default_rng(7)


def field(*, dims: tuple[str, ...] = ("time", "lat", "lon"), lat: np.ndarray = LAT, since: float = 0) -> xarray.Dataset:
    sizes = {"time": 2, "lat": len(lat), "lon": len(LON)}
    numbers = DRAW.random([sizes[name] for name in dims], np.float32) * 4 + 280 + since
    coordinates = {"lat": ("lat", lat, {"units": "degrees_north"}), "lon": ("lon", LON, {"units": "degrees_east"})}
    return xarray.Dataset({"tas": (dims, numbers, {"units": "K"})}, coordinates)


@pytest.fixture
def drawn(figures: list[Figure]) -> Callable[..., Figure]:
    """Return what draws a file, and returns the figure."""

    def draw(path: Path, **options: object) -> Figure:
        mpired.show(path, png=path.parent / "x.png", overwrite=True, **options)
        return figures[-1]

    return draw


def ticks(axis: object) -> dict[float, str]:
    return {at: axis.get_major_formatter()(at, None) for at in axis.get_ticklocs()}


def test_the_plane_of_a_field(tmp_path, drawn):
    """By its latitudes and longitudes, the north above; else by the names of its dimensions."""
    with together(tmp_path) as case:
        for suffix in ("nc", "zarr"):
            for lat in (LAT, LAT[::-1]):
                with case(suffix, lat[0]) as folder:
                    data, path = field(lat=lat), folder / f"a.{suffix}"
                    data.to_netcdf(path) if suffix == "nc" else data.to_zarr(path, zarr_format=2)
                    axes, bar = drawn(path, slice="1").axes
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
            axes, _ = drawn(folder / "a.nc", slice=":,2:6:2,0").axes
            assert (axes.get_xlabel(), axes.get_ylabel()) == ("lat [degrees_north]", "time")
            assert set(ticks(axes.xaxis).values()) - {""} == {f"{LAT[2]:g}", f"{LAT[4]:g}"}


def test_differences_of_two_files(tmp_path, drawn):
    """As a map with one scale on both sides of 0; integers do not wrap."""
    first, other = field(since=1), field()
    first.to_netcdf(tmp_path / "a.nc")
    other.to_netcdf(tmp_path / "b.nc", format="NETCDF3_CLASSIC")
    difference = first["tas"].values - other["tas"].values
    figure = drawn(tmp_path / "a.nc", diff=tmp_path / "b.nc", slice="0")
    image = figure.axes[0].images[0]
    np.testing.assert_array_equal(image.get_array(), difference[0])
    most = np.abs(difference[0]).max()
    assert (image.cmap.name, *image.get_clim()) == ("RdBu_r", -most, most)
    assert figure.get_suptitle() == "a.nc minus b.nc"
    whole = [np.array([[250, 3], [0, 1]], "u1"), np.array([[255, 3], [0, 1]], "u1")]
    for name, numbers in zip("uv", whole, strict=True):
        np.save(tmp_path / f"{name}.npy", numbers)
    axes, _ = drawn(tmp_path / "u.npy", diff=tmp_path / "v.npy").axes
    np.testing.assert_array_equal(axes.images[0].get_array(), [[-5, 0], [0, 0]])
    axes, _ = drawn(tmp_path / "u.npy", diff=tmp_path / "u.npy").axes
    assert axes.images[0].get_clim() == (-1, 1)


def test_refusals(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 4)))
    np.save(tmp_path / "f.npy", np.zeros((3, 4), "f4"))
    np.save(tmp_path / "line.npy", np.zeros(3))
    check_refusals(
        tmp_path,
        [
            ("show a.npy --diff f.npy", 2, "--diff: is of use with --png only"),
            (
                "show a.npy --png x.png --diff f.npy",
                3,
                "the file has datatype MPI_DOUBLE (float64), but OTHER ('f.npy')",
            ),
            ("show a.npy --png x.png --diff missing.npy", 4, "missing.npy: No such file or directory"),
            ("show line.npy --png x.png --diff line.npy", 2, "a picture shows a plane"),
            ("show a.npy --diff a.npy --png a.png --slice 0", 2, "a picture shows a plane"),
        ],
    )
    with pytest.raises(UsageError, match="chooses the plane of a picture"):
        mpired.show(tmp_path / "a.npy", slice="0")
