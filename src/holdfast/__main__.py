"""`python -m holdfast` is the command `holdfast`; launchers start it this way."""

import sys

from holdfast.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
