"""Results that are objects of a store: whole or not there at all, and an error of one line says which."""

import os
import re
import signal

import numpy as np
import pytest
from command import reduce, run, wait_until
from object_store import BYTES, MEBIBYTE
from rows import check_refusals
from running import running

from mpired.files import stores

OLD = b"the old result"
SMALL = ("--op", "sum", "a.npy")
BIG = (*BYTES, "big.bin")

LARGE = np.random.default_rng(1).bytes(20 * MEBIBYTE)


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(5.0))
    (tmp_path / "big.bin").write_bytes(LARGE)
    return tmp_path


def in_parts():
    """Let results be put in parts that are few bytes for a store."""
    stores.RETRYING["max_retries"] = 1
    vars(stores).update(SINGLE_NBYTES=MEBIBYTE)


def less_patient():
    stores.RETRYING["max_retries"] = 1


HOW = pytest.mark.parametrize(("words", "setup"), [(SMALL, less_patient), (BIG, in_parts)], ids=["single", "parts"])


def content(folder, words):
    return (folder / words[-1]).read_bytes()


def put(store, folder, *words, setup=less_patient):
    """Reduce to an object of the store."""
    return reduce(*words, cwd=folder, env=store.environment, setup=setup)


@HOW
def test_a_result_is_put_whole_and_replaces_an_object_only_by_force(store, folder, words, setup):
    result = ("-o", "s3://bucket/out", "--to", "raw")
    done = run("reduce", *words, *result, cwd=folder, env=store.environment, setup=setup)
    assert done.status == 0
    assert done.err.endswith(" -> s3://bucket/out (raw)\n")
    expected = content(folder, words) if words is BIG else np.arange(5.0).tobytes()
    assert (store.get("out"), store.tell("uploads")) == (expected, b"0")
    assert sorted(os.listdir(folder)) == ["a.npy", "big.bin"]
    store.put("out", OLD)
    store.log()
    refused = put(store, folder, *words, *result, setup=setup)
    assert (refused.status, refused.err) == (2, "mpired: s3://bucket/out: already exists; --force replaces it\n")
    assert {each.split()[0] for each in store.asked()} == {"HEAD"}
    assert store.get("out") == OLD
    assert put(store, folder, *words, *result, "-f", setup=setup).status == 0
    assert store.get("out") == expected


def test_an_object_that_appears_meanwhile_is_not_replaced(store, folder):
    store.faults({"method": "PUT", "fresh": 7})
    done = put(store, folder, *SMALL, "-o", "s3://bucket/out.npy", setup=None)
    assert done.status == 2
    assert done.err == "mpired: s3://bucket/out.npy: was created by another process; --force replaces it\n"
    assert len(store.get("out.npy")) == 7
    assert [each["if_none_match"] for each in store.log() if each["method"] == "PUT"] == ["*"]


@HOW
def test_an_upload_that_fails_leaves_nothing(store, folder, words, setup):
    for status, reason, old in [
        (503, "the store answers 503 Service Unavailable, after 1 repetitions", None),
        (403, "access is denied; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", OLD),
        (400, "the store answers 400 Bad Request", OLD),
    ]:
        if old is not None:
            store.put("out.bin", old)
        store.faults({"method": "PUT", "times": 99, "of": "partNumber=2" if words is BIG else "", "status": status})
        result = [*(["-f"] if old else []), "--to", "raw", "-o", "s3://bucket/out.bin"]
        done = put(store, folder, *words, *result, setup=setup)
        assert done.status == 4
        assert done.err.startswith(f"mpired: s3://bucket/out.bin: {reason}")
        assert done.err.count("\n") == 1
        assert (store.get("out.bin"), store.tell("uploads")) == (old, b"0")


