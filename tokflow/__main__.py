"""`python -m tokflow` is the command `tokflow`."""

from tokflow.cli import main

if __name__ == "__main__":
    main()
