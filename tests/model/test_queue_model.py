"""The promises of a queue under simulated disturbances; `QUEUE_SCHEDULES` schedules are run."""

from __future__ import annotations

import logging
import os

from hypothesis import settings

from tests.model.queue_world import World

log = logging.getLogger(__name__)
SCHEDULES = int(os.environ.get("QUEUE_SCHEDULES", "400"))


def test_any_schedule_keeps_the_promises() -> None:
    """What is acknowledged never comes again, nothing is lost, no two have a record at once.

    Once all replicas are up, all records are done and all acknowledgements answered in time.
    """
    fresh = not settings.default.derandomize
    first = int.from_bytes(os.urandom(4)) if fresh else 0
    longest = 0.0
    for seed in range(first, first + SCHEDULES):
        world = World(seed)
        longest = max(longest, world.run())
        assert not world.wrong, f"seed {seed}: {world.wrong[0]}"
    log.info("%d schedules from seed %d: done at most %.1f s later", SCHEDULES, first, longest)
