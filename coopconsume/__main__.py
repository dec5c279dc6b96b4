"""``python -m coopconsume``: the command line."""

from coopconsume.cli import main

if __name__ == "__main__":
    main()
