"""Checkpoints in shards with an index, as transformers saves them: safetensors reads each shard of a result."""

import errno
import itertools
import json
import shutil

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from command import refused, run, succeeded
from rows import check_refusals

import mpired
from mpired.errors import UsageError
from mpired.files import calls
from mpired.files.transaction import Draft

SHARDS = {"model-00001-of-00002.safetensors": ("w", "short", "step"), "model-00002-of-00002.safetensors": ("v", "mask")}
INDEX = "model.safetensors.index.json"
MEAN = ("reduce", "-q", "--op", "mean", "--columns", "w,short,v", "--keep", "step,mask")


def tensors(rank: int) -> dict[str, np.ndarray]:
    return {
        "w": np.arange(6, dtype="f4").reshape(2, 3) + rank,
        "short": (np.arange(3) + 2 * rank).astype(ml_dtypes.bfloat16),
        "step": np.array(2**53 + 1),
        "v": np.arange(200_000) * (rank + 1.0),
        "mask": np.array([True, False, True]),
    }


def save(folder, rank: int) -> None:
    folder.mkdir()
    for shard, names in SHARDS.items():
        safetensors.numpy.save_file({name: tensors(rank)[name] for name in names}, folder / shard, {"format": "pt"})
    nbytes = sum(each.nbytes for each in tensors(rank).values())
    shards = {name: shard for shard, names in SHARDS.items() for name in names}
    write_index(folder, {"metadata": {"total_size": nbytes}, "weight_map": shards})


def write_index(folder, index) -> None:
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def load(folder) -> dict[str, np.ndarray]:
    """Return all tensors, each from the shard that the index names."""
    index = json.loads((folder / INDEX).read_text())["weight_map"]
    files = {shard: safetensors.numpy.load_file(folder / shard) for shard in index.values()}
    assert sum(map(len, files.values())) == len(index)
    return {name: files[shard][name] for name, shard in index.items()}


MEANS = tensors(0) | {
    "w": tensors(0)["w"] + np.float32(0.5),
    "short": (np.arange(3) + 1).astype(ml_dtypes.bfloat16),
    "v": np.arange(200_000) * 1.5,
}


def check(found) -> None:
    assert sorted(found) == sorted(MEANS)
    for name, each in MEANS.items():
        assert found[name].tolist() == each.tolist(), name


@pytest.fixture
def ranks(tmp_path) -> list[str]:
    for rank in range(2):
        save(tmp_path / f"c{rank}", rank)
    return ["c0", f"c1/{INDEX}"]


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_new_directory_goes_with_its_files(unnamed, ranks, tmp_path, monkeypatch):
    """An error or ctrl-C at any link leaves nothing; on file systems without files that have no name, too."""
    before, take = {*tmp_path.iterdir()}, Draft.take_free_name
    if not unnamed:
        monkeypatch.setattr(calls, "open_unnamed", lambda _: None)

    def fail_at(number, error):
        seen: list[Draft] = []

        def take_or_fail(draft):
            seen.append(draft)
            if len(seen) > number:
                raise error
            take(draft)

        return take_or_fail

    options = {"columns": ["w", "short", "v"], "keep": ["step", "mask"], "output": tmp_path / "new"}
    for number, error in itertools.product(range(3), (OSError(errno.EIO, "no more"), KeyboardInterrupt())):
        monkeypatch.setattr(Draft, "take_free_name", fail_at(number, error))
        with pytest.raises(type(error)) as raised:
            mpired.reduce([tmp_path / each for each in ranks], "mean", **options)
        assert raised.value is error
        assert {*tmp_path.iterdir()} == before
    monkeypatch.setattr(Draft, "take_free_name", take)
    mpired.reduce([tmp_path / each for each in ranks], "mean", **options)
    assert {*tmp_path.iterdir()} - before == {tmp_path / "new"}
    check(load(tmp_path / "new"))
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted([*SHARDS, INDEX])
    assert (tmp_path / "new" / INDEX).read_text() == (tmp_path / "c0" / INDEX).read_text()


