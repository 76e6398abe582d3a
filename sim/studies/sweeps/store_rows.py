"""One point of a store: what identifies it, and the row it gives, which is a function of that alone.

A row is flat: `key`, labels, the resolved scenario under `scenario.KEY` as JSON, and the metrics of the run; a point
that fails has its error instead of metrics. All points draw from children of the scenario's seed, so any two can be
compared draw by draw. Not here: which points there are (grid), where rows are kept (store).
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from sim.bounds import LARGEST
from sim.compare.capacity import load_after
from sim.compare.point_runs import Point, run_point
from sim.compare.run_length import choose_run_length, settled, transient_note
from sim.compare.side_by_side import PAIRED_METRICS, is_bracketed
from sim.costs.extrapolation import collecting
from sim.costs.profile import Profile
from sim.devices.contention import PhiLevel, phi_at
from sim.draws import child_seed
from sim.files.json_values import convert, leaves
from sim.files.read import CONTROL, printable
from sim.metrics.load import Verdict
from sim.metrics.summary import Run, number
from sim.policies.registry import POLICIES, find_policy
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario

Row = dict[str, bool | str | int | float | None]
Name = Annotated[str, msgspec.Meta(max_length=200)]
LEAST = -1e-6
"""Least number in a row: a share that is left may be below 0 by rounding."""
Number = Annotated[int, msgspec.Meta(ge=0)] | Annotated[float, msgspec.Meta(ge=LEAST, le=LARGEST)]
SCENARIO = "scenario."
"""Begins the columns that hold the resolved scenario."""
ENDS = (PhiLevel.LOW, PhiLevel.HIGH)
MODEL_ROOMS = (
    "interface", "acceptance", "workload", "costs", "drafters", "devices", "hosts", "engine", "policies",
    "metrics", "run", "compare",
)  # fmt: skip
"""Rooms of sim whose code, with draws.py, the C core and the engines, makes the numbers."""


class Labels(msgspec.Struct, frozen=True, kw_only=True):
    key: Name
    scenario_hash: Name
    policy: Name
    seed: Number
    replication: Number
    model_version: Name
    profile_hash: Name
    profile: Annotated[Name, msgspec.Meta(pattern='^"')] = msgspec.field(name=f"{SCENARIO}profile")
    error: str | None = None
    notes: str | None = None


class RanLabels(Labels, frozen=True, kw_only=True):
    """Columns that a point has which ran, and that are no number in another row; all others are numbers."""

    load: Name
    unstable: bool
    is_steady: bool
    is_transient: bool
    engine: Name
    completed: Number


_COLUMNS = msgspec.json.Decoder(dict[str, bool | str | Number | None])
_TEXTS = frozenset(field.encode_name for field in msgspec.structs.fields(RanLabels))


@dataclass(frozen=True, slots=True, kw_only=True)
class PointJob:
    """Replications of one scenario with one policy that are to be run in one worker."""

    scenario: Scenario
    profile: Profile
    profile_hash: str
    replications: tuple[int, ...]


def scenario_hash(scenario: Scenario) -> str:
    """Hash of a resolved scenario, its seed and number of replications left out: rows of one hash are its draws."""
    return msgspec.structs.replace(scenario, seed=0, replications=1).digest


def row_key(scenario: Scenario, replication: int, profile_hash: str) -> str:
    """Key of a row, 32 hex digits: scenario, seed, profile, files it reads, and the code that runs it."""
    parts = (
        scenario_hash(scenario),
        child_seed(scenario.seed, replication),
        profile_hash,
        files_hash(scenario),
        policy_hash(scenario.policy[0]),
        model_version(),
    )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


@cache
def model_version() -> str:
    """Version of the distribution and a hash of the code and engines that make the numbers: `0.1.0+5f0c1a2b`."""
    from importlib.metadata import PackageNotFoundError, version

    sim = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted([sim / "draws.py", *(path for room in MODEL_ROOMS for path in (sim / room).rglob("*.py"))]):
        digest.update(path.relative_to(sim).as_posix().encode() + path.read_bytes())
    others = sim / "acceptance" / "pairs.json", *(sim / "engines").glob("*.json"), *(sim / "run").glob("core*.[ch]")
    for path in sorted(others):
        digest.update(path.read_bytes())
    try:
        release = version("lanesim")
    except PackageNotFoundError:
        release = "unknown"
    return f"{release}+{digest.hexdigest()[:8]}"


def profile_hash(profile: Profile) -> str:
    return hashlib.sha256(msgspec.json.encode(profile, order="deterministic")).hexdigest()[:16]


def files_hash(scenario: Scenario) -> str:
    """Hash of the user's files that the scenario reads, beside its profile; empty where it reads none."""
    paths = [scenario.workload.dataset_path, scenario.engine.name, scenario.policy_options.pools.prefill_profile]
    for quoted in (scenario.speculation.acceptance, scenario.speculation.stale_acceptance):
        name, _, path = (quoted or "").partition(":")
        paths.append(path.strip() if name.strip().lower() == "tape" else None)
    # A path may name a part of its file after a #.
    whole = [part for path in paths if path for part in (path, path.rpartition("#")[0]) if part]
    return "-".join(_hash_of(Path(path)) for path in whole if Path(path).is_file())


