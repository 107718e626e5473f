"""HDF5 files as ranks and results, compared with h5py: a result is like the file of the first rank."""

import h5py
import numpy as np
from command import run
from rows import check_refusals, each, together
from setups import without

from mpired.formats import hdf5_results

SETTINGS = {"SOURCE_DATE_EPOCH": "86400"}
VALUES = np.linspace(0, 1, 20_000)
OPTIONS = [{}, {"track_order": True}, {"libver": "latest"}, {"userblock_size": 512}]
PLAIN = ("z", "g/y")
CHUNKED = ("g/counts", "g/free", "g/lzf")


def reduce(folder, *words, **more):
    outcome = run("reduce", "-q", "-f", "--op", *words, cwd=folder, env=SETTINGS | more)
    assert outcome.status == 0, outcome.err


def make(path, scale, *, chunked, **options):
    """Write arrays, attributes, texts, links and references; and perhaps arrays in chunks."""
    with h5py.File(path, "w", **options) as file:
        for name, value in {"first": 1, "history": "made", "last": "text"}.items():
            file.attrs[name] = value
        file["x"] = np.linspace(0, 1, 10)
        file["x"].make_scale("x")
        file["z"] = VALUES.reshape(2000, 10) * scale
        file["z"].dims[1].attach_scale(file["x"])
        file["z"].attrs.update({"units": "K", "long": np.arange(500)})
        group = file.create_group("g", track_order=options.get("track_order"))
        group.create_dataset("y", data=np.arange(3000, dtype=">i2") * scale, track_times=True)
        group["names"] = np.array(["a", "bc"], h5py.string_dtype())
        file["soft"], file["z again"], group["loop"] = h5py.SoftLink("/g/y"), file["z"], file["/"]
        if chunked:
            counts, common = (np.arange(70, dtype="i4") * scale).reshape(7, 10), {"chunks": (3, 4), "shuffle": True}
            group.create_dataset(
                "counts", data=counts, maxshape=(None, 10), compression="gzip", fletcher32=True, **common
            ).attrs["of"] = "things"
            group.create_dataset("lzf", data=counts, maxshape=(None, 10), compression="lzf", fillvalue=7, **common)
            group.create_dataset("free", data=counts, scaleoffset=0, compression="gzip", **common)
        group.attrs["of"], file.attrs["main"] = file["z"].ref, file["g/y"].ref


def properties(dataset):
    plist = dataset.id.get_create_plist()
    filters = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
    same = dataset.dtype, dataset.shape, dataset.maxshape, dataset.chunks, float(dataset.fillvalue)
    return *same, filters, list(dataset.attrs)


def check_like(new, old, names):
    assert list(new) == list(old)
    assert sorted(new.attrs) == sorted(old.attrs)
    assert [name for name in new.attrs if name != "main"] == [name for name in old.attrs if name != "main"]
    assert new.attrs["history"].endswith("\nmade")
    for name in names:
        np.testing.assert_array_equal(new[name][()], old[name][()] * 3, err_msg=name)
        assert properties(new[name]) == properties(old[name])
    np.testing.assert_array_equal(new["x"][()], old["x"][()])
    assert new["g/names"].asstr()[()].tolist() == ["a", "bc"]
    assert new["z"].dims[1]["x"] == new["x"]
    assert (new["z again"], new["soft"]) == (new["z"], new["g/y"])
    assert (new[new["g"].attrs["of"]], new[new.attrs["main"]]) == (new["z"], new["g/y"])


def test_result_is_like_the_first_file(tmp_path):
    """It is a copy with other elements, or a file with objects created as those there; two runs give the same bytes."""
    with together(tmp_path) as case:
        for options in OPTIONS:
            for chunked in (False, True):
                with case(options, chunked) as folder:
                    for scale in (1, 2):
                        make(folder / f"r{scale}.h5", scale, chunked=chunked, **options)
                    before, written = (folder / "r1.h5").read_bytes(), set()
                    for jobs in "12":  # from the environment, which the history has not
                        reduce(folder, "sum", "-o", "o.h5", "r1.h5", "r2.h5", MPIRED_JOBS=jobs)
                        written.add((folder / "o.h5").read_bytes())
                    assert len(written) == 1
                    assert (folder / "r1.h5").read_bytes() == before
                    assert (folder / "o.h5").stat().st_size < 1.1 * len(before)
                    with h5py.File(folder / "o.h5") as new, h5py.File(folder / "r1.h5") as old:
                        check_like(new, old, (*PLAIN, *CHUNKED) if chunked else PLAIN)
                        assert chunked or new["z"].id.get_offset() == old["z"].id.get_offset()