def test_other_results(ranks, tmp_path):
    """One file, arrays, those of every rank, and one of another type, of some tensors."""
    succeeded(run(*MEAN, *ranks, "-o", "one.safetensors", cwd=tmp_path))
    check(safetensors.numpy.load_file(tmp_path / "one.safetensors"))
    chosen = {"columns": ["w", "short", "v"], "keep": ["step", "mask"]}
    check(mpired.reduce([tmp_path / each for each in ranks], "mean", **chosen))
    for command, link in (("allreduce", "--link"), ("scan", "-f")):
        words = command, "-q", "--op", "sum", "--columns", "w,v", link, *ranks, "-o", f"{command}{{rank}}"
        succeeded(run(*words, cwd=tmp_path))
        for rank in range(2):
            sums = tensors(0)["w"] + (tensors(1)["w"] if command == "allreduce" or rank else 0)
            assert load(tmp_path / f"{command}{rank}")["w"].tolist() == sums.tolist()
    shard = next(iter(SHARDS))
    assert (tmp_path / "allreduce0" / shard).samefile(tmp_path / "allreduce1" / shard)
    words = ("reduce", "-q", "--op", "min,maxloc", "--index", "rank", "--columns", "w,v", "--keep", "mask")
    succeeded(run(*words, *ranks, "-o", "several", cwd=tmp_path))
    several = load(tmp_path / "several")
    made = ("w_min", "w_maxloc", "w_maxloc_index", "mask", "v_min", "v_maxloc", "v_maxloc_index")
    assert sorted(several) == sorted(made)
    assert several["v_min"].tolist() == tensors(0)["v"].tolist()
    assert several["w_maxloc_index"].tolist() == [[1] * 3] * 2
    succeeded(run("reduce", "-q", "--op", "mean", "--columns", "step", *ranks, "-o", "steps", cwd=tmp_path))
    index = {"metadata": {"total_size": 8}, "weight_map": {"step": shard}}
    assert json.loads((tmp_path / "steps" / INDEX).read_text()) == index
    assert safetensors.numpy.load_file(tmp_path / "steps" / shard)["step"].dtype == np.float64


def broken(tmp_path, change) -> str:
    """Return a checkpoint that is changed."""
    shutil.rmtree(tmp_path / "bad", ignore_errors=True)
    save(tmp_path / "bad", 1)
    index = json.loads((tmp_path / "bad" / INDEX).read_text())
    change(tmp_path / "bad", index)
    write_index(tmp_path / "bad", index)
    return "bad"


def doubled(folder, _) -> None:
    safetensors.numpy.save_file({name: tensors(0)[name] for name in ("w", "v", "mask")}, folder / SECOND)


FIRST, SECOND = SHARDS
BROKEN = [
    (lambda folder, _: (folder / SECOND).unlink(), 4, f"bad/{SECOND}: No such file"),
    (lambda _, index: index["weight_map"].update(extra=FIRST), 3, "disagree on the tensor 'extra'"),
    (lambda _, index: index["weight_map"].pop("step"), 3, "model-00001 / disagree on the tensor 'step'"),
    (
        lambda _, index: index["weight_map"].update(w="../x.safetensors"),
        3,
        "'../x.safetensors', which is not a file of",
    ),
    (doubled, 3, "disagree on the tensor 'w'"),
    (lambda _, index: index.pop("weight_map"), 3, "has no `weight_map`"),
]


