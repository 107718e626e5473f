"""Folders with an installed format, and ranks of any format in one of them."""

import pytest
from format_files import BUNDLE, MINI, Bench
from packages import install


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the packages of installed formats."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "mpired-mini", {"mini": "mpired_mini:FORMAT"}, group="mpired.formats", mpired_mini=MINI)
    point = {"bundle": "mpired_bundle:FORMAT"}
    install(folder, "mpired-bundle", point, group="mpired.formats", mpired_bundle=BUNDLE)
    return folder


@pytest.fixture
def bench(tmp_path, site):
    return Bench(tmp_path, site)