@each("deleted", [False, True])
def test_nothing_stays_of_what_results_have_not(deleted, tmp_path):
    """Neither an array that is not chosen, nor many bytes of one that is deleted in the first file."""
    secret = np.full(8000 if deleted else 800, 0x5A5A5A5A5A5A5A5A)
    with h5py.File(tmp_path / "r.h5", "w") as file:
        file["secret"], file["x"] = secret, VALUES
        if deleted:
            del file["secret"]
    reduce(tmp_path, "max", "--columns", "x", "-o", "o.h5", "r.h5", "r.h5")
    octets = (tmp_path / "o.h5").read_bytes()
    assert len(octets) < 1.1 * VALUES.nbytes
    assert b"Z" * 1000 not in octets


def test_times_of_changes_are_not_in_results(tmp_path):
    plist = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    plist.set_obj_track_times(True)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V18, h5py.h5f.LIBVER_LATEST)
    name = str(tmp_path / "r.h5").encode()
    with h5py.File(h5py.h5f.create(name, h5py.h5f.ACC_TRUNC, fcpl=plist, fapl=access)) as file:
        file.attrs["history"] = "made"
        file["x"] = VALUES
    reduce(tmp_path, "sum", "-o", "o.h5", "r.h5", "r.h5")
    with h5py.File(tmp_path / "o.h5") as file:
        assert h5py.h5o.get_info(file["/"].id).mtime == 0
        np.testing.assert_array_equal(file["x"][()], VALUES * 2)


DEFLATED = (  # shape, chunks, form, and whether bytes are shuffled
    ((70_000,), (20_000,), "<f8", True),
    ((100, 300), (64, 256), ">i4", True),
    ((7, 330, 200), (1, 330, 200), "|u1", False),
    ((5, 90, 300), (2, 64, 128), "<f8", False),  # rows of chunks are several planes
    ((3, 10), (3, 10), ">i4", True),  # a small chunk, which the library compresses
)


def test_the_library_reads_what_is_in_deflated_chunks(tmp_path, monkeypatch):
    """Which several threads compress: edges of arrays, byte orders and filters, with any number of workers."""
    monkeypatch.setattr(hdf5_results, "DECODED_NBYTES", 400_000)  # so that large planes are written by their rows
    rng = np.random.default_rng(5)
    for case in DEFLATED:
        shape, chunks, dtype, shuffle = case
        ranks = [rng.integers(0, 100, shape).astype(dtype) for _ in range(2)]
        for number, rank in enumerate(ranks):
            with h5py.File(tmp_path / f"{number}.h5", "w") as file:
                file.create_dataset("x", data=rank, chunks=chunks, compression=3, shuffle=shuffle)
        digests = set()
        for jobs in ("1", "3"):
            reduce(tmp_path, "sum", "-j", jobs, "0.h5", "1.h5", "-o", f"sum{jobs}.h5")
            digests.add((tmp_path / f"sum{jobs}.h5").read_bytes())
        assert len(digests) == 1, case
        with h5py.File(tmp_path / "sum3.h5") as file:
            found = file["x"]
            stored = found.dtype, found.chunks, found.compression_opts, found.shuffle
            assert stored == (dtype, chunks, 3, shuffle), case
            assert np.array_equal(found[()], ranks[0] + ranks[1]), case


