"""State per key: what a handler keeps between the records of a key.

A change of state belongs to the outcome of its record: it counts if and only if the commit of the
record counts. After a crash the state of a key is that of its committed records, each applied once,
in their order. The rows of all changes are in a Delta table, the changelog, which is written before
the commit. Slots keep a copy of their key ranges in a local store; it is a cache.

The changelog follows the rules of KIP-X's shared stateful tasks: the changelog of a partition is
never split by key range, and a slot restores the key ranges that it owns.

Nothing is imported here, as tasks without state load `coopconsume.state.value` alone.
"""
