"""What runs in a Spark task: a slot's part of a batch, from rows to a report.

    slot ── one after another ─── handling ──┐
      ├──── on threads ────────── crew ──────┤
      ├──── coroutines ────────── coroutines ┼──> ledger ──> report
      └──── many at once ──────── frames ────┘
            side by side: desk, over lanes, at a pace; blackbox names what a dead worker did

Where the batch has a channel to the driver (`coopconsume.channel`), a thread beside the handlers
reports what the ledger has so far, and halts the slot on the driver's word or without a lease.

It needs the standard library, pyarrow and PySpark's worker, nothing else.
"""

from coopconsume.task.slot import SlotRunner, current_slot, resolve_handler

__all__ = ["SlotRunner", "current_slot", "resolve_handler"]
