"""README, guides, help and docstrings say what the program does: every example in them is run.

A page's `console` blocks are typed into bash and its `python` blocks into Python, from top to
bottom in a copy of the sample data, and the output must be that of the page.
"""

import contextlib
import doctest
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import quick
import xarray as xr
from needs import needs
from rows import each
from safetensors.numpy import load_file

ROOT = Path(__file__).parent.parent
PAGES = sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/*.md")) + sorted(ROOT.glob("sample_data/*.md"))
COMING_FROM = ROOT / "docs" / "coming-from.md"
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]*\]\(([^)#:]*)(?:#([^)]*))?\)")
PICTURE = re.compile(r"!\[([^]]*)\]")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def ids(page):
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The folder of a `mpired` that is started already."""
    with quick.commands(tmp_path_factory.mktemp("bin")) as folder:
        yield folder


@pytest.fixture
def elsewhere(tmp_path, monkeypatch, started, request):
    """A working directory with nothing but the sample data and the examples, and an environment without mpired's."""
    for name in ("sample_data", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("MPIRED_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    if "README" not in request.node.name:  # whose examples are run by the installed command
        monkeypatch.setenv("STARTED", str(started))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    return tmp_path


def shell(command):
    """Run a command as a reader would; both streams go to one terminal."""
    path = os.environ["PATH"]
    if "STARTED" in os.environ and "<(" not in command:  # of whose descriptors a server knows nothing
        path = f"{os.environ['STARTED']}{os.pathsep}{path}"
    words, environment = ["bash", "-o", "pipefail", "-c", command], os.environ | {"PATH": path}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(words, env=environment, check=False, **streams)
    return done.returncode, done.stdout.decode()


def commands(text):
    """Yield each command of a console block with the output below it; `> ` goes on with the line before."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        command = [lines.pop(0)]
        while lines and lines[0].startswith("> "):
            command.append(lines.pop(0)[2:])
        yield "\n".join(command), "\n".join(lines)


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=ids)
def test_examples_of_page(page, elsewhere):
    parser, runner, names = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False), {}
    text = page.read_text()
    if "$ gcc" in text or "compiled kernels" in text:
        needs("gcc")
    if "$ gfortran" in text:
        needs("gfortran")
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start()) + 1
        if block[1] == "python":
            example = parser.get_doctest(block[2], names, page.name, str(page), line)
            with contextlib.redirect_stderr(sys.stdout):
                assert runner.run(example, clear_globs=False).failed == 0, f"{page.name}, line {line}"
            names = example.globs
            continue
        for command, expected in commands(block[2]):
            status, output = shell(command)
            assert (command, output.rstrip("\n"), status) == (command, expected, 0), f"{page.name}, line {line}"


def arrays(paths):
    """The arrays in files, read without mpired."""
    for path in paths:
        match path.suffix:
            case ".npy":
                yield np.load(path)
            case ".safetensors":
                yield load_file(path)["weight"]
            case ".parquet":
                yield pq.read_table(path)["hits"].to_numpy()
            case ".bin" if path.read_bytes()[:6] == b"mpired":
                yield np.fromfile(path, ">i4", offset=16)
            case ".bin":
                yield np.fromfile(path, ">i4")
            case ".nc":
                with xr.open_dataset(path) as opened:
                    yield next(iter(opened.data_vars.values())).values


JOBS = re.findall(r"^### \d+\. (.*?)\n(.*?)(?=^##)", COMING_FROM.read_text(), re.MULTILINE | re.DOTALL)


def test_jobs_in_python(elsewhere, monkeypatch):
    """The rows of xarray, NumPy and torch have the results of the row of mpired, in all ten jobs.

    NumPy takes the place of torch, which is too large for CI: what the rows use is the same in both.
    """
    monkeypatch.chdir(elsewhere / "sample_data")
    members = xr.concat(map(xr.load_dataset, sorted(glob.glob("tas_?.nc"))), "member", data_vars="all")
    names = {"np": np, "xr": xr, "load_file": load_file, "members": members, "stack": members.tas.values}
    names |= {"torch": np, "weights": [0.75, 0.25], "a": np.ones(2), "b": np.ones(2) + 1e-7}
    names["states"] = [load_file(f"layers_{number}.safetensors") for number in range(2)]
    assert len(JOBS) == 10
    for job, table in JOBS:
        rows = dict(re.findall(r"^\| (\w+) \| `([^`]+)`", table, re.MULTILINE))
        expected = {name: eval(rows[name], dict(names)) for name in ("xarray", "NumPy", "torch") if name in rows}
        status, output = shell(rows["mpired"])
        assert status == 0, f"{job}\n{output}"
        assert expected, job
        written = re.search(r"(?:-o|--split|accumulate --op sum) (\S+)", rows["mpired"])
        results = list(arrays(map(Path, written[1].split(",")))) if written else [True]  # the status says it
        for name, values in expected.items():
            of_name = {tuple: values, dict: [values["weight"]] if isinstance(values, dict) else ()}
            for value, result in zip(of_name.get(type(values), [values]), results, strict=True):
                np.testing.assert_allclose(result, value, rtol=1e-6, err_msg=f"{job}, {name}")


def test_the_first_page_has_no_words_of_mpi():
    """Its text, not what commands are called and print."""
    text = re.sub(r"`[^`]*`", "", FENCE.sub("", (ROOT / "docs" / "first-steps.md").read_text()))
    assert not re.findall(r"\b(?:mpi|ranks?|root|origin|window|count|datatype|op|collective|buffer)\b", text.lower())


def anchors(page):
    """The anchors of a page's headings, as Sphinx and the hosts of repositories make them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each("page", PAGES)
def test_links_lead_somewhere_and_pictures_have_a_text(page):
    text = page.read_text()
    for target, anchor in LINK.findall(FENCE.sub("", text)):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"
    assert all(PICTURE.findall(text))


def test_each_page_is_in_the_list_of_pages():
    listed = {target for target, _ in LINK.findall((ROOT / "docs" / "README.md").read_text())}
    assert listed >= {page.name for page in ROOT.glob("docs/*.md") if page.name != "README.md"}


def test_examples_of_docstrings(elsewhere):
    """Run in a process of its own, so that what modules set up for themselves stays there."""
    words = "-m pytest --doctest-modules --pyargs mpired -q -W error -p no:cacheprovider -p no:xdist -c"
    command = [sys.executable, *words.split(), os.devnull, "--rootdir", str(elsewhere)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


def printed(*words, **settings):
    """Return what a program prints, as text."""
    settings = {"stdin": subprocess.DEVNULL, "cwd": ROOT} | settings
    return subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True, **settings).stdout


@each("page", ["options", "speed", "performance"])
def test_pages_that_are_made_are_fresh(page):
    assert printed(f"docs/{page}.py") == (ROOT / f"docs/{page}.md").read_text(), f"{page}.md is stale; run `make docs`"


@pytest.mark.needs("ruff")
def test_stub_is_fresh():
    words = ("-m", "ruff", "format", "-", "--stdin-filename", "stub.pyi")
    made = printed(*words, stdin=None, input=printed("docs/stubs.py"))
    assert made == (ROOT / "mpired" / "__init__.pyi").read_text(), "run `make docs`"


@pytest.mark.needs("gcc")
def test_table_of_ops_is_fresh(elsewhere):
    status, output = shell(f"sh '{ROOT}/docs/ops.sh'")
    assert status == 0
    assert output == (ROOT / "docs" / "ops.md").read_text(), "docs/ops.md is stale; run `make docs`"


def test_plots_are_fresh_and_can_be_drawn(tmp_path):
    """A plot says of which measurement it is; its bytes depend on the version of matplotlib."""
    page = (ROOT / "docs" / "performance.md").read_text()
    digest = hashlib.sha256((ROOT / "docs" / "plots" / "measured.json").read_bytes()).hexdigest()
    plots = {f"plots/{path.name}" for path in (ROOT / "docs" / "plots").glob("*.svg") if digest in path.read_text()}
    assert plots == set(re.findall(r"\]\((plots/[^)]*)\)", page)), "plots are stale; run `make docs`"
    printed("docs/plots/draw.py", str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in (ROOT / "docs" / "plots").glob("*.svg")}


def test_pictures_are_fresh(tmp_path):
    printed("docs/pictures/draw.py", str(tmp_path))
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    there = {path.name: path.read_text() for path in (ROOT / "docs" / "pictures").glob("*.svg")}
    assert drawn == there, "pictures in docs/pictures are stale; run `make docs`"
