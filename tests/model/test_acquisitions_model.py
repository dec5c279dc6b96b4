"""The promises of cooperative fetch under disturbances; `ACQUIRE_SCHEDULES` schedules are run."""

from __future__ import annotations

import logging
import os

from hypothesis import settings

from tests.examples import examples
from tests.model.acquisition_world import World

log = logging.getLogger(__name__)
SCHEDULES = int(os.environ.get("ACQUIRE_SCHEDULES", examples(300)))


def test_any_schedule_keeps_the_promises() -> None:
    """Each record counts once, and nobody starts what is committed or what another one works on.

    A refused request does not move the marker. A process that was frozen or killed may have had
    its records in flight. Once nothing is disturbed, every record is done within a bound.
    """
    fresh = not settings.default.derandomize
    first = int.from_bytes(os.urandom(4)) if fresh else 0
    longest = 0.0
    for seed in range(first, first + SCHEDULES):
        world = World(seed)
        longest = max(longest, world.run())
        assert not world.wrong, f"seed {seed}: {world.wrong[0]}"
    log.info("%d schedules from seed %d: done at most %.1f s later", SCHEDULES, first, longest)
