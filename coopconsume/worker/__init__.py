"""What runs in a Spark task: a slot's part of a batch, from rows to a report.

    slot ── one after another ─── serial_runner ─┐
      ├──── on threads ────────── thread_runner ─┤
      ├──── coroutines ────────── async_runner ──┼──> outcome ──> report_draft ──> report
      └──── frame handlers ────── frame_runner ──┘

All runners implement `runner`. `reporter` takes reports while they run. `key_scheduler` chooses the
next record for threads and coroutines: `key_queues` keep the order of each key, `rate_limit` bounds
starts per second. `crash_journal` names the records that a worker was working on when it ended.

Where the batch has a channel to the driver (`coopconsume.worker.channel`), a thread beside the
handlers reports finished records, and stops the slot if the driver says so or its lease ends.

It needs the standard library, pyarrow and PySpark's worker, nothing else.
"""
