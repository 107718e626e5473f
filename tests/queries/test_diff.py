"""`mpired diff` of files, directories and lists: what is equal, what is told, and the exit status."""

import filecmp
import itertools
import json
import os
import subprocess

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import reference
import values
import xarray as xr
from command import in_child, run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rows import check_refused, each
from safetensors.numpy import save_file

import mpired
import mpired.queries.drawing
from mpired.queries import diff as differences

COUNT = 60
QUICK = settings(max_examples=60, deadline=None)


def shown(found):
    """Return the elements of one dimension that are examples."""
    return [each.index[0] for each in found.examples]


@each("name", reference.FORMS)
def test_bits_of_every_datatype(name, tmp_path):
    """An element differs if a component of it does, whatever is in the padding."""
    a, other = (reference.elements(name, rank) for rank in values.ranks(name, 2, COUNT))
    b = [other[i] if i % 3 == 0 else a[i] for i in range(COUNT)]
    expected = [
        i for i in range(COUNT) if reference.without_padding(name, a[i]) != reference.without_padding(name, b[i])
    ]
    (tmp_path / "a").write_bytes(b"".join(a))
    (tmp_path / "b").write_bytes(b"".join(b))
    found = mpired.diff(tmp_path / "a", tmp_path / "b", type=name, format="raw", examples=1000)
    assert (found.reason, found.equal, found.buffers[0].differing) == ("", not expected, len(expected))
    assert sorted(set(shown(found))) == expected
    (tmp_path / "swapped").write_bytes(reference.swapped(name, b"".join(a)))
    assert mpired.diff(*[tmp_path / "swapped"] * 2, type=name, format="raw", byte_order="big").equal


FLOATS = st.floats(width=64) | st.sampled_from([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 5e-324, 1e308])
NEAR = st.tuples(FLOATS, FLOATS) | st.tuples(FLOATS, st.floats(-2, 2)).map(lambda t: (t[0], t[0] * (1 + t[1] * 1e-3)))
TOLERANCES = st.none() | st.sampled_from([0.0, 1e-9, 1e-3, 0.5, 1e300])


@QUICK
@given(st.lists(NEAR, min_size=1, max_size=9), st.sampled_from(["f2", "f4", "f8", "c8", "c16"]), TOLERANCES, TOLERANCES,
       st.booleans())  # fmt: skip
@example([(np.inf, np.inf), (np.inf, -np.inf), (1.0, np.inf), (np.nan, np.nan)], "f8", 0.5, None, 0)
def test_tolerances_are_numpys(numbers, code, rtol, atol, nan_equal):
    with np.errstate(all="ignore"):
        a, b = np.array(numbers).astype(code).T.copy()
        if code[0] == "c":
            a, b = a + 1j * b.real, b - 1j * np.flip(a.real)
            a, b = a.astype(code), b.astype(code)
        wide = "c16" if code[0] == "c" else "f8"
        close = np.isclose(a.astype(wide), b.astype(wide), rtol or 0.0, atol or 0.0, equal_nan=bool(nan_equal))
    if rtol is None and atol is None:
        atol = 0.0
    found = mpired.diff(a, b, rtol=rtol, atol=atol, nan_equal=bool(nan_equal), examples=100)
    assert shown(found) == np.flatnonzero(~close).tolist()
    assert found.buffers[0].differing == np.count_nonzero(~close)


def moved(start, by):
    """Return the number that is so many numbers further on."""
    with np.errstate(over="ignore"):
        for _ in range(abs(by)):
            start = np.nextafter(start, type(start)(np.inf if by > 0 else -np.inf))
    return start


@each("code", ["f2", "f4", "f8"])
def test_ulps_are_steps(code):
    """Both signs, subnormal numbers, powers of two and the largest number, each with its neighbours."""
    limits = np.finfo(code)
    starts = np.array([0.0, -0.0, limits.tiny, limits.smallest_subnormal, 1.0, -2.0, limits.max, -limits.max], code)
    pairs = [(start, moved(start, by), abs(by)) for start in starts for by in range(-4, 5)]
    a, b = (np.array(column, code) for column in list(zip(*pairs, strict=True))[:2])
    for allowed in (0, 1, 3):
        expected = [i for i, (_, end, steps) in enumerate(pairs) if steps > allowed or np.isinf(end)]
        assert shown(mpired.diff(a, b, ulp=allowed, examples=200)) == expected
    draw = np.random.default_rng(3)
    a, b = np.clip((1 + draw.random((2, 50))).astype(code), 1, type(starts[0])(1.9))
    found = mpired.diff(-a, -b, examples=50)
    expected = np.abs(a - b) / np.spacing(np.array(1, code))
    assert [each.ulp for each in found.examples] == [int(each) for each in expected if each]
    assert found.buffers[0].ulp.amount == int(expected.max())


