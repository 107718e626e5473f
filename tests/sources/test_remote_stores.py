"""Zarr stores that are many objects under a prefix: the bits of directories, few requests, and what goes wrong."""

import json
import os
import re
import subprocess
import sys
import warnings
from collections import Counter

import numpy as np
import pytest
from command import reduce, refused, run, succeeded

from mpired.collectives import plan as planning
from mpired.files import stores
from mpired.files.stores import Version
from mpired.sources import prefix

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import xarray as xr
    import zarr

pytestmark = pytest.mark.filterwarnings("ignore")
VERSIONS = pytest.mark.parametrize("version", [2, 3])
RANKS = [np.random.default_rng(rank).standard_normal((8, 40)) for rank in range(3)]


def put_ranks(store, folder, version=3):
    """Write ranks as xarray does, in the folder and in the bucket."""
    for rank, values in enumerate(RANKS):
        name, months = f"r{rank}.zarr", {"time": np.arange(8), "x": np.arange(40.0)}
        data = xr.Dataset({"t": (("time", "x"), values)}, months)
        data.to_zarr(folder / name, zarr_format=version, consolidated=True, encoding={"t": {"chunks": (3, 10)}})
        store.put_folder(folder / name, f"run/{name}")
    store.log()


def put_plain(store, name="x.zarr", count=4, more=()):
    """Put a store of version 2 with one array of int32 in chunks of one element, of which some are there."""
    document = {"zarr_format": 2, "shape": [count], "chunks": [1], "dtype": "<i4", "fill_value": 7}
    document |= {"order": "C", "filters": None, "compressor": None}
    store.put(f"{name}/.zarray", json.dumps(document).encode())
    for number in more:
        store.put(f"{name}/{number}", np.int32(number).tobytes())
    store.log()


def little_is_enough():
    vars(planning)["SMALL_NBYTES"] = 0


def less_patient():
    stores.RETRYING["max_retries"] = 1


@VERSIONS
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_same_result_as_of_directories(store, tmp_path, version, jobs):
    put_ranks(store, tmp_path, version)
    words = ["-q", "--op", "sum", "-j", jobs, "-o"]
    url = "s3://bucket/run/r*.zarr"
    there = run("reduce", *words, "there.zarr.zip", url, cwd=tmp_path, env=store.environment, setup=little_is_enough)
    succeeded(there)
    succeeded(run("reduce", *words, "here.zarr.zip", "r0.zarr", "r1.zarr", "r2.zarr", cwd=tmp_path))
    assert (tmp_path / "there.zarr.zip").read_bytes() == (tmp_path / "here.zarr.zip").read_bytes()
    found = xr.open_zarr(zarr.storage.ZipStore(tmp_path / "there.zarr.zip", mode="r"))
    assert np.array_equal(found.t, RANKS[0] + RANKS[1] + RANKS[2])
    assert np.array_equal(found.x, np.arange(40.0))


@VERSIONS
def test_requests_are_a_list_before_and_after_and_one_an_object(store, tmp_path, version):
    put_ranks(store, tmp_path, version)
    words = ["--op", "sum", "-o", "out.npz", "s3://bucket/run/r*.zarr"]
    succeeded(reduce(*words, cwd=tmp_path, env=store.environment))
    log = store.log()
    asked = Counter(each["of"] for each in log)
    lists = {of: number for of, number in asked.items() if "list-type" in of}
    assert sorted(lists.values()) == [1, 2, 2, 2]
    objects = {f"/bucket/run/{path.relative_to(tmp_path)}" for path in tmp_path.glob("r*/**/*") if path.is_file()}
    assert {of.partition("?")[0] for of in asked.keys() - lists.keys()} == objects
    assert {asked[of] for of in asked.keys() - lists.keys()} == {1}
    assert all(each["if_match"] for each in log if "list-type" not in each["of"])


