"""Results that are objects of a store: whole or not there at all, and an error of one line says which."""

import os
import re
import signal

import numpy as np
import pytest
from command import reduce, run, wait_until
from object_store import BYTES, MEBIBYTE
from running import running

from mpired.files import stores, upload

OLD = b"the old result"


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(5.0))
    (tmp_path / "big.bin").write_bytes(os.urandom(20 * MEBIBYTE))
    return tmp_path


def in_parts():
    """Let results be put in parts that are few bytes for a store."""
    stores.RETRYING["max_retries"] = 1
    vars(upload).update(_SINGLE_NBYTES=MEBIBYTE)


def less_patient():
    stores.RETRYING["max_retries"] = 1


SMALL = ("--op", "sum", "a.npy")
BIG = (*BYTES, "big.bin")
HOW = pytest.mark.parametrize(("words", "setup"), [(SMALL, less_patient), (BIG, in_parts)], ids=["single", "parts"])


def content(folder, words):
    return (folder / words[-1]).read_bytes()


@HOW
def test_a_result_is_put_whole(store, folder, words, setup):
    done = run("reduce", *words, "-o", "s3://bucket/out", "--to", "raw", cwd=folder, env=store.environment, setup=setup)
    assert done.status == 0
    assert done.err.endswith(" -> s3://bucket/out (raw)\n")
    assert store.get("out") == (content(folder, words) if words is BIG else np.arange(5.0).tobytes())
    assert store.tell("uploads") == b"0"
    assert sorted(os.listdir(folder)) == ["a.npy", "big.bin"]


@HOW
def test_an_existing_object_is_replaced_only_by_force(store, folder, words, setup):
    store.put("out.bin", OLD)
    store.log()
    words = [*words, "--to", "raw", "-o", "s3://bucket/out.bin"]
    refused = reduce(*words, cwd=folder, env=store.environment, setup=setup)
    assert refused.status == 2
    assert refused.err == "mpired: s3://bucket/out.bin: already exists; --force replaces it\n"
    assert {each.split()[0] for each in store.asked()} == {"HEAD"}
    assert store.get("out.bin") == OLD
    assert reduce(*words, "-f", cwd=folder, env=store.environment, setup=setup).status == 0
    assert store.get("out.bin") not in {OLD, None}


def test_an_object_that_appears_meanwhile_is_not_replaced(store, folder):
    words = [*SMALL, "-o", "s3://bucket/out.npy"]
    store.faults({"method": "PUT", "fresh": 7})
    done = reduce(*words, cwd=folder, env=store.environment)
    assert done.status == 2
    assert done.err == "mpired: s3://bucket/out.npy: was created by another process; --force replaces it\n"
    assert len(store.get("out.npy")) == 7
    assert [each["if_none_match"] for each in store.log() if each["method"] == "PUT"] == ["*"]


def test_a_repeated_request_that_finds_its_own_object_has_made_it(store, folder):
    store.faults({"method": "PUT", "late": 503})
    done = reduce(*SMALL, "-o", "s3://bucket/out.npy", cwd=folder, env=store.environment)
    assert (done.status, done.err) == (0, "")
    assert store.get("out.npy") == content(folder, SMALL)


