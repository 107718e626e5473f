"""A target through any history: updates, crashes, recoveries and what else happens to files, beside a plain list."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from command import run
from faults import Counter, Fault, at, recover
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import mpired

COUNT = 40
COMMITS = ("auto", "rename", "journal")
NAMES = ("t.npy", "renamed.npy")


class Target(RuleBasedStateMachine):
    """The model is a list of integers; after a crash it is what it was, or what it was to be."""

    def __init__(self) -> None:
        super().__init__()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="mpired-test-", dir=memory))
        self.name = NAMES[0]
        self.model = [0] * COUNT
        self.links = 0
        np.save(self.path, np.array(self.model))

    @property
    def path(self) -> Path:
        return self.folder / self.name

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(commit=st.sampled_from(COMMITS), disp=st.integers(0, COUNT - 1), value=st.integers(-9, 9))
    def accumulate(self, commit: str, disp: int, value: int) -> None:
        count = COUNT - disp
        mpired.Window(self.path, commit=commit).accumulate(np.full(count, value), "sum", target_disp=disp)
        self.model[disp:] = [old + value for old in self.model[disp:]]
        if commit == "rename":
            self.links = 0

    @rule(indices=st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=9))
    def scatter(self, indices: list[int]) -> None:
        mpired.Window(self.path).accumulate(np.arange(len(indices)), "replace", map=np.array(indices))
        for value, index in enumerate(indices):
            self.model[index] = value

    @rule(
        commit=st.sampled_from(COMMITS[1:]),
        number=st.integers(1, 60),
        how=st.sampled_from(["kill before", "short, then kill"]),
    )
    def crash(self, commit: str, number: int, how: str) -> None:
        np.save(self.folder / "one.npy", np.ones(COUNT, np.int64))
        fault = Fault(how)
        words = ("accumulate", "-q", "--op", "sum", "--commit", commit, self.name, "one.npy")
        run(*words, cwd=self.folder, setup=at(number, fault, Counter(), self.name))
        # Whoever comes next may do so by another name of the file, unless a rename has parted them.
        name = "link" if self.links and commit == "journal" else self.name
        found = mpired.Window(self.folder / name).get_accumulate(None, "no_op").tolist()
        new = [old + 1 for old in self.model]
        assert found in (self.model, new)
        if commit == "rename" and found == new:
            self.links = 0
        self.model = found

    @rule()
    def recover(self) -> None:
        recover(self.path)
        assert not [name for name in os.listdir(self.folder) if name.startswith(".")]

    @rule()
    def move(self) -> None:
        mpired.info(self.path)  # a log must not stay behind
        new = NAMES[1 - NAMES.index(self.name)]
        self.path.rename(self.folder / new)
        self.name = new

    @precondition(lambda self: self.links == 0)
    @rule()
    def link(self) -> None:
        (self.folder / "link").unlink(missing_ok=True)
        os.link(self.path, self.folder / "link")
        self.links = 1

    @rule(mode=st.sampled_from([0o600, 0o644, 0o660]))
    def chmod(self, mode: int) -> None:
        self.path.chmod(mode)

    @rule(values=st.lists(st.integers(-99, 99), min_size=COUNT, max_size=COUNT))
    def replace(self, values: list[int]) -> None:
        np.save(self.folder / "new.npy", np.array(values))
        os.replace(self.folder / "new.npy", self.path)
        self.model, self.links = values, 0

    @invariant()
    def reads_as_the_model(self) -> None:
        assert mpired.reduce([self.path], "sum").tolist() == self.model
        if self.links:
            assert np.load(self.folder / "link").tolist() == self.model


@pytest.mark.filterwarnings("ignore::mpired.errors.HardLinkWarning")
@pytest.mark.timeout(3600)  # it syncs often, and a disk may have others to serve
@pytest.mark.parametrize("half", [1, 2])
def test_any_history(half, long):
    machine = seed(half)(type(f"Target{half}", (Target,), {}))
    examples = settings(max_examples=1000 if long else 3, stateful_step_count=30, deadline=None, database=None)
    run_state_machine_as_test(machine, settings=examples)
