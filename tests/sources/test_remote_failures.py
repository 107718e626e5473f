"""Ranks that are objects of a store, where something goes wrong: right bytes all the same, or one error of a line."""

import os
import re
import signal
import sys

import pytest
from command import PIP, reduce, run, wait_until
from object_store import BYTES, MEBIBYTE, big
from running import running

from mpired.files import stores


def less_patient():
    stores.RETRYING["max_retries"] = 2


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503, "times": 3},
        {"cut": 1000, "times": 2},
        {"stall": 70_000, "seconds": 20, "times": 1},
        {"slow": 3, "times": 1},
    ],
)
def test_right_bytes_whatever_happens_on_the_way(store, tmp_path, fault):
    expected = big(store, 3, 9 * MEBIBYTE)
    store.faults({"method": "GET", "after": 4, **fault})
    environment = {**store.environment, "AWS_TIMEOUT": "2s"}
    done = reduce(*BYTES, "-o", "out", "s3://bucket/r{0..2}.bin", cwd=tmp_path, env=environment)
    assert (done.status, done.err) == (0, "")
    assert (tmp_path / "out").read_bytes() == expected


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"status": 503}, "the store answers 503 Service Unavailable, after 2 repetitions"),
        ({"status": 403}, "access is denied; set AWS_ACCESS_KEY_ID"),
        ({"status": 400}, "the store answers 400 Bad Request"),
        ({"cut": 100}, "the store ends its answers in the middle"),
    ],
)
def test_or_one_error(store, tmp_path, fault, reason):
    big(store, 2, 5 * MEBIBYTE)
    store.faults({"method": "GET", "of": "bytes=41[0-9]{5}-", "times": 999, **fault})
    words = [*BYTES, "-o", "out", "s3://bucket/r{0..1}.bin"]
    done = reduce(*words, cwd=tmp_path, env=store.environment, setup=less_patient)
    assert done.status == 4
    assert re.fullmatch(r"mpired: s3://bucket/r[01]\.bin: .*\n", done.err)
    assert reason in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("times", [1, 999])
def test_an_object_that_is_replaced_meanwhile_is_an_error(store, tmp_path, times):
    """Nor is everything read again: a store is paid for that."""
    big(store, 2, 5 * MEBIBYTE)
    store.log()
    store.faults({"method": "GET", "of": "r1.bin.*bytes=4194304", "fresh": 5 * MEBIBYTE, "times": times})
    done = reduce(*BYTES, "-o", "out", "s3://bucket/r{0..1}.bin", cwd=tmp_path, env=store.environment)
    assert done.status == 3
    assert done.err == (
        "mpired: s3://bucket/r1.bin: was replaced while being read; run again when its writer has finished\n"
    )
    assert len([each for each in store.asked() if "bytes=0-65535" in each]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "status", "message"),
    [
        ("s3://bucket/none.npy", 4, "s3://bucket/none.npy: there is no such object"),
        ("s3://elsewhere/a.npy", 4, "s3://elsewhere/a.npy: there is no such bucket"),
        ("s3://elsewhere/a*", 4, "s3://elsewhere/a*: there is no such bucket"),
        ("s3://bucket/none*", 4, "s3://bucket/none*: no object matches"),
        ("s3://bucket", 2, "s3://bucket: names no object; write s3://bucket/NAME"),
        ("s3://bucket/a//b", 2, "s3://bucket/a//b: has a name with an empty part, `.`, `..` or"),
        ("hdfs://host/a.npy", 2, "hdfs://host/a.npy: is a URL of the scheme hdfs, and those of s3, gs, az, https"),
        ("https://host/*.npy", 2, "https://host/*.npy: is a glob, and a server of https does not list its files"),
        ("https://host/a.npy#secret?", 2, "https://host/a.npy?...: has a part behind `#`"),
        ("https://host/a.npy?secret#secret", 2, "https://host/a.npy: has a part behind `#`"),
    ],
)
def test_what_cannot_be_a_rank(store, tmp_path, word, status, message):
    done = reduce("--op", "sum", "-o", "out", word, cwd=tmp_path, env=store.environment)
    assert done.status == status
    assert done.err.startswith(f"mpired: {message}")
    assert "secret" not in done.err
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_all_bad_ranks_are_told_and_can_be_left_out(store, tmp_path):
    store.put("good.bin", b"\5")
    words = [*BYTES, "s3://bucket/bad1", "s3://bucket/good.bin", "s3://bucket/bad2", "-o", "-"]
    refused = reduce(*words, cwd=tmp_path, env=store.environment)
    assert (refused.status, refused.err) == (
        4,
        "mpired: 2 of 3 ranks: there is no such object: s3://bucket/bad1, s3://bucket/bad2\n",
    )
    skipped = run("reduce", *words, "--skip-bad", cwd=tmp_path, env=store.environment)
    assert (skipped.status, skipped.out) == (9, b"\5")


