"""Real-time slots: tasks that read Kafka themselves. Task-side code; needs confluent-kafka, xxhash.

    slot ── reader ─┬─ source ──────────────────────────────── Kafka
                    └─ host_source ── host_link ── fetch_server ── Kafka

`slot` runs the handlers of a batch over rows that do not end. `reader` turns records into rows,
leaves out those of other slots, and notes positions and holes. `read_progress` collects what was
read since the last report. `source` is a Kafka consumer. `confirmed_reads` holds back what it reads
until `topic_check` has found that it is of the run's topics. `log_reach` knows in which leader
epoch a position was reached: a log that was cut is found, and an election ends no run.

If a job has several slots, those of a host read through one `fetch_server`, so that each record is
fetched once per host. `fetch_messages` are its requests and answers, `record_cache` is its memory.
On the slot's side `host_source` replaces `source`. Its `fetch_state` decides for each partition
whether the slot asks the server or reads Kafka itself. `host_link` connects to the server, and
starts it. `value_reader` reads values from Kafka if the server keeps none.
"""
