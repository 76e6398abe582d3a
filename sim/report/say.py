"""Answers of `tune`, `capacity` and `plan` on the terminal.

Not here: the answers (sim.studies), comparisons (sim.report.comparisons), printing (sim.report.said).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import singledispatch

from rich.console import Console
from rich.table import Table

from sim.acceptance.pairs import ANY
from sim.compare.side_by_side import Comparison
from sim.compare.verdict import Interval
from sim.names import capital, in_words, span
from sim.report.comparisons import ACCEPTANCE, acceptance_lines, costs_line, said_comparison, said_varied
from sim.report.pictures.store_pictures import named
from sim.report.said import ASSUMED, CHECK, DISPUTED, START, SURE, Said, print_said
from sim.report.store_points import StorePoints
from sim.report.tables import measured_width, new_table, number, table_of
from sim.studies.answer import Stated
from sim.studies.attainment import Attainment, HighestLoad
from sim.studies.comparison.varied import Varied
from sim.studies.evidence import MEAN_SIZE, MEASURED, NEAREST
from sim.studies.length_choice import ALIKE, TunedPoint
from sim.studies.load_search import Limit
from sim.studies.plan.candidate_ranking import LANES
from sim.studies.plan.search import OTHER_TABLES, PlannedDeployment, Rental
from sim.studies.tune import IDLE, ContextTuning, Tuning

MAX_ROWS = 3
"""Rows that a plan shows, more where more were simulated in draws; the others are in the JSON."""
LOADED = "the drafter stays loaded and drafts nothing."
DISPUTE = "tables dispute: "
"""Begins a note on kernel tables that contradict each other."""
UNMEASURED = "Nothing like it was measured."
MAX_NOTES = 2
"""Notes that a plan shows, but those on what its lines say already."""
ELSEWHERE = ("kernel tables: ", "<draft> ", "One decode step")
NONE = "–"
Lines = list[tuple[str, str]]
Details = Callable[[], list[str]]
Answered = Stated | Comparison | Varied
"""Answers that commands print."""


def print_answer(console: Console, answer: Answered, *, is_verbose: bool = False) -> None:
    """Print the answer of a command."""
    print_said(console, said_of(answer, console), is_verbose=is_verbose)


@singledispatch
def said_of(answer: Answered, console: Console) -> Said:
    """Parts of the answer, its tables as wide as the console has room for."""
    raise TypeError(answer)


said_of.register(Comparison, said_comparison)
said_of.register(Varied, said_varied)


def _basis(answer: Stated, ranges: str, details: Sequence[str], notes: Sequence[str]) -> tuple[Lines, Details]:
    """How sure an answer is, in short and on demand; `ranges` names the intervals over draws."""
    if answer.costs is None:
        return [], lambda: list(details)
    lines = [costs_line(answer.costs.errors)]
    lines += [f"{ranges} {answer.draws} variations of GPU times and acceptance."] * bool(answer.draws)
    first = [note for note in notes if not note.startswith((ACCEPTANCE, IDLE, *ELSEWHERE))][:1]
    lines += [f"{capital(note.rstrip('.'))}." for note in first]
    lines += acceptance_lines(notes)
    more = [*details, *[f"{ranges} {answer.draws} {answer.covers}"] * bool(answer.draws)]
    more += [f"costs: {answer.costs.source}", *(f"note: {note}" for note in notes), *answer.evidence]
    return [(SURE, line) for line in lines], lambda: more


def _sentences(parts: Iterable[str]) -> str:
    """A line each, with a capital and a full stop."""
    return "\n".join(f"{capital(part)}." for part in parts)


# -- draft lengths


@said_of.register
def _tuned(answer: Tuning, console: Console) -> Said:
    """A column per draft length, without the ones that matter least where the console is too narrow for all."""
    shown = [length.k for length in answer.points[0].lengths]
    table = _lengths_table(answer, shown)
    while len(shown) > 2 and measured_width(console, table) > console.width:
        shown.remove(min(shown[1:], key=lambda k: (_weight(answer, k), k)))
        table = _lengths_table(answer, shown)
    lines, gain, details = answer.deployment, answer.gain, []
    if len(answer.k_table) == 1 and gain.mean > 0.0:
        mean, low, high = (100.0 * share for share in (gain.mean, *gain.interval))
        details.append(f"a table by batch size over {gain.over}: {mean:+.1f} % ({low:+.1f} to {high:+.1f})")
    details.append(f"expected loss: {_share(answer.expected_regret)} against the best, in variations left out of it")
    notes = [*lines.notes, *answer.notes[bool(answer.change) :]]
    basis, more = _basis(answer, "Ranges: 5 to 95 % of", details, notes)
    basis += [(SURE, note) for note in answer.notes[: bool(answer.change)]]
    basis += [(SURE, f"Not simulated: {line}.") for line in answer.not_simulated]
    if not is_left(answer):
        bands = lines.sglang_adaptive_config
        start = [lines.start, bands and f"speculative_adaptive.json: {json.dumps(bands)}"]
        basis += [(START, line) for line in start if line]
    title = f"{answer.objective} against no speculation, by draft length K"
    return Said(tuning_sentence(answer), [(title, table)], basis, more)


def _lengths_table(answer: Tuning, shown: Sequence[int]) -> Table:
    """A row per concurrency, a column per draft length of `shown`."""
    lacking = len(answer.points[0].lengths) - len(shown)
    captions = ["loss: mean loss of the draft length against the best one, in %."]
    captions += [f"K = 0: {LOADED}"] * any(note.startswith(IDLE) and 0 in shown for note in answer.notes)
    captions += [f"{lacking} of the lengths that were tried are in the JSON alone."] if lacking else []
    drafts = _drafts(answer)
    rows = []
    for point in answer.points:
        speedups = {length.k: _fixed(length.speedup) for length in point.lengths}
        cells = [f"[bold]{speedups[k]}[/bold]" if k == point.k and drafts else speedups[k] for k in shown]
        interval = NONE if point.interval is None else "{:.2f} to {:.2f}".format(*point.interval)
        chosen = str(point.k) if drafts else "none"
        loss = f"{100.0 * point.expected_regret:.1f}"
        rows.append([str(point.concurrency), *cells, chosen, interval, loss])
    titles = ["in flight", *map(str, shown), "draft", "5 to 95 %", "loss"]
    return new_table([], titles, rows, caption="\n".join(captions), caption_justify="left", padding=(0, 1, 0, 0))


def _weight(answer: Tuning, k: int) -> float:
    """Loss of a reader by a length that is left out: the answer's above all."""
    chances = [length.chance_best for point in answer.points for length in point.lengths if length.k == k]
    return max(chances) + (1.0 if any(point.k == k for point in answer.points) else 0.0)


