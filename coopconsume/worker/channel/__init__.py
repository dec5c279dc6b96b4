"""The connection between the driver and the tasks of a batch.

    client ───── the slot's side, in a thread beside the handlers
    server ───── the driver's side, one thread for all slots of a job
    wire ─────── frames, handshake and session keys, without sockets
    messages ─── progressive reports on the wire
    lease ────── when a slot may start records, without clocks
    spec ─────── what a task needs to connect

A task opens one connection as it starts, and both sides prove that they know the job's secret. The
slot asks for its lease again and again, and sends what is done as progressive reports, which the
driver acknowledges. The driver may stop the slot, or ask it to give back records that it has not
started. Nothing is pickled. Frames are authenticated, not encrypted.
"""
