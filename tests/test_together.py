"""Cases that are tried together: each failure is told with its name, and there has to be a case."""

import pytest
from together import together


def test_all_failures_are_told(tmp_path):
    tried = []

    def try_all(ncases):
        with together(tmp_path) as case:
            for number in range(ncases):
                with case("case", number) as folder:
                    tried.append(folder.name)
                    assert number != 1, "is one"
                    if number == 2:
                        pytest.fail("by pytest")

    with pytest.raises(AssertionError) as caught:
        try_all(4)
    assert tried == ["case0", "case1", "case2", "case3"]
    assert str(caught.value).startswith("2 of 4 cases failed\n\ncase 1: AssertionError: is one")
    assert "case 2: Failed: by pytest" in str(caught.value)
    with pytest.raises(AssertionError):
        try_all(0)
