"""What `compare` says agrees with its own table and JSON, whatever the runs were.

Most answers are drawn: metrics of runs that nobody made, from which the real code makes pairs, verdicts, sentence and
tables. A few are whole commands. Not here: whether the metrics are right (tests.sim).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sim.compare.side_by_side import Comparison, Frame, _policy_summary, compare, paired_differences
from sim.compare.verdict import HANGS_ON, METRIC, STATED, Order, Paired, judged, verdict
from sim.costs.profile_files import load
from sim.devices.contention import BRACKET, PhiLevel
from sim.metrics.load import Load, Verdict
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario
from tests.properties import examples, printed
from tests.twins.drawn import TINY
from tests.twins.spoken import Spoken, spoken
from tests.twins.twin import folder, said

Json = Any
PLAIN = "autoregressive"
NAMES = (PLAIN, "continuous", "pd", "pdv", "baseline")
LANES = ("pd", "pdv")
CLOSE = 0.05
"""The share of the lower mean that is too close to call."""
OPEN = ("the same", "too close to call", "not enough runs")


# -- what must hold


def faults(found: Json, shown: str) -> list[str]:
    """A line for each way in which the sentence, the table and the JSON of one comparison disagree."""
    sentence = " ".join(found["verdict"].split())
    text, (first_said, *others_said) = " ".join(shown.split()), found["verdict"].splitlines()
    is_said = text.startswith(first_said) and all(each in text for each in others_said)
    lines = [] if is_said else ["the table begins with another sentence"]
    lines += [
        f"{each.text} is no figure of the answer"
        for each in spoken(nameless(sentence, found))
        if not fits(each, found, shown)
    ]
    known = steady(found)
    if len(known) < 2:
        return lines
    best, *others = known
    pairs = {frozenset((pair["a"], pair["b"])): pair for pair in found["paired"] if pair["metric"] == METRIC}
    beside = {row["policy"]: pairs[frozenset((row["policy"], best["policy"]))] for row in others}
    for row in others:
        if row["verdict"] not in words(beside[row["policy"]], best["mean"][METRIC]):
            lines.append(f"{row['policy']} is {row['verdict']} by {beside[row['policy']]}")
    rivals = {row["policy"]: row["verdict"] for row in others if row["verdict"] in OPEN}
    wanted = max(rivals.values(), key=OPEN.index) if rivals else "fastest"
    if best["verdict"] != wanted:
        lines.append(f"{best['policy']} is {best['verdict']} where {rivals} are beside it")
    lines += clauses(sentence, best["policy"], {row["policy"]: row for row in others})
    first = found["policies"][0]["policy"]
    orders = {row["policy"]: pair["order"] for row in found["policies"] for pair in against(row, first, found)}
    for cells in (line.split() for line in shown.splitlines()):
        if len(cells) < 4 or cells[0] not in orders or cells[-1] not in ("%", "(unsure)", "same"):
            continue
        if ("(unsure)" in cells) != (orders[cells[0]] not in (*STATED, "the same")):
            lines.append(f"the table is {cells[-1]} of {cells[0]}, whose order is {orders[cells[0]]}")
    return lines


def against(row: Json, first: str, found: Json) -> list[Json]:
    """The pair of a policy and the first one that has a difference."""
    pairs = [
        pair for pair in found["paired"] if (pair["a"], pair["b"], pair["metric"]) == (row["policy"], first, METRIC)
    ]
    return [pair for pair in pairs if pair["difference"] is not None]


def steady(found: Json) -> list[Json]:
    """Policies with means that a longer run would repeat, the lowest first."""
    rows = [row for row in found["policies"] if row["load"]["verdict"] in ("stable", "closed") and row["mean"][METRIC]]
    return sorted(rows, key=lambda row: row["mean"][METRIC])


def words(pair: Mapping[str, Json], lowest: float) -> tuple[str, ...]:
    """Verdicts that fit the pair's interval."""
    if pair["interval"] is None:
        is_same = not any([pair["difference"], *pair["by_overlap"].values()])
        return ("the same",) if is_same else ("not enough runs", "too close to call")
    low, high = pair["interval"]
    if low > 0.0 or high < 0.0:
        return ("slower",)
    if low == high == 0.0:
        return ("the same",)
    if Order(pair["order"]) in HANGS_ON:
        return ("too close to call",)
    return ("too close to call",) if max(-low, high) <= CLOSE * lowest else ("not enough runs",)


