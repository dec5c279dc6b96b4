"""A running job on the driver: plan, read, dispatch, settle, commit; and `poll`.

A turn of the `loop` takes a batch through these folders, from top to bottom:

    plan        what is done, what each slot has left, what is read next
    read        the records of a batch, by Spark
    dispatch    the Spark job of a batch, the leases of its slots, their reports
    settle      what failures leave: crashed workers, lost slots, failed batches, failed records
    commit      dead letters and outputs, one append to the commit log, offsets in Kafka

`loop` handles `events` one at a time, in one thread. `current_epoch` begins and ends the work on an
assignment, an `epoch_state`, with the `log_watch` over its logs. `group_requests` and `rebalance`
have what the group asks, `completion` what users ask; `recovery` decides about errors. `realtime`
runs long Spark jobs in place of batches. `status` says what a job does. `poll` implements `poll`,
`commit`, `retry` and `reject`.
"""
