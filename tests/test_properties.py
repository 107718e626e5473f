"""Properties of every reduction, on data drawn at random."""

import random

import matrix
import numpy as np
import reference
import values
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import mpired

COUNTS = st.integers(0, 40) | st.sampled_from([63, 64, 65, 127, 128, 129])


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
def reductions(draw):
    """Draw an op, a datatype and ranks, all of one count; elements come from a small pool, so that there are ties."""
    op, name = draw(st.sampled_from(matrix.LEGAL_PAIRS))
    parts, extent = reference.FORMS[name]
    pool = []
    for _ in range(draw(st.integers(1, 12))):
        element = bytearray(draw(st.binary(min_size=extent, max_size=extent)) if len(parts) > 1 else bytes(extent))
        for code, at in parts:
            component = draw(components(code))
            element[at : at + len(component)] = component
        pool.append(bytes(element))
    number = draw(COUNTS)
    choices = random.Random(draw(st.integers(0, 2**16)))
    return op, name, [b"".join(choices.choices(pool, k=number)) for _ in range(draw(st.integers(1, 6)))]


@settings(max_examples=100, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink))
@given(
    reduction=reductions(),
    byte_order=st.sampled_from(["big", "little", "native"]),
    header=st.binary(max_size=20),
    trailer=st.binary(max_size=20),
    root=st.integers(0, 5),
)
def test_a_reduction_is_the_twins(directory, reduction, byte_order, header, trailer, root):
    """In a file, in an array and in place; byte order, surroundings and root do not show."""
    op, name, ranks = reduction
    expected = reference.reduce(op, name, ranks)

    def ordered(octets):
        return reference.swapped(name, octets) if byte_order == "big" else octets

    ranks = [ordered(rank) for rank in ranks]
    content = [header + data + trailer for data in ranks]
    paths, output = [directory / f"rank{rank}.bin" for rank in range(len(ranks))], directory / "result.bin"
    for path, octets in zip(paths, content, strict=True):
        path.write_bytes(octets)
    # Arbitrary bytes may start like a file of another format.
    options = {"type": name, "format": "raw", "byte_order": byte_order, "offset": len(header)}
    options |= {"count": len(ranks[0]) // reference.FORMS[name][1], "root": min(root, len(ranks) - 1)}
    mpired.reduce(paths, op, output=output, overwrite=True, **options)
    assert output.read_bytes().hex(" ") == ordered(expected).hex(" ")
    array = mpired.reduce(paths, op, **options)
    mpired.reduce(paths, op, in_place=True, **options)
    in_place = ordered(paths[options["root"]].read_bytes()[slice(len(header), len(header) + len(ranks[0]))])
    assert b"".join(reference.without_padding(name, each) for each in reference.elements(name, in_place)) == expected
    content[options["root"]] = header + ordered(in_place) + trailer  # with what was in the padding
    assert [path.read_bytes() for path in paths] == content
    if name in {"C_BOOL", "CXX_BOOL"}:  # NumPy's bool, in which a byte is 0 or 1
        expected = bytes(octet != 0 for octet in expected)
    assert array.shape == (len(expected) // reference.FORMS[name][1],)
    assert array.tobytes().hex(" ") == expected.hex(" ")
