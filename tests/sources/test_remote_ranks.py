"""Ranks that are objects of a store: the same bits as of files, one version of each, few requests."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import reduce, run
from object_store import BYTES, MEBIBYTE, big

from mpired.collectives import plan as planning
from mpired.files import urls

RANKS = [np.arange(1000.0) * 3**rank + 0.1 for rank in range(5)]


@pytest.fixture
def ranks(store, tmp_path):
    """Put ranks as npy, raw, parquet and arrow, in the folder and in the bucket."""
    for rank, values in enumerate(RANKS):
        np.save(tmp_path / f"r{rank}.npy", values)
        values.tofile(tmp_path / f"r{rank}.bin")
        table = pa.table({"x": values, "y": values.astype("i4")})
        pq.write_table(table, tmp_path / f"r{rank}.parquet")
        with pa.ipc.new_file(tmp_path / f"r{rank}.arrow", table.schema) as file:
            file.write_table(table)
    for path in tmp_path.glob("r*"):
        store.put(f"run 7/{path.name}", path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("suffix", ["npy", "bin", "parquet", "arrow"])
def test_the_same_bits_as_of_files(store, ranks, suffix):
    words = ["--op", "sum", *(["--type", "double"] if suffix == "bin" else [])]
    told = reduce(
        *words, "-o", "told", "--to", "npz", f"s3://bucket/run 7/r*.{suffix}", cwd=ranks, env=store.environment
    )
    here = reduce(*words, "-o", "here", "--to", "npz", *(f"r{rank}.{suffix}" for rank in range(5)), cwd=ranks)
    assert (told.status, told.err, here.status) == (0, "", 0)
    assert (ranks / "told").read_bytes() == (ranks / "here").read_bytes()


@pytest.mark.parametrize("suffix", ["npy.gz", "npy.zst", "npz", "safetensors", "h5", "nc", "zarr.zip", "arrows"])
def test_what_mpired_writes_is_read_again_from_a_store(store, ranks, suffix):
    url = f"s3://bucket/out.{suffix}"
    written = reduce("--op", "sum", "-o", url, *(f"r{rank}.npy" for rank in range(5)), cwd=ranks, env=store.environment)
    assert (written.status, written.err) == (0, "")
    read = reduce("--op", "sum", "-o", "-", "--to", "csv", url, cwd=ranks, env=store.environment)
    assert (read.status, read.err) == (0, "")
    values = [float(line) for line in read.out.split()[1:]]
    assert values == list(RANKS[0] + RANKS[1] + RANKS[2] + RANKS[3] + RANKS[4])


def test_requests_are_one_a_rank_for_the_checks_and_one_a_block(store, tmp_path):
    expected = big(store, 3, 9 * MEBIBYTE)
    store.log()
    done = reduce(*BYTES, "-o", "out", "s3://bucket/r{0..2}.bin", cwd=tmp_path, env=store.environment)
    assert (done.status, done.err) == (0, "")
    assert (tmp_path / "out").read_bytes() == expected
    log = store.log()
    for rank in range(3):
        mine = [each for each in log if f"r{rank}.bin" in each["of"]]
        ranges = [tuple(map(int, re.findall(r"\d+", each["of"].rpartition("=")[2]))) for each in mine]
        assert ranges[0] == (0, 65535)
        assert sorted(ranges[1:]) == [(at << 20, (min(at + 4, 9) << 20) - 1) for at in (0, 4, 8)]
        assert [each["if_match"] is not None for each in mine] == [False, True, True, True]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize(("ncolumns", "ngroups"), [(1, 1), (1, 8), (4, 1), (4, 8)])
def test_columns_are_read_in_few_requests(store, tmp_path, suffix, ncolumns, ngroups):
    """Two for the checks, and then about one for 4 MiB, not one for each page; of arrow some for each record batch."""
    count = (8 << 20) // 8 // ncolumns
    arrays = [np.random.default_rng(rank).standard_normal(count) for rank in range(2)]
    for rank, array in enumerate(arrays):
        table = pa.table({f"x{column}": array for column in range(ncolumns)})
        if suffix == "parquet":
            pq.write_table(table, tmp_path / "rank", row_group_size=count // ngroups, compression="none")
        else:
            with pa.ipc.new_file(tmp_path / "rank", table.schema) as file:
                file.write_table(table, max_chunksize=count // ngroups)
        store.put(f"r{rank}.{suffix}", (tmp_path / "rank").read_bytes())
    store.log()
    words = ["--op", "sum", "-j", "1", "-o", "out.npz", f"s3://bucket/r{{0..1}}.{suffix}"]
    done = reduce(*words, cwd=tmp_path, env=store.environment)
    assert (done.status, done.err) == (0, "")
    with np.load(tmp_path / "out.npz") as found:
        assert all(np.array_equal(found[f"x{column}"], arrays[0] + arrays[1]) for column in range(ncolumns))
    asked = [each for each in store.asked() if f"r1.{suffix}" in each]
    most = 5 + 2 * ncolumns + ngroups
    assert len(asked) <= (most if suffix == "parquet" else most + ngroups * (1 + ncolumns)), asked
    ranges = [tuple(map(int, re.findall(r"\d+", each.rpartition("=")[2]))) for each in asked]
    assert sum(stop - start + 1 for start, stop in ranges) < 2.2 * (9 << 20)


def test_small_ranks_are_asked_for_once(store, tmp_path):
    for rank in range(40):
        store.put(f"r{rank}.bin", bytes([rank]))
    store.log()
    done = reduce(*BYTES, "-o", "-", "s3://bucket/r{0..39}.bin", cwd=tmp_path, env=store.environment)
    assert (done.status, done.out) == (0, bytes([0]))
    assert len(store.asked()) == 40


def test_2500_keys_by_a_glob(store, tmp_path):
    store.tell("many/run/r%04d.bin/2500", b"\1\2\0\0")
    store.tell("many/other/r%04d.bin/3", b"\7\7")
    store.log()
    done = reduce(
        "--op", "sum", "--type", "int32_t", "-o", "-", "s3://bucket/run/r*.bin", cwd=tmp_path, env=store.environment
    )
    assert (done.status, done.err) == (0, "")
    assert done.out == np.array([0x0201 * 2500], "<i4").tobytes()
    lists = [each for each in store.asked() if "list-type" in each]
    assert len(lists) == 3


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("s3://bucket/*", ["top.bin"]),
        ("s3://bucket/a/?.bin", ["a/1.bin", "a/2.bin"]),
        ("s3://bucket/a/[2-9].bin", ["a/2.bin"]),
        ("s3://bucket/*/1.bin", ["a/1.bin", "b/1.bin"]),
        ("s3://bucket/**/1.bin", ["a/1.bin", "a/deep/1.bin", "b/1.bin"]),
        ("s3://bucket/a/**", ["a/1.bin", "a/2.bin", "a/deep/1.bin"]),
        ("s3://bucket/a/*", ["a/1.bin", "a/2.bin"]),
        ("s3://bucket/a/.*", ["a/.hidden"]),
        ("s3://bucket/b/with[1].bin", ["b/with[1].bin"]),
    ],
)
def test_globs_are_those_of_files(store, tmp_path, pattern, names):
    every = ["top.bin", "a/1.bin", "a/2.bin", "a/deep/1.bin", "a/.hidden", "b/1.bin", "b/with[1].bin", "b/with1.bin"]
    for name in every:
        store.put(name, b"\1")
    done = run("reduce", *BYTES, "--dry-run", "--json", pattern, cwd=tmp_path, env=store.environment)
    assert (done.status, done.err) == (0, "")
    assert [each for each in every if f's3://bucket/{each}"' in done.out.decode()] == sorted(names, key=every.index)


def test_lists_in_files_and_in_stores(store, tmp_path):
    for rank in range(4):
        store.put(f"run/{rank}.bin", bytes([1 << rank]))
    (tmp_path / "list").write_text("s3://bucket/run/0.bin\ns3://bucket/run/1.bin\n")
    store.put("run/list", b"2.bin\ns3://bucket/run/3.bin\n")
    words = [*BYTES, "-o", "-", "@list", "@s3://bucket/run/list"]
    done = reduce(*words, cwd=tmp_path, env=store.environment)
    assert (done.status, done.err, done.out) == (0, "", b"\x0f")


def test_ranks_in_one_object(store, tmp_path):
    store.put("all.bin", bytes([1, 2, 3, 4, 5, 6]))
    done = reduce(*BYTES, "-o", "-", "--ranks-in-file", "3", "s3://bucket/all.bin", cwd=tmp_path, env=store.environment)
    assert (done.status, done.err, done.out) == (0, "", bytes([1 ^ 3 ^ 5, 2 ^ 4 ^ 6]))


def test_the_order_of_ranks_is_that_of_paths(store, tmp_path):
    for rank in range(12):
        store.put(f"r{rank}.bin", bytes([rank]))
    words = [*BYTES[2:], "--op", "maxloc", "--index", "rank", "--to", "csv", "s3://bucket/r*.bin"]
    plain = reduce(*words, cwd=tmp_path, env=store.environment)
    natural = reduce(*words, "--sort", "natural", "--expect-ranks", "0-11", cwd=tmp_path, env=store.environment)
    assert (plain.out.split()[1], natural.out.split()[1], natural.status) == (b"11,3", b"11,11", 0)


def test_an_empty_object_is_an_empty_rank(store, tmp_path):
    store.put("empty.bin", b"")
    done = reduce(*BYTES, "-o", "-", "s3://bucket/empty.bin", cwd=tmp_path, env=store.environment)
    assert (done.status, done.err, done.out) == (0, "", b"")


def test_several_workers_ask_for_themselves(store, tmp_path):
    expected = big(store, 2, 9 * MEBIBYTE)

    def little_is_enough():
        vars(planning)["SMALL_NBYTES"] = 0

    words = [*BYTES, "-j", "2", "-o", "out", "s3://bucket/r0.bin", "s3://bucket/r1.bin"]
    done = run("reduce", *words, cwd=tmp_path, env=store.environment, setup=little_is_enough)
    assert done.status == 0, done.err
    assert ", 2 workers" in done.err
    assert (tmp_path / "out").read_bytes() == expected


def test_http_is_read_without_credentials(store, tmp_path):
    expected = big(store, 2, 5 * MEBIBYTE)
    store.put("with space.bin", b"\3")
    words = [*BYTES, "-o", "out"]
    done = reduce(*words, f"{store.url}/bucket/r{{0..1}}.bin", cwd=tmp_path, env=store.environment)
    assert (done.status, done.err) == (0, "")
    assert (tmp_path / "out").read_bytes() == expected
    assert not any(each["authorization"] for each in store.log())
    spaced = reduce(*words[:-1], "-", f"{store.url}/bucket/with%20space.bin", cwd=tmp_path, env=store.environment)
    assert (spaced.status, spaced.out) == (0, b"\3")


def test_queries_take_urls(store, ranks):
    store.put("a.npy", (ranks / "r0.npy").read_bytes())
    told = run("info", "s3://bucket/a.npy", cwd=ranks, env=store.environment)
    assert told.out.decode().startswith("s3://bucket/a.npy: npy, 8128 bytes\n")
    same = run("diff", "s3://bucket/a.npy", "r0.npy", cwd=ranks, env=store.environment)
    assert (same.status, run("diff", "s3://bucket/a.npy", "r1.npy", cwd=ranks, env=store.environment).status) == (0, 1)
    place = run("locate", "--op", "maxloc", "s3://bucket/a.npy", "r1.npy", cwd=ranks, env=store.environment)
    assert (place.status, b"r1.npy" in place.out) == (0, True)
    shown = run("show", "s3://bucket/a.npy", cwd=ranks, env=store.environment)
    assert (shown.status, b"999.1" in shown.out) == (0, True)
    packed = run("pack", "--type", "double", "-o", "-", "s3://bucket/run 7/r0.bin", cwd=ranks, env=store.environment)
    assert (packed.status, packed.out) == (0, RANKS[0].tobytes())


def test_python_takes_urls(store, ranks):
    program = (
        "import mpired, numpy as np\n"
        "urls = [f's3://bucket/run 7/r{rank}.npy' for rank in range(5)]\n"
        "mpired.reduce(urls, 'sum', output='s3://bucket/out.npy')\n"
        "print(mpired.reduce(['s3://bucket/out.npy'], 'sum')[999])\n"
    )
    environment = {**os.environ, **{name: value for name, value in store.environment.items() if value is not None}}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.stderr == ""
    assert (done.stderr, float(done.stdout)) == ("", float(sum(values[999] for values in RANKS)))


def test_an_object_is_an_origin_but_no_target(store, ranks):
    url = "s3://bucket/run 7/r1.npy"
    done = run("accumulate", "-q", "--op", "sum", "r0.npy", url, cwd=ranks, env=store.environment)
    assert (done.status, done.err) == (0, "")
    assert np.array_equal(np.load(ranks / "r0.npy"), RANKS[0] + RANKS[1])
    for words in (
        ["accumulate", "--op", "sum", url, "r0.npy"],
        ["get-accumulate", "--op", "sum", "r0.npy", "r1.npy", "--fetch", "s3://bucket/old.npy"],
        ["fetch-and-op", "--op", "sum", url, "1"],
        ["compare-and-swap", url, "0", "1"],
        ["unpack", "--type", "double", "--into", url, "r0.bin"],
        ["reduce", "--op", "sum", "--in-place", url, "r0.npy"],
        ["allreduce", "--op", "sum", "--in-place", "r0.npy", url],
    ):
        refused = run(*words, cwd=ranks, env=store.environment)
        assert refused.status == 2, words
        assert "is an object of a store, of which no part can be changed" in refused.err, words
        assert refused.err.count("\n") == 1


def test_commands_on_files_load_nothing_of_it(ranks):
    script = (
        "import sys; sys.argv = ['mpired', 'reduce', '-q', '--op', 'sum', '-o', 'out.npy', 'r0.npy', 'r1.npy']\n"
        "from mpired.cli import main; main(); print([name for name in sys.modules if 'obstore' in name"
        " or name in ('mpired.files.stores', 'mpired.files.upload', 'mpired.sources.remote')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ranks, check=True)
    assert done.stdout == "[]\n"


def test_a_source_is_sent_without_credentials(store, ranks):
    program = (
        "import pickle; from mpired.context import NO_LIMITS; from mpired.sources.open import open_source\n"
        "sent = pickle.dumps(open_source('s3://bucket/run 7/r0.npy', NO_LIMITS))\n"
        "assert b'secret' not in sent; print(len(sent))"
    )
    environment = {**os.environ, **{name: value for name, value in store.environment.items() if value is not None}}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert int(done.stdout) < 1000


def test_a_result_may_not_replace_what_is_read(store, ranks):
    url = "s3://bucket/run 7/r0.npy"
    done = reduce("--op", "sum", "-f", "-o", url, url, "r1.npy", cwd=ranks, env=store.environment)
    assert done.status == 2
    assert done.err.startswith(f"mpired: {url}: is the file of rank 0, an input of this command")


def test_every_scheme_says_what_it_can():
    assert {row.name for row in urls.SCHEMES.values() if row.takes} == {"s3", "gs", "az"}
    assert all(urls.is_url(f"{name}://a/b") for name in urls.SCHEMES)
    assert not any(map(urls.is_url, ["a/b", "./s3://a", "s3:/a/b", "file://a", "s3"]))


def of_google(store):
    """Return the environment in which `gs` leads to the server, which understands the requests for ranks too."""
    key = {
        "gcs_base_url": store.url,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key), "GOOGLE_ALLOW_HTTP": "true", "GOOGLE_SKIP_SIGNATURE": "true"}


def of_azure(store):
    """Return the environment in which `az` leads to the server."""
    names = {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ENDPOINT": store.url}
    return {**names, "AZURE_ALLOW_HTTP": "true", "AZURE_SKIP_SIGNATURE": "true"}


@pytest.mark.parametrize(("scheme", "surroundings"), [("gs", of_google), ("az", of_azure)])
def test_other_schemes_lead_to_their_stores(store, tmp_path, scheme, surroundings):
    expected = big(store, 2, 5 * MEBIBYTE)
    ranks = [f"{scheme}://bucket/r*.bin"] if scheme == "gs" else [f"{scheme}://bucket/r{{0..1}}.bin"]
    environment = {"no_proxy": "127.0.0.1", **surroundings(store)}
    store.log()
    done = reduce(*BYTES, "-o", "out", *ranks, cwd=tmp_path, env=environment)
    assert (done.status, done.err) == (0, "")
    assert (tmp_path / "out").read_bytes() == expected
    later = [each for each in store.log() if re.search("bytes=[1-9]", each["of"])]
    assert later
    assert all(each["if_match"] for each in later)