def test_a_shard_that_is_cut_off_by_the_shape_is_asked_for_once(store, tmp_path):
    values = np.arange(70.0).reshape(7, 10)
    group = zarr.create_group(tmp_path / "r.zarr")
    group.create_array("v", data=values, chunks=(2, 2), shards=(4, 4))
    store.put_folder(tmp_path / "r.zarr", "r.zarr")
    store.log()
    succeeded(reduce("--op", "sum", "-o", "out.npy", "s3://bucket/r.zarr", cwd=tmp_path, env=store.environment))
    assert np.array_equal(np.load(tmp_path / "out.npy"), values)
    shards = [each for each in store.asked() if "/v/c/" in each]
    assert (len(shards), len(set(shards))) == (6, 6)


def test_2500_chunks_of_one_store(store, tmp_path):
    put_plain(store, count=2500)
    store.tell("many/x.zarr/%d/2500", np.int32(3).tobytes())
    store.log()
    done = reduce("--op", "sum", "--to", "raw", "-o", "-", "s3://bucket/x.zarr", cwd=tmp_path, env=store.environment)
    succeeded(done)
    assert done.out == np.full(2500, 3, "<i4").tobytes()
    asked = store.asked()
    assert (len([each for each in asked if "list-type" in each]), len(asked)) == (6, 2507)


def test_limits(store, tmp_path):
    """Long documents are not sent to workers, which read them themselves; a list has an end."""
    put_plain(store, more=(1, 3))
    words = ["--op", "sum", "--to", "csv", "s3://bucket/x.zarr"]

    def all_are_long():
        vars(prefix)["_DOCUMENTS_NBYTES"] = 0

    def few_are_many():
        vars(prefix)["_MOST_OBJECTS"] = 2

    done = reduce(*words, cwd=tmp_path, env=store.environment, setup=all_are_long)
    assert (done.status, done.out.split()[1:]) == (0, [b"7", b"1", b"7", b"3"])
    done = reduce(*words, cwd=tmp_path, env=store.environment, setup=few_are_many)
    refused(done, 3, "s3://bucket/x.zarr: has more than 2 objects under it")


@pytest.mark.parametrize(("limit", "least", "most"), [((), 7, 17), (("--max-memory", "250M"), 2, 6)])
def test_chunks_ahead_are_within_the_memory(store, tmp_path, limit, least, most):
    """16 chunks of 1 MiB without a limit; with one a part of what is left of it, and the chunk that exceeds that.

    The one that is waited for comes to these.
    """
    values = np.arange(24 << 17, dtype="f8")
    document = {"zarr_format": 2, "shape": [len(values)], "chunks": [1 << 17], "dtype": "<f8", "fill_value": 0}
    document |= {"order": "C", "filters": None, "compressor": None}
    store.put("x.zarr/.zarray", json.dumps(document).encode())
    for number, chunk in enumerate(np.split(values, 24)):
        store.put(f"x.zarr/{number}", chunk.tobytes())
    store.log()
    store.faults({"method": "GET", "of": r"x\.zarr/\d", "times": 1000, "slow": 0.5})
    words = ["-q", "--op", "sum", *limit, "-o", "out.npy", "s3://bucket/x.zarr"]
    succeeded(run("reduce", *words, "-j", "1", cwd=tmp_path, env=store.environment))
    assert np.array_equal(np.load(tmp_path / "out.npy"), values)
    assert least <= 1 + max(each["busy"] for each in store.log()) <= most


def test_chunks_that_are_not_there_have_the_fill_value(store, tmp_path):
    put_plain(store, more=(1, 3))
    done = reduce("--op", "sum", "--to", "csv", "s3://bucket/x.zarr", cwd=tmp_path, env=store.environment)
    assert (done.status, done.out.split()[1:]) == (0, [b"7", b"1", b"7", b"3"])
    assert not any("x.zarr/0" in each or "x.zarr/2" in each for each in store.asked())


