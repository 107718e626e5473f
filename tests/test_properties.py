"""Properties of every reduction, on data drawn at random."""

import random

import matrix
import numpy as np
import reference
import values
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import mpired

EXAMPLES = settings(max_examples=30, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink))

legal_pairs = st.sampled_from(matrix.LEGAL_PAIRS)
nranks = st.integers(1, 6)
counts = st.integers(0, 40) | st.sampled_from([63, 64, 65, 127, 128, 129])


def components(code):
    """Draw the bytes of one component."""
    biting = st.sampled_from(values.BITING[code])
    if code[0] in "iu":
        return biting | st.binary(min_size=reference.VALUE_BYTES[code], max_size=reference.VALUE_BYTES[code])
    if code == "g":
        floats = st.floats(allow_nan=False, allow_subnormal=False)
        return biting | floats.map(lambda number: reference.encode(code, np.longdouble(number) / 7))
    width = 8 * reference.VALUE_BYTES[code]
    return biting | st.floats(width=width, allow_nan=False).map(lambda number: reference.encode(code, number))


@st.composite
def buffers(draw, name, how_many=nranks, count=counts):
    """Draw the buffers of some ranks, all of one count; elements come from a small pool, so that there are ties."""
    parts, extent = reference.FORMS[name]
    pool = []
    for _ in range(draw(st.integers(1, 12))):
        element = bytearray(draw(st.binary(min_size=extent, max_size=extent)) if len(parts) > 1 else bytes(extent))
        for code, at in parts:
            component = draw(components(code))
            element[at : at + len(component)] = component
        pool.append(bytes(element))
    number = draw(count)
    choices = random.Random(draw(st.integers(0, 2**16)))
    return [b"".join(choices.choices(pool, k=number)) for _ in range(draw(how_many))]


@st.composite
def reductions(draw, pairs=legal_pairs, how_many=nranks):
    op, name = draw(pairs)
    return op, name, draw(buffers(name, how_many))


def write(directory, ranks, before=b"", after=b""):
    paths = []
    for i, rank in enumerate(ranks):
        paths.append(directory / f"rank{i}.bin")
        paths[-1].write_bytes(before + rank + after)
    return paths


def written(directory, paths, op, **options):
    """Return the bytes of the file that a reduction writes."""
    output = directory / "result.bin"
    # Arbitrary bytes may start like a file of another format.
    mpired.reduce(paths, op, output=output, overwrite=True, format="raw", **options)
    return output.read_bytes()


@EXAMPLES
@given(reduction=reductions())
def test_a_reduction_is_the_twins(directory, reduction):
    op, name, ranks = reduction
    result = written(directory, write(directory, ranks), op, type=name)
    assert result.hex(" ") == reference.reduce(op, name, ranks).hex(" ")