@HOW
@pytest.mark.parametrize("old", [None, OLD])
def test_an_upload_that_fails_leaves_nothing(store, folder, words, setup, old):
    for status, reason in [
        (503, "the store answers 503 Service Unavailable, after 1 repetitions"),
        (403, "access is denied; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (400, "the store answers 400 Bad Request"),
    ]:
        if old is not None:
            store.put("out.bin", old)
        store.faults({"method": "PUT", "times": 99, "of": "partNumber=2" if words is BIG else "", "status": status})
        result = [*(["-f"] if old else []), "--to", "raw", "-o", "s3://bucket/out.bin"]
        done = reduce(*words, *result, cwd=folder, env=store.environment, setup=setup)
        assert done.status == 4
        assert done.err.startswith(f"mpired: s3://bucket/out.bin: {reason}")
        assert done.err.count("\n") == 1
        assert store.get("out.bin") == old
        assert store.tell("uploads") == b"0"


def test_a_last_request_that_fails_leaves_nothing(store, folder):
    store.faults({"method": "POST", "of": "uploadId", "status": 500, "times": 99})
    done = reduce(*BIG, "-o", "s3://bucket/out.bin", cwd=folder, env=store.environment, setup=in_parts)
    assert (done.status, store.get("out.bin"), store.tell("uploads")) == (4, None, b"0")


def test_what_may_be_there_is_not_confirmed(store, folder):
    # The object is made, and neither that nor what is there can be learnt.
    store.faults({"method": "PUT", "late": 400}, {"method": "HEAD", "after": 1, "status": 503, "times": 99})
    done = reduce(*SMALL, "-f", "-o", "s3://bucket/out.npy", cwd=folder, env=store.environment, setup=less_patient)
    assert done.status == 6
    assert done.err.endswith("and then it could not be looked at; look whether the object is there\n")


def test_what_is_there_after_a_failed_answer_is_the_result(store, folder):
    store.faults({"method": "PUT", "late": 400})
    done = reduce(*SMALL, "-f", "-o", "s3://bucket/out.npy", cwd=folder, env=store.environment)
    assert (done.status, store.get("out.npy")) == (0, content(folder, SMALL))


def test_another_object_after_a_failed_answer_is_not_confirmed(store, folder):
    store.faults({"method": "PUT", "status": 400, "fresh": 9})
    done = reduce(*SMALL, "-f", "-o", "s3://bucket/out.npy", cwd=folder, env=store.environment)
    assert done.status == 6
    assert done.err.endswith("and then it was another object; look whether it is the result\n")


@pytest.fixture
def surroundings(store, monkeypatch):
    """The environment of this process leads to the server."""
    for name, value in store.environment.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)


def ended(store, folder, nbytes, fault, how):
    """Send a signal to a command when it has made a request, and return its status."""
    os.truncate(folder / "big.bin", nbytes)
    store.faults(fault)
    with running("reduce", "-f", "-o", "s3://bucket/out.bin", *BIG, cwd=folder) as command:
        puts = re.compile(f"PUT .*{fault['of']}")
        wait_until(lambda: any(puts.match(f"{each['method']} {each['of']}") for each in store.log(kept=True)))
        os.kill(command.pid, how)
        return command.end()[0]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("old", [None, OLD])
@pytest.mark.usefixtures("surroundings")
def test_an_upload_in_parts_that_is_ended_leaves_nothing(store, folder, how, old):
    if old is not None:
        store.put("out.bin", old)
    status = ended(store, folder, 66 * MEBIBYTE, {"method": "PUT", "of": "partNumber=2", "slow": 1}, how)
    assert status == -how
    assert store.get("out.bin") == old
    if how is not signal.SIGKILL:  # else the parts are there until the bucket's rules remove them
        assert store.tell("uploads") == b"0"


@pytest.mark.usefixtures("surroundings")
def test_an_interruption_of_the_only_request_comes_too_late(store, folder):
    status = ended(store, folder, MEBIBYTE, {"method": "PUT", "of": "out.bin", "slow": 1}, signal.SIGINT)
    assert (status, len(store.get("out.bin"))) == (0, MEBIBYTE)


@pytest.mark.usefixtures("surroundings")
def test_an_interrupted_request_that_fails_then_leaves_nothing(store, folder):
    fault = {"method": "PUT", "of": "out.bin", "slow": 1, "status": 400}
    assert (ended(store, folder, MEBIBYTE, fault, signal.SIGINT), store.get("out.bin")) == (-signal.SIGINT, None)


