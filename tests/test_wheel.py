"""The wheel: what is in it, and that examples and man pages are there after an installation."""

import email
import fcntl
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import click
import pytest
from command import run
from needs import needs
from rows import each

import mpired
from mpired.cli import cli

LIBRARY = "ops/native/kernels.c.so"
ROOT = Path(__file__).parent.parent
COMMANDS = cli.list_commands(click.Context(cli))


def files_below(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, without what Python has compiled."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def built(folder: Path, **environment: str) -> Path:
    """Build a wheel here, without a network, and return it."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, env=os.environ | environment)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a wheel and of its content, which one of all workers builds."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "wheel"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "content").exists():
            unpack(built(folder))
    return folder


def unpack(wheel: Path) -> None:
    """Unpack a wheel beside it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wheel.with_name("content"))


@pytest.fixture(scope="module")
def wheel(whole: Path) -> Path:
    """The content of the wheel."""
    return whole / "content"


def test_the_package_is_whole(wheel):
    expected = files_below(ROOT / "mpired")
    found = files_below(wheel / "mpired")
    for files in (expected, found):
        files.pop(LIBRARY, None)
    assert {name: found.get(name) for name in expected} == expected
    assert "py.typed" in found
    assert {name.partition("/")[0] for name in found.keys() - expected.keys()} == {"_examples"}


@pytest.mark.parametrize("compiler", ["cc", "false"])
def test_a_wheel_built_with_and_without_a_compiler(compiler, whole, tmp_path):
    """The one is for machines of this kind, and has the kernels; the other is for all."""
    needs("gcc")
    if compiler == "false":
        unpack(built(tmp_path, CC="false"))
    folder = tmp_path if compiler == "false" else whole
    (path,) = folder.glob("*.whl")
    tag = path.stem.split("-", 2)[2]
    assert tag == "py3-none-any" if compiler == "false" else re.fullmatch(r"py3-none-linux_\w+", tag)
    assert (folder / "content/mpired" / LIBRARY).exists() == (compiler == "cc")
    variables = os.environ | {"PYTHONPATH": str(folder / "content"), "MPIRED_NATIVE": ""}
    listing = [sys.executable, "-m", "mpired", "ops", "--json"]
    listed = subprocess.run(listing, cwd=tmp_path, env=variables, check=True, capture_output=True)
    assert any(row["compiled"] for row in json.loads(listed.stdout)) == (compiler == "cc")


def test_the_source_distribution_has_the_kernels_in_c(tmp_path):
    words = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"build_kernels.py", "hatch_build.py", "mpired/ops/native/kernels.c"} <= names
    assert f"mpired/{LIBRARY}" not in names


def test_metadata_and_links(wheel):
    """Links lead to pages of the site; the description has as many as the README, none into the repository."""
    (path,) = wheel.glob("*.dist-info/METADATA")
    told = email.message_from_string(path.read_text())
    assert told["Author"] == "The mpired developers"
    classifiers = told.get_all("Classifier")
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)} <= set(classifiers)
    assert {"Typing :: Typed", "Development Status :: 4 - Beta"} <= set(classifiers)
    shown = run("--version", cwd=path.parent).out.decode()
    assert (told["Version"], shown) == (mpired.__version__, f"mpired {told['Version']}\n")
    site = "https://mpired.readthedocs.io/en/latest/"
    urls = dict(each.split(", ") for each in told.get_all("Project-URL") or [])
    assert urls.keys() == {"Homepage", "Documentation", "Changelog"}
    # The names that docs/site/build.py gives: README.md and CHANGELOG.md at the top, and those of docs/.
    pages = {"", "changelog.html"} | {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")}
    assert {url.removeprefix(site) for url in urls.values()} <= pages
    texts = told.get_payload(), (ROOT / "README.md").read_text()
    links, there = (re.findall(r"\]\(([^)]*)\)", each) for each in texts)
    assert len(links) == len(there) > 8
    own = [each for each in links if each.startswith(site)]
    assert set(links) - set(own) == {each for each in there if ":" in each}
    assert {f"{site}{name}" for name in ("_images/fold.svg", "security.html", "results.html", "index.html")} <= set(own)


def test_the_last_release_is_the_same_in_the_changelog_and_the_citation():
    (version, date), *_ = re.findall(r"^## \[(\d.*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {version}\ndate-released: {date}\n" in citation
    assert tuple(map(int, version.split("."))) < tuple(map(int, mpired.__version__.split(".")[:3]))


def test_examples_of_an_installed_wheel_are_those_of_the_tree(wheel, tmp_path):
    words = [sys.executable, "-c", "from mpired.__main__ import run; run()", "examples", "new"]
    variables = os.environ | {"PYTHONPATH": str(wheel)}
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    told = "mpired: copied sample_data and examples -> new; the examples of help run there\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", told)
    assert os.listdir(tmp_path) == ["new"]
    assert sorted(os.listdir(tmp_path / "new")) == ["examples", "sample_data"]
    for name in ("examples", "sample_data"):
        assert files_below(tmp_path / "new" / name) == files_below(ROOT / name)


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.needs("groff")
@each("name", ["", *COMMANDS])
def test_a_man_page_has_each_line_of_the_help(name, wheel, tmp_path):
    (page,) = wheel.glob(f"*.data/data/share/man/man1/mpired{name and '-'}{name}.1")
    printing = ["groff", "-man", "-ww", "-Tascii", "-P-cbou", page]
    printed = subprocess.run(printing, check=True, capture_output=True, text=True)
    assert printed.stderr == ""
    shown = run(*name.split(), "--help", cwd=tmp_path).out.decode().replace("Exit status:", "")
    lines = [line for line in shown.splitlines()[1:] if not line.endswith(":")]
    assert len(lines) > 10
    there = squeezed(printed.stdout)
    assert [line for line in lines if squeezed(line) not in there] == []
