"""Real-time runs: long Spark jobs whose slots read Kafka themselves.

`mode` decides when a run may begin and must end, `runs` begins and ends it, `run_job` is its plan
and Spark job, `checks` are the checks of `start()`. To the dispatcher, a run is a batch whose rows
do not end: its slots report, are stopped and are lost like those of a batch.
"""
