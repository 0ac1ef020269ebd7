"""`python -m holdfast`: the command line, for whoever must be sure which interpreter runs it."""

from holdfast.interfaces.cli import main

if __name__ == "__main__":
    main()
