"""Errors of the sources of a real-time slot."""


class ReadFailed(Exception):
    """A source cannot continue: it cannot read the log that the run knows at the offset."""
