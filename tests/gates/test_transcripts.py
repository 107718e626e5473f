"""Commands give the results in `transcripts.xz`: ten parts of 85 cases, 10 s of a core each; with `--long` all."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import cases
import option_cases
import transcripts
from transcripts import Accepted, compared

from mpired.cli.messages import STATUSES

PARTS = 40
OF_DIFF = {70}
RECORD = {"status": 0, "out": "1\n2\n", "err": "", "files": {"a.npy": "12ab"}}


@pytest.fixture(scope="module")
def recorded():
    return transcripts.read()


@pytest.mark.needs("gcc", "root")
@pytest.mark.sampled(4)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_cases_give_the_recorded_results(part, recorded, record_property):
    chosen = [case for case in cases.cases() if transcripts.in_part(case, part, PARTS)]
    accepted = Accepted.read()
    texts, used = compared(recorded, transcripts.records_of(chosen), accepted)
    texts += [
        f"accepted.toml: no case has the difference of {each}"
        for each in accepted
        if each.case in chosen and each not in used
    ]
    assert not texts, "\n\n".join(texts)
    record_property("tried", len(chosen))


def test_the_record_has_each_case_and_no_other(recorded):
    there = set(cases.cases())
    assert (there - recorded.keys(), recorded.keys() - there) == (set(), set()), "`make transcripts ARGS=--add`"


def test_each_accepted_difference_is_of_a_case():
    there = cases.cases()
    assert [each for each in Accepted.read() if not any(map(each.command.fullmatch, there))] == []


def test_no_case_has_a_traceback(recorded):
    assert [case for case, each in recorded.items() if "Traceback" in each["out"] + each["err"]] == []


def test_every_option_is_run_with_every_command_that_has_it():
    there = cases.cases()
    assert option_cases.missing_pairs(there) == []
    without = [case for case in there if "--lock-timeout" not in case]
    assert "recover --lock-timeout" in option_cases.missing_pairs(without)


def test_every_example_of_pages_and_help_is_run():
    text = "\n".join(cases.cases())
    paths = [*cases.ROOT.glob("*.md"), *cases.ROOT.glob("docs/*.md"), *cases.ROOT.glob("sample_data/*.md")]
    pages = [page for page in map(Path.read_text, paths) if "$ mpired" in page]
    lines = [line for page in pages for line in re.findall(r"^[$>] (.*)$", page, re.MULTILINE)]
    assert len(lines) > 300
    assert [line for line in lines if line not in text] == []
    assert "mpired examples try-mpired" in text


def test_every_status_is_provoked(recorded):
    expected = {case: int(case.rpartition("# ")[2]) for case in cases.of_statuses()}
    assert {case: recorded[case]["status"] for case in expected} == expected
    listed = {int(number) for numbers in STATUSES for number in numbers.split(", ")}
    assert set(expected.values()) == listed | OF_DIFF


def test_a_difference_is_printed_unless_it_is_accepted():
    files = {"a.npy": "12ab", "b.npy": "77cd"}
    for key, value, line in (("status", 3, "+3"), ("out", "1\n3\n", "-2"), ("files", files, "+b.npy: 77cd")):
        old, new = {"mpired ops": RECORD}, {"mpired ops": RECORD | {key: value}}
        (text,), _ = compared(old, new, [])
        assert text.startswith("$ mpired ops\n")
        assert f"    {line}" in text.splitlines()
        entry = {"differs": [key], "reason": "so", "issue": "1"}
        for how, accepts in (({"command": "mpired ops"}, 1), ({"pattern": "mpired o.*"}, 1), ({"pattern": "o.*"}, 0)):
            accepted = [Accepted.of(entry | how)]
            texts, used = compared(old, new, accepted)
            assert (not texts, used == set(accepted)) == (accepts, accepts)
        assert compared(old, new, [Accepted.of(entry | {"command": "mpired ops", "differs": ["err"]})])[0]
        assert compared({}, new, [])[0]