@each("options, equal", [
    ({}, "b"),
    ({"nan_equal": True}, "bn"),
    ({"ulp": 0}, "z"),
    ({"atol": 0.0}, "z"),
    ({"ulp": 0, "nan_equal": True}, "zbn"),
])  # fmt: skip
def test_zeros_and_nans(options, equal):
    """Zeros of both signs (z), the same NaN (b), NaNs of other bits (n)."""
    nan, other = np.array([0x7FF8 << 48, 0xFFF8 << 48 | 5], "u8").view("f8")
    pairs = {"z": (0.0, -0.0), "b": (nan, nan), "n": (nan, other)}
    for name, (a, b) in pairs.items():
        assert mpired.diff(np.array([1.0, a]), np.array([1.0, b]), **options).equal is (name in equal), name


def test_the_same_answer_for_any_workers_and_blocks(cut_into, tmp_path, monkeypatch):
    monkeypatch.setattr("mpired.log.PERIOD", 0)  # so that each segment is in pieces
    draw = np.random.default_rng(5)
    a = draw.standard_normal((20, 7))
    b = a + draw.integers(-1, 2, a.shape) * draw.choice([0, 2.0**-52, 0.5], a.shape)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    pq.write_table(pa.table({"x": a.ravel(), "y": np.arange(a.size)}), tmp_path / "a.parquet", row_group_size=31)
    pq.write_table(pa.table({"x": b.ravel(), "y": np.arange(a.size)[::-1]}), tmp_path / "b.parquet", row_group_size=50)
    files = [("a.npy", "b.npy"), ("a.parquet", "b.parquet")]
    whole = [mpired.diff(tmp_path / one, tmp_path / other, ulp=1, jobs=1) for one, other in files]
    assert whole[0].buffers[0].differing == np.count_nonzero(np.abs(a - b) > 1.5 * np.spacing(np.abs(b)))
    assert whole[0].buffers[0].difference.amount == np.abs(a - b).max()
    assert whole[0].buffers[0].difference.index == tuple(np.unravel_index(np.abs(a - b).argmax(), a.shape))
    for (one, other), expected, nbytes in zip(files, whole, (8 * 3, 8 * 23), strict=True):
        cut_into(nbytes)
        for jobs in (1, 2):
            found = in_child(lambda a=one, b=other, n=jobs: str(mpired.diff(tmp_path / a, tmp_path / b, ulp=1, jobs=n)))
            assert found == str(expected)


def test_places_in_a_large_block():
    """Of which only a part is looked at closer at a time."""
    a = np.zeros((300, 200))
    b = a.copy()
    b[250, 7], b[299, 199] = 1.0, 3.0
    found = mpired.diff(a, b)
    assert [each.index for each in found.examples] == [(250, 7), (299, 199)]
    assert found.buffers[0].difference.index == (299, 199)


