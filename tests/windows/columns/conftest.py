"""The formats of targets with columns."""

from __future__ import annotations

import pytest
from tables import SUFFIXES


@pytest.fixture(params=SUFFIXES)
def suffix(request):
    return request.param
