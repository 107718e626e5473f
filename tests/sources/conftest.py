"""The command where URLs lead to the server of `store`."""

from __future__ import annotations

import pytest
from remote import Remote


@pytest.fixture
def remote(store, tmp_path):
    return Remote(store, tmp_path)
