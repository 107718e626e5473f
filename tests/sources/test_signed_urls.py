"""URLs with a query, as presigned ones: the query is asked with, and shown to nobody."""

import os
import pickle
import subprocess
import sys

import boto3
import numpy as np
import pytest
import xarray as xr
from command import reduce, refused, run, succeeded
from object_store import BYTES, MEBIBYTE, big

from mpired.collectives import plan as planning
from mpired.errors import BufferFileError, without_secrets
from mpired.files import stores
from mpired.files.urls import identity, place_of, signed

SECRET = "se%2Fcret+x='y"
RANKS = [np.arange(1000.0) * 3**rank + 0.1 for rank in range(3)]
ONLY_SIGNED = (
    {"method": "HEAD", "status": 403, "times": 9999},
    {"of": r"^/bucket/run/(?!.*sig=se%2Fcret)", "status": 403, "times": 9999},
)


@pytest.fixture
def ranks(store, tmp_path):
    """Put ranks that are told to who has the signature, and return the URL of their folder and the query."""
    for rank, values in enumerate(RANKS):
        np.save(tmp_path / f"r{rank}.npy", values)
        store.put(f"run/r{rank}.npy", (tmp_path / f"r{rank}.npy").read_bytes())
    store.faults(*ONLY_SIGNED)
    store.log()
    return f"{store.url}/bucket/run", f"?a={{0..1}}*&sig={SECRET}"


def test_ranks_lists_and_ranges(store, ranks, tmp_path):
    url, query = ranks
    (tmp_path / "list").write_text(f"{url}/r2.npy{query}\n")
    words = ["--op", "sum", "-o", "out.npy", f"{url}/r{{0..1}}.npy{query}", "@list"]
    done = reduce(*words, "--sort", "natural", "--expect-ranks", "0-2", cwd=tmp_path, env=store.environment)
    succeeded(done)
    assert np.array_equal(np.load(tmp_path / "out.npy"), RANKS[0] + RANKS[1] + RANKS[2])
    log = store.log()
    assert {each["method"] for each in log} == {"GET"}
    assert len(log) == 3
    store.put("run/list", f"{url}/r1.npy{query}\n".encode())
    for word in (f"@{url}/list{query}", f"--files-from={url}/list{query}"):
        listed = reduce("--op", "sum", "-f", "-o", "out.npy", word, cwd=tmp_path, env=store.environment)
        succeeded(listed)
        assert np.array_equal(np.load(tmp_path / "out.npy"), RANKS[1])


def test_in_workers_and_blocks(store, tmp_path):
    expected = big(store, 2, 9 * MEBIBYTE)
    store.faults(ONLY_SIGNED[0], {"of": r"^/bucket/(?!.*sig=se%2Fcret)", "status": 403, "times": 9999})

    def little_is_enough():
        vars(planning)["SMALL_NBYTES"] = 0

    words = [*BYTES, "-j", "2", "-o", "out", f"{store.url}/bucket/r{{0..1}}.bin?sig={SECRET}"]
    succeeded(run("reduce", "-q", *words, cwd=tmp_path, env=store.environment, setup=little_is_enough))
    assert (tmp_path / "out").read_bytes() == expected


def test_once_knows_an_object_by_its_url_without_the_signature(store, ranks, tmp_path):
    url, query = ranks
    store.put("run/same.npy", (tmp_path / "r0.npy").read_bytes())
    np.save(tmp_path / "t.npy", np.zeros(1000))
    for origins, told in (
        ([f"{url}/r0.npy{query}", f"{url}/same.npy{query}"], ""),
        ([f"{url}/r0.npy?new&sig={SECRET}"], f"mpired: {url}/r0.npy: already applied, left out\n"),
    ):
        words = ["accumulate", "-q", "--op", "sum", "--once", "t.npy", *origins]
        done = run(*words, cwd=tmp_path, env=store.environment)
        assert (done.status, done.err) == (0, told)
        assert np.array_equal(np.load(tmp_path / "t.npy"), 2 * RANKS[0])


def test_an_empty_object_is_an_empty_rank(store, ranks, tmp_path):
    url, query = ranks
    store.put("run/empty.bin", b"")
    done = reduce(*BYTES, "-o", "-", f"{url}/empty.bin{query}", cwd=tmp_path, env=store.environment)
    assert (done.status, done.err, done.out) == (0, "", b"")


def test_what_is_signed_by_another_program_is_read(store, ranks, tmp_path):
    client = boto3.client(
        "s3", "us-east-1", endpoint_url=store.url, aws_access_key_id="key", aws_secret_access_key="secret"
    )
    store.faults(ONLY_SIGNED[0])
    url = client.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "run/r1.npy"})
    assert "Signature=" in url
    succeeded(reduce("--op", "sum", "-o", "out.npy", url, cwd=tmp_path, env=store.environment))
    assert np.array_equal(np.load(tmp_path / "out.npy"), RANKS[1])


