"""The site of the documents is built without a warning, and has no link, anchor or file that is missing."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "site"


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
