"""Answers of `tune` and `plan` beside their own tables: what the sentence says, the JSON bears out.

Most answers are drawn as speed-ups by load, draft length and draw, which take no simulation; a few are whole commands.
Not here: how a length is chosen (tests.sim.studies.test_tune), numbers in the printed table (tests.sim.report).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sim.report.say import tuning_sentence
from sim.run.resolve import Resolved
from sim.studies.length_choice import PLAIN, LengthGrid
from sim.studies.plan.search import Rental
from sim.studies.tune import answer
from tests.properties import examples
from tests.sim.studies.test_plan import PAIR, planned
from tests.sim.studies.test_plan import scenario as planned_scenario
from tests.sim.studies.test_tune import resolved
from tests.twins.spoken import spoken
from tests.twins.test_commands_agree import length_at
from tests.twins.twin import said

Plain = dict[str, Any]
ALIKE = 0.001
"""Share within which two draft lengths of one load are as good as each other; the printed table has no finer one."""
SURE_PCT, DRAWS_PCT = 0.01, 0.9
"""The gain of which a table must be sure, and the share of draws that an interval holds: sentences name both."""
LOADS = "([0-9, and]+)"


class Drawn(NamedTuple):
    """A grid, and how it is asked about."""

    grid: LengthGrid
    engine: str
    in_use: int | None


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    loads = sorted(draw(st.sets(st.sampled_from((1, 2, 4, 8, 37, 64, 200, 512)), min_size=1, max_size=5)))
    lengths = sorted(draw(st.sets(st.sampled_from((1, 2, 3, 5)), min_size=1, max_size=3)))
    settings = (PLAIN, *draw(st.sampled_from(((), (0,)))), *lengths)
    num_draws, noise = draw(st.sampled_from((1, 2, 4, 10, 20))), draw(st.sampled_from((0.0, 0.02, 0.1, 0.4)))
    cell = st.sampled_from((0.0, 0.5, 0.9, 0.97, 0.999, 1.0, 1.004, 1.02, 1.1, 1.4, 2.0))
    cells = [[1.0, *(draw(cell) for _ in settings[1:])] for _ in loads]
    if draw(st.booleans()):  # Longer drafts fall off with the load, as they do on a server.
        cells = [sorted(row[:1]) + sorted(row[1:], reverse=bool(place)) for place, row in enumerate(cells)]
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    values = np.array(cells)[:, :, None] * np.exp(noise * rng.standard_normal((len(loads), len(settings), num_draws)))
    values[:, 0] = 1.0
    if draw(st.integers(0, 9)) == 0:
        values[-1, 0] = 0.0  # No request of the largest load meets the SLOs without drafts.
    if 0 in settings:  # A drafter that is loaded and idle gains nothing.
        values[:, 1] = np.minimum(values[:, 1], values[:, 0])
    grid = LengthGrid(tuple(loads), settings, values * np.array(loads)[:, None, None])
    in_use = draw(st.sampled_from((None, None, PLAIN, lengths[-1])))
    return Drawn(grid, draw(st.sampled_from(("vllm-0.24", "sglang-0.5"))), in_use)


@cache
def served_by(engine: str) -> Resolved:
    return resolved(engine=engine, max_num_seqs=1024)


# -- what an answer's own figures say against its sentence


def best_cell(point: Plain) -> float | None:
    cells = [each["speedup"] for each in point["lengths"] if each["k"] > 0]
    return None if None in cells else max(cells)


def gains_at(points: Sequence[Plain], load: float) -> bool:
    best = best_cell(next(point for point in points if point["concurrency"] == load))
    return best is not None and best > 1.0


def faults(plain: Plain, sentence: str, grid: LengthGrid | None = None) -> Iterator[str]:
    """Lines on what does not agree."""
    yield from of_the_table(plain)
    yield from of_the_break_even(plain)
    yield from of_figures(plain, sentence)
    yield from of_the_choice(plain, sentence, grid)
    yield from of_gains(plain, sentence)


def of_the_table(plain: Plain) -> Iterator[str]:
    """The JSON alone: one answer, for loads that were simulated and no others."""
    loads = [point["concurrency"] for point in plain["points"]]
    rows, verdict = plain["table"], plain["verdict"]
    if not loads[0] <= rows[0][0] <= rows[-1][1] <= loads[-1]:
        yield f"rows {rows} reach beyond the loads {loads}"
    if any(not any(start <= load <= end for load in loads) for start, end, _ in rows):
        yield f"a row of {rows} holds no load of {loads}"
    told = ", ".join(f"K = {k} for {start}..{end}" for start, end, k in rows)
    wanted = (
        f"a table: {told}" if len(rows) > 1 else f"one length: K = {rows[0][2]}" if rows[0][2] else "no speculation"
    )
    if verdict != wanted:
        yield f"verdict {verdict!r} beside rows {rows}"
    if any(point["k"] != length_at(rows, point["concurrency"]) for point in plain["points"]):
        yield f"points have other lengths than rows {rows}"
    lines, ks = plain["deployment"], {k for _, _, k in rows}
    drafted = set(map(int, re.findall(r'"num_speculative_tokens": (\d+)|num-steps (\d+)', str(lines)) and [max(ks)]))
    started = "speculative" in lines["vllm_serve"] + lines["sglang_flags"]
    if started != any(ks) or (started and drafted != {max(ks)} and len(rows) == 1):
        yield f"the line starts {drafted or 'none'}, the table has {ks}"


def of_the_break_even(plain: Plain) -> Iterator[str]:
    points, middle = plain["points"], plain["break_even_concurrency"]
    known = [(point["concurrency"], best) for point in points if (best := best_cell(point)) is not None]
    if middle == 0.0 and any(best > 1.0 for _, best in known):
        yield "no load gains by the break-even, and one does by its cells"
    if middle:
        sides = [(low, high) for low, high in pairwise(known) if low[0] <= middle <= high[0]]
        if not any(low[1] > 1.0 and min(high[1], known[-1][1]) < 1.0 for low, high in sides):
            yield f"break-even {middle} is not between a gain and a loss: {known}"
    low, high = (
        default if end is None else end for end, default in zip(plain["break_even_interval"], (1e9, 1e9), strict=True)
    )
    if middle is not None and not low <= middle <= high:
        yield f"break-even {middle} is outside {low, high}"


def of_figures(plain: Plain, sentence: str) -> Iterator[str]:
    """Every number that is said is one of the JSON, with its unit."""
    points, change = plain["points"], plain.get("change")
    ends = [end for point in points for end in point["interval"] or ()]
    ks = {0, *(each["k"] for each in points[0]["lengths"])}
    allowed = {
        "%": [
            *(SURE_PCT, DRAWS_PCT, plain["gain"]["mean"], *plain["gain"]["interval"], -plain["gain"]["interval"][0]),
            *([change["mean"], *change["interval"]] if change else []),
        ],
        "times": [point["speedup"] for point in points],
        "K": ks,
        "": [
            *(point["concurrency"] for point in points), *(bound for row in plain["table"] for bound in row),
            plain["break_even_concurrency"], *plain["break_even_interval"], *ends,
        ],
    }  # fmt: skip
    for number in spoken(sentence):
        if not number.is_any(allowed.get(number.unit, ())):
            yield f"{number.text!r} ({number.unit or 'a load'}) is no figure of the answer"
    if spread := re.search(r"([\d.]+)(?: to ([\d.]+))? times", sentence):
        speedups = [point["speedup"] for point in points if point["speedup"] is not None]
        if [spread[1], spread[2] or spread[1]] != [f"{least(speedups):.2f}" for least in (min, max)]:
            yield f"{spread[0]} are not the least and the most of {speedups}"


def of_the_choice(plain: Plain, sentence: str, grid: LengthGrid | None) -> Iterator[str]:
    """What is named is the table's; it has the least regret at every load, or a reason is given that applies."""
    rows, points, change = plain["table"], plain["points"], plain.get("change")
    named = [
        [int(start), int(end), int(k)]
        for k, start, end in re.findall(r"(\d+) tokens? at (\d+) to (\d+)(?=[,.])", sentence)
    ]
    single = re.search(r"Draft (\d+) tokens?", sentence)
    says_none = "Do not speculate" in sentence
    stays = change is not None and change["of"] != change["over"] and not change["is_sure"]
    if stays:  # The first reason: a change is not worth it.
        if named or single or says_none or not sentence.startswith(f"Leave {change['over']}: "):
            yield "it says to leave what is in use, and names another"
        return
    if named not in ([], rows) or (single and [[int(single[1])]] != [row[2:] for row in rows]):
        yield f"{named or single} is not the table {rows}"
    if says_none == any(k for _, _, k in rows) or not (named or single or says_none):
        yield f"it speaks of {'none' if says_none else 'drafts'}, the table has {rows}"
    if "whatever the load" in sentence:
        yield "it names a length for loads that were not simulated"
    beyond: dict[int, float] = {}
    for point in [] if says_none else points:
        lost = {each["k"]: each["expected_regret"] for each in point["lengths"]}
        beyond[point["concurrency"]] = lost[length_at(rows, point["concurrency"])] - min(lost.values()) - ALIKE
    worse, about = ({load for load, by in beyond.items() if by > edge} for edge in (1e-9, -1e-9))
    # The second reason: lengths by load gain too little.
    reason = re.search(rf"Other lengths are better at {LOADS}, but no table is surely 1 %", sentence)
    if not worse <= set(map(int, re.findall(r"\d+", reason[1] if reason else ""))) <= about:
        yield f"other lengths have less regret at {worse}, which is not what it says"
    has_reason = reason is not None or re.search("Drafting by batch size changes|on some prompts", sentence) is not None
    if has_reason and plain["gain"]["is_sure"]:
        yield "it says that no table is surely better, and one is"
    if says_none and any(gains_at(points, point["concurrency"]) for point in points):
        # The third reason: over all loads no speculation loses least.
        if not has_reason or "Do not speculate at" not in sentence:
            yield "no speculation is named where lengths gain, without a reason"
        elif grid is not None and least_regret(grid) != PLAIN:
            yield f"no speculation does not lose least: {least_regret(grid)}"


