"""Zarr stores that are many objects under a prefix: the bits of directories, few requests, and what goes wrong."""

import json
import re
import subprocess
import warnings
from collections import Counter

import numpy as np
import pytest
from command import refused, succeeded
from rows import together
from setups import little_is_enough

from mpired.files.stores import Version
from mpired.sources import remote

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import xarray as xr
    import zarr

pytestmark = pytest.mark.filterwarnings("ignore")
RANKS = [np.random.default_rng(rank).standard_normal((8, 40)) for rank in range(3)]
URL = "s3://bucket/x.zarr"
SUM = ("reduce", "-q", "--op", "sum", "-o")


def put_ranks(remote):
    """Write ranks as xarray does, in the folder and in the bucket."""
    for rank, values in enumerate(RANKS):
        name, months = f"r{rank}.zarr", {"time": np.arange(8), "x": np.arange(40.0)}
        data = xr.Dataset({"t": (("time", "x"), values)}, months)
        settings = {"consolidated": True, "encoding": {"t": {"chunks": (3, 10)}}}
        data.to_zarr(remote.folder / name, **settings)
        remote.store.put_folder(remote.folder / name, f"run/{name}")
    remote.store.log()


def put_plain(store, name="x.zarr", more=()):
    """Put a store of version 2 with one array in chunks, of which some are there."""
    document = {"zarr_format": 2, "shape": [4], "chunks": [1], "dtype": "<i4", "fill_value": 7}
    document |= {"order": "C", "filters": None, "compressor": None}
    store.put(f"{name}/.zarray", json.dumps(document).encode())
    for number in more:
        store.put(f"{name}/{number}", np.int32(number).tobytes())
    store.log()


def csv(remote, *words, **settings):
    """Return the elements of a sum."""
    return remote.reduced("--op", "sum", "--to", "csv", *words, **settings).decode().split()[1:]


def test_the_same_result_as_of_directories(remote):
    """By a list before and one after, and one request for each object."""
    put_ranks(remote)
    local, url = [f"r{rank}.zarr" for rank in range(3)], "s3://bucket/run/r*.zarr"
    succeeded(remote.run(*SUM, "local.zarr.zip", *local))
    succeeded(remote.run(*SUM, "remote.zarr.zip", "-j", "2", url, setup=little_is_enough))
    assert (remote.folder / "remote.zarr.zip").read_bytes() == (remote.folder / "local.zarr.zip").read_bytes()
    found = xr.open_zarr(zarr.storage.ZipStore(remote.folder / "remote.zarr.zip", mode="r"))
    assert np.array_equal(found.t, RANKS[0] + RANKS[1] + RANKS[2])
    assert np.array_equal(found.x, np.arange(40.0))
    remote.store.log()
    succeeded(remote.run(*SUM, "out.npz", url))
    log = remote.store.log()
    asked = Counter(each["of"] for each in log)
    lists = {of: number for of, number in asked.items() if "list-type" in of}
    assert sorted(lists.values()) == [1, 2, 2, 2]
    paths = [path for name in local for path in (remote.folder / name).rglob("*") if path.is_file()]
    objects = {f"/bucket/run/{path.relative_to(remote.folder)}" for path in paths}
    assert {of.partition("?")[0] for of in asked.keys() - lists.keys()} == objects
    assert {asked[of] for of in asked.keys() - lists.keys()} == {1}
    assert all(each["if_match"] for each in log if "list-type" not in each["of"])


def all_are_long():
    vars(remote)["_DOCUMENTS_NBYTES"] = 0


def few_are_many():
    vars(remote)["_MAX_OBJECTS"] = 2


def test_chunks_that_are_not_there_and_limits(remote):
    """Those have the fill value. Long documents are not sent to workers, which read them; a list has an end."""
    put_plain(remote.store, more=(1, 3))
    for settings in ({}, {"setup": all_are_long}):
        assert csv(remote, URL, **settings) == ["7", "1", "7", "3"]
    assert not any("x.zarr/0" in each or "x.zarr/2" in each for each in remote.store.asked())
    remote.refuses(3, f"{URL}: has more than 2 objects under it", words=(*SUM, "-", URL), setup=few_are_many)


def test_a_store_that_changes_meanwhile_is_an_error(remote):
    """Whether a chunk is replaced, removed or added, which had the fill value before."""
    with together(remote.folder) as case:
        for fault in (
            {"of": "x.zarr/1[?]", "fresh": 4},
            {"of": "x.zarr/1[?]", "gone": True},
            {"of": "x.zarr/3[?]", "fresh": 4, "key": "x.zarr/2"},
            {"of": "x.zarr/.zarray", "fresh": 4},
        ):
            with case(fault):
                remote.store.tell("clear")
                put_plain(remote.store, more=(1, 3))
                remote.store.faults(fault)
                reason = f"{URL}: changed while being read; run again when its writer has finished"
                remote.refuses(3, reason, words=(*SUM, "out.npy", URL))


def test_what_is_no_store(remote):
    put_plain(remote.store, more=(1,))
    for name in ("plain.zarr/a", "plain/a"):
        remote.store.put(name, b"1")
    http = f"{remote.store.url}/bucket/x.zarr"
    with together(remote.folder) as case:
        for word, status, message in (
            ("s3://bucket/none.zarr", 4, "s3://bucket/none.zarr: there is no such object\n"),
            ("s3://bucket/plain.zarr", 3, "s3://bucket/plain.zarr: is a folder, and no Zarr store"),
            ("s3://bucket/plain", 3, "s3://bucket/plain: is a folder, and no Zarr store"),
            (http, 4, f"{http}: there is no such object; a Zarr store of many"),
        ):
            with case(word):
                remote.refuses(status, f"mpired: {message}", words=(*SUM, "out", word))


def test_a_store_by_another_name_in_lists_ranges_and_queries(remote):
    for rank in range(3):
        put_plain(remote.store, f"run/data{rank}", more=(rank,))
    remote.store.put("run/list", b"data0/\ndata1\n")
    assert csv(remote, "@s3://bucket/run/list", "s3://bucket/run/data{2..2}") == ["14", "15", "16", "21"]
    url = "s3://bucket/run/data1"
    program = (
        "import mpired, pickle; from mpired.context import NO_LIMITS; from mpired.sources.open import open_source\n"
        f"print(*mpired.reduce([{url!r}], 'sum'))\n"
        f"assert b'secret' not in pickle.dumps(open_source({url!r}, NO_LIMITS))\n"
    )
    assert remote.python(program) == "7 1 7 7\n"
    words = ("accumulate", "--op", "sum", url, "s3://bucket/run/data2")
    refused(remote.run(*words), 2, url, "of which no part can be changed")


def test_the_digest_of_a_store_is_that_of_the_digests_of_its_files(remote):
    """It is that of the list that coreutils make of them, in a directory and under a prefix."""
    put_ranks(remote)
    succeeded(remote.run(*SUM, "out.npz", "--provenance", "r0.zarr", "s3://bucket/run/r1.zarr"))
    inputs = json.loads((remote.folder / "out.npz.json").read_text())["inputs"]
    digests = r"find . -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
    for rank, each in enumerate(inputs):
        folder = remote.folder / f"r{rank}.zarr"
        done = subprocess.run(["sh", "-c", digests], capture_output=True, cwd=folder, check=True)
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
