"""The Python API: wrong words are the errors of the command, as exceptions, and nothing is written."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from command import run, unchanged
from rows import each

import mpired


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """Two ranks of three doubles, and another file."""
    for name, values in (("a", [1.0, 2.0, 3.0]), ("b", [10.0, 20.0, 30.0])):
        np.save(tmp_path / f"{name}.npy", values)
    (tmp_path / "c.npy").write_text("something else")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@each("options, subject, reason", [
    ({"jobs": "x"}, "`jobs`", "not an integer"),
    ({"jobs": -1}, "`jobs`", "-1 is negative; give 0 or more"),
    ({"types": 3}, "`types`", "not the path"),
    ({"to": "xls", "output": "new.npy"}, "`to`", "not a format"),
    ({"to": "csv"}, "`to`", "is for files"),
    ({"group_b": []}, "`group_b`", "has no ranks"),
    ({"op_timeout": 3}, "`op_timeout`", "is predefined"),
    ({"type": float}, "`type`", "is not a text"),
    ({"columns": "d,i"}, "`columns`", "files with columns or arrays"),
    ({"in_place": True, "output": "new.npy"}, "`in_place`", "leave `output` out"),
    ({"output": "c.npy"}, "c.npy", "overwrite=True"),
    ({"output": "b.npy", "overwrite": True}, "b.npy", "is the file of rank 1"),
    *(({"op": op}, "", "neither the name of an op nor a function") for op in (None, 3, {"sum"})),
])  # fmt: skip
def test_wrong_words(options, subject, reason, folder):
    with unchanged(folder), pytest.raises(mpired.MpiredError) as caught:
        mpired.reduce(["a.npy", "b.npy"], **{"op": "sum"} | options)
    assert caught.value.exit_status == 2
    assert subject in caught.value.subject
    assert reason in str(caught.value)


def test_an_element_with_fields_is_known_by_their_names(folder):
    pairs = np.array([(10, 1), (20, 2)], [("index", "i4"), ("value", "i4")])
    np.save("pairs.npy", pairs)
    window = mpired.Window("pairs.npy")
    window.fetch_and_op(pairs[0], op="replace", target_disp=1)
    assert np.load("pairs.npy").tolist() == [(10, 1), (10, 1)]
    window.fetch_and_op(pairs[1:].reshape(()), op="replace", target_disp=0)
    assert np.load("pairs.npy").tolist() == [(20, 2), (10, 1)]


def test_fields_in_another_order_are_refused(folder):
    np.save("first.npy", np.array([(4, 7)], [("v", "i4"), ("i", "i4")]))
    np.save("second.npy", np.array([(7, 9)], [("i", "i4"), ("v", "i4")]))
    before = Path("first.npy").read_bytes()
    with pytest.raises(mpired.MpiredError, match=r"has fields i, v, but .* has v, i"):
        mpired.reduce(["first.npy", "second.npy"], "maxloc")
    with pytest.raises(mpired.MpiredError, match=r"has fields i, v, but .* has v, i"):
        mpired.Window("first.npy").accumulate(np.load("second.npy"), "maxloc")
    assert Path("first.npy").read_bytes() == before


CALLS = {
    "reduce": (("-o", "out.npy", "--root", "1"), {"output": "out.npy", "root": 1}),
    "reduce --in-place": (("--in-place",), {"in_place": True}),
    "allreduce": (("-o", "out_{rank}.npy"), {"output": "out_{rank}.npy"}),
    "reduce-scatter": (("-o", "out_{rank}.npy", "--counts", "1,2"), {"output": "out_{rank}.npy", "counts": [1, 2]}),
    "exscan": (("-o", "out_{stem}.npy"), {"output": "out_{stem}.npy"}),
    "reduce-local": ((), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_summary_is_that_of_the_command(name, folder, tmp_path_factory):
    """With files as results a function returns what the command prints with --json, also of an overflow."""
    np.save("a.npy", np.array([1.0, 2.0, 1e308]))
    np.save("b.npy", np.array([10.0, 20.0, 1e308]))
    words, keywords = CALLS[name]
    elsewhere = tmp_path_factory.mktemp("command")
    for path in folder.glob("?.npy"):
        shutil.copy(path, elsewhere)
    told = run(name.split()[0], "--op", "sum", "--json", *words, "a.npy", "b.npy", cwd=elsewhere).out
    call = getattr(mpired, name.split()[0].replace("-", "_"))
    ranks = ("a.npy", "b.npy") if name == "reduce-local" else (["a.npy", "b.npy"],)
    summary = call(*ranks, op="sum", **keywords)
    assert isinstance(summary, mpired.Summary)
    known = json.loads(told)
    assert json.loads(json.dumps(summary._asdict())) == {name: known[name] for name in summary._fields}
    quiet = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert quiet == {path.name: path.read_bytes() for path in elsewhere.iterdir()}


def test_predefined_ops_are_names_of_the_package(folder):
    """The rows of `mpired.OPS` are usable wherever the name of an op is."""
    for row in mpired.OPS:
        assert getattr(mpired, row.name) is row
        assert row.name in mpired.__all__
        assert row.name in dir(mpired)
    assert repr(mpired.SUM) == "<op MPI_SUM>"
    np.testing.assert_array_equal(mpired.reduce(["a.npy", "b.npy"], mpired.SUM), [11.0, 22.0, 33.0])
    np.testing.assert_array_equal(mpired.reduce(["a.npy", "b.npy"], op=mpired.OPS[0]), [10.0, 20.0, 30.0])
    window = mpired.Window("a.npy")
    assert window.accumulate("b.npy", mpired.PROD) == 1
    assert window.get_accumulate(None, mpired.NO_OP).tolist() == [10.0, 40.0, 90.0]
    assert window.fetch_and_op(7, mpired.REPLACE, target_disp=1) == 40.0
    with pytest.raises(mpired.errors.UsageError, match="`commute`: is for user-defined ops; MPI_SUM is predefined"):
        mpired.reduce(["a.npy"], mpired.SUM, commute=True)