def least_regret(grid: LengthGrid) -> int:
    """The single setting of least mean loss over draws and loads, of those that gain anywhere."""
    best = grid.values.max(axis=1)
    lost: dict[int, float] = {}
    for place, k in enumerate(grid.settings):
        values: NDArray[np.float64] = grid.values[:, place]
        lost[k] = float(np.mean(np.where(best > 0.0, 1.0 - values / np.where(best > 0.0, best, 1.0), 0.0)))
    return min((k for k in grid.settings if k != 0), key=lambda k: lost[k])


def of_gains(plain: Plain, sentence: str) -> Iterator[str]:
    """The loads that are said to gain are those whose cells do."""
    points = plain["points"]
    known = [(point["concurrency"], best > 1.0) for point in points if (best := best_cell(point)) is not None]
    gaining, losing = ([load for load, gains in known if gains == wanted] for wanted in (True, False))
    sentence = sentence.lower()
    if re.search("every draft length loses|no draft length (pays|gains) at", sentence) and gaining:
        yield f"no length gains, and at {gaining} one does"
    if re.search("pays at every load", sentence) and (losing or len(known) < len(points)):
        yield f"it pays at every load, and at {losing} none gains"
    above = re.search(r"no draft length gains (?:anything )?above (\d+)", sentence)
    end = 0.0 if above is None else float(above[1])
    if above and (any(load > end + 0.5 for load in gaining) or any(load < end - 0.5 for load in losing)):
        yield f"{above[0]}: {gaining} gain, {losing} do not"
    up_to = re.search(r"pays up to (?:more than )?(\d+)", sentence)
    if up_to and gaining != [load for load, _ in known if load <= float(up_to[1])]:
        yield f"{up_to[0]}: {gaining} gain"
    each = re.search(rf"pays at {LOADS} in flight(?:, not at {LOADS})?", sentence)
    if each and [list(map(int, re.findall(r"\d+", part or ""))) for part in each.groups()] != [gaining, losing]:
        yield f"{each[0]}: {gaining} gain, {losing} do not"
    if losing and not re.search("no draft length|not at|every draft length", sentence):
        yield f"at {losing} no length gains, of which it says nothing"


