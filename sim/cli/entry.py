"""Entry point of the `lanesim` script: listens for signals before anything that takes time is imported.

Not here: the commands (sim.cli.main).
"""

from __future__ import annotations

from sim.cli.signals import end_at_once, have_streams, listen


def main() -> None:
    """Run the command line and exit with its code."""
    listen(end_at_once)
    have_streams()
    from sim.cli.main import main

    main()


if __name__ == "__main__":
    main()