@pytest.mark.parametrize(
    "fault",
    [
        {"of": "x.zarr/1[?]", "fresh": 4},
        {"of": "x.zarr/1[?]", "gone": True},
        {"of": "x.zarr/3[?]", "fresh": 4, "key": "x.zarr/2"},
        {"of": "x.zarr/3[?]", "fresh": 4, "key": "x.zarr/1"},
        {"of": "x.zarr/.zarray", "fresh": 4},
    ],
)
def test_a_store_that_changes_meanwhile_is_an_error(store, tmp_path, fault):
    """Whether a chunk is replaced, removed or added, which had the fill value before."""
    put_plain(store, more=(1, 3))
    store.faults(fault)
    done = reduce("--op", "sum", "-o", "out.npy", "s3://bucket/x.zarr", cwd=tmp_path, env=store.environment)
    message = "s3://bucket/x.zarr: changed while being read; run again when its writer has finished"
    assert (done.status, done.err) == (3, f"mpired: {message}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("of", ["list-type", "x.zarr/.zarray", "x.zarr/1[?]"])
def test_what_fails_on_the_way_is_repeated(store, tmp_path, of):
    put_plain(store, more=(1, 3))
    store.faults({"of": of, "status": 500, "times": 2})
    words = ["--op", "sum", "--to", "csv", "-o", "out.csv", "s3://bucket/x.zarr"]
    succeeded(reduce(*words, cwd=tmp_path, env=store.environment))
    os.remove(tmp_path / "out.csv")
    store.faults({"of": of, "status": 500, "times": 99})
    failed = reduce(*words, cwd=tmp_path, env=store.environment, setup=less_patient)
    refused(failed, 4, "s3://bucket/x.zarr", "the store answers 500")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "status", "message"),
    [
        ("s3://bucket/none.zarr", 4, "s3://bucket/none.zarr: there is no such object\n"),
        ("s3://bucket/none.zarr/", 4, "s3://bucket/none.zarr: there is no such object\n"),
        ("s3://bucket/plain.zarr", 3, "s3://bucket/plain.zarr: is a folder, and no Zarr store"),
        ("s3://bucket/plain", 3, "s3://bucket/plain: is a folder, and no Zarr store"),
        ("http://HOST/bucket/x.zarr", 4, "http://HOST/bucket/x.zarr: there is no such object; a Zarr store of many"),
    ],
)
def test_what_is_no_store(store, tmp_path, word, status, message):
    put_plain(store, more=(1,))
    store.put("plain.zarr/a", b"1")
    store.put("plain/a", b"1")
    host = store.url.removeprefix("http://")
    done = reduce("--op", "sum", "-o", "out", word.replace("HOST", host), cwd=tmp_path, env=store.environment)
    assert done.status == status
    assert done.err.startswith(f"mpired: {message.replace('HOST', host)}")
    assert done.err.count("\n") == 1


