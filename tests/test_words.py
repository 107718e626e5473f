"""The English of pages, help and messages: forms that read as if translated fail, with file, line and pattern."""

import ast
import inspect
import io
import re
import tokenize
from pathlib import Path

from click_commands import COMMANDS

ROOT = Path(__file__).parent.parent
# The plain form is on the right.
FORBIDDEN = {
    # is not a NOUN
    "is no NOUN": r"(?<!there )(?<!here )\b(?:is|are|was|were|be) no (?!longer\b|more\b|less\b|fewer\b|larger\b)\w",
    "has no NOUN that": r"\bha(?:s|ve) no \w+ that\b",  # does not have a NOUN that, or shorter
    "as for such as": r", as (?=[`'\"<{\d-]|\w+://|\w+_t\b|to \w|parquet\b|tqdm\.|those of\b|that of\b|in `|of\b)",
    "greatest": r"\bgreatest\b(?! common divisor)",  # largest, maximum
    "what is": r"\b[Ww]hat (?:is|are|was|were|has|have|it|they|that) (?!\w+\?)",  # a noun
    "what ... makes of": r"\bwhat [^.;:]{1,60} makes? of\b",  # a noun
    "what comes": r"\b[Ww]hat (?:becomes?|comes?|else)\b(?! first)",  # a noun
    "smallest": r"\bsmallest (?:value|element)\b|\bor (?:the )?smallest\b",  # minimum
    "says nothing of": r"\bsays? nothing\b",  # does not contain, does not store
    "so many": r"\bso many\b",  # N, the name of the parameter
    "as of": r"(?<!such )\bas of\b",  # see, like
    "somebody": r"\b(?:nobody|somebody|whoever|who (?:hears|reaches))\b",  # a user, a process
    "participle": r"\b(?:is|are|was|were|been) (?:said|told|meant|lent|heard)\b|\btold of\b",  # the noun or the verb
    "tell whether": r"\b[Tt]ell(?:s|ing)? (?:whether|apart)\b",  # return whether; distinguish
    "lies": r"\b(?:lies?|lay|lying) (?!to\b|between\b)\w",  # is, is stored
    "stands": r"\bstands? (?!for\b|out\b|alone\b)\w",  # is
    "texts": r"\btexts\b",  # strings
    "says what": r"\bsays? what\b",  # names, lists, sets, describes
    "is to be": r"\b(?:is|are|was|were) to be\b",  # must be; or the effect
}
PATTERNS = {name: re.compile(pattern) for name, pattern in FORBIDDEN.items()}
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PLACES = ("*.md", "docs/*.md", "sample_data/*.md", "examples/*/*.md", "benchmarks/*.md")
PAGES = sorted(path for pattern in PLACES for path in ROOT.glob(pattern))


def name(path):
    return str(path.relative_to(ROOT))


def found(text, where, first=1):
    """Yield a line for each forbidden form: where it is, and which."""
    for form, pattern in PATTERNS.items():
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + first
            yield f"{where}:{line}: {form}: {match[0]!r}"


def strings(path):
    """Yield the line and text of each string and comment of a module."""
    source = path.read_text()
    parts = set()
    for node in ast.walk(tree := ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts |= set(node.values)
            text = "".join(each.value if isinstance(each, ast.Constant) else " X " for each in node.values)
            yield node.lineno, text
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_names():
    names = re.compile(
        r"\b_*(?:said|told|meant|heard|lent|soon|nobody|whoever)\b|\b(?:so many|Tell whether|as of)\b", re.IGNORECASE
    )
    texts = {name(path): path.read_text() for path in (ROOT / "mpired").rglob("*.py")}
    assert [f"{where}: {word}" for where, text in texts.items() for word in names.findall(text)] == []
    assert names.findall("_told = as of") == ["_told", "as of"]


def test_docstrings_begin_with_a_noun_or_a_verb():
    begin = re.compile(r'"""(?:What|Where|Who|How|Why|Which|Tell) .*')
    texts = {name(path): path.read_text() for path in (ROOT / "mpired").rglob("*.py")}
    assert [f"{where}: {line}" for where, text in texts.items() for line in begin.findall(text)] == []
    assert begin.findall('"""What is read."""')


def test_pages():
    texts = {page: FENCE.sub(lambda code: "\n" * code[0].count("\n"), page.read_text()) for page in PAGES}
    assert [place for page, text in texts.items() for place in found(text, name(page))] == []
    assert ROOT / "README.md" in PAGES


def test_messages_docstrings_and_comments():
    """All strings of a module are searched together, and in one with a hit each by itself, for its line."""
    searched = 0
    for path in (ROOT / "mpired").rglob("*.py"):
        texts = list(strings(path))
        whole = "\0".join(text for _, text in texts)
        if any(pattern.search(whole) for pattern in PATTERNS.values()):
            assert [place for line, text in texts for place in found(text, name(path), line)] == []
        searched += len(texts)
    assert searched > 1000


def test_help():
    texts = [(command, inspect.cleandoc(row.help or "")) for command, row in COMMANDS.items()]
    texts += [(command, getattr(each, "help", None) or "") for command, row in COMMANDS.items() for each in row.params]
    assert [place for command, text in texts for place in found(text, command)] == []
    assert texts


def test_the_first_release_is_short():
    first = (ROOT / "CHANGELOG.md").read_text().partition("\n## [0.1.0]")[2]
    assert first.partition("\n## ")[0].count("\n") <= 40
