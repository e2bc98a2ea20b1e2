"""`python -m ropewalk` is `ropewalk`."""

from ropewalk.cli import main

if __name__ == "__main__":
    main(prog_name="ropewalk")
