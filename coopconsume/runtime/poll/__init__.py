"""Work by DataFrames: what ``poll`` hands out, and what users say of it."""

from coopconsume.runtime.poll.poller import Poller

__all__ = ["Poller"]
