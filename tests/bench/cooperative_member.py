"""A member of a group in a process of its own: ``python -m tests.bench.cooperative_member``."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from coopconsume import CooperativeConsumer, local_session


class Sleeps:
    """Takes so many seconds for each record."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, _record: Any) -> None:
        """Sleep."""
        time.sleep(self.seconds)


def main(config: dict[str, Any]) -> None:
    """Work until the process is ended."""
    spark = local_session("coopconsume-bench-member", cores=1)
    with CooperativeConsumer(config["options"], spark) as consumer:
        consumer.foreach(
            Sleeps(config["seconds"]), ordering="none", concurrency=config["concurrency"]
        ).start().awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
