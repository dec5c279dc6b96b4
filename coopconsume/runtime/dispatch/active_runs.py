"""The batches and real-time runs that Spark works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.group.settings import life_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coopconsume.options import Options
    from coopconsume.runtime.dispatch.run import Run
    from coopconsume.runtime.dispatch.slot_task import SlotTask
    from coopconsume.runtime.epoch_state import EpochState


class ActiveRuns:
    """The runs of a job that Spark works on, those of earlier epochs included.

    Args:
        options: Of the consumer.
        starts_within: Seconds in which a run without a channel may start its slots.

    Attributes:
        by_number: The runs.
    """

    def __init__(self, options: Options, starts_within: float) -> None:
        self.by_number: dict[int, Run] = {}
        self._options = options
        self._starts_within = starts_within

    def of(self, epoch_state: EpochState | None) -> list[Run]:
        """Returns the runs of an epoch; those of an earlier one only keep their slots busy."""
        return [run for run in self.by_number.values() if run.epoch_state is epoch_state]

    def task(self, number: int, slot: int) -> tuple[Run, SlotTask] | None:
        """Returns a slot without a final report, and its run; None: there is no such slot."""
        run = self.by_number.get(number)
        task = None if run is None else run.tasks.get(slot)
        return None if run is None or task is None or task.has_ended else (run, task)

    @property
    def busy(self) -> set[int]:
        """The slots that get no other run: they are in one, and have not given its records back."""
        return {task.slot for run in self.by_number.values() for task in run.active}

    @property
    def task_count(self) -> int:
        """How many tasks have not ended, those included that keep records of a slot."""
        return sum(len(run.unfinished) for run in self.by_number.values())

    @property
    def keeping(self) -> int:
        """How many tasks keep records of a slot."""
        tasks = (task for run in self.by_number.values() for task in run.tasks.values())
        return sum(task.is_keeping for task in tasks)

    def at_work(self, epoch_state: EpochState) -> set[int]:
        """Returns the slots of an epoch that are waited for.

        Those that were stopped before they could start a record are not: Spark may plan their
        batch for minutes, while no broker answers.
        """
        tasks = (task for run in self.of(epoch_state) for task in run.unfinished)
        return {task.slot for task in tasks if not task.is_withdrawn}

    def is_at_work(self, epoch_state: EpochState) -> bool:
        """Whether a batch of an epoch is waited for, see `at_work`."""
        return any(not run.is_withdrawn for run in self.of(epoch_state))

    def unsure(self, epoch_state: EpochState) -> set[int]:
        """Returns slots with unknown records at work; slots that keep records have named them."""
        tasks = (task for run in self.of(epoch_state) for task in run.active)
        return {task.slot for task in tasks if not task.is_withdrawn}

    def life_of(self, runs: Iterable[Run], *, renewed: bool = False) -> float:
        """Returns after how many seconds no handler of some runs is at work any more.

        Args:
            runs: The runs.
            renewed: Whether their slots were asked to end, and their handlers have their time.
                Otherwise nothing is heard of them, nor do they hear of this process.
        """
        return max([self._life_of(run, renewed=renewed) for run in runs], default=0.0)

    def _life_of(self, run: Run, *, renewed: bool) -> float:
        if run.channel is None:
            return self._options.batch_life + self._starts_within
        if run.epoch_state.assignment.fails_stop and not renewed:
            return life_of(self._options, run.channel.lease)
        return run.channel.lease + self._options.handler_timeout

    def check(self) -> None:
        """Raises an AssertionError if a slot is in two states, see `SlotTask`."""
        active = [task.slot for run in self.by_number.values() for task in run.active]
        assert len(active) == len(set(active)), f"slots are in two runs at once: {active}"
        for run in self.by_number.values():
            for task in run.tasks.values():
                known = run.number, task
                assert not (task.is_withdrawn and task.kept is not None), known
                assert not (task.is_withdrawn and task.seq), known
                assert task.kept is None or task.is_stopped, known
