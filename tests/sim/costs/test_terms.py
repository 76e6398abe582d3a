"""Terms that real engines show beside kernels, each in closed form: what drafting costs as such, passes in pieces, and
the memory that a drafter takes."""

from __future__ import annotations

import msgspec
import pytest

from sim.costs.engine_costs import EngineCosts, load_engine, with_engine
from sim.costs.forms.build import build_costs
from sim.costs.layer_kinds import Linear
from sim.costs.memory import beside_states, kv_capacity_tokens, pool_bytes_per_token, state_bytes
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.interface.work import Chunk, Kind, Model, Work
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from tests.sim.costs.table_points import table

COMPACT, LINEAR = "h100-sxm/llama-3.1-8b+eagle3", "a100-pdverify/codellama-34b+tinyllama-1.1b"
PHASE_S, UNEVEN_S = 2e-3, 5e-2
GIB = 2**30


def engine(**changes: float) -> EngineCosts:
    return msgspec.structs.replace(load_engine("ideal", "h100-sxm"), name="mine", source="made up", **changes)


def draft(draft_tokens: int, rows: int = 4, chunks: tuple[Chunk, ...] = ()) -> Work:
    return Work(
        kind=Kind.DRAFT,
        model=Model.DRAFT,
        rows=rows,
        row_tokens=rows,
        context_tokens=100 * rows,
        chunks=chunks,
        head_rows=rows if draft_tokens else 0,
        draft_tokens=draft_tokens,
    )


def step(rows: int, row_tokens: int, chunks: tuple[Chunk, ...] = ()) -> Work:
    return Work(
        kind=Kind.STEP, rows=rows, row_tokens=row_tokens, context_tokens=100 * rows, chunks=chunks, head_rows=row_tokens
    )


@pytest.mark.parametrize("form", ["compact", "table", "linear"])
def test_a_drafting_phase_is_paid_once_however_many_tokens_it_drafts(form: str) -> None:
    """Also where a drafter is only kept up to date; not for prompts alone, of which nothing is drafted."""
    profile = table() if form == "table" else load(COMPACT if form == "compact" else LINEAR)
    bare, slower = build_costs(profile, engine()), build_costs(profile, engine(draft_phase_s=PHASE_S))
    prompt = (Chunk(20, 0),)
    for work, phases in (
        (draft(0), 1),
        (draft(1), 1),
        (draft(5), 1),
        (draft(5, chunks=prompt), 1),
        (draft(0, rows=0, chunks=prompt), 0),
        (step(4, 4), 0),
    ):
        added_s = slower.cost(work).device_s - bare.cost(work).device_s
        assert added_s == pytest.approx(phases * PHASE_S, abs=1e-12)


def test_rows_whose_draft_is_not_the_longest_are_launched_in_pieces() -> None:
    """Full graphs are there for rows of four queries, the longest draft of three and the newest token; beside prompts
    nothing changes, nor for the drafter."""
    profile = load(COMPACT)
    plain = build_costs(profile, engine())
    costs = build_costs(profile, engine(uneven_launch_s=UNEVEN_S), graphed_queries=4)
    for row_tokens, is_even in ((32, True), (24, False), (31, False), (8, False)):
        launch_s = profile.host.graph_launch_s if is_even else UNEVEN_S
        assert costs.cost(step(8, row_tokens)).launch_s == launch_s
    for work in (step(8, 24, (Chunk(20, 0),)), draft(1), draft(3)):
        assert costs.cost(work) == plain.cost(work)


@pytest.mark.parametrize("graphed_queries", [None, 4])
def test_full_graphs_are_there_for_every_length_where_nothing_was_measured_or_lengths_do_not_vary(
    graphed_queries: int | None,
) -> None:
    profile = load(COMPACT)
    uneven_s = 0.0 if graphed_queries else UNEVEN_S
    costs = build_costs(profile, engine(uneven_launch_s=uneven_s), graphed_queries=graphed_queries)
    for row_tokens in (8, 24, 32):
        assert costs.cost(step(8, row_tokens)).launch_s == profile.host.graph_launch_s


def tpot_s(controller: dict[str, object], uneven_s: float) -> float:
    scenario = Scenario.of(
        profile=COMPACT, policy="continuous", num_prompts=1, input_len=50, output_len=61, request_rate="inf",
        num_speculative_tokens=3, acceptance="iid:0", **{"speculation.method": "eagle3", **controller},
    )  # fmt: skip
    costs = engine(uneven_launch_s=uneven_s)
    (request,) = simulate(resolve(scenario, with_engine(load(COMPACT), costs), "continuous"), 0).requests
    return (request.last_token_s - request.first_token_s) / 60


