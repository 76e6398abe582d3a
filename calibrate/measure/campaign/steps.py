"""One step of a campaign in one process: python -m calibrate.measure.campaign.steps CAMPAIGN OUT STEP

Every step leaves its files in OUT, whole or not at all but for the points of a measurement, which come one by one. One
that is interrupted, as at its limit, leaves what it has. Not here: which steps there are
(calibrate.measure.campaign.plan), the checks of the first (calibrate.measure.campaign.smoke), the report
(calibrate.measure.campaign.report).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from time import perf_counter

from calibrate.measure.campaign.plan import (
    CAMPAIGNS,
    CORUN,
    MEASURE,
    REPORT,
    SMOKE,
    Campaign,
    Loop,
    device_of,
)
from sim.names import install_line

AGAIN_S = 0.05


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
    elif step == MEASURE:
        measure(device, out, campaign)
    elif step == CORUN:
        corun(device, out, campaign)
    elif step == REPORT:
        from calibrate.measure.campaign.report import report

        report(out, campaign)
    else:
        replay(device, out, campaign, next(load for load in campaign.loads if step == load.name))


def measure(device: str, out: Path, campaign: Campaign) -> None:
    """A pair's points and profile, then what it predicts. Goes on where an earlier measurement was ended."""
    from calibrate.measure.campaign.prediction import predict
    from calibrate.measure.session import Session, measure_pair
    from sim.costs.profile_files import encode
    from sim.files.write import write_text

    job = campaign.job
    spec, points = job.spec(device), job.points_path(out)
    try:
        profile = measure_pair(spec, points, job.budget_s, repeats=campaign.repeats, say=print)
    except KeyboardInterrupt:
        # The limit: replays are worth more than the rest of the points.
        profile = Session(spec, points).so_far()
    write_text(job.profile_path(out), encode(profile).decode())
    predict(out, campaign)


def corun(device: str, out: Path, campaign: Campaign) -> None:
    """Rates of passes beside each other; then the profile once more, with them."""
    from calibrate.measure.campaign.corun import rate_coruns
    from calibrate.measure.session import Session
    from sim.costs.profile_files import encode
    from sim.files.write import write_text

    job = campaign.job
    with suppress(KeyboardInterrupt):
        rate_coruns(job.spec(device), job.points_path(out), campaign.corun_s)
    with suppress(ValueError):
        write_text(job.refit_path(out), encode(Session(job.spec(device), job.points_path(out)).so_far()).decode())


def replay(device: str, out: Path, campaign: Campaign, load: Loop) -> None:
    """Replay `load` into OUT/LOAD and judge it there, as far as it came."""
    from calibrate.measure.campaign.prediction import open_rate_per_s
    from realrun.cli.replay import replay_command
    from realrun.cli.validate import directory_command
    from sim.files.write import write_text

    directory, scenario, judged = out / load.name, out / f"{load.name}.yaml", out / f"{load.name}.json"
    rate_per_s = open_rate_per_s(out)
    # JSON is YAML, too.
    write_text(scenario, json.dumps(campaign.scenario(load, str(campaign.job.profile_path(out)), rate_per_s)))
    rmtree(directory, ignore_errors=True)
    line = [str(scenario), "--device", device, "--out", str(directory), "--overwrite"]
    with suppress(SystemExit):
        replay_command.main(line, standalone_mode=False)
    directory_command.main([str(directory), "--json", str(judged), "--overwrite"], standalone_mode=False)


def _end_with_parent() -> None:
    """Whoever started this process holds the other end of its input: when that closes, nobody waits for it any more."""

    def watch() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _hear_again(ignored: sys.UnraisableHookArgs) -> None:
    """An interrupt that came where Python can raise nothing, as in a destructor, comes once more."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        threading.Timer(AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(ignored)


def main(args: list[str]) -> int:
    """Exit code 1 and one line if the step cannot be done."""
    name, out, step = args
    _end_with_parent()
    sys.unraisablehook = _hear_again
    # A shell has what it starts in the background ignore interrupts, and at its limit a step gets one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