def test_checkpoints_without_an_index(ranks, tmp_path):
    """The result has the same shards, and the index that was lacking; a directory of one file is that file."""
    for rank in range(2):
        (tmp_path / f"c{rank}" / INDEX).unlink()
    assert mpired.diff(tmp_path / "c0", tmp_path / "c1").noun == "tensor"
    assert mpired.locate([tmp_path / "c0", tmp_path / "c1"], "maxloc", columns="w").file == f"{tmp_path}/c1/"
    succeeded(run(*MEAN, "c0", "c1", "-o", "new", cwd=tmp_path))
    check(load(tmp_path / "new"))
    for shard, names in SHARDS.items():
        assert {*safetensors.numpy.load_file(tmp_path / "new" / shard)} == {*names}
    (tmp_path / "one").mkdir()
    shutil.copy(tmp_path / "c0" / FIRST, tmp_path / "one" / "model.safetensors")
    assert mpired.reduce([tmp_path / "one"], "max", columns="w").tolist() == tensors(0)["w"].tolist()
    shutil.copy(tmp_path / "c0" / FIRST, tmp_path / "c0" / FIRST.replace("1", "3"))
    rows = [
        ("reduce --op sum c1 c1 --columns w --in-place", 2, "is a checkpoint of several files"),
        ("reduce --op sum one one --columns w --in-place", 2, "name its file, one/model.safetensors"),
        ("info c0", 3, "has no index, and beside the others the shard model-00003-of-00002.safetensors"),
    ]
    check_refusals(tmp_path, rows)
    (tmp_path / "c0" / FIRST.replace("1", "3")).unlink()
    shutil.copy(tmp_path / "c0" / FIRST, tmp_path / "c0" / SECOND)
    (tmp_path / "c1" / FIRST).unlink()
    shutil.copy(tmp_path / "c0" / FIRST, tmp_path / "one" / "more.safetensors")
    (tmp_path / "none").mkdir()
    rows = [
        ("info one", 3, "name its files, e.g. 'one/*.safetensors'"),
        ("info none", 3, "it has no files; name a file"),
        ("info c0", 3, f"c0/: the tensor 'short' is in two shards, {FIRST} and {SECOND};"),
        ("info c1", 3, f"c1: lacks the shard {FIRST}"),
    ]
    check_refusals(tmp_path, rows)


def test_damaged_checkpoints(ranks, tmp_path):
    for change, status, reason in BROKEN:
        check_refusals(tmp_path, [(f"reduce --op sum {ranks[0]} {broken(tmp_path, change)} -o out", status, reason)])


def test_refusals(ranks, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "pytorch_model.bin.index.json").write_text("{}")
    shutil.copytree(tmp_path / "c0", tmp_path / "two")
    (tmp_path / "two" / "other.safetensors.index.json").write_text("{}")
    shutil.copy(tmp_path / "c0" / next(iter(SHARDS)), tmp_path / "one.safetensors")
    mean = "reduce --op mean --columns w"
    rows = [
        ("accumulate --op sum c0 nowhere.npy", 2, "c0: is a checkpoint of several files"),
        ("accumulate --dry-run --op sum c0 c1", 2, "c0: is a checkpoint of several files"),
        ("reduce --op sum torch -o new", 3, "pickles, which are never loaded"),
        ("info two", 3, "has several checkpoints"),
        (f"{mean} c0 c1 -o c1", 2, f"c1/{next(iter(SHARDS))}: / input of this command"),
        (f"{mean} c0 c1 --in-place", 2, "is a checkpoint of several files"),
        ("accumulate --op sum --columns w,v --create n.safetensors c0", 2, "are in several files; name a target that"),
        (f"{mean} one.safetensors -o new/{INDEX}", 2, "is the index of a checkpoint in several files"),
        (f"{mean} c0 c1 -o nowhere/new", 4, "nowhere"),
        (
            "allreduce --op sum --columns w c0 c1 -o new/r{rank}.safetensors.index.json",
            2,
            "put {rank}, {stem} or {group} into the name of the directory",
        ),
        ("reduce --op sum,max --columns w c0 c1 -o new/{op}.safetensors.index.json", 2, "put {op} into the name"),
        ("reduce --op sum --columns w,w c0 c1 -o new", 2, "--columns: names 'w' twice"),
        ("reduce --op sum --columns w --keep w c0 c1 -o new", 2, "--keep: names 'w', which is named already"),
    ]
    check_refusals(tmp_path, rows)
    with pytest.raises(UsageError, match="one by one"):
        mpired.reduce([tmp_path / "c0"], "max", columns="w", output=f"http://127.0.0.1:1/{INDEX}")
    succeeded(run(*MEAN, *ranks, "-o", "new", cwd=tmp_path))
    refused(run(*MEAN[:1], *MEAN[2:], *ranks, "-o", "new", cwd=tmp_path), 2, "already exists")