@pytest.mark.usefixtures("surroundings")
def test_an_upload_by_one_request_that_is_killed_leaves_nothing(store, folder):
    status = ended(store, folder, 60 * MEBIBYTE, {"method": "PUT", "of": "out.bin", "slow": 1}, signal.SIGKILL)
    assert status == -signal.SIGKILL
    wait_until(lambda: store.tell("busy") == b"0")
    assert store.get("out.bin") is None


def test_what_is_compressed_is_put_so(store, folder):
    words = [*SMALL, "-o", "s3://bucket/out.npy.gz", "--level", "1"]
    assert reduce(*words, cwd=folder, env=store.environment).status == 0
    assert store.get("out.npy.gz")[:2] == b"\x1f\x8b"
    assert reduce(*SMALL[:2], "s3://bucket/out.npy.gz", "-o", "out.npy", cwd=folder, env=store.environment).status == 0
    assert content(folder, SMALL) == (folder / "out.npy").read_bytes()


def test_an_empty_result_is_an_empty_object(store, folder):
    (folder / "empty.bin").touch()
    words = ["--op", "sum", "--type", "int", "empty.bin", "-o", "s3://bucket/out.bin"]
    assert reduce(*words, cwd=folder, env=store.environment).status == 0
    assert store.get("out.bin") == b""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["scan", "-o", "s3://bucket/{rank}.npy"], "is the place of the results of scan, and a store takes objects"),
        (["exscan", "-o", "s3://bucket/{rank}.npy"], "is the place of the results of exscan"),
        (["allreduce", "-o", "s3://bucket/{rank}.npy"], "is the place of the results of allreduce"),
        (["reduce-scatter-block", "-o", "s3://bucket/{rank}.npy"], "is the place of the results of"),
        (["reduce", "-o", "o.npy", "--count-valid", "s3://bucket/n.npy", "--nan", "ignore"], "is one of two results"),
        (["reduce", "-o", "s3://bucket/o.npy", "--provenance"], "is recorded beside s3://bucket/o.npy"),
        (["reduce", "-o", "https://host/out.npy"], "is of a server that may show a part of a result"),
        (["reduce", "-o", "hdfs://host/out.npy"], "is a URL of the scheme hdfs"),
        (["reduce", "-o", "s3://bucket/"], "names no object; write s3://bucket/NAME"),
        (["reduce", "-o", "s3://bucket/out.npz.zarr"], "would be a directory by its suffix"),
    ],
)
def test_results_that_cannot_be_put(store, folder, words, reason):
    store.log()
    done = run(*words, "--op", "sum", "a.npy", cwd=folder, env=store.environment)
    assert done.status == 2
    assert reason in done.err
    assert done.err.count("\n") == 1
    assert store.asked() == []


def test_a_bucket_that_is_not_there(store, folder):
    done = reduce(*SMALL, "-o", "s3://elsewhere/out.npy", cwd=folder, env=store.environment)
    assert done.status == 4
    assert re.fullmatch(r"mpired: s3://elsewhere/out.npy: there is no such bucket\n", done.err)


def test_a_rehearsal_looks_and_puts_nothing(store, folder):
    words = ["reduce", *SMALL, "-o", "s3://bucket/out.npy", "--dry-run"]
    done = run(*words, cwd=folder, env=store.environment)
    assert (done.status, b"s3://bucket/out.npy" in done.out) == (0, True)
    assert {each.split()[0] for each in store.asked()} == {"HEAD"}
    store.put("out.npy", OLD)
    assert run(*words, cwd=folder, env=store.environment).status == 2


def test_the_record_of_a_result_names_its_objects(store, folder):
    store.put("a.npy", content(folder, SMALL))
    words = ["--op", "sum", "--provenance", "s3://bucket/a.npy", "-o", "s3://bucket/out.parquet"]
    assert reduce(*words, cwd=folder, env=store.environment).status == 0
    told = run("info", "--json", "s3://bucket/out.parquet", cwd=folder, env=store.environment)
    assert b'"file": "s3://bucket/a.npy"' in told.out
