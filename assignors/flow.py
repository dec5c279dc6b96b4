"""Spreads divisible work over workers as evenly as possible.

Each job is an amount of work that some workers may take, in any parts; each worker has a weight.
The fairest result lowers the highest level (work per weight) as far as possible, then the next
lower one, and so on. The algorithm tries to bring all workers to the average level. If that fails,
some jobs have too few takers. A minimum cut separates these jobs and their takers from the rest,
and both parts are spread independently.

    jobs ab:3 for a and b, a:3 for a alone; weights 1
    the average is 3: a takes its own 3, b the shared 3

Amounts are exact: a worker's level is volume / weight of its part, so all amounts are counted in
units of 1/weight. A job of amount 1 has `weight` units.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Demand:
    """Work to spread.

    Attributes:
        amount: The amount of work, from 1.
        takers: The workers that may take parts of it, preferred ones first.
    """

    amount: int
    takers: Sequence[int]


@dataclass(frozen=True, slots=True)
class Spread:
    """The parts of one job.

    Attributes:
        units: The number of units of an amount of 1.
        parts: The units each taker gets, more than 0; their sum is the job's amount times `units`.
    """

    units: int
    parts: dict[int, int]


def spread(jobs: Sequence[Demand], weights: Mapping[int, int]) -> list[Spread]:
    """Spread jobs over workers as evenly as possible by weight.

    Args:
        jobs: The jobs; each has at least one taker.
        weights: The weight of every worker, from 1.

    Returns:
        The parts of each job, in the given order.
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
    """A maximum flow from jobs to workers whose capacity is the average level."""

    def __init__(
        self, jobs: Sequence[Demand], workers: set[int], weights: Mapping[int, int]
    ) -> None:
        self.units = sum(weights[worker] for worker in workers)
        volume = sum(job.amount for job in jobs)
        self.takers = [[w for w in job.takers if w in workers] for job in jobs]
        self.left = [job.amount * self.units for job in jobs]
        self.free = {worker: volume * weights[worker] for worker in workers}
        self.taken: list[dict[int, int]] = [{} for _ in jobs]
        self.jobs_of: dict[int, set[int]] = {worker: set() for worker in workers}

    def run(self) -> tuple[set[int], set[int]]:
        """Place as much work as possible.

        Returns:
            The jobs that exceed the capacity, with those they compete with, and all workers that
            could take them; both are empty if all work is placed.
        """
        for job, takers in enumerate(self.takers):
            for worker in takers:
                self._give(job, worker, min(self.left[job], self.free[worker]))
        while True:
            came_from, end = self._search()
            if end is None:
                return set(came_from[0]), set(came_from[1])
            self._augment(came_from, end)

    def _search(self) -> tuple[tuple[dict[int, int | None], dict[int, int]], int | None]:
        """Find the shortest path from a job with work left to a worker with free capacity."""
        jobs: dict[int, int | None] = {job: None for job, left in enumerate(self.left) if left}
        workers: dict[int, int] = {}
        queue = deque(jobs)
        while queue:
            job = queue.popleft()
            for worker in self.takers[job]:
                if worker in workers:
                    continue
                workers[worker] = job
                if self.free[worker]:
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
        amount = self.free[end]
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
        self.free[worker] -= amount
        if taken[worker]:
            self.jobs_of[worker].add(job)
        else:
            del taken[worker]
            self.jobs_of[worker].discard(job)