def test_steps_through_an_array_larger_than_the_memory():
    from mpired.formats.arrays import selections

    array = np.arange(5 * 7 * 11).reshape(5, 7, 11)
    for chunk in [(), (2, 3, 4), (1, 1, 11)]:
        for memory in (8, 100, 1000, 1 << 20):
            for start in (0, 1, 76, 384):
                every = list(selections(array.shape, chunk, 8, start, memory // 2))
                assert all(array[at].shape == shape for _, at, shape in every)
                found = [array[at].reshape(-1)[skip:] for skip, at, _ in every]
                np.testing.assert_array_equal(np.concatenate(found), array.reshape(-1)[start:])


def test_refusals(tmp_path):
    for scale in (1, 2):
        make(tmp_path / f"r{scale}.h5", scale, chunked=False)
    with h5py.File(tmp_path / "r2.h5", "r+") as file:
        file["x"][2] = 7
    with h5py.File(tmp_path / "bomb.h5", "w") as file:
        file.create_dataset("v", (1 << 40,), "f8", chunks=(1 << 16,), compression="gzip")
    with h5py.File(tmp_path / "chunk.h5", "w") as file:
        file.create_dataset("v", (1 << 24,), "f8", chunks=(1 << 24,), compression="gzip")[0] = 1
    for number in range(2):
        with h5py.File(tmp_path / f"to{number}.h5", "w") as file:
            file["a"], file["b"], file["v"] = 1, 2, VALUES
            file["v"].attrs["coordinates"], file["to"] = "to", file["ab"[number]].ref
    words = "reduce --op sum -o s.npy"
    rows = [
        (f"{words} r1.h5 r2.h5", 3, "'x' differs from that of rank 0 / --no-check-coordinates"),
        (f"{words} --columns v to0.h5 to1.h5", 3, "'to' differs from that of rank 0"),
        (f"{words} bomb.h5", 3, "'v' claims 8796093022208 bytes"),
        (f"{words} chunk.h5", 3, "unfolds to 134217728 bytes"),
    ]
    check_refusals(tmp_path, rows)
    check_refusals(tmp_path, [(f"{words} r1.h5", 2, "install 'mpired[hdf5]'")], setup=without("h5py"))


@each("chunks", [None, (4,)])
def test_structures_with_fields_that_are_arrays(chunks, tmp_path):
    form = np.dtype([("time", ">f8"), ("parts", "<f4", (2, 3)), ("name", "i1", (5,))])
    for number in range(2):
        stored = np.zeros(15, form)
        stored["parts"] = np.arange(90).reshape(15, 2, 3)
        stored["parts"][13, 1, 2] += number
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("s", data=stored, chunks=chunks)
    assert run("diff", "0.h5", "0.h5", cwd=tmp_path).status == 0
    outcome = run("diff", "0.h5", "1.h5", cwd=tmp_path)
    assert (outcome.status, b"s[13].parts[1][2]: 83.0 84.0" in outcome.out) == (1, True), outcome


@each("chunks", [None, (2,)])
def test_bytes_with_a_declared_order(chunks, tmp_path):
    """It means nothing: they can be updated, and results declare it, too."""
    kinds = {"i": (h5py.h5t.STD_I8BE, "i1"), "u": (h5py.h5t.STD_U8BE, "u1")}
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunks:
        plist.set_chunk(chunks)
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            for name, (tid, form) in kinds.items():
                made = h5py.h5d.create(file.id, name.encode(), tid, h5py.h5s.create_simple((4,)), plist)
                made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(1, 5, dtype=form) * 10 - number)
    with h5py.File(tmp_path / "0.h5") as one, h5py.File(tmp_path / "1.h5") as two:
        expected = {name: (one[name][()] + two[name][()]).tolist() for name in kinds}
    reduce(tmp_path, "sum", "0.h5", "1.h5", "-o", "r.h5")
    assert run("accumulate", "-q", "--op", "sum", "0.h5", "1.h5", cwd=tmp_path) == (0, b"", "")
    for name in ("r.h5", "0.h5"):
        with h5py.File(tmp_path / name) as file:
            assert {each: file[each][()].tolist() for each in file} == expected
            assert all(file[each].id.get_type().equal(tid) for each, (tid, _) in kinds.items())