def clauses(sentence: str, best: str, others: Mapping[str, Json]) -> list[str]:
    """Faults of clauses among themselves: each policy has its own verdict, in one clause."""
    lines, is_named = [], dict.fromkeys(others, 0)
    names = {name: "no speculation" if name == PLAIN else name for name in (best, *others)}
    for part in sentence.lower().split(". "):
        for name, row in others.items():
            if not re.search(rf"(?<![-\w]){names[name]}(?![-\w])", part):
                continue
            if re.search(r" fastest: | the same: | to call: |^not enough runs to (order|place) ", part):
                says = next(word for word in ("fastest", *OPEN) if word in part)
                is_named[name] += 1
                wanted = "slower" if f"below {names[name]}" in part else says
                if row["verdict"] != wanted:
                    lines.append(f"{name} is {row['verdict']}, and the sentence has: {part}")
            elif re.search(r" % slower| times as long", part):
                is_named[name] += 1
                if row["verdict"] != "slower":
                    lines.append(f"{name} is {row['verdict']}, and the sentence has: {part}")
    lines += [f"{name} has {count} verdicts" for name, count in is_named.items() if count > 1]
    unnamed = [name for name, count in is_named.items() if count == 0]
    counted = re.search(r"of (\d+) others", sentence)
    if len(unnamed) != (int(counted[1]) - 2 if counted else 0):
        lines.append(f"{unnamed} have no verdict")
    winner = re.match(r"(.+?) is fastest: ", sentence.lower())
    if winner and (winner[1] != names[best] or any(row["verdict"] in OPEN for row in others.values())):
        lines.append(f"{winner[1]} is called fastest")
    return lines


def nameless(sentence: str, found: Json) -> str:
    """The sentence without names, whose digits are no figures, and without the number of others."""
    for row in found["policies"]:
        sentence = re.sub(rf"(?<![-\w]){re.escape(row['policy'])}(?![-\w])", "it", sentence)
    return re.sub(r"of \d+ others", "of others", sentence)


def fits(each: Spoken, found: Json, shown: str) -> bool:
    """Whether it is a figure of the JSON, and of the table where this has its kind."""
    rows = found["policies"]
    means = [row["mean"][key] for row in rows for key in (METRIC, "mean_ttft_ms", "mean_tpot_ms")]
    in_table = spoken(shown)
    by_prompts = [value[METRIC] for row in rows for value in row["by_prompts"].values() if value[METRIC]]
    if each.unit == "s":
        ends = [bound for row in rows for value in row["by_overlap"].values() if (bound := value[METRIC]) is not None]
        if each.is_any(end / 1e3 for end in (*ends, *by_prompts)):
            return True
        is_cell = each.is_any(one.value for one in in_table if one.unit == "s")
        return is_cell and each.is_any(mean and mean / 1e3 for mean in means)
    slower = [end / 100.0 for row in rows for end in row["slower_pct"] or ()]
    if each.unit == "times":
        plain_ms = [row["mean"][METRIC] for row in rows if row["policy"].startswith(PLAIN)]
        if each.is_any(plain / end for plain in plain_ms for end in by_prompts):
            return True
        return each.is_any(1.0 + end for end in slower) and each.is_any(one.value for one in in_table)
    if each.unit == "%":
        (best, *_), plain = steady(found), [row for row in steady(found) if row["policy"].startswith(PLAIN)]
        saved = [1.0 - best["mean"][METRIC] / row["mean"][METRIC] for row in plain]
        is_cell = each.is_any(one.value for one in in_table if one.unit == "%")
        return (is_cell and each.is_any(slower)) or each.is_any(saved)
    counts = [row["mean"][key] for row in rows for key in ("completed", "num_prompts")]
    rates = [row["load"][key] for row in rows for key in ("rate_per_s", "capacity_per_s")]
    return each.is_any([*counts, *rates])


# -- drawn answers