def tuning_sentence(answer: Tuning) -> str:
    """Whether to change the length in use, the length to draft, its gain, and at which loads any length gains."""
    change, parts = answer.change, [*([] if is_left(answer) else _drafted(answer)), _pays(answer)]
    if change is not None and change.of == change.over:
        parts.insert(0, f"leave {change.over}")
    elif change is not None:
        low, high = (f"{100.0 * share:+.1f}" for share in change.interval)
        gain = f"{100.0 * change.mean:+.1f} % {answer.objective} ({low} to {high} %)"
        verb = "change" if change.is_sure else "leave"
        parts[:0] = [f"{verb} {change.over}: {change.of} has {gain}"]
        parts[1:1] = [] if change.is_sure else ["that is not surely enough to change"]
    return _sentences(parts)


def is_left(answer: Tuning) -> bool:
    """Another length is in use and stays so, since the best one is not surely better."""
    return answer.change is not None and answer.change.of != answer.change.over and not answer.change.is_sure


def _drafts(answer: Tuning) -> bool:
    return any(k for _, _, k in answer.k_table)


def _drafted(answer: Tuning) -> list[str]:
    """What to draft, what that has over no speculation, and why it is not the best length of every load."""
    loads = f"at {span(str(point.concurrency) for point in answer.points)} requests in flight"
    if not _drafts(answer):
        if not any(_gains(point) for point in answer.points):
            return ["do not speculate"]
        is_open = answer.scenario.get("speculation", {}).get("acceptance") == ANY
        mean, low, high = (100.0 * share for share in (answer.gain.mean, *answer.gain.interval))
        why = f"drafting by batch size changes {answer.objective} by {low:+.0f} to {high:+.0f} %, mean {mean:+.0f} %"
        if is_open and low < 0.0 < high:
            why = f"over these loads drafts gain {high:.0f} % on some prompts and lose {-low:.0f} % on others"
        return [f"do not speculate {loads}{' unless you know your acceptance' * is_open}", why]
    rows = answer.k_table
    known = sorted(point.speedup for point in answer.points if point.speedup is not None)
    times = ""
    if known:
        times = f"{span(f'{speedup:.2f}' for speedup in known)} times the {answer.objective} of no speculation"
    if len(rows) > 1:
        table = ", ".join(f"{_tokens(k)} at {start} to {end}" for start, end, k in rows)
        gain = f"it has {_share(answer.gain.mean)} more than {answer.gain.over} on average"
        return [f"draft by batch size: {table}", f"that is {times}" if known else gain]
    better = in_words([str(point.concurrency) for point in answer.points if _other_is_better(point)])
    reason = f"other lengths are better at {better}, but no table is surely 1 % better"
    text = f"draft {_tokens(rows[0][2])}"
    return [f"{text}: {times}" if known else f"{text} {loads}", *([reason] if better else [])]


