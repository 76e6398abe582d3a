"""Report of a campaign under OUT/send, as in the repository: profile, rates, raw points, verdicts and a page.

A page whose measurements are disturbed states no verdict. Not here: measuring, any fit (calibrate.measure).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from calibrate.measure.campaign.plan import BESIDE, LANES, MEASURE, OPEN_SHARE, PREDICTION, SMOKE_FILE, STEPS, Campaign
from realrun.validate.gates import of_profile, of_replay
from sim.costs.profile import Profile
from sim.costs.profile_files import changed, load, ship_profile
from sim.files.write import new_folder
from sim.metrics.compared import EQUAL_PCT

Rows = Iterable[Sequence[str]]
MEASURED = "-measured"
BARS = {"output_throughput": 5.0, "e2el p50": 5.0, "ttft p99": 10.0, "mechanism": 5.0}
"""Percent: predicted against measured, closed loop; of the mechanism the mean E2EL."""


def report(out: Path, campaign: Campaign) -> None:
    """Raises ValueError where the pair was not measured; a replay that lacks is named."""
    job, verdicts = campaign.job, {each.name: out / f"{each.name}.json" for each in campaign.loads}
    for path in (out / SMOKE_FILE, job.profile_path(out)):
        if not path.exists():
            raise ValueError(f"{str(path)!r} is missing. Its step failed, for the reason above")
    results = {name: json.loads(path.read_text()) for name, path in verdicts.items() if path.exists()}
    lacking = [name for name in verdicts if name not in results]
    points, profile = job.points_path(out), load(job.profile_path(out))
    # A profile of the repository carries no points: they lie beside the report.
    profile = changed(profile, name=measured_name(profile.name), points=())
    with new_folder(out / "send") as scratch:
        told = scratch / "docs" / "validation" / profile.gpu.name
        told.mkdir(parents=True)
        sent = out / SMOKE_FILE, out / PREDICTION, points, *(verdicts[name] for name in results)
        for path in (each for each in sent if each.exists()):
            (told / path.name).write_bytes(path.read_bytes())
        smoke = json.loads((out / SMOKE_FILE).read_text())
        ship_profile(profile, scratch / "sim" / "profiles")
        reasons = [f"{step}: {line}" for step in STEPS for line in disturbed(out, campaign, step)]
        judged = {each.title: results[each.name] for each in campaign.loads if each.name in results}
        verdict = _disturbed(profile, reasons) if reasons else _verdict(profile, judged)
        lines = [*verdict, *_lines(profile, smoke, results, lacking)]
        (told / "README.md").write_text("\n".join(lines))


def disturbed(out: Path, campaign: Campaign, step: str) -> list[str]:
    """Disturbances of a step that is over, a line each; none of steps without gates, nor of one that left nothing."""
    if step == MEASURE and campaign.job.profile_path(out).exists():
        return of_profile(load(campaign.job.profile_path(out)))
    judged = out / f"{step}.json"
    if any(step == each.name for each in campaign.loads) and judged.exists():
        return of_replay(json.loads(judged.read_text()))
    return []


def measured_name(name: str) -> str:
    """The name a profile is sent under: other shipped ones are composed of tables of an engine's kernels.

    >>> measured_name("h100-sxm/llama-3.1-8b")
    'h100-sxm/llama-3.1-8b-measured'
    """
    return f"{name}{MEASURED}"


def _disturbed(profile: Profile, reasons: Sequence[str]) -> Iterator[str]:
    yield from (f"# {profile.gpu.name}: *disturbed*", "")
    yield from ("Something else used this machine. No verdict:", "")
    yield from (f"- {reason}" for reason in reasons)
    yield ""


def _verdict(profile: Profile, results: Mapping[str, Any]) -> Iterator[str]:
    """Verdict, which the reader came for."""
    yield from (f"# {profile.gpu.name}: measured and predicted", "", "## Do lanes pay here?", "")
    yield from (f"- {each}." for each in findings(results))
    phi, overlap = profile.phi, profile.overlap
    ours = f"phi {phi.value:g}, {phi.low:g} to {phi.high:g}, turn {phi.turn:g} ({phi.source})"
    yield from _listed(f"Two plain streams: {overlap.source if overlap.measured else ours}")
    rate = f"{OPEN_SHARE:g} of what {BESIDE} is predicted to serve at most"
    yield from ("", f"With its 95 % interval over replications. `open` has requests coming at {rate}.", "")


def _lines(profile: Profile, smoke: dict[str, Any], results: dict[str, Any], lacking: Sequence[str]) -> Iterator[str]:
    yield from ("## Machine", "")
    yield from table(["what", "is"], smoke["fingerprint"].items())
    yield from ("", "## Smoke step", "")
    yield from table(
        ["check", "found", "seconds"], ([e["name"], e["said"], f"{e['seconds']:.1f}"] for e in smoke["checks"])
    )
    yield from ("", "## Passes", "", "Mean error of held-out points in percent (how many).", "")
    yield from table(
        ["profile", *profile.errors], [[profile.name, *(_held_out(profile, kind) for kind in profile.errors)]]
    )
    yield from ("", *_listed(f"{profile.source}; {profile.host.source}"))
    yield from (
        "",
        "## Replays",
        "",
        f"Measured, and the error of what {PREDICTION} said before, in percent; **bold** misses its bar.",
        "",
    )
    yield from table(["load", "policy", *BARS], _judged(results))
    if lacking:
        yield from ("", f"Lacking: {', '.join(lacking)}. The same command replays them.")
    yield ""


def _listed(source: str) -> list[str]:
    return [f"- {part}." for part in source.split("; ")]


def table(headers: Sequence[str], rows: Rows) -> Iterator[str]:
    for line in (headers, ["---"] * len(headers), *rows):
        yield f"| {' | '.join(line)} |"


def _judged(results: dict[str, Any]) -> Rows:
    for load_name, result in results.items():
        for run in result["runs"]:
            errors = {
                "output_throughput": run["metrics"]["output_throughput"],
                "e2el p50": run["metrics"]["e2el"]["p50"],
                "ttft p99": run["metrics"]["ttft"]["p99"],
                "mechanism": run["decomposition"]["mechanism"]["e2el"]["mean"],
            }
            yield [load_name, run["policy"], *(_marked(errors[name], bar_pct) for name, bar_pct in BARS.items())]


def _marked(error: dict[str, float | None], bar_pct: float) -> str:
    if error["error_pct"] is None:
        return "-"
    text = f"{error['real']:.1f} {error['error_pct']:+.1f}"
    return text if abs(error["error_pct"]) <= bar_pct else f"**{text}**"


def _held_out(profile: Profile, kind: str) -> str:
    error = profile.errors.get(kind)
    return "-" if error is None or error.mean_error_pct is None else f"{error.mean_error_pct:.1f} ({error.points})"


# -- what lanes do beside continuous batching: the difference of the mean E2EL, with its 95 % interval over replications


class Runs(NamedTuple):
    """Mean E2EL of one policy at one load, ms; one value per replication."""

    real_ms: Sequence[float]
    simulated_ms: Sequence[float]


class Change(NamedTuple):
    """Percent of the mean E2EL of `BESIDE`; half of the 95 % interval, infinite for a single replication."""

    mean_pct: float
    half_pct: float

    def __str__(self) -> str:
        if self.half_pct < float("inf"):
            return f"{self.mean_pct:+.1f} ± {self.half_pct:.1f}"
        return f"{self.mean_pct:+.1f}, {'equal, ' * (abs(self.mean_pct) < EQUAL_PCT)}one run each"


def runs_of(result: Mapping[str, Any]) -> dict[str, Runs]:
    means: dict[str, list[dict[str, float]]] = {}
    for run in result["runs"]:
        means.setdefault(run["policy"], []).append(run["metrics"]["e2el"]["mean"])
    return {
        policy: Runs([each["real"] for each in pairs], [each["simulated"] for each in pairs])
        for policy, pairs in means.items()
    }


def findings(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each judged load: how its lanes compare with continuous batching, measured and predicted."""
    found = []
    for name, result in results.items():
        by_lane = changes(runs_of(result))
        said = [f"{lane} {measured} (predicted {predicted})" for lane, (measured, predicted) in by_lane.items()]
        if said:
            found.append(f"{name}: mean E2EL beside {BESIDE} in percent: {', '.join(said)}")
    return found


def change(values: Sequence[float], beside: Sequence[float]) -> Change:
    """The change from the mean of `beside` to that of `values`, with Welch's interval of their difference.

    >>> print(change([90.0, 91.0, 89.0], [100.0, 101.0, 99.0]))
    -10.0 ± 2.3
    """
    from scipy.stats import ttest_ind

    percent = 100.0 / fmean(beside)
    mean_pct = percent * (fmean(values) - fmean(beside))
    if min(len(values), len(beside)) < 2:
        return Change(mean_pct, float("inf"))
    if len({*values}) == len({*beside}) == 1:
        return Change(mean_pct, 0.0)
    interval = ttest_ind(values, beside, equal_var=False).confidence_interval()
    return Change(mean_pct, percent * float(interval.high - interval.low) / 2.0)


def changes(runs: Mapping[str, Runs]) -> dict[str, tuple[Change, Change]]:
    """Measured and predicted change of each lane policy that ran beside continuous batching."""
    return {
        lane: (
            change(runs[lane].real_ms, runs[BESIDE].real_ms),
            change(runs[lane].simulated_ms, runs[BESIDE].simulated_ms),
        )
        for lane in LANES
        if lane in runs and BESIDE in runs
    }
