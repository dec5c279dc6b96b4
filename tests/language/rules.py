"""The words that stay out, the phrases in which they are right, and the files that are checked."""

from __future__ import annotations

# Words and phrases, by what to write instead. Names are searched as well: `told_by`, `KeyDesk`.
BANNED: dict[str, tuple[str, ...]] = {
    "again, new": ("anew",),
    "scattered": ("strewn",),
    "the process, member or caller that": ("whoever", "whomever"),
    "whose, or two sentences": ("of which", "by which", "of whom", "to whom", "whom"),
    "there is no": ("is none", "are none"),
    "happens, is created": ("comes about", "come about", "came about"),
    "is notified, returns, reports, names, distinguishes": ("tell", "tells", "telling", "told"),
    "runs, is scheduled": ("has its turn", "have its turn", "in its turn", "takes its turn"),
    "finish": ("have done with", "has done with", "having done with"),
    "space, capacity, limit": ("room",),
    "scheduler": ("desk",),
    "runner": ("crew",),
    "epoch state, or a change": ("shift",),
    "state, records": ("books",),
    "status, position": ("standing",),
    "epoch grant": ("tenure",),
    "harness": ("ground",),
    "releases": ("lets go", "let go", "letting go"),
    "available": ("to be had", "can be had", "could be had"),
    "similar": ("kin",),
    "treats as": ("takes for", "take for", "takes it for", "take it for", "taken for"),
    "permanently": ("for good",),
    "report, log, describe": ("what goes on", "what went on"),
    "has become, is now": ("what has become of", "what became of", "has become of"),
    "plain words": (
        "hitherto",
        "thereof",
        "therein",
        "thereupon",
        "whence",
        "whereupon",
        "wherein",
        "naught",
        "nought",
        "as it were",
        "in vain",
        "by and by",
        "be it",
        "so be it",
        "good luck",
        "bad luck",
    ),
}
# Where a word is right: a method of Python or numpy, a fixed term.
ALLOWED = (
    ".tell(",
    ".shift(",
    "bit shift",
    "shift key",
    "foreground",
    "background",
    "ground truth",
    "long-standing",
    "room for improvement",
)
# What is clean already and stays so. A folder is added as it is rewritten.
CLEAN = (
    "assignors/*.py",
    "commits/*.py",
    "coopconsume/admin/*.py",
    "coopconsume/admin/*/*.py",
    "coopconsume/cli/*.py",
    "coopconsume/demo/*.py",
    "coopconsume/errors/*.py",
    "coopconsume/kafka/*.py",
    "coopconsume/kafka/security/*.py",
    "coopconsume/monitoring/*.py",
    "coopconsume/queue/*.py",
    "tests/language/__*.py",
)
NOT_YET = ("coopconsume/errors/fenced.py",)
