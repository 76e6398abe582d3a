"""Seconds that serving adds to passes, on the threaded host.

A session (calibrate.measure.session) times passes one after the other in a loop. A policy's works take longer: they
wait for threads to wake up, and share interpreter and cores with whatever else the host does. Replays of a few
requests, one or more at once and beside workers that poll, say how much.
Not here: a profile's other constants (calibrate.measure.fits), replaying (realrun.replay.replays).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import NamedTuple

from calibrate.measure.fits.serving_costs import ServingCosts, Waits, started
from realrun.kernels.pair_kernels import PairKernels
from realrun.replay.machine_speed import probe
from realrun.replay.measured_costs import MeasuredWork, mean
from realrun.replay.pair_executor import PairExecutor
from realrun.replay.replays import Replay, rehearse, run
from sim.costs.forms.build import build_costs
from sim.costs.in_service import kind_in_service
from sim.costs.profile import Profile
from sim.costs.profile_files import round_constant
from sim.run.experiment import Experiment
from sim.run.resolve import resolve
from sim.run.scenario import Scenario

REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 8, 64, 24
"""Prompts are up to half longer or shorter: what a long one leaves behind is part of service."""
DRAFT_TOKENS, ACCEPTANCE = 4, "iid:0.6"
SEED = 1009
"""Seed of lengths, draws and prompts: of no use to any judged run."""
POLL_S = 0.001
MANY = 4
"""Requests at once, each alone or all together: as many as there are slots for."""
REPEATS = 5


class Setting(NamedTuple):
    """How requests are served: by workers with one each, by one with all, or in lanes that look every `poll_s`."""

    policy: str
    at_once: int = 1
    draft_tokens: int = 0
    poll_s: float = 0.0

    def experiment(self, profile: Profile, num_slots: int) -> Experiment:
        options = {
            "baseline": {"workers": self.at_once},
            "unified": {"pipelined": False, "poll_s": 0.0},
            "pd": {"poll_s": self.poll_s},
        }
        scenario = Scenario.of(
            profile=profile.name,
            policy=self.policy,
            policy_options=options[self.policy],
            speculation={"num_speculative_tokens": self.draft_tokens, "acceptance": ACCEPTANCE},
            num_prompts=REQUESTS,
            request_rate="inf",
            max_concurrency=self.at_once,
            input_len=PROMPT_TOKENS,
            output_len=OUTPUT_TOKENS,
            random_range_ratio=0.5,
        )
        return Experiment(resolve(scenario, profile, self.policy, num_slots=num_slots), SEED)


def measure_serving(profile: Profile, kernels: PairKernels, repeats: int = REPEATS) -> ServingCosts:
    """Costs of serving on `kernels`, the pair of `profile`. On a GPU decoding passes are captured and prompts are not.
    On a CPU, where issuing a pass is executing it, also how many times as long a pass lasts as in a loop."""
    executor, is_cpu = PairExecutor(kernels, seed=SEED), not kernels.options.cuda_graphs
    drafted, many = DRAFT_TOKENS if kernels.draft_model is not None else 0, min(MANY, kernels.options.slots)
    workers = [Setting("baseline", at_once, drafted) for at_once in dict.fromkeys((1, many))]
    # Whoever polls drafts, too.
    lanes = [Setting("pd", 1, drafted, poll_s) for poll_s in (0.0, POLL_S) if drafted]
    busy = [*workers, *(Setting("unified", many, drafted) for _ in lanes[:1])]
    every = [*busy, *(setting._replace(draft_tokens=0) for setting in workers if is_cpu and drafted)]
    profile = started(profile, is_cpu=is_cpu)
    experiments = {each: each.experiment(profile, kernels.options.slots) for each in (*every, *lanes)}
    for each in experiments.values():
        rehearse(each, executor)
    by_setting: dict[Setting, list[Replay]] = {each: [] for each in experiments}
    probed_s = []
    # Every setting once, then all again, so that a drift of the machine hits all alike.
    for _ in range(repeats):
        for setting, each in experiments.items():
            by_setting[setting].append(run(each, executor))
        probed_s.append(probe(kernels, executor.issuers))
    of_busy = [[each.works for each in by_setting[setting]] for setting in busy]
    times_s = [[each.record.end_s for each in runs] for runs in by_setting.values()]
    slowest = max(max(of_setting) / median(of_setting) for of_setting in times_s)
    return ServingCosts(
        works=waits(of_busy, lambda work: is_cpu or not work.record.chunk_tokens, profile.host.row_s),
        prompts=None if is_cpu else waits(of_busy, lambda work: work.record.chunk_tokens > 0, profile.host.row_s),
        look_s=look_s(*(by_setting[each] for each in lanes)) if lanes else 0.0,
        probed_s=tuple(map(fmean, zip(*probed_s, strict=True))),
        served=served(profile, [[each.works for each in by_setting[setting]] for setting in every]) if is_cpu else {},
        how=f"medians of {repeats} runs each, the slowest took {slowest:.2f} times as long",
    )


def waits(
    by_setting: Sequence[Sequence[Sequence[MeasuredWork]]], counts: Callable[[MeasuredWork], bool], row_s: float
) -> Waits:
    """Means over the works that count of a run, nan left out; of the runs of one setting the median; of the settings
    the mean. A profile adds `row_s` for each sequence of a work, so that it is left out."""
    counted = [[[work for work in works if counts(work)] for works in runs] for runs in by_setting]

    def typical_s(of: Callable[[MeasuredWork], float]) -> float:
        return fmean(median(mean([*map(of, works)]) for works in runs) for runs in counted)

    return Waits(
        max(0.0, typical_s(lambda work: work.cost.prepare_s - row_s * len(work.record.requests))),
        typical_s(lambda work: work.reacted_s - work.record.end_s),
    )


def served(profile: Profile, by_setting: Sequence[Sequence[Sequence[MeasuredWork]]]) -> dict[str, float]:
    """Ratios by kind, how many times as long the works of a run lasted in all as `profile` says: medians of runs, means
    of settings. By sums, as requests wait for slow passes too."""
    costs = build_costs(profile, cuda_graph=False)
    by_kind: dict[str, list[float]] = {}
    for runs in by_setting:
        ratios: dict[str, list[float]] = {}
        for works in runs:
            sums_s: dict[str, tuple[float, float]] = {}
            for each in works:
                assert each.work is not None, "a work that was read back"
                kind, record = kind_in_service(each.work), each.record
                took_s, expected_s = sums_s.get(kind, (0.0, 0.0))
                sums_s[kind] = took_s + record.end_s - record.start_s, expected_s + costs.cost(each.work).device_s
            for kind, (took_s, expected_s) in sums_s.items():
                ratios.setdefault(kind, []).append(took_s / expected_s)
        for kind, of_runs in ratios.items():
            by_kind.setdefault(kind, []).append(median(of_runs))
    return {kind: round_constant(fmean(each)) for kind, each in by_kind.items()}


def look_s(plain: Sequence[Replay], polled: Sequence[Replay]) -> float:
    """Seconds that a look takes from the work being issued, by pairs of runs: lanes that wake at once, or look."""
    looks_s = []
    for waking, looking in zip(plain, polled, strict=True):
        looks_per_s = max(1, looking.record.num_polls) / looking.record.end_s
        looks_s.append((_issuing_s(looking.works) / _issuing_s(waking.works) - 1.0) / looks_per_s)
    return max(0.0, median(looks_s))


def _issuing_s(works: Sequence[MeasuredWork]) -> float:
    """Median seconds to issue a work, averaged over the kinds: a stall of the machine is none of the lanes' doing."""
    by_kind: dict[tuple[str, str], list[float]] = {}
    for work in works:
        record = work.record
        by_kind.setdefault((record.kind, record.model), []).append(record.issued_s - record.issue_start_s)
    return sum(len(times_s) * median(times_s) for times_s in by_kind.values()) / len(works)
