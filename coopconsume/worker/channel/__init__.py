"""The connection between the driver and the tasks of a batch.

    wire ─────── frames, proofs and session keys, without sockets
    messages ─── what progressive reports look like on the wire
    lease ────── when a slot may start records, without clocks
    server ───── the driver's side
    client ───── the task's side

A task opens one connection as it starts. Both sides prove that they know the job's secret. Nothing
is pickled. Frames are authenticated, not encrypted.
"""
