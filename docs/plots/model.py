"""What a reduction costs, from measured.json: on one machine, and on paper on many."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
GB, MIB = 1e9, 1 << 20
MEASURED: dict[str, Any] = json.loads((HERE / "measured.json").read_text())
DIGEST = hashlib.sha256((HERE / "measured.json").read_bytes()).hexdigest()
"""What a plot keeps, to tell which measurement it shows."""


class Machine(NamedTuple):
    """What is measured on one machine, with all its workers.

    Parameters
    ----------
    start
        Seconds of a command with two tiny ranks.
    rank
        Seconds for each rank more: to open it, look at it and read it.
    gbytes
        GB/s of ranks that are read and summed.
    worker_gbytes
        GB/s of one worker.
    """

    start: float
    rank: float
    gbytes: float
    worker_gbytes: float

    def seconds(self, nranks: int, nbytes: float) -> float:
        """Return what a sum takes of so many ranks with so many bytes in all."""
        return self.start + nranks * self.rank + nbytes / self.gbytes / GB


def machine() -> Machine:
    """Return the constants of the machine that was measured."""
    small = {int(number): taken for number, taken in MEASURED["small"].items()}
    lengths = {int(nbytes): taken for nbytes, taken in MEASURED["lengths"].items()}
    (fewest, first), *_, (most, last) = sorted(small.items())
    shortest, *_, longest = sorted(lengths)
    workers = MEASURED["workers"]
    gbytes = (longest - shortest) / (lengths[longest] - lengths[shortest]) / GB
    one = longest / 2 / (workers["1"] - first) / GB
    return Machine(first, (last - first) / (most - fewest), gbytes, one)


class Cluster(NamedTuple):
    """A parallel file system and the machines before it: what is assumed, not measured.

    Parameters
    ----------
    workers
        Processes on each machine.
    gbytes
        GB/s that the file system gives in all.
    opens
        Files that its metadata server opens in a second.
    link_gbytes
        GB/s between a machine and the others, and the file system.
    """

    workers: int = 8
    gbytes: float = 500.0
    opens: float = 50_000.0
    link_gbytes: float = 20.0


class Job(NamedTuple):
    """Ranks: how many, and the bytes of each."""

    nranks: int
    nbytes: float


JOB = Job(10_000, 10 * GB)
CLUSTER = Cluster()
NODES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_CHUNK_NBYTES = MIB


def reading(job: Job, nodes: int, cluster: Cluster = CLUSTER) -> float:
    """Return the seconds to read all ranks once, by so many machines."""
    node_gbytes = min(cluster.link_gbytes, cluster.workers * machine().worker_gbytes)
    return job.nranks * job.nbytes / GB / min(cluster.gbytes, nodes * node_gbytes)


def elements(job: Job, nodes: int, cluster: Cluster = CLUSTER) -> float:
    """Return the seconds where each worker has some elements of all ranks, and opens all of them."""
    opens = job.nranks * (nodes * cluster.workers + 1) / cluster.opens
    return machine().start + opens + reading(job, nodes, cluster) + job.nbytes / GB / cluster.link_gbytes


def ranks(job: Job, nodes: int, cluster: Cluster = CLUSTER) -> float:
    """Return the seconds where each machine has some ranks, and hands what is combined on to the next, by chunks."""
    opens = job.nranks * (cluster.workers + 1) / cluster.opens
    nchunks = job.nbytes / cluster.workers / _CHUNK_NBYTES
    passing = nodes > 1 and job.nbytes / GB / cluster.link_gbytes
    work = max(reading(job, nodes, cluster), passing) * (1 + (nodes - 1) / nchunks)
    return machine().start + opens + work + job.nbytes / GB / cluster.link_gbytes
