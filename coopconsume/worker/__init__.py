"""What runs in a Spark task: a slot's part of a batch, from rows to a report.

    slot ── one after another ─── slot ──────────┐
      ├──── on threads ────────── thread_runner ─┤
      ├──── coroutines ────────── async_runner ──┼──> outcome ──> report
      └──── frame handlers ────── frame_runner ──┘

`key_scheduler` chooses the next record for threads and coroutines: `key_queues` keep the order of
each key, `rate_limit` bounds starts per second. `crash_journal` names the records that a worker was
working on when it ended.

Where the batch has a channel to the driver (`coopconsume.worker.channel`), a thread beside the
handlers reports finished records, and stops the slot if the driver says so or its lease ends.

It needs the standard library, pyarrow and PySpark's worker, nothing else.
"""

from coopconsume.worker.slot import SlotRunner, current_slot, resolve_handler

__all__ = ["SlotRunner", "current_slot", "resolve_handler"]
