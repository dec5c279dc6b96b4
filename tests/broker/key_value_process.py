"""A replica of the store of docs/fenced-log/key-value-store.md that is asked by lines of JSON."""

from __future__ import annotations

import json
import runpy
import sys

from coopconsume.errors import FencedLogError


def main(program: str, servers: str, topic: str, name: str, lease: str) -> None:
    """Answers ``[method, argument, …]`` lines until the end of the input."""
    page = runpy.run_path(program)

    def say(**found: object) -> None:
        sys.stdout.write(f"{json.dumps(found)}\n")  # In one call: events come from another thread.
        sys.stdout.flush()

    with page["KeyValueStore"](
        {"kafka.bootstrap.servers": servers},
        topic,
        owner=name,
        lease=float(lease),
        on_elected=lambda _: say(event="leads"),
        on_lost=lambda: say(event="follows"),
    ) as store:
        for line in sys.stdin:
            method, *arguments = json.loads(line)
            try:
                say(answer=getattr(store, method)(*arguments))
            except (page["NotLeading"], FencedLogError) as error:
                say(error=type(error).__name__, text=str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