def test_the_status_after_a_failed_answer_is_about_the_object(store, folder):
    words = (*SMALL, "-f", "-o", "s3://bucket/out.npy")
    # A repetition of the request finds the object that the first one has made.
    store.faults({"method": "PUT", "late": 503})
    assert put(store, folder, *SMALL, "-o", "s3://bucket/out.npy", setup=None)[::2] == (0, "")
    assert store.get("out.npy") == content(folder, SMALL)
    store.put("out.npy", OLD)
    store.faults({"method": "PUT", "late": 400})
    assert put(store, folder, *words).status == 0
    assert store.get("out.npy") == content(folder, SMALL)
    store.faults({"method": "PUT", "status": 400, "fresh": 9})
    done = put(store, folder, *words)
    assert done.status == 6
    assert done.err.endswith("and then it was another object; look whether it is the result\n")
    # The object is made, and neither that nor what is there can be learnt.
    store.faults({"method": "PUT", "late": 400}, {"method": "HEAD", "after": 1, "status": 503, "times": 99})
    done = put(store, folder, *words)
    assert done.status == 6
    assert done.err.endswith("and then it could not be looked at; look whether the object is there\n")


@pytest.fixture
def surroundings(store, monkeypatch):
    """The environment of this process leads to the server."""
    for name, value in store.environment.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)


def ended(store, folder, nbytes, fault, how):
    """Send a signal to a command when it has made a request, and return its status and the object."""
    os.truncate(folder / "big.bin", nbytes)
    store.log()
    store.faults({"method": "PUT", "slow": 1, **fault})
    with running("reduce", "-f", "-o", "s3://bucket/out.bin", *BIG, cwd=folder) as command:
        puts = re.compile(f"PUT .*{fault['of']}")
        wait_until(lambda: any(puts.match(f"{each['method']} {each['of']}") for each in store.log(kept=True)))
        os.kill(command.pid, how)
        status = command.end()[0]
    wait_until(lambda: store.tell("busy") == b"0")
    return status, store.get("out.bin")


@pytest.mark.usefixtures("surroundings")
def test_an_upload_in_parts_that_is_ended_leaves_nothing(store, folder):
    store.put("out.bin", OLD)
    assert ended(store, folder, 66 * MEBIBYTE, {"of": "partNumber=2"}, signal.SIGTERM) == (-signal.SIGTERM, OLD)
    assert store.tell("uploads") == b"0"


@pytest.mark.usefixtures("surroundings")
def test_the_only_request_of_an_upload_that_is_ended(store, folder):
    """An interruption comes too late, unless the request fails; a kill leaves nothing."""
    request = {"of": "out.bin"}
    assert ended(store, folder, 60 * MEBIBYTE, request, signal.SIGKILL) == (-signal.SIGKILL, None)
    assert ended(store, folder, MEBIBYTE, {**request, "status": 400}, signal.SIGINT) == (-signal.SIGINT, None)
    status, found = ended(store, folder, MEBIBYTE, request, signal.SIGINT)
    assert (status, len(found)) == (0, MEBIBYTE)


REFUSED = [
    ("scan -o s3://bucket/{rank}.npy", "is for one of several results, and a store takes objects"),
    ("reduce -o o.npy --count-valid s3://bucket/n.npy --nan ignore", "is for one of several results"),
    ("reduce -o s3://bucket/o.npy --provenance", "is recorded in the file of a result, or in one beside it"),
    ("reduce -o https://host/out.npy", "is of a server that may show a part of a result"),
    ("reduce -o s3://bucket/", "names no object; write s3://bucket/NAME"),
    ("reduce -o s3://bucket/out.npz.zarr", "would be a directory by its suffix"),
]


def test_results_that_cannot_be_put(store, folder):
    store.log()
    cases = [(f"{words} --op sum a.npy", 2, reason) for words, reason in REFUSED]
    check_refusals(folder, cases, env=store.environment)
    assert store.asked() == []
    done = put(store, folder, *SMALL, "-o", "s3://elsewhere/out.npy")
    assert (done.status, done.err) == (4, "mpired: s3://elsewhere/out.npy: there is no such bucket\n")


def test_a_rehearsal_looks_and_puts_nothing(store, folder):
    words = ["reduce", *SMALL, "-o", "s3://bucket/out.npy", "--dry-run"]
    done = run(*words, cwd=folder, env=store.environment)
    assert (done.status, b"s3://bucket/out.npy" in done.out) == (0, True)
    assert {each.split()[0] for each in store.asked()} == {"HEAD"}
    store.put("out.npy", OLD)
    assert run(*words, cwd=folder, env=store.environment).status == 2
