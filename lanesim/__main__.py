"""`python -m lanesim`: the command line."""

from sim.cli.entry import main

if __name__ == "__main__":
    main()