def _tokens(k: int) -> str:
    return f"{k} token{'s' * (k != 1)}"


def _other_is_better(point: TunedPoint) -> bool:
    """By more than a table's further rows must save."""
    chosen = next(length.expected_regret for length in point.lengths if length.k == point.k)
    return chosen > min(length.expected_regret for length in point.lengths) + ALIKE


def _gains(point: TunedPoint) -> bool:
    """Some draft length has more than no speculation."""
    return any(each.k > 0 and each.speedup is not None and each.speedup > 1.0 for each in point.lengths)


def _pays(answer: Tuning) -> str:
    """The loads at which some draft length gains."""
    points = answer.points
    known = [point for point in points if point.speedup is not None]
    gaining, losing = ([str(p.concurrency) for p in known if _gains(p) == gains] for gains in (True, False))
    if not known:
        return "no speed-up can be stated: without speculation some variations have no request within the SLOs"
    if not gaining:
        return f"no draft length gains at {span(losing)} requests in flight"
    if not losing:
        at = "every load simulated" if len(known) == len(points) else f"{in_words(gaining)} in flight"
        return f"drafting pays at {at}"
    middle = answer.break_even_concurrency
    if middle is None or int(losing[0]) < middle:
        return f"drafting pays at {in_words(gaining)} in flight, not at {in_words(losing)}"
    first, last = points[0].concurrency, points[-1].concurrency
    low, high = answer.break_even_interval
    ends = (
        f"below {first}" if low is None or low < first else f"{low:.0f}",
        f"above {last}" if high is None or high > last else f"{high:.0f}",
    )
    return f"no draft length gains above {middle:.0f} requests in flight ({' to '.join(ends)})"


@said_of.register
def _by_context(answer: ContextTuning, console: Console) -> Said:
    """A row per prompt length, the rows for vLLM, and what one table for all loses."""
    rows = [
        [
            str(each.prompt_tokens),
            ", ".join(f"{k} for {first}..{last}" for first, last, k in each.k_table),
            NONE if each.break_even_concurrency is None else number(each.break_even_concurrency),
            _share(each.regret),
            _share(each.regret_without),
        ]
        for each in answer.contexts
    ]
    lengths, others = "K by batch size", ["break-even", "loss", "of one table"]
    table = new_table(["prompt", lengths], others, rows, fold=[lengths])
    mean, without = _share(answer.regret), _share(answer.regret_without)
    lost = f"a table for each prompt length loses {mean} of {answer.objective}, one for all {without}"
    basis, more = _basis(answer, "Losses: mean over", [], [])
    table_line = f"num_speculative_tokens_per_batch_size of vllm#48627: {json.dumps(answer.k_table)}"
    return Said(
        _sentences([lost, *(f"{each.prompt_tokens} tokens: {each.verdict}" for each in answer.contexts)]),
        [(f"{answer.objective}: draft length K by batch size and context", table)],
        [*basis, *((SURE, f"Not simulated: {line}.") for line in answer.not_simulated), (START, table_line)],
        more,
    )