@each("words, status, reasons", [
    ("a.npy a.npy a.npy", 2, ["unexpected extra argument"]),
    ("a.bin a.npy", 2, ["a.bin", "give --type"]),
    ("a.npy a.npy --ulp 1 --atol 1", 2, ["--ulp", "leave one of them out"]),
    ("a.npy a.npy --rtol nan", 2, ["--rtol", "give 0 or more"]),
    ("a.npy a.npy --atol -1", 2, ["--atol", "give 0 or more"]),
    ("a.npy a.npy --ulp -1", 2, ["--ulp", "-1"]),
    (". none.npy", 4, ["none.npy", "No such file"]),
    (". a.npy", 3, [".: is a directory, and a.npy is a file; compare './a.npy'"]),
    ("/bin a.npy", 3, ["/bin: is a directory, and a.npy is a file; name a file in it"]),
    ("- - --type byte", 2, ["standard input"]),
])  # fmt: skip
def test_trouble_is_told_in_a_line_and_is_no_difference(words, status, reasons, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    np.zeros(3).tofile(tmp_path / "a.bin")
    check_refused(tmp_path, f"diff {words}", status, *reasons)


def test_a_bug_is_no_difference(tmp_path):
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    outcome = run("diff", "a.npy", "a.npy", cwd=tmp_path, setup=lambda: setattr(differences, "answer_query", fail))
    assert outcome.status == 70
    assert "ZeroDivisionError" in outcome.err


@each("suffix, option", itertools.product((".csv", ".txt", ".md", ""), ("", "--rtol 1")))
def test_files_that_no_format_describes(suffix, option, tmp_path):
    """They are compared by their bytes, as in directories."""
    for name, text in ("a", "x,y\n1,2\n"), ("b", "x,y\n1,3\n"), ("c", "x,y\n1,2\n3,4\n"), ("d", "x,y\n1,2\n"):
        (tmp_path / f"{name}{suffix}").write_text(text)
    for name in "bcd":
        is_same = filecmp.cmp(tmp_path / f"a{suffix}", tmp_path / f"{name}{suffix}", shallow=False)
        outcome = run("diff", "--examples", "0", *option.split(), f"a{suffix}", f"{name}{suffix}", cwd=tmp_path)
        assert (outcome.status, outcome.err) == (0 if is_same else 1, "")
        assert outcome.out.decode().startswith("the same: " if is_same else "different: ")
        assert outcome.out.count(b"\n") == 1


@each("words", ["- {}", "{} /dev/stdin"])
def test_a_pipe_that_no_format_describes(words, tmp_path):
    """It is read once, as A or B."""
    for name, status, end in (("same", 0, bytes(range(256))), ("other", 1, bytes(256))):
        (tmp_path / name).write_bytes(bytes(range(256)) * 99 + end)
        with subprocess.Popen(["cat", "same"], cwd=tmp_path, stdout=subprocess.PIPE) as process:
            outcome = run("diff", *words.format(name).split(), cwd=tmp_path, stdin=process.stdout.fileno())
        assert outcome.status == status == (not filecmp.cmp(tmp_path / "same", tmp_path / name, shallow=False))
        assert b"25600 x MPI_BYTE" in outcome.out


def test_directories(tmp_path):
    """A store is one file; what no format reads is compared by its bytes."""
    for name in "ab":
        folder = tmp_path / name
        (folder / "inner").mkdir(parents=True)
        np.save(folder / "same.npy", np.arange(3))
        np.save(folder / "inner/other.npy", np.arange(3) + (name == "b"))
        (folder / "README").write_text(f"text {name}")
        (folder / f"only {name}.txt").write_text("x")
        xr.Dataset({"t": ("x", [1, 2 + (name == "b")])}).to_zarr(folder / "inner/store.zarr", consolidated=False)
        pq.write_table(pa.table({"x": [1.0, None]}), folder / "inner/table.parquet")
        (folder / "bad.npy").write_bytes(b"\x93NUMPY")
    outcome = run("diff", "a", "b", cwd=tmp_path)
    assert (outcome.status, outcome.err) == (1, "")
    *files, total = outcome.out.decode().splitlines()
    assert files == [
        "README: different: 1 of 6 x MPI_BYTE (uint8), largest difference 1 at [5]",
        "bad.npy: not known: a/bad.npy: the header is truncated; not a valid npy file",
        "inner/other.npy: different: 3 of 3 x MPI_INT64_T (int64), largest difference 1 at [0]",
        "inner/store.zarr: different: 1 of 2 x MPI_INT64_T (int64), largest difference 1 at [1]",
        "only a.txt: only in a",
        "only b.txt: only in b",
    ]
    assert total == "8 files: 2 the same, 3 different, 2 in one alone, 1 not known"
    described = json.loads(run("diff", "--json", "a", "b", cwd=tmp_path).out)
    assert {each["name"]: each["equal"] for each in described["files"]} == {
        "README": False, "bad.npy": False, "inner/other.npy": False, "inner/store.zarr": False,
        "inner/table.parquet": True, "same.npy": True,
    }  # fmt: skip
    assert (described["only_in_a"], described["only_in_b"]) == (["only a.txt"], ["only b.txt"])
    found = mpired.diff(tmp_path / "a", tmp_path / "b", jobs=2, atol=1.0)
    assert [each.name for each in found.files if each.verdict == "different"] == ["README"]
    assert run("diff", "-q", "a", "a", cwd=tmp_path)[::2] == (3, "")  # for the damaged file
    (tmp_path / "a" / "bad.npy").unlink()
    assert run("diff", "a", "a", cwd=tmp_path)[:2] == (0, b"6 files: 6 the same\n")


def test_nothing_in_directories_is_passed_over(tmp_path):
    """Files beside shards and in stores, links and empty directories are compared, or only in one."""
    for name in "ab":
        model, store = tmp_path / name / "model", tmp_path / name / "store.zarr"
        model.mkdir(parents=True)
        shards = {f"model-0000{i}-of-00002.safetensors": {f"w{i}": np.arange(3.0)} for i in (1, 2)}
        for shard, tensors in shards.items():
            save_file(tensors, model / shard)
        index = {"weight_map": {tensor: shard for shard, tensors in shards.items() for tensor in tensors}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index, indent=ord(name)))
        (model / "config.json").write_text(f'"{name}"')
        for version in (2, 3):
            array = xr.Dataset({"t": (("x", "y"), np.ones((2, 3))), "s": 1.0})
            array.to_zarr(store / str(version), zarr_format=version, consolidated=version == 2)
        (store / "2/t/strange").write_text("x")
        (tmp_path / name / "link").symlink_to(f"nowhere {name}")
        (tmp_path / name / "same").symlink_to(".")
        os.mkfifo(tmp_path / name / "pipe")
    (tmp_path / "a/store.zarr/3/0").write_text("x")
    (tmp_path / "a/model/stale.safetensors").write_text("x")
    (tmp_path / "b/empty").mkdir()
    outcome = run("diff", "a", "b", cwd=tmp_path)
    assert (outcome.status, outcome.err) == (1, "")
    assert outcome.out.decode().splitlines() == [
        "link: different: B is a link to 'nowhere b', but A is a link to 'nowhere a'",
        "model/config.json: different: 1 of 3 x MPI_BYTE (uint8), largest difference 1 at [1]",
        "pipe: not known: a/pipe: is a pipe, socket or device, which is not read",
        "model/stale.safetensors: only in a",
        "store.zarr/3/0: only in a",
        "empty/: only in b",
        "11 files: 5 the same, 2 different, 3 in one alone, 1 not known",
    ]
    for name, only in ("model", "stale.safetensors"), ("store.zarr", "3/0"):  # directly named
        outcome = run("diff", *(found := [f"{folder}/{name}" for folder in "ab"]), cwd=tmp_path)
        assert f"{only}: only in a/{name}\n" in outcome.out.decode()
        assert ("config.json: different: 1 of 3" in outcome.out.decode()) is (name == "model")
        assert run("diff", "-q", *found, cwd=tmp_path).status == outcome.status == 1
        assert not mpired.diff(*(tmp_path / each for each in found)).equal


def test_lists(tmp_path):
    for name, shift in (("a", 0), ("b", 0), ("c", 1)):
        np.save(tmp_path / f"{name}.npy", np.arange(3) + shift)
    (tmp_path / "one").write_text("a.npy\na.npy\nb.npy\n")
    (tmp_path / "two").write_text("b.npy\nc.npy\n")
    outcome = run("diff", "@one", "@two", cwd=tmp_path)
    assert outcome.status == 1
    assert outcome.out.decode().splitlines() == [
        "a.npy and c.npy: different: 3 of 3 x MPI_INT64_T (int64), largest difference 1 at [0]",
        "b.npy: only in A",
        "3 files: 1 the same, 1 different, 1 in one alone",
    ]
    names = [str(tmp_path / f"{name}.npy") for name in "abc"]
    assert mpired.diff(names[:1], names[1:2]).equal
    assert mpired.diff(names[:2], names[1:2]).verdict == "different"  # for the one without a partner
    assert [each.equal for each in mpired.diff([np.arange(3), names[0]], names[1:]).files] == [True, False]
