"""Divisible work spread as evenly as its takers allow.

Each job is an amount of work that some workers may take, in any parts; each worker has a weight.
The fairest spreading lowers the highest level (work per weight) as far as possible, then the next
lower one, and so on. It is found by halving: try to bring all workers to the average level; where
that fails, some jobs have too few takers, and a minimum cut tells them and their takers from the
rest, which are spread apart from each other.

    jobs ab:3 for a and b, a:3 for a alone; weights 1
    the average is 3: a takes its own 3, b the shared 3

Amounts are exact: a worker's level is volume / weight of its part, so everything is counted in
units of 1/weight, of which a job of amount 1 has `weight` many.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Job:
    """Work to spread.

    Attributes:
        amount: How much it is, from 1.
        takers: The workers that may take of it, those that should get it first in front.
    """

    amount: int
    takers: Sequence[int]


@dataclass(frozen=True, slots=True)
class Spread:
    """How one job is spread.

    Attributes:
        units: How many units an amount of 1 has.
        parts: The units each taker gets, more than 0; their sum is the job's amount times `units`.
    """

    units: int
    parts: dict[int, int]


def spread(jobs: Sequence[Job], weights: Mapping[int, int]) -> list[Spread]:
    """Spread jobs over workers as evenly as possible by weight.

    Args:
        jobs: The jobs; each has at least one taker.
        weights: The weight of every worker, from 1.

    Returns:
        How each job is spread, in the order given.
    """
    result: list[Spread | None] = [None] * len(jobs)
    parts = [list(range(len(jobs)))]
    workers_of = [{worker for job in jobs for worker in job.takers}]
    while parts:
        part, workers = parts.pop(), workers_of.pop()
        if not part:
            continue
        flow = _Flow([jobs[i] for i in part], workers, weights)
        cut_jobs, cut_workers = flow.run()
        if not cut_jobs:
            for i, taken in zip(part, flow.taken, strict=True):
                result[i] = Spread(flow.units, taken)
            continue
        parts += [[part[k] for k in cut_jobs], [i for k, i in enumerate(part) if k not in cut_jobs]]
        workers_of += [cut_workers, workers - cut_workers]
    return [each for each in result if each is not None]


class _Flow:
    """A largest flow from jobs to workers that may all be filled to the average level."""

    def __init__(self, jobs: Sequence[Job], workers: set[int], weights: Mapping[int, int]) -> None:
        self.units = sum(weights[worker] for worker in workers)
        volume = sum(job.amount for job in jobs)
        self.takers = [[w for w in job.takers if w in workers] for job in jobs]
        self.left = [job.amount * self.units for job in jobs]
        self.room = {worker: volume * weights[worker] for worker in workers}
        self.taken: list[dict[int, int]] = [{} for _ in jobs]
        self.jobs_of: dict[int, set[int]] = {worker: set() for worker in workers}

    def run(self) -> tuple[set[int], set[int]]:
        """Place all that can be placed.

        Returns:
            The jobs that do not find room, with those they compete with, and all workers these
            jobs could go to; nothing if all is placed.
        """
        for job, takers in enumerate(self.takers):
            for worker in takers:
                self._give(job, worker, min(self.left[job], self.room[worker]))
        while True:
            came_from, end = self._search()
            if end is None:
                return set(came_from[0]), set(came_from[1])
            self._augment(came_from, end)

    def _search(self) -> tuple[tuple[dict[int, int | None], dict[int, int]], int | None]:
        """Look for a way from a job with something left to a worker with room, shortest first."""
        jobs: dict[int, int | None] = {job: None for job, left in enumerate(self.left) if left}
        workers: dict[int, int] = {}
        queue = deque(jobs)
        while queue:
            job = queue.popleft()
            for worker in self.takers[job]:
                if worker in workers:
                    continue
                workers[worker] = job
                if self.room[worker]:
                    return (jobs, workers), worker
                for other in sorted(self.jobs_of[worker]):
                    if other not in jobs:
                        jobs[other] = worker
                        queue.append(other)
        return (jobs, workers), None

    def _augment(self, came_from: tuple[dict[int, int | None], dict[int, int]], end: int) -> None:
        jobs, workers = came_from
        path: list[tuple[int, int, int | None]] = []
        worker: int | None = end
        amount = self.room[end]
        while worker is not None:
            job = workers[worker]
            source = jobs[job]
            path.append((job, worker, source))
            amount = min(amount, self.left[job] if source is None else self.taken[job][source])
            worker = source
        for job, worker, source in path:
            if source is not None:
                self._give(job, source, -amount)
            self._give(job, worker, amount)

    def _give(self, job: int, worker: int, amount: int) -> None:
        if not amount:
            return
        taken = self.taken[job]
        taken[worker] = taken.get(worker, 0) + amount
        self.left[job] -= amount
        self.room[worker] -= amount
        if taken[worker]:
            self.jobs_of[worker].add(job)
        else:
            del taken[worker]
            self.jobs_of[worker].discard(job)
