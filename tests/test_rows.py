"""A test that tries the rows of a table fails if a row does, and names each that fails."""

import inspect

import pytest
from rows import each


def test_each_row_is_tried_and_all_that_fail_are_told():
    tried = []

    @each("number, is_even", [(1, False), (3, True), (5, True), (6, True)])
    def check(number, is_even, folder):
        tried.append((number, folder))
        assert (number % 2 == 0) is is_even

    assert list(inspect.signature(check).parameters) == ["folder"]
    with pytest.raises(pytest.fail.Exception) as error:
        check(folder="here")
    assert tried == [(number, "here") for number in (1, 3, 5, 6)]
    assert str(error.value).startswith("2 of 4 rows:\n\n(3, True), line ")
    assert "\n\n(5, True), line " in str(error.value)
