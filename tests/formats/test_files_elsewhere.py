"""Files that an HDF5 file names, which the library opens only if they are regular: for a pipe it would wait."""

from __future__ import annotations

import os
import socket

import h5py
import numpy as np
import pytest
from command import refused, run, succeeded, unchanged

WORDS = ("reduce", "-q", "--op", "sum", "--follow-links", "--to", "text")


def pipe(path):
    os.mkfifo(path)


def listener(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # a whole path may be too long for one


def link_to_pipe(path):
    os.mkfifo(path.with_name("real"))
    path.symlink_to("real")


def device(path):
    path.symlink_to("/dev/zero")


def external(target, array="/v"):
    return lambda file, folder: file.__setitem__("a", h5py.ExternalLink(str(target).format(folder=folder), array))


def by_another(file, _):
    """Make a link whose way leads through links in another file, one of them soft."""
    with h5py.File("other.h5", "w") as other:
        other["group/inner"] = h5py.ExternalLink("there", "/")
        other["soft"] = h5py.SoftLink("/group")
    file["a"] = h5py.ExternalLink("other.h5", "soft/inner/v")


def stored(file, _):
    file.create_dataset("a", (4,), "f8", external=[("there", 0, 32)])


def virtual(file, _):
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource("there", "v", (4,))
    file.create_virtual_dataset("a", layout)


WAYS = {
    "link": external("there"),
    "whole path": external("{folder}/there"),
    "beside a path that is not there": external("/not/there"),
    "by another file": by_another,
    "elements": stored,
    "virtual": virtual,
}


@pytest.mark.parametrize("make", [pipe, listener, link_to_pipe, device])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_a_regular_file_is_not_opened(way, make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "there")
    with h5py.File("r.h5", "w") as file:
        file["ok"] = np.arange(4.0)
        WAYS[way](file, tmp_path)
    reason = "'there' has 0 bytes of 32" if way == "elements" else "there' is not a regular file"
    with unchanged(tmp_path):
        refused(run(*WORDS, "r.h5", "r.h5", cwd=tmp_path), 3, "r.h5: 'a' is stored in", reason)
    succeeded(run(*WORDS, "--columns", "ok", "r.h5", "r.h5", cwd=tmp_path))
    succeeded(run("info", "--follow-links", "r.h5", cwd=tmp_path))


def test_the_library_looks_in_the_folder_of_the_command_too(tmp_path):
    """A pipe there is not opened; a file there is not that of a virtual dataset, as workers may have another folder."""
    (tmp_path / "files").mkdir()
    with h5py.File(tmp_path / "files/r.h5", "w") as file:
        external("there")(file, tmp_path)
        virtual(file.create_group("in"), tmp_path)
    pipe(tmp_path / "there")
    words = (*WORDS, "files/r.h5", "files/r.h5", "--columns")
    for name in ("a", "in/a"):
        refused(run(*words, name, cwd=tmp_path), 3, f"{name!r} is stored in", "'there' is not a regular file")
    (tmp_path / "there").unlink()
    with h5py.File(tmp_path / "there", "w") as file:
        file["v"] = np.arange(4.0)
    outcome = run(*words, "a", cwd=tmp_path)
    succeeded(outcome)
    assert outcome.out.split() == [b"0.0", b"2.0", b"4.0", b"6.0"]
    refused(run(*words, "in/a", cwd=tmp_path), 3, "'in/a' is stored in other files, and 'there' is not beside it")


def test_only_a_whole_path_that_leads_nowhere_is_looked_for_beside(tmp_path):
    """The library reads zeros of a virtual dataset whose file it does not find."""
    with h5py.File(tmp_path / "o.h5", "w") as file:
        file["v"] = np.arange(4.0)
    for name, source in {"whole.h5": "/not/o.h5", "part.h5": "not/o.h5"}.items():
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource(source, "v", (4,))
        with h5py.File(tmp_path / name, "w") as file:
            file.create_virtual_dataset("a", layout)
    outcome = run(*WORDS, "whole.h5", "whole.h5", cwd=tmp_path)
    succeeded(outcome)
    assert outcome.out.split() == [b"0.0", b"2.0", b"4.0", b"6.0"]
    refused(run(*WORDS, "part.h5", "part.h5", cwd=tmp_path), 3, "is stored in other files, and there is no 'not/o.h5'")


def test_links_go_on_as_the_library_follows_them(tmp_path):
    with h5py.File(tmp_path / "last.h5", "w") as file:
        file["v"] = np.arange(4.0)
    with h5py.File(tmp_path / "next.h5", "w") as file:
        file["group/inner"] = h5py.ExternalLink("last.h5", "/")
        file["soft"] = h5py.SoftLink("group")
    with h5py.File(tmp_path / "r.h5", "w") as file:
        file["a"] = h5py.ExternalLink("next.h5", "./soft//inner/v")
        file["circle"] = h5py.ExternalLink("r.h5", "circle")
    outcome = run(*WORDS, "--columns", "a", "r.h5", "r.h5", cwd=tmp_path)
    succeeded(outcome)
    assert outcome.out.split() == [b"0.0", b"2.0", b"4.0", b"6.0"]
    refused(run(*WORDS, "--columns", "circle", "r.h5", "r.h5", cwd=tmp_path), 3, "which cannot be opened (")
