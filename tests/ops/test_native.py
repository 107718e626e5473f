"""The compiled twins of kernels: the bits of NumPy's kernels, and NumPy's kernels wherever there are none."""

import json
import random
import warnings

import matrix
import numpy as np
import pytest
import values
from command import run
from needs import needs

import mpired
from mpired.datatypes import Datatype, get
from mpired.errors import UsageError
from mpired.ops import native

LENGTHS = (*range(71), 1000)
STEPS = ["mean", "std", "min", "var", "max"]


def elements(datatype: Datatype, count: int, seed: int) -> np.ndarray:
    """Return elements that bite, with ties, and anything in the padding."""
    draw, choose = random.Random(seed), np.random.default_rng(seed)
    block = np.frombuffer(choose.bytes(count * datatype.form.itemsize), datatype.form).copy()
    for field, part in zip(("value", "index"), datatype.parts, strict=False):
        pool = np.frombuffer(b"".join(values.element(part.name, draw) for _ in range(60)), part.form)
        block[field] = choose.choice(pool, count)
    if not datatype.parts:
        pool = b"".join(values.element(datatype.name, draw) for _ in range(60))
        block[...] = choose.choice(np.frombuffer(pool, datatype.form), count)
    return block


def at_offset(block: np.ndarray, offset: int) -> np.ndarray:
    """Return a copy that lies so many bytes behind a boundary of 64 bytes."""
    room = np.empty(block.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    copy = room[start : start + block.nbytes].view(block.dtype)
    copy[...] = block
    return copy


def combined(op: str, datatype: Datatype, lower: np.ndarray, upper: np.ndarray) -> bytes:
    """Return what the kernel in use makes of two blocks, with the bits defined that kernels leave open."""
    row = next(row for row in mpired.OPS if row.name == op)
    with np.errstate(all="ignore"):
        result = row.lower(row.kernel(lower, upper, datatype), datatype)
    datatype.clear_padding(result)
    return result.tobytes()


@pytest.fixture
def by_numpy(monkeypatch):
    """Combine as NumPy's kernels do."""

    def combine(*operands):
        with monkeypatch.context() as patch:
            patch.setattr(native, "LEAST_BYTES", 1 << 40)
            return combined(*operands)

    return combine


@pytest.fixture
def compiled(monkeypatch):
    needs("gcc")
    monkeypatch.setenv(native.VARIABLE, "1")
    monkeypatch.setattr(native, "LEAST_BYTES", 1)
    native.forget()
    assert native.obstacle() == "", "`make` compiles the kernels"
    yield
    native.forget()


def wrong_lengths(op, datatype, by_numpy, lengths=LENGTHS):
    """Return the lengths of blocks of which C makes other bits, wherever they lie."""
    assert native.twin(op.lower(), datatype) is not None
    wrong = []
    for count in lengths:
        lower, upper = elements(datatype, count, 2 * count), elements(datatype, count, 2 * count + 1)
        offset = count * datatype.form.alignment % 64
        pairs = [tuple(at_offset(block, offset) for block in (lower, upper)) for _ in range(2)]
        if combined(op, datatype, *pairs[0]) != by_numpy(op, datatype, *pairs[1]):
            wrong.append(count)
    return wrong


@pytest.mark.parametrize("op", matrix.COMPILED)
def test_twins_have_the_bits_of_numpy(op, compiled, by_numpy):
    found = {name: wrong_lengths(op, get(name), by_numpy) for name in sorted(matrix.COMPILED[op])}
    assert {name: lengths for name, lengths in found.items() if lengths} == {}


@pytest.mark.parametrize("op", ["MAX", "MIN", "SUM", "PROD"])
def test_halves_of_all_bits(op, compiled, by_numpy):
    """Each number of 16 bits with some others of all kinds."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for bits in (0, 0x8000, 1, 0x83FF, 0x0400, 0x3C00, 0xBC01, 0x3555, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E05, 0xFC01):
        other = np.full_like(every, np.uint16(bits).view(np.float16))
        for lower, upper in ((every, other), (other, every)):
            both = [(lower.copy(), upper.copy()) for _ in range(2)]
            assert combined(op, get("REAL2"), *both[0]) == by_numpy(op, get("REAL2"), *both[1]), hex(bits)


def test_nothing_is_written_beside_the_elements(compiled):
    for op, names in matrix.COMPILED.items():
        datatype = get(min(names))
        compute = native.twin(op.lower(), datatype)
        keeps_upper = op in {"MAX", "MIN"}
        for count in range(20):
            nbytes = count * datatype.form.itemsize
            room = np.full(nbytes + 128, 0xA5, np.uint8)
            start = 64 - room.ctypes.data % 64
            kept = elements(datatype, count, 1)
            before = kept.tobytes()
            room[start : start + nbytes] = elements(datatype, count, 2).view(np.uint8)
            addresses = [kept.ctypes.data, room[start:].ctypes.data]
            compute(*(addresses[::-1] if keeps_upper else addresses), count)
            assert set(room[:start]) | set(room[start + nbytes :]) == {0xA5}, (op, count)
            assert kept.tobytes() == before, (op, count)


@pytest.mark.parametrize("name", ["FLOAT", "DOUBLE"])
def test_steps_that_share_a_pass_have_the_bits_of_numpy(name, compiled, monkeypatch):
    for count in (1, 7, 1024, 3001):
        ranks, found = [elements(get(name), count, seed) for seed in range(6)], []
        for least_bytes in (1, 1 << 40):
            monkeypatch.setattr(native, "LEAST_BYTES", least_bytes)
            with warnings.catch_warnings(record=True, action="always") as told:
                results = mpired.reduce([*ranks, np.full_like(ranks[0], np.finfo(ranks[0].dtype).max)], STEPS)
            found.append(([each.tobytes() for each in results.values()], [str(each.message) for each in told]))
        assert found[0] == found[1], count
    assert told or name == "FLOAT"
    assert all(native.step(op, get(name)) for op in STEPS if op != "std")


@pytest.mark.parametrize("native_kernels", [True, False])
def test_max_and_min_leave_the_upper_operand_as_it_is(compiled, monkeypatch, native_kernels):
    """Other ops of the same call take it from there."""
    monkeypatch.setattr(native, "LEAST_BYTES", 1 if native_kernels else 1 << 40)
    written = []
    for op in (mpired.MAX, mpired.MIN):
        for kernel in (op.kernel, op.mpi_kernel):
            for datatype in (get(name) for name in matrix.AVAILABLE if name in matrix.LEGAL[op.name]):
                lower, upper = elements(datatype, 1000, 1), elements(datatype, 1000, 2)
                before = upper.tobytes()
                with np.errstate(all="ignore"):
                    result = kernel(lower, upper, datatype)
                if result is not lower or upper.tobytes() != before:
                    written.append((op.name, datatype.name))
    assert written == []


def test_blocks_that_are_not_aligned_or_have_gaps_are_left_to_numpy(compiled, monkeypatch):
    datatype = get("LONG_DOUBLE_INT")
    lower, upper = (elements(datatype, 50, seed) for seed in (1, 2))
    expected = combined("MAXLOC", datatype, lower.copy(), upper.copy())
    apart = [np.zeros((50, 2), datatype.form)[:, 0] for _ in range(2)]
    for block, content in zip(apart, (lower, upper), strict=True):
        block[...] = content
    with monkeypatch.context() as patch:
        patch.setattr(native, "twin", lambda *_: lambda *_: pytest.fail("compiled"))
        assert combined("MAXLOC", datatype, at_offset(lower, 8), at_offset(upper, 8)) == expected
        found = mpired.MAXLOC.kernel(*apart, datatype).copy()
    datatype.clear_padding(found)
    assert found.tobytes() == expected
    assert not at_offset(lower, 8).flags.aligned


def test_the_environment_chooses_numpy(tmp_path, monkeypatch):
    native.forget()
    for word in "0", "no", "OFF", "false":
        told = run("ops", "--matrix", cwd=tmp_path, env={"MPIRED_NATIVE": word}).out.decode()
        assert f"\nno compiled kernels: MPIRED_NATIVE is {word}\n" in told
    rows = json.loads(run("ops", "--json", cwd=tmp_path, env={"MPIRED_NATIVE": "0"}).out)
    assert not any(row["compiled"] for row in rows)
    monkeypatch.setenv(native.VARIABLE, "maybe")
    with pytest.raises(UsageError, match=r"^MPIRED_NATIVE: is 'maybe'; set it to 0 "):
        native.obstacle()
    native.forget()


@pytest.mark.parametrize("damage", ["missing", "of another machine"])
def test_a_library_that_does_not_load_is_done_without(damage, tmp_path, monkeypatch):
    library = tmp_path / "kernels.c.so"
    if damage != "missing":
        library.write_bytes(b"\x7fELF" + bytes(100))
    monkeypatch.setattr(native, "_FILE", str(library))
    monkeypatch.delenv(native.VARIABLE, raising=False)
    native.forget()
    assert native.obstacle().startswith(
        {"missing": "there was no C compiler", "of another machine": "the library"}[damage]
    )
    datatype = get("DOUBLE_INT")
    blocks = [elements(datatype, 1000, seed) for seed in (1, 2)]
    assert len(combined("MINLOC", datatype, *blocks)) == 16000
    native.forget()