# -- loads and replicas


@said_of.register
def _held(answer: Attainment, console: Console) -> Said:
    """A row per policy, and one per fleet for the target rate."""
    rows = [
        {
            "policy": each.policy,
            "req/s": _load(each),
            "95 % of runs": _range(each.ci95),
            "90 % of variations": _range(each.draws_interval),
            "saturated": number(each.saturated_per_s),
            "tok/s": number(each.output_tokens_per_s),
            "$/M tokens": number(each.usd_per_million_tokens),
        }
        for each in answer.highest
    ]
    title = f"highest {answer.of} at which {100 * answer.share:g} % of requests meet all SLOs"
    tables = [(title, table_of(rows, ["policy"], ["90 % of variations", "$/M tokens"]))]
    if answer.fleets:
        rows = [
            {
                "policy": each.policy,
                "routing": each.routing,
                "replicas": "none" if each.replicas is None else str(each.replicas),
                "utilised": _whole_share(each.utilisation),
                "confidence": _whole_share(each.confidence),
                "$/M tokens": number(each.usd_per_million_tokens),
            }
            for each in answer.fleets
        ]
        tables.append((f"replicas for {answer.target_rate:g} requests/s", table_of(rows, ["policy", "routing"])))
    lines, more = _basis(answer, "Ranges: 90 % of", [], answer.notes)
    return Said(attainment_sentence(answer), tables, lines, more, height=4)


def _load(highest: HighestLoad) -> str:
    return highest.limit.value if highest.load is None else number(highest.load)


def attainment_sentence(answer: Attainment) -> str:
    """The policy that serves most within the SLOs, and the fewest replicas for the target rate."""
    best = max(answer.highest, key=lambda one: (one.limit is Limit.UNBOUNDED, one.load or 0.0))
    parts = _serves(best, answer)
    enough = [fleet for fleet in answer.fleets if fleet.replicas is not None]
    if not enough:
        if answer.target_rate is not None:
            parts.append(f"no number of replicas serves {answer.target_rate:g} requests/s within the SLOs")
        return _sentences(parts)
    fewest = min(enough, key=lambda fleet: fleet.replicas or 0)
    count, usd = fewest.replicas, fewest.usd_per_million_tokens
    rent = f"rent {count} replica{'s' * (count != 1)} of {fewest.policy} for {answer.target_rate:g} requests/s"
    return _sentences([rent + ("" if usd is None else f": ${number(usd)} per million output tokens"), *parts])


def _serves(best: HighestLoad, answer: Attainment) -> list[str]:
    if best.limit is Limit.NEVER:
        return [f"{best.policy} serves no load within the SLOs: a request that is alone misses them"]
    if best.load is None:
        return [f"{best.policy} serves every load within the SLOs: none of them bounds the waiting"]
    text = f"one replica of {best.policy} serves {number(best.load)} requests/s within the SLOs"
    if best.limit is Limit.THROUGHPUT:
        return [text, "that is all that it can serve"]
    missed = {name: value for name, value in best.attainment.items() if name != "all" and value is not None}
    first = min(missed, key=lambda name: missed[name]).removesuffix("_ms").upper() if missed else "an SLO"
    return [text, f"above that rate {first} is missed first"]


# -- deployments