def policy_hash(name: str) -> str:
    """Hash of the file that a policy from elsewhere is in; empty for one without a file, and for a built-in one, which
    the model's version covers."""
    try:
        module = None if name in POLICIES else sys.modules.get(find_policy(name).build.__module__)
    except ValueError:
        return ""
    file = getattr(module, "__file__", None)
    return _hash_of(Path(file)) if file else ""


def _hash_of(path: Path) -> str:
    """Of a file, read anew when it has changed."""
    about = path.stat()
    return _file_hash(str(path), about.st_mtime_ns, about.st_size)


@cache
def _file_hash(path: str, changed_ns: int, size: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def parse_row(key: str, text: bytes, where: str) -> Row:
    """The row that was written under `key`. Raises ValueError, which begins with `where`, for one that no run gives."""
    where = f"{where} row {key!r}"
    try:
        row: Row = _COLUMNS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        wanted = "must be an object of texts, true, false, null and numbers from 0 on"
        raise ValueError(f"{where} {wanted} ({str(error).partition(' - at')[0]})") from None
    convert(row, Labels if row.get("error") is not None else RanLabels, where)
    if row["key"] != key:
        raise ValueError(f"{where}: it is the row of another key")
    for name, value in row.items():
        is_word = name in _TEXTS or name.startswith(SCENARIO)
        if isinstance(value, str) and (not is_word or CONTROL.search(value)):
            raise ValueError(f"{where}: {name!r} must be a number or null, or a text without control characters")
        if name != "seed" and SCENARIO + name in row:
            raise ValueError(f"{where}: {name!r} is a key of the scenario, too")
    return row


def run_jobs(jobs: Sequence[PointJob]) -> list[list[Row]]:
    return [_run_job(job) for job in jobs]


def _run_job(job: PointJob) -> list[Row]:
    with warnings.catch_warnings(record=True) as heard, collecting() as extrapolation:
        warnings.simplefilter("always")
        try:
            rows = list(_rows(job))
        except Exception as error:
            text = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            rows = [failed_row(job, each, text + printable(str(error))) for each in job.replications]
    said = [*(str(warning.message) for warning in heard), str(extrapolation)]
    notes = "; ".join(dict.fromkeys(text for text in said if text))
    return [row | {"notes": notes or None} for row in rows]


def failed_row(job: PointJob, replication: int, error: str) -> Row:
    return _labels(job, replication) | {"error": error}


def _labels(job: PointJob, replication: int) -> Row:
    scenario = job.scenario
    labels: Row = {
        "key": row_key(scenario, replication, job.profile_hash),
        "scenario_hash": scenario_hash(scenario),
        "policy": scenario.policy[0],
        "seed": child_seed(scenario.seed, replication),
        "replication": replication,
        "model_version": model_version(),
        "profile_hash": job.profile_hash,
        "error": None,
        "notes": None,
    }
    return labels | {SCENARIO + key: text for key, text in scenario_columns(scenario)}


def scenario_columns(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Dotted keys of a resolved scenario and their values as JSON."""
    plain = msgspec.to_builtins(scenario)
    for key in ("schema", "policy", "replications", *(() if scenario.energy else ("energy",))):
        del plain[key]
    yield from ((key, json.dumps(value)) for key, value in leaves(plain))


def _rows(job: PointJob) -> Iterator[Row]:
    scenario, profile = job.scenario, job.profile
    (resolved,) = resolve_all(scenario, profile)
    length = choose_run_length([resolved])
    resolved = settled(resolved, length)
    for replication in job.replications:
        seed = child_seed(scenario.seed, replication)
        done = run_point(Point(resolved=resolved, seed=seed))
        load = load_after(resolved, [done])
        has_bracket = not scenario.devices.is_overlap_given and is_bracketed(profile, done)
        ends = {level: resolved.at_phi(phi_at(profile.phi, level)) for level in ENDS if has_bracket}
        others = {level: run_point(Point(resolved=one, seed=seed)) for level, one in ends.items()}
        is_steady_throughout = load.is_steady and all(load_after(ends[at], [others[at]]).is_steady for at in ends)
        yield _labels(job, replication) | {
            "load": load.verdict.value,
            "unstable": load.verdict is Verdict.OVERLOADED,
            "is_steady": load.is_steady,
            "is_steady_throughout": is_steady_throughout,
            "is_transient": transient_note(resolved.scenario, length, number(done.run, "mean_e2el_ms")) is not None,
            "capacity_per_s": load.capacity_per_s,
            "num_warmups": length.num_warmups,
            "num_cooldowns": length.num_cooldowns,
            **dict(_metrics(done.run)),
            **{
                if_overlap(metric, level): number(other.run, metric)
                for level, other in others.items()
                for metric in PAIRED_METRICS
            },
        }


def if_overlap(metric: str, level: PhiLevel) -> str:
    """Column of what `metric` would be at an end of phi's bracket, where overlap was not measured."""
    return f"{metric}_if_{level.value}"


def _metrics(run: Run) -> Iterator[tuple[str, bool | str | int | float | None]]:
    """A run's metrics without blocks: `kind_utilization.draft` and the like."""
    for key, value in run.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", part) for name, part in value.items())
        elif not isinstance(value, list) and key not in ("policy", "seed"):
            yield key, value
