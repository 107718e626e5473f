"""Arrays of HDF5 in other files: links, virtual datasets, external elements; the library would wait, or read zeros."""

import gzip
import os

import h5py
import numpy as np
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


def by_pattern(file, _):
    """Make a dataset that has as many blocks of four elements as there are files of the pattern."""
    source, unlimited = h5py.h5s.create_simple((4,)), h5py.h5s.UNLIMITED
    space, now = (h5py.h5s.create_simple((4,), (unlimited,)) for _ in range(2))
    space.select_hyperslab((0,), (unlimited,), (4,), (4,))
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_virtual(space, b"there%b", b"v", source)
    h5py.h5d.create(file.id, b"a", h5py.h5t.IEEE_F64LE, now, plist)


def back(path):
    with h5py.File(path, "w") as file:
        virtual(("back", "r.h5", "a"))(file, path.parent)


NO_FILE = "there' is not a regular file"
ONLY_A_LINK = ", or only a link to one)"
REFUSED = {  # what the file `there` is, how the array `a` leads to it, and the reason
    "link": (os.mkfifo, external("there"), NO_FILE),
    "by another file": (os.mkfifo, by_another, f"('other.h5' has no array 'soft/inner/v'{ONLY_A_LINK}"),
    "elements": (os.mkfifo, stored, "'there' has 0 bytes of 32"),
    "virtual": (os.mkfifo, virtual(("a", "there", "v")), NO_FILE),
    "device": (lambda path: path.symlink_to("/dev/zero"), external("there"), NO_FILE),
    "no file": (None, external("there"), "(there is no 'there')"),
    "group": (write, external("there", "/"), f"('there' has no array '/'{ONLY_A_LINK}"),
    "no source": (None, virtual(("a", "none.h5", "v")), "(there is no 'none.h5')"),
    "each other": (None, virtual(("a", ".", "b"), ("b", ".", "a")), ITSELF),
    "each other, by another file": (back, virtual(("a", "there", "back")), ITSELF),
    "pattern": (write, by_pattern, "(it is in files by a pattern of their names"),
}


def test_arrays_that_lead_nowhere(tmp_path):
    """They are errors with their names, nothing is opened that waits, and other arrays can be chosen."""
    with together(tmp_path) as case:
        for name, (make, build, reason) in REFUSED.items():
            with case(name) as folder:
                if make is not None:
                    make(folder / "there")
                with h5py.File(folder / "r.h5", "w") as file:
                    file["ok"] = FOUR
                    build(file, folder)
                with unchanged(folder):
                    refused(run(*WORDS, "r.h5", cwd=folder), 3, "r.h5: 'a' ", reason, "choose with --columns ok")
                succeeded(run("info", "--follow-links", "r.h5", cwd=folder))
        with case("another array"):
            summed(folder, "--columns", "ok", "r.h5", "r.h5")
            refused(run(*WORDS, "r.h5", "--columns", "a", cwd=folder), 3, "r.h5: 'a' ", reason)


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
            assert isinstance(file.get(name, getlink=True), h5py.HardLink)
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
