"""Several applications of one group under kills, pauses, joins and broker restarts."""
