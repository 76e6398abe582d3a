"""Deployments of `plan --disaggregate`: prefill and decode on separate servers, or on two streams of one GPU.

A formula proposes ratios of prefill to decode servers, and runs decide (candidate_ranking, search). Of the answer: the
load from which separate servers pay, and the lines that start them. Not here: the policies that run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import ceil, gcd, inf

import msgspec

from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile_files import load
from sim.interface.work import Chunk, Kind, Work
from sim.names import duration
from sim.policies.disaggregated import DevicePools
from sim.run.forecast import StepForecast
from sim.run.resolve import resolve
from sim.run.scenario import Scenario, parse_scenario
from sim.studies.evidence import measured, separate_servers_errors
from sim.studies.plan.candidate_ranking import APART, LANES, POLICY, Candidate
from sim.studies.plan.search import PlannedDeployment, Rental
from sim.studies.serve_commands import POOLS, deployment, server_of

BUSY = 0.8
"""Share of its time that a prefill server computes in the ratios proposed: more makes prompts wait too long."""
PROPOSED = 6
LOADS = 400
"""Loads up to the highest at which GPUs are counted."""


def apart(scenario: Scenario, candidates: Sequence[Candidate], max_gpus: int) -> list[Candidate]:
    """The best ratios of prefill to decode servers on up to `max_gpus` GPUs, and `candidates` with lanes.

    vLLM's NIXL connector wants decode servers of at least as many GPUs as prefill servers. The link is nvlink,
    unless one is given.
    """
    plain = [each for each in candidates if each.profile.data_parallel == 1]
    rates = {each.name: _rates(each, scenario) for each in plain}
    found, link = dict[tuple[str, str], tuple[float, Candidate]](), scenario.policy_options.pools.link or "nvlink"
    for prefill, decode in product(plain, plain):
        few, many = prefill.profile.tensor_parallel, decode.profile.tensor_parallel
        other, pair = prefill.name if prefill != decode else None, (prefill.name, decode.name)
        for x, y in product(range(1, max_gpus + 1), repeat=2):
            gpus = x * few + y * many
            rate = min(BUSY * x * rates[prefill.name][0], y * rates[decode.name][1]) / gpus
            if few <= many and gpus <= max_gpus and gcd(x, y) == 1 and rate > found.get(pair, (0.0, None))[0]:
                pools = DevicePools(prefill=x, decode=y, prefill_profile=other, link=link)
                found[pair] = rate, Candidate(decode.name, decode.profile, APART, pools, few)
    if max_gpus < 2 * min((each.profile.tensor_parallel for each in plain), default=1):
        raise ValueError(f"--disaggregate: two servers do not fit on {max_gpus} GPUs. Raise --gpus")
    best = sorted(found.values(), key=lambda each: -each[0])[:PROPOSED]
    return [candidate for _, candidate in best] + [each._replace(policy=LANES) for each in plain]


def _rates(candidate: Candidate, scenario: Scenario) -> tuple[float, float]:
    """Prompts per second of a server that only prefills, and requests per second of one that only decodes within the
    TPOT goal. 0: it does not fit, or is too slow."""
    try:
        resolved = resolve(candidate.served(scenario), candidate.profile, POLICY)
    except ValueError:
        return 0.0, 0.0
    prompt, output = scenario.workload.input_len or 1, scenario.workload.output_len or 1
    prefill_s = resolved.costs.cost(Work(kind=Kind.PREFILL, chunks=(Chunk(prompt, 0),), head_rows=1)).device_s
    step = StepForecast(resolved.costs, resolved.limits, prompt + output / 2, has_draft=False)
    most = min(resolved.limits.max_num_seqs, kv_capacity_tokens(candidate.profile) // (prompt + output))
    goal_s = (scenario.goodput.tpot_ms or inf) / 1e3
    rows = next((rows for rows in range(most, 0, -1) if step.step_s(rows, 0) <= goal_s), 0)
    return 1.0 / prefill_s, rows / (output * step.step_s(rows, 0)) if rows else 0.0


def with_pools(
    result: Rental, candidates: Sequence[Candidate], max_gpus: int, target_model: str | None = None
) -> Rental:
    """`result` with the load from which separate servers pay, what they send, how they start, and the errors."""
    refined = [row for row in result.deployments if not row.is_first_pass]
    of = {name: [row for row in refined if row.policy == name] for name in (APART, POLICY, LANES)}
    best, most = refined[0], max(max_gpus, refined[0].gpus)
    pays = pays_from(of[APART], of[POLICY], most)
    drafting = {row.policy for row in refined if row.num_speculative_tokens}
    without = " without drafts" if POLICY in drafting and APART not in drafting else ""
    when = f"pay from {pays:.2g} requests/s on" if pays else f"do not pay on up to {most} GPUs"
    verdict = f"{result.verdict}\nSeparate prefill and decode servers{without} {when}."
    start = result.start * (best.policy != LANES)
    notes = [separate_servers_errors().note, *[_lanes_error()] * bool(of[LANES]), *result.notes]
    if best.policy == APART:
        scenario = parse_scenario(result.scenario)
        pools = scenario.policy_options.pools
        chosen = next(each for each in candidates if (each.name, each.pools) == (scenario.profile, pools))
        sent = f"{best.kv_bytes / 1e9:.2g} GB of KV, {duration(1e3 * best.link_s)} by {pools.link}"
        notes.insert(0, f"separate servers: a prompt sends {sent}")
        start = _starts(scenario, chosen, target_model)
    return msgspec.structs.replace(result, verdict=verdict, pays_from_per_s=pays, start=start, notes=notes)


def pays_from(apart: Sequence[PlannedDeployment], together: Sequence[PlannedDeployment], max_gpus: int) -> float | None:
    """The load from which on `apart` takes no more GPUs than `together`, and there fewer. None: never up to what
    `max_gpus` serve."""

    def gpus(rows: Sequence[PlannedDeployment], rate: float) -> float:
        return min((_replicas(row, rate) * row.gpus / (row.replicas or 1) for row in rows), default=inf)

    loads = [max_gpus * (row.replicas or 1) // row.gpus * row.rate_per_replica for row in (*apart, *together)]
    pays = None
    for rate in (max(loads, default=0.0) * step / LOADS for step in range(1, LOADS + 1)):
        more = gpus(apart, rate) - gpus(together, rate)
        pays = None if more > 0.0 else (pays or rate) if more < 0.0 else pays
    return pays


def _replicas(row: PlannedDeployment, rate_per_s: float) -> int:
    """One alone serves what it does in nearly all draws; several share the load."""
    alone_per_s, _ = row.rate_interval or (row.rate_per_replica, 0.0)
    return 1 if rate_per_s <= alone_per_s else max(2, ceil(rate_per_s / row.rate_per_replica))


def _starts(scenario: Scenario, candidate: Candidate, target_model: str | None) -> str:
    """Lines that start the servers and their router. Empty for an engine of which none is known."""
    pools, known = candidate.pools, POOLS.get(server_of(scenario, candidate.profile))
    if known is None:
        return ""
    k, lines, router = scenario.speculation.num_speculative_tokens, list[str](), known["router"]
    names = {"prefill": pools.prefill_profile or candidate.name, "decode": candidate.name}
    for role, name in names.items():
        table, count = ((1, 1, k * (role == "decode")),), getattr(pools, role)
        line = deployment(scenario, load(name), table, {}, target_model=target_model).start
        lines.append(f"{line} {known[role]}  # {count} for {role}, each with GPUs and a port of its own")
        router += f" --{role} http://HOST:PORT" * count
    return "\n".join([*lines, router])


def _lanes_error() -> str:
    """How far off the latency of lanes beside continuous batching was where GPUs ran both."""
    cells = [cell for cell in measured().cells if cell.policy in (LANES, POLICY)]
    errors = {(cell.policy, cell.gpu, cell.in_flight): 1.0 + cell.error_pct / 100.0 for cell in cells}
    off = [100.0 * (error / errors[POLICY, gpu, n] - 1.0) for (name, gpu, n), error in errors.items() if name == LANES]
    return f"pd: latency against continuous {min(off):+.0f} to {max(off):+.0f} % off, in {len(off)} replays on GPUs"
