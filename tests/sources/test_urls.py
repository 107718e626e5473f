"""URLs and keys of any form: a rank, or one line that says why not."""

from command import reduce, refused, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from object_store import BYTES, CLOSED
from rows import together
from setups import repeating

EXAMPLES = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


# What a URL is made of, and any characters between, those that have a meaning above all.
characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from(
    "\udcff@:/?#[]{}*%\\\n"
)
pieces = st.sampled_from(["bucket", "127.0.0.1", "[::1]", ":99999", "user:password@", "..", ".", "%2e", "%ff", "a.npy"])
texts = st.lists(pieces | characters, max_size=5).map("".join)
urls = st.tuples(st.sampled_from(["s3", "gs", "az", "https", "http", "@s3", "@http"]), texts, texts).map(
    lambda parts: "{}://{}/{}".format(*parts)
)


@EXAMPLES
@given(word=urls | texts.map("s3://{}".format))
def test_any_url_is_one_line(tmp_path, word):
    done = reduce("--op", "sum", "-o", "out", "--", word, cwd=tmp_path, env=CLOSED, setup=repeating(0))
    assert done.status in {2, 4}, done.err
    refused(done, done.status)
    assert list(tmp_path.iterdir()) == []


REASONS = [
    ("s3://", 2, "s3://: names no object; write s3://BUCKET/NAME"),
    ("@s3://", 2, "s3://: names no object; write s3://BUCKET/NAME"),
    ("http://HOST:99999/x", 2, "http://HOST:99999/x: is not a URL that can be asked for (invalid port number)"),
    ("http://[::1]:9/x", 4, "http://[::1]:9/x: the store fails ("),
    ("http://[::1]:9/x*", 2, "http://[::1]:9/x*: is a glob, and a server of http does not list its files"),
    ("http://[::1/x", 2, "has '[::1' in the place of a host or bucket"),
    ("s3://a b/x", 2, "has 'a b' in the place of a host or bucket"),
    ("http://%zz/x", 2, "has '%zz' in the place of a host or bucket"),
    ("https://host#a/x", 2, "has a part behind `#`"),
    ("https://host/%ff", 2, "is not a URL that can be asked for ('utf-8' codec"),
    ("s3://bucket/\udcff", 2, "is not a URL that can be asked for ('utf-8' codec"),
]


def test_what_is_said(tmp_path):
    with together(tmp_path) as case:
        for word, status, reason in REASONS:
            with case(repr(word)):
                refused(run("info", word, cwd=tmp_path, env=CLOSED, setup=repeating(0)), status, reason)


def test_a_key_that_cannot_be_asked_for(remote):
    remote.store.put("run/a/../b", b"\1")
    remote.store.put("run/c", b"\1")
    reason = "s3://bucket/run/**: has an object beside it whose name has an empty part, `.`, `..`"
    remote.refuses(2, reason, words=("reduce", *BYTES, "-o", "-", "s3://bucket/run/**"))
    assert remote.reduced(*BYTES, "-o", "-", "s3://bucket/run/c") == b"\1"
