"""`python -m headscope`."""

import sys

from headscope.shell import main

if __name__ == "__main__":
    sys.exit(main())
