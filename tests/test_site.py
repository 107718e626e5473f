"""The site of the documents is built without a warning, and has no link, anchor or file that is missing."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "site"


@pytest.fixture
def problems():
    spec = importlib.util.spec_from_file_location("check", SITE / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.problems


@pytest.mark.timeout(400)
def test_site_is_built_strictly(tmp_path):
    needs("sphinx")
    command = [sys.executable, str(SITE / "build.py"), str(tmp_path / "site")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'id="cmdoption-mpired-reduce-max-memory"' in (tmp_path / "site" / "commands" / "reduce.html").read_text()
    api = (tmp_path / "site" / "api.html").read_text()
    assert 'id="mpired.reduce"' in api
    assert ">max_memory<" in api  # a keyword that a function gets when it is loaded
    front = (tmp_path / "site" / "index.html").read_text()
    assert "Recipes" in front
    assert re.search(r'<link rel="[^"]*icon" href="_static/logo.svg', front)
    assert re.findall(r'<details open><summary class="caption"><span[^>]*>(.*?)</span>', front) == ["Learn", "How to"]
    assert front.count('<details><summary class="caption">') == 3
    index = (tmp_path / "site" / "searchindex.js").read_text()
    searched = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))
    indexed = {name for name, title in zip(searched["docnames"], searched["titles"], strict=True) if title}
    assert "tutorial" in indexed
    assert not indexed & {"changelog", "contributing", "design"}
    assert "Environment:" not in (tmp_path / "site" / "commands" / "reduce.html").read_text()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('<a href="other.html#there">', ""),
        ('<a href="#here" id="here">', ""),
        ('<a href="https://example.org">', ""),
        ('<a href="missing.html">', "missing.html: is not there"),
        ('<a href="other.html#gone">', "other.html#gone: is not on that page"),
        ('<a href="#gone">', "#gone: is not on that page"),
        ('<script src="https://example.org/a.js">', "https://example.org/a.js: comes from another host"),
        ('<link href="//example.org/a.css">', "//example.org/a.css: comes from another host"),
        ('<img src="other.html" alt="">', "other.html has no text for those who cannot see it"),
    ],
)
def test_check_of_the_site(text, found, problems, tmp_path):
    (tmp_path / "other.html").write_text('<h1 id="there">')
    (tmp_path / "page.html").write_text(text)
    assert list(problems(tmp_path)) == ([f"page.html: {found}"] if found else [])
