"""`python -m probe` is `probe`."""

from probe.cli.app import main

if __name__ == "__main__":
    main()
