"""`python -m train ...` is `probe train ...`, for `accelerate launch -m train`."""

from __future__ import annotations

import sys

from probe.cli.app import main

if __name__ == "__main__":
    sys.argv[1:1] = ["train"]
    main()
