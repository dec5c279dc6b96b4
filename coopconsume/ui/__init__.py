"""The live page: the status of groups in a browser, and decisions on dead letters."""
