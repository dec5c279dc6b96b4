"""What ``spark-submit`` runs: the command line, with the session that it was given.

``spark-submit --py-files coopconsume.zip jobs.py MODULE:FUNCTION --option key=value …`` is
``coopconsume run``; what begins with the name of a command is that one, such as ``jobs.py lag
shop``: for a commit table in a catalog.

The zip holds the three packages. The driver's interpreter needs what coopconsume depends on, that
of the workers only pyarrow and what it brings; a module of handlers goes into ``--py-files``, too.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # A script's own folder comes first on the path, and here it is a package's inside.
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    from coopconsume.cli import main
    from coopconsume.cli.run import run

    is_command = sys.argv[1:2] and sys.argv[1] in main.commands
    (main if is_command else run)()
