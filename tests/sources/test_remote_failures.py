"""Ranks that are objects of a store, where something goes wrong: right bytes all the same, or one error of a line."""

import os
import re

import pytest
from command import PIP, refused, run
from object_store import BYTES, MEBIBYTE, big
from rows import together
from setups import repeating, without

TWO = "s3://bucket/r{0..1}.bin"


@pytest.mark.parametrize("fault", [{"status": 503, "times": 3}, {"cut": 1000, "times": 2}, {"slow": 3, "times": 1}])
def test_right_bytes_whatever_happens_on_the_way(remote, fault):
    expected = big(remote.store, 3, 9 * MEBIBYTE)
    remote.store.faults({"method": "GET", "after": 4, **fault})
    remote.reduced(*BYTES, "-o", "out", "s3://bucket/r{0..2}.bin", env={"AWS_TIMEOUT": "2s"})
    assert (remote.folder / "out").read_bytes() == expected


def test_or_one_error(remote):
    """An object that is replaced is not read again: a store is paid for that."""
    words = ("reduce", *BYTES, "-o", "out", TWO)
    with together(remote.folder) as case:
        for fault, reason in (
            ({"status": 503}, "the store answers 503 Service Unavailable, after 2 repetitions"),
            ({"status": 403}, "access is denied; set AWS_ACCESS_KEY_ID"),
            ({"status": 400}, "the store answers 400 Bad Request"),
            ({"cut": 100}, "the store fails (Generic S3 error: HTTP error: request or response body error)"),
        ):
            with case(fault):
                big(remote.store, 2, 5 * MEBIBYTE)
                remote.store.faults({"method": "GET", "of": "bytes=41[0-9]{5}-", "times": 999, **fault})
                done = remote.run(*words, setup=repeating(2))
                refused(done, 4, reason)
                assert re.fullmatch(r"mpired: s3://bucket/r[01]\.bin: .*\n", done.err)
                assert not (remote.folder / "out").exists()
        for times in (1, 999):
            with case("replaced", times):
                big(remote.store, 2, 5 * MEBIBYTE)
                remote.store.log()
                fault = {"of": "r1.bin.*bytes=4194304", "fresh": 5 * MEBIBYTE, "times": times}
                remote.store.faults({"method": "GET", **fault})
                reason = "s3://bucket/r1.bin: changed while being read; run again when its writer has finished"
                remote.refuses(3, reason, words=words)
                assert len([each for each in remote.store.asked() if "bytes=0-65535" in each]) == 2


NO_RANKS = [
    ("s3://bucket/none.npy", 4, "s3://bucket/none.npy: there is no such object"),
    ("s3://elsewhere/a.npy", 4, "s3://elsewhere/a.npy: there is no such bucket"),
    ("s3://elsewhere/a*", 4, "s3://elsewhere/a*: there is no such bucket"),
    ("s3://bucket/none*", 4, "s3://bucket/none*: no object matches"),
    ("s3://bucket", 2, "s3://bucket: names no object; write s3://bucket/NAME"),
    ("s3://bucket/a//b", 2, "s3://bucket/a//b: has a name with an empty part, `.`, `..` or"),
    ("hdfs://host/a.npy", 4, "hdfs://host/a.npy: No such file"),
    ("https://host/*.npy", 2, "https://host/*.npy: is a glob, and a server of https does not list its files"),
    ("https://host/a.npy#secret?", 2, "https://host/a.npy?...: has a part behind `#`"),
    ("https://host/a.npy?secret#secret", 2, "https://host/a.npy: has a part behind `#`"),
]


def test_what_cannot_be_a_rank(remote):
    with together(remote.folder) as case:
        for word, status, message in NO_RANKS:
            with case(word):
                done = remote.reduce("--op", "sum", "-o", "out", word)
                refused(done, status)
                assert done.err.startswith(f"mpired: {message}")
                assert "secret" not in done.err
        with case("no server"):
            environment = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
            reason = "s3://bucket/x: the store fails (Generic S3 error: Error performing "
            words = ("reduce", *BYTES, "s3://bucket/x")
            remote.refuses(4, reason, words=words, env=environment, setup=repeating(2))
        with case("no account"):
            unset = dict.fromkeys(name for name in os.environ if name.startswith("AZURE_"))
            reason = "az://container/x: there are no credentials; set AZURE_STORAGE_ACCOUNT_NAME"
            remote.refuses(4, reason, words=("reduce", *BYTES, "az://container/x"), env=unset)


def test_without_obstore_the_extra_is_named(tmp_path):
    for words in (["s3://bucket/x"], ["/dev/null", "--type", "int", "--count", "0", "-o", "s3://bucket/x"]):
        done = run("reduce", "--op", "sum", *words, cwd=tmp_path, setup=without("obstore"))
        hint = f"install it with `{PIP} install 'mpired[remote]'`"
        refused(done, 2, f"mpired: s3://bucket/x: needs the library obstore; {hint}\n")


def test_the_credentials_of_a_profile(remote):
    pytest.importorskip("boto3")
    remote.store.put("r.bin", b"\6")
    path = remote.folder / "credentials"
    path.write_text("[mine]\naws_access_key_id = OFPROFILE\naws_secret_access_key = secret\n")
    environment = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "AWS_SHARED_CREDENTIALS_FILE": str(path)}
    words = ("reduce", "-q", *BYTES, "-o", "-", "s3://bucket/r.bin")
    assert remote.run(*words, env={**environment, "AWS_PROFILE": "mine"}) == (0, b"\6", "")
    assert "Credential=OFPROFILE/" in remote.store.log()[-1]["authorization"]
    reason = "mpired: AWS_PROFILE: gives no credentials (The config profile (other) could not"
    remote.refuses(2, reason, words=words, env={**environment, "AWS_PROFILE": "other"})
    done = remote.run(*words, env={**environment, "AWS_PROFILE": "mine"}, setup=without("boto3"))
    refused(done, 2, "mpired: AWS_PROFILE: names the profile 'mine', which needs boto3; `")