@cache
def tiny() -> Comparison:
    """A comparison of one policy, whose metrics drawn ones replace."""
    scenario = Scenario.of(profile=TINY, policy="continuous", num_prompts=4, output_len=4, request_rate=2)
    return compare(resolve_all(scenario, load(TINY)), workers=1)


def drawn_answer(seed: int) -> Comparison:
    """Policies that are equal, close, far apart or overloaded, in one run or several, with overlap measured or not."""
    draw, base = random.Random(seed), tiny()
    names = draw.sample(NAMES, draw.randint(1, len(NAMES)))
    num_runs, spread = draw.choice((1, 3, 4, 4, 4, 8)), draw.choice((0.0, 0.0, 0.001, 0.02))
    level_ms = draw.choice((0.9, 80.0, 500.0, 12_000.0))
    common = [level_ms * (1.0 + spread * draw.gauss(0.0, 1.0) ** 2) for _ in range(num_runs)]
    runs: dict[tuple[str, PhiLevel], list[Any]] = {}
    loads: dict[tuple[str, PhiLevel], Load] = {}
    is_bracketed = draw.random() < 0.5
    values = common
    for name in names:
        if draw.random() < 0.75:
            noise, factor = draw.choice((0.0, 1e-4, 0.003, 0.03, 0.3)), draw.choice((1.0, 1.0, 1.004, 1.06, 1.5, 2.6))
            values = [value * factor * (1.0 + noise * draw.random()) for value in common]
        state = draw.choice((Verdict.STABLE,) * 18 + (Verdict.OVERLOADED, Verdict.UNDECIDED))
        for level in BRACKET if is_bracketed and name in LANES else (PhiLevel.MIDDLE,):
            at = 1.0 if level is PhiLevel.MIDDLE else draw.choice((1.0, 1.003, 1.02, 0.9, 1.3))
            key = name, level
            runs[key] = [base.runs[0] | {"policy": name, METRIC: value * at} for value in values]
            loads[key] = Load(verdict=state, rate_per_s=2.0)
    frame = Frame(runs, loads)
    paired = [in_draws(pair, draw) for pair in paired_differences(frame)]
    policies = judged([_policy_summary(frame, name) for name in names], paired)
    return msgspec.structs.replace(
        base,
        scenario=base.scenario | {"replications": num_runs},
        policies=policies,
        runs=[run | {"policy": name} for name in names for run in runs[name, PhiLevel.MIDDLE]],
        paired=paired,
        verdict=verdict(policies, paired, [name for name in names if name != PLAIN]),
    )


def in_draws(pair: Paired, draw: random.Random) -> Paired:
    """The pair, now and then with an order that does not hold in draws of costs."""
    if pair.order not in STATED or pair.metric != METRIC or pair.interval is None or draw.random() < 0.8:
        return pair
    low, high = pair.interval
    return msgspec.structs.replace(pair, order=Order.DRAWS, interval=(min(low, -high), max(high, -low)))


@given(st.integers(0, 2**32))
@examples(1.0)
def test_a_drawn_answer_agrees_with_its_table_and_its_json(seed: int) -> None:
    result = drawn_answer(seed)
    assert faults(result.plain, printed(result, 120)) == []


def test_drawn_answers_have_every_verdict() -> None:
    """What the property holds for is there to be found."""
    found = [drawn_answer(seed) for seed in range(100)]
    assert {row.verdict for result in found for row in result.policies} > {"fastest", *OPEN, "slower"}
    assert {pair.order for result in found for pair in result.paired} == {*Order} - {Order.REPLAYS}


# -- whole commands


def test_settings_that_change_nothing_are_the_same_in_one_run_and_in_several() -> None:
    """prefix_cache without prompts that share a beginning."""
    for replications in ("1", "2"):
        with folder() as path:
            flags = ("--vary", "prefix_cache=on,off", "--replications", replications, "--num-prompts", "8")
            said("compare", "--profile", "h100-sxm/llama-3.1-8b", *flags, "--json", str(path / "r.json"))
            (each,) = json.loads((path / "r.json").read_text())["loads"]
        assert [row["verdict"] for row in each["comparison"]["policies"]] == ["the same", "the same"]