# -- drawn answers


@examples(4.0)
@given(drawn())
def test_the_sentence_of_a_drawn_answer_is_borne_out_by_its_figures(asked: Drawn) -> None:
    assert found_in(asked) == []


def found_in(asked: Drawn) -> list[str]:
    found = answer(served_by(asked.engine), asked.grid, in_use=asked.in_use)
    return list(faults(json.loads(json.dumps(found.plain)), " ".join(tuning_sentence(found).split()), asked.grid))


HEAD = "--profile h100-sxm/llama-3.1-8b+eagle3 --set policy=continuous --input-len 500 --output-len 40"
ASKED = (
    "--acceptance length:2.83@3 --draws 4 --concurrencies 1,64,512 --lengths 0,1,3",
    "--acceptance length:2.83@3 --draws 2 --concurrencies 8,512 --lengths 0,1,2",
    "--acceptance iid:0.3 --draws 3 --concurrencies 1,16,128 --lengths 1,4 --engine sglang-0.5",
    "--acceptance iid:0.15 --draws 1 --concurrencies 32,256 --lengths 2,3",
    "--acceptance length:2.83@3 --draws 2 --concurrencies 4,64 --lengths 1,3 --goodput tpot:7",
)


@pytest.mark.parametrize("flags", ASKED)
def test_what_tune_prints_is_borne_out_by_its_json(flags: str) -> None:
    line = ["tune", *HEAD.split(), *flags.split(), "--set", "workload.num_prompts=600"]
    plain, text = json.loads(said(*line, "--json", "-")), said(*line).splitlines()
    answered = " ".join(line.strip() for line in takewhile(str.strip, text))
    assert list(faults(plain, answered)) == []
    for point in plain["points"]:
        row = next(each.split() for each in text if each.split()[:1] == [str(point["concurrency"])])
        cells = ["–" if each["speedup"] is None else f"{each['speedup']:.2f}" for each in point["lengths"]]
        assert row[1 : len(cells) + 1] == cells


