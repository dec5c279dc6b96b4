"""Work queues: acquisitions of single records that survive the loss of a minority of replicas."""