@said_of.register
def _rented(answer: Rental, console: Console) -> Said:
    """Rows that were simulated in draws, a few of the estimates, and the lines that start and check the best."""
    estimates = [row for row in answer.deployments if row.is_first_pass]
    refined = [row for row in answer.deployments if not row.is_first_pass]
    shown = estimates[: max(0, MAX_ROWS - len(refined))]
    rows = [_deployment_cells(row, answer) for row in [*refined, *shown]]
    table = table_of(
        rows, ["replica"], ["$/M", "J/tok"], box=None, padding=(0, 1), pad_edge=False,
        caption="~: estimated, not simulated" if shown else None, caption_justify="left",
    )  # fmt: skip
    best, prices = answer.deployments[0], []
    if best.usd_per_million_tokens is not None and answer.price_per_gpu_h is not None:
        prices = [
            f"That costs ${_fixed(best.usd_per_million_tokens)} per million output tokens, "
            f"${best.gpus * answer.price_per_gpu_h:.4g} an hour."
        ]
    others = [note for note in answer.notes if note.startswith(OTHER_TABLES)]
    lines = [(ASSUMED, line) for line in acceptance_lines(answer.notes)]
    lines += [(DISPUTED, note.removeprefix(DISPUTE)) for note in answer.notes if note.startswith(DISPUTE)]
    nearest = next((line for row in refined for line in row.evidence), "")
    doubts = [note for note in answer.notes if not note.startswith((*ELSEWHERE, OTHER_TABLES, DISPUTE, ACCEPTANCE))]
    doubts = [nearest_measured(nearest), *(f"{capital(note.rstrip('.'))}." for note in doubts[:MAX_NOTES])]
    typed = [*((START, line) for line in answer.start.splitlines()), (CHECK, answer.check)]
    lines = [*((SURE, line) for line in doubts), *lines, *((label, line) for label, line in typed if line)]
    verdict = "\n".join([answer.verdict, *prices, *others])
    return Said(verdict, [("", table)], lines, lambda: [f"note: {note}" for note in answer.notes], height=4)


def nearest_measured(evidence: str) -> str:
    """A line of evidence in short: who is nearest and how far off throughput was there.

    >>> nearest_measured("measured nearest: gh200, vllm-0.23, apertus-8b, 2 in flight: TPOT +1 % (1 measurement)")
    'Measured: gh200, vllm-0.23, apertus-8b. Error there: TPOT +1 %.'
    """
    ends = r"(?:, speed-up| \(\d+ measurement)"
    found = re.search(
        rf"(?:{MEASURED}|{NEAREST}.*?): (.+?)(?:, K = .*?)?(?:, [\d .,to]+ in flight)?: (.+?){ends}", evidence
    )
    if found is None:
        return UNMEASURED
    like = "Measured" if evidence.startswith(MEASURED) else f"{UNMEASURED} Nearest"
    return f"{like}: {found[1]}. Error there: {found[2].replace(f' {MEAN_SIZE}', '')}."


def _deployment_cells(row: PlannedDeployment, answer: Rental) -> dict[str, str]:
    about, usd = "~" * row.is_first_pass, row.usd_per_million_tokens
    rate = f"{about}{number(row.rate_per_replica)}"
    # Replicas of lanes are counted, not simulated.
    about = about or "~" * (row.policy == LANES)
    if row.rate_interval is not None:
        rate += " ({} to {})".format(*map(number, row.rate_interval))
    met = NONE if row.worlds_met is None else f"{row.worlds_met} of {answer.draws}"
    return {
        "replica": row.deployment,
        "draft": str(row.num_speculative_tokens or "none"),
        "requests/s of a replica": rate,
        "replicas": f"{about}{row.replicas}",
        "GPUs": f"{about}{row.gpus}",
        "$/M": NONE if usd is None else about + _fixed(usd),
        "J/tok": number(row.joules_per_output_token),
        "sure": met,
    }


# -- sweeps


def sweep_sentence(points: StorePoints) -> str:
    """The setting with the lowest mean E2EL, under how many of the conditions, and how often that is clear."""
    settings = [key for key in points.keys if key not in points.conditions]
    ranks = points.ranked("mean_e2el_ms")
    bests = Counter(named(rank.best, settings) for rank in ranks if rank.best is not None)
    num_clear = sum(
        rank.change is not None and rank.change["is_clear"] and not rank.change["is_open"] for rank in ranks
    )
    if not bests:
        return "No setting keeps up with any load."
    if not settings:
        return f"The store has one setting under {len(ranks)} loads, so nothing is compared."
    (name, count), many = bests.most_common(1)[0], len(ranks) > 1
    where = f" at {count} of {len(ranks)} loads" * many
    clear = f"clear at {num_clear or 'none'} of them" if many else "clear" if num_clear else "not clear"
    return f"Lowest mean latency: {name}{where}.\nThe difference to the next setting is {clear}."


# -- words


def _share(value: float) -> str:
    return f"{100.0 * value:.1f} %"


def _whole_share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def _fixed(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _range(interval: Interval | None) -> str:
    return NONE if interval is None else f"{number(interval[0])} to {number(interval[1])}"