# -- plans


def plan_faults(found: Rental) -> Iterator[str]:
    """The deployed length is that of the sentence, of the row, of the table and of the lines, and the best at its
    load."""
    row, tuning, plain = found.deployments[0], found.tuning, json.loads(json.dumps(found.plain))
    k = row.num_speculative_tokens
    if ("without a drafter" if k == 0 else f"at K = {k}.") not in found.verdict:
        yield f"{found.verdict!r} beside K = {k}"
    if f"num_speculative_tokens={k} " not in f"{found.check} ":
        yield f"{found.check} for K = {k}"
    if tuning is None:
        return
    yield from of_the_table(plain["tuning"])
    yield from of_the_break_even(plain["tuning"])
    if plain["tuning"]["table"] != row.k_table or k not in {each for _, _, each in row.k_table}:
        yield f"K = {k} is deployed, the table has {row.k_table}, {tuning.verdict!r}"


PLANS = [(2, 3, "length:2.6@3"), (3, 3, "length:2.6@3"), (1, 10, "iid:0.3"), (2, 2, "iid:0.1")]


@pytest.mark.parametrize(("k", "draws", "acceptance"), PLANS)
def test_a_plan_deploys_the_length_that_its_json_names(k: int, draws: int, acceptance: str) -> None:
    assert list(plan_faults(plan_of(k, draws, acceptance))) == []


def plan_of(k: int, draws: int, acceptance: str) -> Rental:
    return planned(planned_scenario(PAIR, k=k, **{"speculation.acceptance": acceptance}), PAIR, draws=draws)