def test_a_run_that_always_drafts_the_longest_keeps_its_graphs_and_one_that_does_not_loses_them() -> None:
    table = {
        "speculation.controller": "by_batch",
        "speculation.num_speculative_tokens_per_batch_size": ((1, 8, 2), (9, 16, 3)),
    }
    assert tpot_s({}, UNEVEN_S) == tpot_s({}, 0.0)
    assert tpot_s(table, UNEVEN_S) > UNEVEN_S > tpot_s(table, 0.0)


def test_a_drafter_takes_its_weights_its_kv_and_what_the_engine_keeps_for_it() -> None:
    pair = load("gh200/apertus-8b+eagle3")
    assert pair.draft is not None
    kept = engine(reserved_bytes=3 * GIB, draft_reserved_bytes=GIB)
    room = 0.8 * pair.gpu.memory_bytes - pair.target.weight_bytes - 3 * GIB
    per_token = pair.target.kv_bytes_per_token
    assert kv_capacity_tokens(pair, 0.8, with_draft=False, engine=kept) == int(room / per_token)
    room -= pair.draft.weight_bytes + GIB
    assert kv_capacity_tokens(pair, 0.8, engine=kept) == int(room / (per_token + pair.draft.kv_bytes_per_token))


def test_layers_with_a_window_make_groups_of_blocks_that_the_other_layers_fill_up() -> None:
    """32 layers without a window in groups of 5 are 35, beside the drafter's 5."""
    pair = load("gh200/apertus-8b+dspark")
    assert pair.draft is not None
    layer_bytes = pair.target.kv_bytes_per_token // 32
    assert pool_bytes_per_token(pair.models, 1) == 40 * layer_bytes
    assert pool_bytes_per_token(pair.models[:1], 1) == 32 * layer_bytes


def test_windows_with_a_pool_of_their_own_take_their_share_of_every_token() -> None:
    """18 layers of gpt-oss see all tokens, 18 have a window."""
    shape = load("h200-sxm/gpt-oss-120b+eagle3").target
    layer_bytes = pool_bytes_per_token((shape,), 1) // 18
    assert pool_bytes_per_token((shape,), 1, 0.5) == 18 * layer_bytes + 9 * layer_bytes


def test_states_of_linear_attention_have_a_pool_that_bounds_the_seats() -> None:
    """Half of 22 states: less one of padding 10, 5 a request. With drafts of one token a request keeps two
    more, and so does the padding: 8 of 11 hold 5 states with two fifths each."""
    shape = msgspec.structs.replace(
        load(COMPACT).target, linear=Linear(layers=24, key_heads=16, key_dim=128, value_heads=32, value_dim=128)
    )
    state, token_bytes = state_bytes((shape,), 1), pool_bytes_per_token((shape,), 1)
    tokens = round(22 * state / token_bytes)
    assert tokens * token_bytes == 22 * state
    assert beside_states(tokens, (shape,), 1, 1.0, 5, 48, 0) == (2, int((22 - 11) * state / token_bytes))
    assert beside_states(tokens, (shape,), 1, 1.0, 5, 48, 1) == (1, int((22 - 6 - 2 * 2) * state / token_bytes))


@pytest.mark.parametrize(
    ("drafter", "tokens", "within_pct"), [("", 469_840, 0.05), ("+eagle3", 433_872, 0.05), ("+dspark", 342_693, 2.0)]
)
def test_the_pool_on_a_gh200_is_as_measured(drafter: str, tokens: int, within_pct: float) -> None:
    """vLLM 0.23, Apertus 8B, 0.8 of 95 GiB (swiss-ai/apertus-speculative-decoding). DSpark's judges: nothing is fitted
    on it."""
    kept = load_engine("vllm-0.23", "gh200")
    found = kv_capacity_tokens(load(f"gh200/apertus-8b{drafter}"), 0.8, engine=kept)
    assert found == pytest.approx(tokens, rel=within_pct / 100)


@pytest.mark.parametrize("profile", [load(COMPACT), load(LINEAR), table()], ids=["compact", "linear", "table"])
def test_a_lookup_of_ngrams_takes_the_host_its_time_a_row_and_no_device(profile: Profile) -> None:
    host = msgspec.structs.replace(profile.host, ngram_row_s=2e-5)
    cost = build_costs(msgspec.structs.replace(profile, host=host)).cost(Work(kind=Kind.HOST, rows=28))
    assert cost == (pytest.approx(28 * 2e-5), 0.0, 0.0, 0, 0.0)