def test_a_result_is_one_object(store, tmp_path):
    put_plain(store, more=(0, 1, 2, 3))
    summing = ["reduce", "-q", "--op", "sum", "-o"]
    done = run(*summing, "s3://bucket/y.zarr", "s3://bucket/x.zarr", cwd=tmp_path, env=store.environment)
    refused(done, 2, "s3://bucket/y.zarr", "name it s3://bucket/y.zarr.zip")
    for words in (
        [*summing, "s3://bucket/y.zarr.zip", "s3://bucket/x.zarr"],
        ["diff", "s3://bucket/y.zarr.zip", "s3://bucket/x.zarr/"],
    ):
        succeeded(run(*words, cwd=tmp_path, env=store.environment))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("s3://bucket/run/r*", ["run/r0.bin", "run/r1.zarr", "run/r2.zarr"]),
        ("s3://bucket/run/*.zarr", ["run/r1.zarr", "run/r2.zarr"]),
        ("s3://bucket/*/r1.zarr", ["run/r1.zarr"]),
        ("s3://bucket/**", ["run/deep/r3.zarr", "run/r0.bin", "run/r1.zarr", "run/r2.zarr"]),
        ("s3://bucket/run/*.zarr/1", ["run/r1.zarr/1", "run/r2.zarr/1"]),
    ],
)
def test_globs_match_stores_and_objects_in_one_order(store, tmp_path, pattern, names):
    for name in ("run/r1.zarr", "run/r2.zarr", "run/deep/r3.zarr"):
        put_plain(store, name, more=(1,))
    store.put("run/r0.bin", bytes(4))
    program = "import sys; from mpired.sources.remote import matching; print(*matching(sys.argv[1]), sep='\\n')"
    environment = {**os.environ, **{name: value for name, value in store.environment.items() if value is not None}}
    done = subprocess.run(
        [sys.executable, "-c", program, pattern], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.split() == [f"s3://bucket/{name}" for name in names]


def test_a_store_by_another_name_in_lists_ranges_and_queries(store, tmp_path):
    for rank in range(3):
        put_plain(store, f"run/data{rank}", more=(rank,))
    store.put("run/list", b"data0/\ndata1\n")
    words = ["--op", "sum", "--to", "csv", "@s3://bucket/run/list", "s3://bucket/run/data{2..2}"]
    done = reduce(*words, cwd=tmp_path, env=store.environment)
    assert (done.status, done.out.split()[1:]) == (0, [b"14", b"15", b"16", b"21"])
    told = run("info", "s3://bucket/run/data1", cwd=tmp_path, env=store.environment)
    assert told.out.decode().startswith("s3://bucket/run/data1: zarr, ")
    shown = run("show", "s3://bucket/run/data1", cwd=tmp_path, env=store.environment)
    assert (shown.status, b"7" in shown.out) == (0, True)
    program = (
        "import mpired, pickle; from mpired.context import NO_LIMITS; from mpired.sources.open import open_source\n"
        "print(*mpired.reduce(['s3://bucket/run/data1'], 'sum'))\n"
        "assert b'secret' not in pickle.dumps(open_source('s3://bucket/run/data1', NO_LIMITS))\n"
    )
    environment = {**os.environ, **{name: value for name, value in store.environment.items() if value is not None}}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.stderr) == ("7 1 7 7\n", "")
    words = ["accumulate", "--op", "sum", "s3://bucket/run/data1", "s3://bucket/run/data2"]
    changed = run(*words, cwd=tmp_path, env=store.environment)
    refused(changed, 2, "s3://bucket/run/data1", "of which no part can be changed")


def test_the_digest_of_a_store_is_that_of_the_digests_of_its_files(store, tmp_path):
    """It is that of the list that coreutils make of them, in a directory and under a prefix."""
    put_ranks(store, tmp_path)
    words = ["reduce", "-q", "--provenance", "--op", "sum", "-o", "out.npz", "r0.zarr", "s3://bucket/run/r1.zarr"]
    succeeded(run(*words, cwd=tmp_path, env=store.environment))
    inputs = json.loads((tmp_path / "out.npz.json").read_text())["inputs"]
    digests = r"find . -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
    for rank, each in enumerate(inputs):
        done = subprocess.run(["sh", "-c", digests], capture_output=True, cwd=tmp_path / f"r{rank}.zarr", check=True)
        assert each["sha256"] == done.stdout.split()[0].decode()
    assert inputs[0]["sha256"] != inputs[1]["sha256"]


def test_an_etag_is_the_same_with_and_without_quotes():
    """Azure has quotes in its answers to GET, and none in its lists."""
    from datetime import UTC, datetime

    meta = {"size": 1, "last_modified": datetime(2026, 1, 1, tzinfo=UTC)}
    bare, quoted = (Version.of({**meta, "e_tag": etag}) for etag in ("0x8D", '"0x8D"'))
    assert bare == quoted
    assert Version.of({**meta, "e_tag": None}).etag is None
    assert re.fullmatch('".*"', bare.etag)
