"""`python -m validation NAME ...`: what the simulator is judged on, one program per name; without one, their list."""

from __future__ import annotations

import sys
from importlib import import_module

PROGRAMS = {
    "accuracy": ("validation.accuracy.accuracy_page", "docs/accuracy.md: real runs of others beside simulated ones"),
    "accuracy_intervals": ("validation.intervals.speedups", "how often tune's interval of a speed-up holds"),
    "atlas": ("validation.pages.atlas_page", "docs/atlas: published pairs, best draft length by load, break-even"),
    "capacity_truths": ("validation.intervals.fleets", "whether fleets and intervals hold in other draws of costs"),
    "claims": ("validation.claims.command", "published claims: claimed, simulated, verdict and why"),
    "drafted": ("validation.silicon.drafted", "served cells that draft with MTP, beside plain ones of the same set-up"),
    "leaderboard": ("validation.pages.leaderboard", "docs/leaderboard.md: lanesim beside every other simulator"),
    "left_out": ("validation.intervals.left_out", "pooled constants of engines without each of their sources"),
    "notebooks": ("validation.pages.notebooks", "executes the notebooks on small settings"),
    "overlap": ("validation.pages.overlap", "published A/Bs of one plain stream against two, beside leftover"),
    "partition": ("validation.accuracy.multiprocessor_shares", "solo curves of shares of multiprocessors"),
    "plan_truths": ("validation.intervals.plans", "whether planned fleets hold in other draws of costs"),
    "power": ("validation.accuracy.power", "average power of a GPU beside measured ones"),
    "replay_accuracy": ("validation.replays.accuracy", "docs/validation: this CPU measured, predicted, replayed"),
    "scenario_docs": ("validation.pages.scenario", "docs/scenario.md, from the schema"),
    "silicon": ("validation.silicon.command", "served cells by class, beside a peer"),
    "silicon_page": ("validation.silicon.silicon_page", "docs/silicon.md, from results of silicon"),
    "speed": ("validation.speed.processes", "CPU seconds and memory, beside a bare loop"),
    "support": ("validation.pages.support", "docs/support.md: which model runs on which GPU"),
    "unprepared": ("validation.pages.unprepared", "docs/unprepared.md: deployments that nobody prepared"),
    "verdicts": ("validation.intervals.verdicts", "how often load verdicts and intervals hold"),
    "who_wins": ("validation.pages.who_wins", "docs/who-wins.md: the fastest policy by load"),
}
"""Name -> (module with a `main`, what it does)."""


def main(args: list[str]) -> int:
    """The exit code: 2 where there is no such program."""
    if not args or args[0] not in PROGRAMS:
        lines = [f"  {name:20}{what}" for name, (_, what) in PROGRAMS.items()]
        print("\n".join(["usage: python -m validation NAME ...", *lines]), file=sys.stderr)
        return 2
    module = import_module(PROGRAMS[args[0]][0])
    sys.argv = [f"python -m validation {args[0]}", *args[1:]]
    return int(module.main() or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
