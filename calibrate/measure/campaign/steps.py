"""One step of a campaign in one process: python -m calibrate.measure.campaign.steps CAMPAIGN OUT STEP

Every step leaves its files in OUT, whole or not at all but for the points of a measurement, which come one by one. Not
here: which steps there are (calibrate.measure.campaign.plan), the checks of the first
(calibrate.measure.campaign.smoke), the report of the last (calibrate.measure.campaign.report).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from pathlib import Path
from statistics import fmean
from time import perf_counter

from calibrate.measure.campaign.plan import (
    CAMPAIGNS,
    CORUN,
    MEASURE,
    OPEN_SHARE,
    REPLAY,
    REPORT,
    SMOKE,
    Campaign,
    Loop,
    MeasuredPair,
    device_of,
)
from calibrate.measure.campaign.verdict import BESIDE
from sim.names import install_line


def run(device: str, out: Path, step: str, campaign: Campaign) -> None:
    """Raises ValueError for what cannot be done, one line."""
    import torch

    from sim.costs.extrapolation import OutsideProfileWarning

    # Co-runs have more rows than passes alone, and replays longer prompts: what is judged says so itself.
    warnings.simplefilter("ignore", OutsideProfileWarning)
    # As measurements and replays do: a pass has one thread.
    torch.set_num_threads(1)
    if step == SMOKE:
        from calibrate.measure.campaign.smoke import smoke

        smoke(device, out, campaign)
    elif step == CORUN:
        from calibrate.measure.campaign.corun import rate_coruns

        rate_coruns(campaign.job.spec(device), campaign.job.points_path(out), campaign.corun_s)
    elif step.startswith(MEASURE):
        measure(device, out, campaign.job, campaign.repeats)
    elif step.startswith(REPLAY):
        replay(device, out, campaign, next(load for load in campaign.loads if step == f"{REPLAY}{load.name}"))
    elif step == REPORT:
        from calibrate.measure.campaign.report import report

        report(out, campaign)
    else:
        raise ValueError(f"step {step!r} must be one of {', '.join(campaign.steps)}")


def measure(device: str, out: Path, job: MeasuredPair, repeats: int) -> None:
    """A pair's points and profile. Goes on where an earlier measurement was killed."""
    from calibrate.measure.session import measure_pair
    from sim.costs.profile_files import encode
    from sim.files.write import write_text

    spec, points = job.spec(device), job.points_path(out)
    profile = measure_pair(spec, points, job.budget_s, repeats=repeats, say=print)
    write_text(job.profile_path(out), encode(profile).decode())


def replay(device: str, out: Path, campaign: Campaign, load: Loop) -> None:
    """Replay `load` into OUT/LOAD and judge it there."""
    from realrun.cli.replay import replay_command
    from realrun.cli.validate import directory_command
    from sim.files.write import write_text

    directory, scenario, judged = out / load.name, out / f"{load.name}.yaml", out / f"{load.name}.json"
    judged.unlink(missing_ok=True)
    # JSON is YAML, too.
    rate = _open_rate(out, campaign) if load.concurrency is None else 0.0
    write_text(scenario, json.dumps(campaign.scenario(load, str(campaign.job.profile_path(out)), rate)))
    line = [str(scenario), "--device", device, "--out", str(directory), "--overwrite"]
    replay_command.main(line, standalone_mode=False)
    judge = [str(directory), "--json", str(judged)]
    directory_command.main(judge, standalone_mode=False)


def _open_rate(out: Path, campaign: Campaign) -> float:
    """Requests per second of the open loop. Raises ValueError where its closed loop was not replayed."""
    closed = out / f"{campaign.loads[0].name}.json"
    if not closed.exists():
        raise ValueError(f"{closed.name} is missing: it says how many requests a second are served here")
    runs = json.loads(closed.read_text())["runs"]
    served = [run["metrics"]["output_throughput"]["real"] for run in runs if run["policy"] == BESIDE]
    return OPEN_SHARE * fmean(served) / campaign.output_tokens


def _end_with_parent() -> None:
    """Whoever started this process holds the other end of its input: when that closes, nobody waits for it any more."""

    def watch() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(args: list[str]) -> int:
    """Exit code 1 and one line if the step cannot be done."""
    name, out, step = args
    _end_with_parent()
    started_s = perf_counter()
    try:
        run(device_of(name), Path(out), step, CAMPAIGNS[name])
    except (ValueError, RuntimeError, ImportError) as error:
        hint = f"; {install_line('gpu,analysis')}" if isinstance(error, ImportError) else ""
        print(f"campaign: {step}: {' '.join(str(error).split())}{hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"campaign: {step} took {perf_counter() - started_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