@pytest.mark.parametrize(
    ("name", "words", "status"),
    [
        ("r1.npy", ["reduce", "--verbose", "--provenance", "--op", "sum", "-o", "out.npy", "URL"], 0),
        ("r1.npy", ["reduce", "--json", "--provenance", "--op", "sum", "-o", "out.nc", "URL"], 0),
        ("r1.npy", ["reduce", "--op", "sum", "-o", "out.nc", "--files-from=URL"], 2),
        ("r1.npy", ["reduce", "--dry-run", "--json", "--op", "sum", "-o", "out.npy", "URL", "URL"], 0),
        ("r1.npy", ["reduce", "--verbose", "--op", "sum", "-o", "URL", "r1.npy"], 2),
        ("r1.npy", ["reduce", "--json", "--op", "URL", "-o", "out.npy", "r1.npy"], 7),
        ("r1.npy", ["info", "--json", "URL"], 0),
        ("r1.npy", ["show", "URL"], 0),
        ("r1.npy", ["diff", "r2.npy", "URL"], 1),
        ("r1.npy", ["locate", "--op", "maxloc", "r2.npy", "URL"], 0),
        ("r1.npy", ["reduce", "--json", "--op", "sum", "--skip-bad", "URLx", "URL"], 9),
        ("r1.npy", ["accumulate", "--op", "sum", "URL", "r1.npy"], 2),
        ("r1.npy", ["info", "--none=URL"], 2),
        ("r1.npy", ["info", "HTTPS://host/?sig=SECRET"], 4),
        ("r1.npy", ["info", "https://host/a#b?sig=SECRET"], 2),
        ("none.npy", ["reduce", "--json", "--op", "sum", "-o", "out.npy", "URL"], 4),
        ("none.npy", ["reduce", "--op", "sum", "-o", "out.npy", "--expect-ranks", "0-9", "URL", "r1.npy"], 3),
    ],
)
def test_the_query_is_nowhere(store, ranks, tmp_path, name, words, status):
    """Not in what is printed, in a record, in a history or in a name of a file."""
    url, query = ranks
    if "URLx" in words:
        store.faults({"of": "r0.npy", "status": 403})
    meant = {"URL": f"{url}/{name}{query}", "URLx": f"{url}/r0.npy{query}"}
    given = [meant.get(word) or word.replace("URL", meant["URL"]).replace("SECRET", SECRET) for word in words]
    done = run(*given, cwd=tmp_path, env=store.environment)
    assert done.status == status, done.err
    told = [done.out, done.err.encode(), *(path.read_bytes() for path in tmp_path.iterdir())]
    assert not any(each in text for each in (b"cret", b"sig=", b"x='y") for text in told)
    assert not any("sig=" in path.name for path in tmp_path.iterdir())


def test_nor_where_python_calls(store, ranks, tmp_path):
    url, query = ranks
    program = (
        "import mpired, sys, logging; logging.basicConfig(level=0); url = sys.argv[1]\n"
        "print(mpired.reduce([url], 'sum')[1])\n"
        "mpired.reduce([url], 'sum', output='out.nc', provenance=True)\n"
        "for bad in (url.replace('r1', 'none'), url.replace('sig', 'other')):\n"
        "    try: mpired.reduce([bad], 'sum')\n"
        "    except OSError as error: print(error, error.filename)\n"
        "for wrong in ({'output': url}, {'to': url}, {'type': url}, {'files_from': url}):\n"
        "    try: mpired.reduce([url], 'sum', **wrong)\n"
        "    except mpired.MpiredError as error: print(error)\n"
    )
    environment = {**os.environ, **{name: value for name, value in store.environment.items() if value is not None}}
    words = [sys.executable, "-c", program, f"{url}/r1.npy{query}"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    assert done.stdout.startswith(f"{RANKS[1][1]}\n")
    told = [done.stdout, done.stderr, *(path.read_bytes().decode("latin-1") for path in tmp_path.glob("out*"))]
    assert not any(each in text for each in ("cret", "sig=", "x='y") for text in told)
    assert xr.open_dataset(tmp_path / "out.nc").sizes


def test_a_signature_that_has_expired_is_one_line(store, ranks, tmp_path):
    url, _ = ranks
    done = run("info", f"{url}/r1.npy?sig=old", cwd=tmp_path, env=store.environment)
    way_out = "its signature is not valid, or not any more; ask for a new URL that is signed for GET"
    refused(done, 4, f"{url}/r1.npy: access is denied; {way_out}")


def test_one_that_is_replaced_meanwhile(store, tmp_path):
    big(store, 2, 5 * MEBIBYTE)
    store.faults({"of": "r1.bin.*bytes=4194304", "fresh": 5 * MEBIBYTE})
    words = [*BYTES, "-o", "out", f"{store.url}/bucket/r{{0..1}}.bin?sig={SECRET}"]
    done = reduce(*words, cwd=tmp_path, env=store.environment)
    refused(done, 3, f"{store.url}/bucket/r1.bin: was replaced while being read")
    assert "sig=" not in done.err


def test_two_queries_are_two_objects():
    """A query may choose a version, or be all that names the object."""
    one, other = (signed(f"https://host/get?version={number}") for number in (1, 2))
    assert ("".join(one), one == other, identity(one) == identity(other)) == ("https://host/get", False, False)
    again = pickle.loads(pickle.dumps(one))
    assert (again == one, place_of(again)) == (True, place_of(one))
    assert signed("s3://bucket/r?.npy") == "s3://bucket/r?.npy"


def test_errors_have_no_queries():
    error = BufferFileError("https://host/a?sig=x", "is not 'https://host/b?sig=y', or is it?")
    assert str(error) == "https://host/a?...: is not 'https://host/b?...', or is it?"
    assert without_secrets("s3://bucket/r?.npy: no") == "s3://bucket/r?.npy: no"


def test_a_host_of_a_cloud_is_a_web_server_too():
    for host in ("bucket.s3.us-east-1.amazonaws.com", "account.blob.core.windows.net"):
        assert type(vars(stores)["_store"](f"https://{host}")).__name__ == "HTTPStore"