@EXAMPLES
@given(reduction=reductions())
def test_the_array_that_is_returned_has_the_bytes_of_the_file(directory, reduction):
    op, name, ranks = reduction
    array = mpired.reduce(write(directory, ranks), op, type=name, format="raw")
    expected = reference.reduce(op, name, ranks)
    if name in {"C_BOOL", "CXX_BOOL"}:  # NumPy's bool, in which a byte is 0 or 1
        expected = bytes(octet != 0 for octet in expected)
    assert array.shape == (len(expected) // reference.FORMS[name][1],)
    assert array.tobytes().hex(" ") == expected.hex(" ")


@EXAMPLES
@given(
    reduction=reductions(),
    byte_order=st.sampled_from(["big", "little", "native"]),
    header=st.binary(max_size=20),
    trailer=st.binary(max_size=20),
)
def test_byte_order_header_and_trailer_change_nothing(directory, reduction, byte_order, header, trailer):
    op, name, ranks = reduction
    count = len(ranks[0]) // reference.FORMS[name][1]
    expected = reference.reduce(op, name, ranks)
    if byte_order == "big":
        ranks, expected = [reference.swapped(name, rank) for rank in ranks], reference.swapped(name, expected)
    paths = write(directory, ranks, header, trailer)
    result = written(directory, paths, op, type=name, byte_order=byte_order, offset=len(header), count=count)
    assert result.hex(" ") == expected.hex(" ")


@EXAMPLES
@given(reduction=reductions(), first=st.integers(0, 40), number=st.integers(0, 40))
def test_a_part_of_the_elements_gives_that_part_of_the_result(directory, reduction, first, number):
    op, name, ranks = reduction
    extent = reference.FORMS[name][1]
    first = min(first, len(ranks[0]) // extent)
    number = min(number, len(ranks[0]) // extent - first)
    paths = write(directory, ranks)
    whole = written(directory, paths, op, type=name)
    part = written(directory, paths, op, type=name, offset=first * extent, count=number)
    assert part == whole[first * extent : (first + number) * extent]


@EXAMPLES
@given(reduction=reductions(how_many=st.integers(2, 6)), cut=st.integers(1, 5))
def test_the_fold_can_be_taken_up_where_it_was_left(directory, reduction, cut):
    op, name, ranks = reduction
    paths = write(directory, ranks)
    cut = min(cut, len(paths) - 1)
    before = directory / "before.bin"
    mpired.reduce(paths[:cut], op, output=before, overwrite=True, type=name, format="raw")
    assert written(directory, [before, *paths[cut:]], op, type=name) == written(directory, paths, op, type=name)


@EXAMPLES
@given(
    reduction=reductions(st.sampled_from([pair for pair in matrix.LEGAL_PAIRS if pair[0] in reference.INTEGRAL])),
    shuffle=st.randoms(use_true_random=False),
)
def test_the_order_of_ranks_is_nothing_to_bits_and_truth(directory, reduction, shuffle):
    op, name, ranks = reduction
    paths = write(directory, ranks)
    others = shuffle.sample(paths, len(paths))
    assert written(directory, others, op, type=name) == written(directory, paths, op, type=name)


@EXAMPLES
@given(reduction=reductions(st.sampled_from([pair for pair in matrix.LEGAL_PAIRS if pair[0] in reference.CHOICES])))
def test_max_and_min_choose_an_operand_whole(directory, reduction):
    op, name, ranks = reduction
    result = written(directory, write(directory, ranks), op, type=name)
    operands = zip(*(reference.elements(name, rank) for rank in ranks), strict=True)
    for chosen, candidates in zip(reference.elements(name, result), operands, strict=True):
        whole = [reference.without_padding(name, candidate) for candidate in candidates]
        code = reference.FORMS[name][0][0][0]
        nan = op in ("MAX", "MIN") and len(ranks) > 1 and reference.is_nan(reference.decode(code, chosen))
        assert chosen in ([reference.without_padding(name, reference.QUIET_NAN[code])] if nan else whole)


@EXAMPLES
@given(reduction=reductions(), root=st.integers(0, 5))
def test_the_root_does_not_show_in_the_bits(directory, reduction, root):
    op, name, ranks = reduction
    paths = write(directory, ranks)
    root = min(root, len(paths) - 1)
    assert written(directory, paths, op, type=name, root=root) == written(directory, paths, op, type=name)


@EXAMPLES
@given(reduction=reductions(), root=st.integers(0, 5), header=st.binary(max_size=9), trailer=st.binary(max_size=9))
def test_in_place_replaces_the_elements_of_the_root_and_nothing_else(directory, reduction, root, header, trailer):
    op, name, ranks = reduction
    paths = write(directory, ranks, header, trailer)
    root = min(root, len(paths) - 1)
    count = len(ranks[0]) // reference.FORMS[name][1]
    mpired.reduce(paths, op, in_place=True, root=root, type=name, format="raw", offset=len(header), count=count)
    for rank, (path, data) in enumerate(zip(paths, ranks, strict=True)):
        content = path.read_bytes()
        end = len(header) + len(data)
        assert (content[: len(header)], content[end:]) == (header, trailer)
        if rank != root:
            assert content[len(header) : end] == data
            continue
        elements = reference.elements(name, content[len(header) : end])
        found = b"".join(reference.without_padding(name, element) for element in elements)
        assert found == reference.reduce(op, name, ranks)
