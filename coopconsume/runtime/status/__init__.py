"""Says what a job does: progress, latency, what it waits for, keys of blockers."""