def test_a_server_that_gives_no_bytes_for_nothing(store, tmp_path):
    environment = {**store.environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    done = reduce(*BYTES, "s3://bucket/x", cwd=tmp_path, env=environment, setup=less_patient)
    assert done.status == 4
    assert done.err.startswith("mpired: s3://bucket/x: the store cannot be reached (Connection refused)")


def test_without_obstore_the_extra_is_named(tmp_path):
    def hide():
        sys.modules["obstore"] = None

    for words in (["s3://bucket/x"], ["/dev/null", "--type", "int", "--count", "0", "-o", "s3://bucket/x"]):
        done = reduce("--op", "sum", *words, cwd=tmp_path, setup=hide)
        way_out = f"install it with `{PIP} install 'mpired[remote]'`"
        assert (done.status, done.err) == (2, f"mpired: s3://bucket/x: needs the library obstore; {way_out}\n")


def test_the_credentials_of_a_profile(store, tmp_path):
    pytest.importorskip("boto3")
    store.put("r.bin", b"\6")
    (tmp_path / "credentials").write_text("[mine]\naws_access_key_id = OFPROFILE\naws_secret_access_key = secret\n")
    environment = {
        **store.environment,
        "AWS_ACCESS_KEY_ID": None,
        "AWS_SECRET_ACCESS_KEY": None,
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_PROFILE": "mine",
    }
    words = [*BYTES, "-o", "-", "s3://bucket/r.bin"]
    done = reduce(*words, cwd=tmp_path, env=environment)
    assert (done.status, done.err, done.out) == (0, "", b"\6")
    assert "Credential=OFPROFILE/" in store.log()[-1]["authorization"]
    unknown = reduce(*words, cwd=tmp_path, env={**environment, "AWS_PROFILE": "other"})
    assert unknown.status == 2
    assert unknown.err.startswith("mpired: AWS_PROFILE: gives no credentials (The config profile (other) could not")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_does_not_wait_for_an_answer(store, tmp_path, how, monkeypatch):
    big(store, 2, 5 * MEBIBYTE)
    for name, value in store.environment.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    store.faults({"method": "GET", "of": "bytes=0-4194303", "stall": 100, "seconds": 25, "times": 9})
    with running("reduce", *BYTES, "-o", "out", "s3://bucket/r{0..1}.bin", cwd=tmp_path) as command:
        wait_until(lambda: any("4194303" in each["of"] for each in store.log(kept=True)))
        os.kill(command.pid, how)
        status, out, _ = command.end()
    assert (status, out) == (-how, b"")
    assert list(tmp_path.iterdir()) == []


def test_an_account_that_is_not_named(tmp_path):
    unset = dict.fromkeys(name for name in os.environ if name.startswith("AZURE_"))
    done = reduce(*BYTES, "az://container/x", cwd=tmp_path, env=unset)
    assert done.status == 4
    assert done.err.startswith("mpired: az://container/x: there are no credentials; set AZURE_STORAGE_ACCOUNT_NAME")
