"""Dispatches batches to the slots of a job: Spark jobs, leases, requests to running slots."""
