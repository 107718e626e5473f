"""URLs of any form: a rank, or a line that says why not; with a query, as presigned ones, which is shown to nobody."""

import numpy as np
import xarray as xr
from command import refused, run
from object_store import BYTES, CLOSED
from rows import together
from setups import repeating

SECRET = "se%2Fcret+x='y"
RANKS = [np.arange(1000.0) * 3**rank + 0.1 for rank in range(3)]
ONLY_GET = {"method": "HEAD", "status": 403, "times": 9999}
ONLY_SIGNED = {"of": r"^/bucket/(?!.*sig=se%2Fcret)", "status": 403, "times": 9999}
QUERY = f"?a={{0..1}}*&sig={SECRET}"


SHOWN = [
    ("reduce --verbose --provenance --op sum -o out.npy URL", 0),
    ("reduce --json --provenance --op sum -o out.nc URL", 0),
    ("reduce --dry-run --json --op sum -o out.npy URL URL", 0),
    ("reduce --verbose --op sum -o URL r1.npy", 2),
    ("reduce --json --op URL -o out.npy r1.npy", 7),
    ("info --json URL", 0),
    ("diff r2.npy URL", 1),
    ("reduce --json --op sum --skip-bad BAD URL", 9),
    ("accumulate --op sum URL r1.npy", 2),
    ("info --none=URL", 2),
    ("info HTTPS://host/?sig=SECRET", 4),
    ("reduce --json --op sum -o out.npy NONE", 4),
    ("reduce --op sum -o out.npy --expect-ranks 0-9 NONE r1.npy", 3),
]


def test_the_query_is_nowhere(remote):
    """Not in what is printed, in a record, in a history or in a name of a file, nor where Python calls."""
    for rank, values in enumerate(RANKS):
        np.save(remote.folder / f"r{rank}.npy", values)
        remote.store.put(f"run/r{rank}.npy", (remote.folder / f"r{rank}.npy").read_bytes())
    remote.store.faults(ONLY_GET, ONLY_SIGNED)  # the ranks are told to who has the signature
    remote.store.log()
    url = f"{remote.store.url}/bucket/run"
    given = {"URL": f"{url}/r1.npy{QUERY}", "BAD": f"{url}/r0.npy{QUERY}", "NONE": f"{url}/none.npy{QUERY}"}
    given["SECRET"] = SECRET
    before = set(remote.folder.iterdir())

    def check(*texts):
        new = set(remote.folder.iterdir()) - before
        told = [*texts, *(str(path.name).encode() + path.read_bytes() for path in new)]
        assert not any(each in text for each in (b"cret", b"sig=", b"x='y") for text in told)
        for path in new:
            path.unlink()

    with together(remote.folder) as case:
        for line, status in SHOWN:
            words = line.split()
            for name, value in given.items():
                words = [word.replace(name, value) for word in words]
            remote.store.faults(*([{"of": "r0.npy", "status": 403}] if "BAD" in line else [ONLY_GET, ONLY_SIGNED]))
            with case(line) as folder:
                folder.rmdir()
                done = remote.run(*words)
                assert done.status == status, done.err
                check(done.out, done.err.encode())
    remote.store.faults(ONLY_GET, ONLY_SIGNED)
    program = (
        "import mpired, sys, logging; sys.stderr = sys.stdout; logging.basicConfig(level=0); url = sys.argv[1]\n"
        "print(mpired.reduce([url], 'sum')[1])\n"
        "mpired.reduce([url], 'sum', output='out.nc', provenance=True)\n"
        "for bad in (url.replace('r1', 'none'), url.replace('sig', 'other')):\n"
        "    try: mpired.reduce([bad], 'sum')\n"
        "    except OSError as error: print(error, error.filename)\n"
        "for wrong in ({'output': url}, {'to': url}, {'type': url}, {'files_from': url}):\n"
        "    try: mpired.reduce([url], 'sum', **wrong)\n"
        "    except mpired.MpiredError as error: print(error)\n"
    )
    out = remote.python(program, given["URL"])
    assert f"{RANKS[1][1]}\n" in out
    assert xr.open_dataset(remote.folder / "out.nc").sizes
    check(out.encode())


REASONS = [
    ("http://HOST:99999/x", 2, "http://HOST:99999/x: is not a URL that can be asked for (invalid port number)"),
    ("http://[::1]:9/x", 4, "http://[::1]:9/x: the store fails ("),
    ("http://[::1]:9/x*", 2, "http://[::1]:9/x*: is a glob, and a server of http does not list its files"),
    ("http://[::1/x", 2, "has '[::1' in the place of a host or bucket"),
    ("s3://a b/x", 2, "has 'a b' in the place of a host or bucket"),
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
