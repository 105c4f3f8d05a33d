"""`python -m passel` is `passel`."""

import sys

from passel.cli import main

if __name__ == "__main__":
    sys.exit(main())
