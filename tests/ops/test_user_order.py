"""User-defined ops whose results show any reordering of the ranks."""

import random

import numpy as np
import pytest
from command import in_child
from user_ops import folded, lower, upper

import mpired

ORDERED = '''
import numpy as np

def left(invec, inoutvec):
    return invec

def right(invec, inoutvec, count, datatype):
    pass

def compose(invec, inoutvec, count, datatype):
    """Product of permutation matrices, each as the places of its ones."""
    lower, upper = (vec.view("u1").reshape(count, -1) for vec in (invec, inoutvec))
    upper[...] = np.take_along_axis(lower, upper.astype(int), 1)

def concatenate(invec, inoutvec, count, datatype):
    """Join texts: how many letters, then the letters."""
    lower, upper = (vec.view("u1").reshape(count, -1) for vec in (invec, inoutvec))
    place = np.arange(1, lower.shape[1]) - lower[:, :1]
    moved = np.take_along_axis(upper, np.clip(place, 0, None), 1)
    upper[:, 1:] = np.where(place > 0, moved, lower[:, 1:])
    upper[:, 0] += lower[:, 0]
'''
DEGREE = 5
MAX_RANKS = 17
RANK_COUNTS = (1, 2, 3, 4, 5, 8, 11, 16, MAX_RANKS)
PERMUTATION = np.dtype([(f"image{i}", "u1") for i in range(DEGREE)])
TEXT = np.dtype([("length", "u1"), *((f"letter{i}", "u1") for i in range(MAX_RANKS))])
BLOCK = 8  # elements
COUNTS = (0, 1, 7, 8, 9, 15, 16, 17, 55, 56, 57, 63, 64, 65, 127, 128, 129)


def drawn(op, nranks, count):
    """Draw each rank's elements: a list of tuples of small numbers."""
    draw = random.Random(nranks)
    if op == "concatenate":
        letters = [[draw.randrange(1, 255) for _ in range(count)] for _ in range(nranks)]
        return [[(1, letter, *[0] * (MAX_RANKS - 1)) for letter in rank] for rank in letters]
    if op == "compose":
        return [[tuple(draw.sample(range(DEGREE), DEGREE)) for _ in range(count)] for _ in range(nranks)]
    return [[(draw.randrange(256),) for _ in range(count)] for _ in range(nranks)]


def compose(lower, upper):
    return tuple(lower[image] for image in upper)


def concatenate(lower, upper):
    letters = [*lower[1 : 1 + lower[0]], *upper[1 : 1 + upper[0]]]
    return (len(letters), *letters, *[0] * (MAX_RANKS - len(letters)))


TWINS = {
    "left": (np.dtype("u1"), lower),
    "right": (np.dtype("u1"), upper),
    "compose": (PERMUTATION, compose),
    "concatenate": (TEXT, concatenate),
}


def ordered(folder, op, nranks, count):
    """Write ranks for an op, and return their paths and the bytes of the result."""
    dtype, combine = TWINS[op]
    ranks = drawn(op, nranks, count)
    paths = []
    for i, rank in enumerate(ranks):
        paths.append(folder / f"{op}{count}.rank{i}.npy")
        np.save(paths[-1], np.frombuffer(b"".join(map(bytes, rank)), dtype))
    elements = [folded(combine, element) for element in zip(*ranks, strict=True)]
    return paths, b"".join(map(bytes, elements))


@pytest.mark.parametrize("nranks", RANK_COUNTS)
@pytest.mark.sampled(2)
def test_the_order_of_ranks(tmp_path, cut_into, nranks):
    place = tmp_path / "ordered.py"
    place.write_text(ORDERED)

    def compare():
        for i, op in enumerate(TWINS):
            jobs = (1, 2, 7)[(nranks + i) % 3]  # each op with each of them, at some number of ranks
            cut_into(BLOCK * TWINS[op][0].itemsize)
            paths, expected = ordered(tmp_path, op, nranks, COUNTS[(nranks + i) % len(COUNTS)])
            for commute in (True, False) if op == "compose" else (i % 2 == 0,):
                result = mpired.reduce(paths, f"{place}:{op}", jobs=jobs, commute=commute)
                assert result.tobytes() == expected, (op, jobs, commute, len(result))
        return "compared"

    assert in_child(compare) == "compared"


def test_the_data_shows_any_exchange_of_neighbours(tmp_path):
    functions = {}
    exec(ORDERED, functions)
    for op in "compose", "concatenate":
        paths, expected = ordered(tmp_path, op, 6, 50)
        assert mpired.reduce(paths, functions[op]).tobytes() == expected
        for i in range(5):
            exchanged = [*paths[:i], paths[i + 1], paths[i], *paths[i + 2 :]]
            assert mpired.reduce(exchanged, functions[op]).tobytes() != expected
