"""Arrays of HDF5 in other files: links, virtual datasets and external elements, which are read with leave only.

The library would open what is no regular file, and wait for a pipe; of a file that is not there it would read zeros.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import socket

import h5py
import numpy as np
import pytest
from command import refused, run, succeeded, unchanged
from rows import together

WORDS = ("reduce", "-q", "--op", "sum", "--follow-links", "--to", "text")
FOUR = np.arange(4.0)
ITSELF = "'a' cannot be read (it is a virtual dataset that is made of itself"


def summed(folder, *words):
    """Check that two ranks of the numbers 0 to 3 are added."""
    outcome = run(*WORDS, *words, cwd=folder)
    succeeded(outcome)
    assert outcome.out.split() == [b"0.0", b"2.0", b"4.0", b"6.0"]


def write(path, name="v", values=FOUR):
    with h5py.File(path, "w") as file:
        file[name] = values


def external(target, array="/v"):
    return lambda file, folder: file.__setitem__("a", h5py.ExternalLink(str(target).format(folder=folder), array))


def virtual(*sources):
    """Return what makes datasets, each of another one."""

    def make_all(file, _):
        for name, path, array in sources:
            layout = h5py.VirtualLayout((4,), "f8")
            layout[:] = h5py.VirtualSource(path, array, (4,))
            file.create_virtual_dataset(name, layout)

    return make_all


def by_another(file, folder):
    """Make a link whose way leads through links in another file, one of them soft."""
    with h5py.File(folder / "other.h5", "w") as other:
        other["group/inner"] = h5py.ExternalLink("there", "/")
        other["soft"] = h5py.SoftLink("/group")
    file["a"] = h5py.ExternalLink("other.h5", "soft/inner/v")


def stored(file, _):
    file.create_dataset("a", (4,), "f8", external=[("there", 0, 32)])


def pattern(path, names, array):
    """Make a file whose dataset `array` has as many blocks of four elements as there are files of the pattern."""
    source, unlimited = h5py.h5s.create_simple((4,)), h5py.h5s.UNLIMITED
    space, now = (h5py.h5s.create_simple((4,), (unlimited,)) for _ in range(2))
    space.select_hyperslab((0,), (unlimited,), (4,), (4,))
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_virtual(space, names.encode(), b"v", source)
    with h5py.File(path, "w") as file:
        file["x"] = FOUR
        h5py.h5d.create(file.id, array.encode(), h5py.h5t.IEEE_F64LE, now, made)


def listener(path):
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)  # a whole path may be too long for one


def link_to_pipe(path):
    os.mkfifo(path.with_name("real"))
    path.symlink_to("real")


WAYS = {
    "link": external("there"),
    "whole path": external("{folder}/there"),
    "beside a path that is not there": external("/not/there"),
    "elements": stored,
    "virtual": virtual(("a", "there", "v")),
}
KINDS = {"listener": listener, "link to a pipe": link_to_pipe, "device": lambda path: path.symlink_to("/dev/zero")}
NO_FILES = [*((way, os.mkfifo) for way in WAYS), *(("link", make) for make in KINDS.values())]


def test_what_is_not_a_regular_file_is_not_opened(tmp_path):
    with together(tmp_path) as case:
        for way, make in NO_FILES:
            with case(way, make.__name__) as folder:
                make(folder / "there")
                with h5py.File(folder / "r.h5", "w") as file:
                    file["ok"] = FOUR
                    WAYS[way](file, folder)
                reason = "'there' has 0 bytes of 32" if way == "elements" else "there' is not a regular file"
                with unchanged(folder):
                    refused(run(*WORDS, "r.h5", "r.h5", cwd=folder), 3, "r.h5: 'a' cannot be read (", reason)
                summed(folder, "--columns", "ok", "r.h5", "r.h5")
                succeeded(run("info", "--follow-links", "r.h5", cwd=folder))


def test_where_files_are_looked_for(tmp_path):
    """Beside the file that names them, not in the folder of the command: workers may have another.

    Only of a whole path that leads nowhere is its last part looked for beside the file.
    """
    (tmp_path / "files").mkdir()
    with h5py.File(tmp_path / "files/r.h5", "w") as file:
        external("there")(file, tmp_path)
        virtual(("a", "there", "v"))(file.create_group("in"), tmp_path)
    write(tmp_path / "there")
    words = (*WORDS, "files/r.h5", "files/r.h5", "--columns")
    for name in ("a", "in/a"):
        refused(run(*words, name, cwd=tmp_path), 3, f"{name!r} cannot be read (there is no 'there')")
    write(tmp_path / "o.h5")
    for name, source in {"whole.h5": "/not/o.h5", "part.h5": "not/o.h5"}.items():
        with h5py.File(tmp_path / name, "w") as file:
            virtual(("a", source, "v"))(file, tmp_path)
    summed(tmp_path, "whole.h5", "whole.h5")
    refused(run(*WORDS, "part.h5", "part.h5", cwd=tmp_path), 3, "cannot be read (there is no 'not/o.h5')")


def test_links_that_go_on_are_not_followed(tmp_path):
    """They may lead to a pipe."""
    by_another(h5py.File(tmp_path / "r.h5", "w"), tmp_path)
    os.mkfifo(tmp_path / "there")
    reason = "'a' cannot be read ('other.h5' has no array 'soft/inner/v', or only a link to one)"
    refused(run(*WORDS, "r.h5", "r.h5", cwd=tmp_path), 3, reason)


def test_files_elsewhere_are_read_only_if_that_is_wanted(tmp_path):
    values = np.arange(24.0).reshape(4, 6)
    write(tmp_path / "other.h5", "z", values)
    layout = h5py.VirtualLayout((4, 6), "f8")
    layout[:] = h5py.VirtualSource("other.h5", "z", (4, 6))
    (tmp_path / "bytes").write_bytes(bytes(8) + FOUR.tobytes())
    with h5py.File(tmp_path / "links.h5", "w") as file:
        file["out"] = h5py.ExternalLink("other.h5", "/z")
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("stored", (4,), "f8", external=[("bytes", 8, 32)])
    for name, where in {"out": "other.h5:/z", "virtual": "a virtual dataset", "stored": "bytes"}.items():
        words = ("reduce", "--op", "sum", "--columns", name, "-o", "s.h5", "links.h5", "links.h5")
        refused(run(*words, cwd=tmp_path), 3, f"{name!r} is stored in another file ({where})", "--follow-links")
        succeeded(run(*words, "-q", "--force", "--follow-links", cwd=tmp_path))
        with h5py.File(tmp_path / "s.h5") as file:
            np.testing.assert_array_equal(file[name][()], (FOUR if name == "stored" else values) * 2)
        words = ("accumulate", "--op", "sum", "--follow-links", "--columns", name, "links.h5", "links.h5")
        with unchanged(tmp_path):
            refused(run(*words, cwd=tmp_path), 3, f"{name!r} is stored in another file ({where})")
    (tmp_path / "links.h5.gz").write_bytes(gzip.compress((tmp_path / "links.h5").read_bytes()))
    words = ("reduce", "--op", "sum", "--follow-links", "links.h5", "--columns")
    refused(run(*words, "out", "links.h5.gz", cwd=tmp_path), 3, "'out' is stored in another file (other.h5:/z)")
    os.truncate(tmp_path / "bytes", 39)
    refused(run(*words, "stored", cwd=tmp_path), 3, "'stored' cannot be read ('bytes' has 39 bytes of 40)")
    write(tmp_path / "other.h5", "y")
    with h5py.File(tmp_path / "links.h5", "a") as file:
        del file["out"]
    refused(run(*words, "virtual", cwd=tmp_path), 3, "cannot be read ('other.h5' has no array 'z', or")


LEADING_NOWHERE = {
    "no file": (external("none.h5"), "'a' cannot be read (there is no 'none.h5')"),
    "no array": (external("other.h5", "/w"), "'a' cannot be read ('other.h5' has no array '/w', or only"),
    "circle of links": (external("r.h5", "/a"), "'a' cannot be read ('r.h5' has no array '/a', or only a link to one)"),
    "group": (external("other.h5", "/"), "'a' cannot be read ('other.h5' has no array '/', or only a link to one)"),
    "no source": (virtual(("a", "none.h5", "v")), "'a' cannot be read (there is no 'none.h5')"),
    "itself": (virtual(("a", "r.h5", "a")), ITSELF),
    "itself, here": (virtual(("a", ".", "a")), ITSELF),
    "each other": (virtual(("a", ".", "b"), ("b", ".", "a")), ITSELF),
    "each other, by another file": (virtual(("a", "other.h5", "back")), ITSELF),
    "a link to such": (external("circle.h5", "/a"), ITSELF),
}


def test_arrays_that_lead_nowhere(tmp_path):
    """They are errors with their names, and the other arrays of the file can be chosen."""
    with together(tmp_path) as case:
        for name, (build, reason) in LEADING_NOWHERE.items():
            with case(name) as folder:
                with h5py.File(folder / "other.h5", "w") as file:
                    file["v"] = FOUR
                    virtual(("back", "r.h5", "a"))(file, folder)
                with h5py.File(folder / "circle.h5", "w") as file:
                    virtual(("a", ".", "a"))(file, folder)
                with h5py.File(folder / "r.h5", "w") as file:
                    file["ok"] = FOUR
                    build(file, folder)
                with unchanged(folder):
                    refused(run(*WORDS, "r.h5", cwd=folder), 3, f"r.h5: {reason}", "choose with --columns ok")
                summed(folder, "--columns", "ok", "r.h5", "r.h5")
                outcome = run("info", "--follow-links", "r.h5", cwd=folder)
                succeeded(outcome)
                assert "1 x" not in outcome.out.decode()
        with case("the array that is chosen"), unchanged(folder):
            refused(run(*WORDS, "r.h5", "--columns", "a", cwd=folder), 3, f"r.h5: {reason}")


@pytest.fixture
def blocks(tmp_path):
    for number in range(3):
        write(tmp_path / f"b{number}.h5", "v", FOUR + number)
    pattern(tmp_path / "v.h5", "b%b.h5", "me")
    return tmp_path


def test_patterns_of_names(blocks):
    """They are refused, and a percent sign in a name is written twice; without leave, no file is opened."""
    for words in (("v.h5", "v.h5"), ("v.h5", "v.h5", "--columns", "me")):
        reason = "v.h5: 'me' cannot be read (it is in files by a pattern of their names"
        refused(run(*WORDS, *words, cwd=blocks), 3, reason)
    summed(blocks, "v.h5", "v.h5", "--columns", "x")
    (blocks / "b0.h5").unlink()
    os.mkfifo(blocks / "b0.h5")
    pattern(blocks / "v.h5", f"{blocks}/b%b.h5", "me")
    outcome = run("info", "v.h5", cwd=blocks)
    succeeded(outcome)
    assert "me: elements in another file (a virtual dataset)" in outcome.out.decode()
    words = [word for word in WORDS if word != "--follow-links"]
    reason = "'me' is stored in another file (a virtual dataset)"
    refused(run(*words, "v.h5", "v.h5", "--columns", "me", cwd=blocks), 3, reason, "--follow-links")
    write(blocks / "50%b.h5")
    with h5py.File(blocks / "v.h5", "w") as file:
        virtual(("me", "50%%b.h5", "v"))(file, blocks)
    summed(blocks, "v.h5", "v.h5", "--columns", "me")
