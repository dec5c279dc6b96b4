"""Real-time runs: long Spark jobs whose slots read Kafka themselves.

`mode` decides when a run begins and ends, `run` is its Spark job, `checks` are those of `start()`.
A run is a batch without an end to the dispatcher: its slots report, are stopped and lost as those
of a batch.
"""
