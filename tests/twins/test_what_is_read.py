"""Twins of what is read: cost tables and their ends, results of benchmarks, engines that run.

Issue 41: A2, A3, A6, A9. Not here: checkpoints (tests.calibrate.catalogue).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import assume
from hypothesis import strategies as st

import lanesim
from sim.costs.engine_costs import engine_of
from sim.costs.extrapolation import collecting
from sim.costs.forms.build import build_costs
from sim.costs.profile import Profile
from sim.costs.table_kernels import TableKernels
from sim.interface.work import Chunk, Kind, Model, Work
from sim.workload.bench import bench_rows
from tests.twins.drawn import CONTINUOUS, LINEAR, PAIR, TABLE, TINY, constants, questions
from tests.twins.twin import Asked, Pair, flat, folder, or_refused, runs, said, twin

TABLES = [name for name in lanesim.profile_names() if isinstance(lanesim.load_profile(name).kernels, TableKernels)]
tables = st.sampled_from(TABLES)


# -- beyond the end of a table


def prompt_s(profile: Profile, tokens: int) -> float:
    """Device seconds of a pass over one prompt."""
    costs = build_costs(profile, engine_of(None, profile))
    work = Work(kind=Kind.PREFILL, model=Model.TARGET, requests=(), chunks=(Chunk(tokens, 0),))
    with collecting():
        return costs.cost(work).device_s


def with_body(profile: Profile, points: list[tuple[int, float]]) -> Profile:
    """`profile` with other points of its layers, which were measured up to the last of them."""
    table = profile.table
    tokens, seconds = zip(*points, strict=True)
    target = msgspec.structs.replace(table.target, body=lanesim.Curve(tokens=tokens, seconds=seconds))
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(table, target=target))


def body(profile: Profile) -> list[tuple[int, float]]:
    curve = profile.table.target.body
    return list(zip(curve.tokens, curve.seconds, strict=True))


@twin(tables, st.integers(2, 4), rel=0.15)
def test_a_point_more_beside_the_last_one_changes_little_beyond_it(name: str, times: int) -> Pair:
    """A2: kernels take as long for 16 tokens fewer, a stair."""
    profile = lanesim.load_profile(name)
    points = body(profile)
    (before, _), (last, last_s) = points[-2:]
    assume(last - 16 > before)
    step = [*points[:-1], (last - 16, last_s), (last, last_s)]
    return Pair(prompt_s(profile, times * last), prompt_s(with_body(profile, step), times * last))


@twin(tables, rel=0.3)
def test_half_of_a_table_says_what_the_other_half_holds(name: str) -> Pair:
    """A2."""
    profile = lanesim.load_profile(name)
    points = body(profile)
    last = points[-1][0]
    half = [point for point in points if point[0] <= last // 2]
    assume(len(half) > 3)
    return Pair(prompt_s(profile, last), prompt_s(with_body(profile, half), last))


# -- n-grams


@twin(questions(profiles=(TINY, PAIR, TABLE, LINEAR), policy=CONTINUOUS, acceptance="iid:0"), rel=0.02)
def test_each_lookup_of_an_ngram_takes_its_time_in_every_form(asked: Asked) -> Pair:
    """A3: the engine proposes after it has sampled, so that nothing hides it."""
    profile, lookup_s = lanesim.load_profile(asked["profile"]), 0.01
    own = {key: value for key, value in flat(asked).items() if key != "profile"}
    own |= {"request_rate": "inf", "max_concurrency": 1, "output_len": 12, "speculation.method": "ngram"}
    found = []
    for more in (0.0, lookup_s):
        host = msgspec.structs.replace(profile.host, ngram_row_s=more)
        found.append(lanesim.compare(profile=msgspec.structs.replace(profile, host=host), **own).runs[0])
    # One behind the prompt, and one behind each round, the last included: it is made before the token is out.
    lookups = 1 + found[0]["spec_decode_num_drafts"] / found[0]["completed"]
    return Pair(found[1]["mean_e2el_ms"] - found[0]["mean_e2el_ms"], 1e3 * lookup_s * lookups)


@twin(questions(profiles=(TINY, PAIR, TABLE, LINEAR), policy=CONTINUOUS, acceptance="iid:0"))
def test_a_lookup_takes_none_of_the_device(asked: Asked) -> Pair:
    """A3."""
    profile = lanesim.load_profile(asked["profile"])
    run = lanesim.compare(**flat(asked) | {"profile": profile, "speculation.method": "ngram"}).runs[0]
    busy = run["kind_utilization"]
    return Pair({kind: share for kind, share in busy.items() if kind in ("host", "draft") and share}, {})


# -- results of benchmarks


@twin(st.integers(1, 8), st.floats(1.0, 1e4), st.integers(1, 512))
def test_a_row_per_gpu_is_the_same_whoever_splits_it(tp: int, per_gpu: float, conc: int) -> Pair:
    """A6: rows of several nodes name their GPUs otherwise, and one of no number at all says nothing of the whole."""
    row = {"hw": "b200", "conc": conc, "tput_per_gpu": 2 * per_gpu, "output_tput_per_gpu": per_gpu,
           "mean_ttft": 0.5, "mean_tpot": 0.01, "isl": 1024, "osl": 128}  # fmt: skip

    def throughput(more: dict[str, Any]) -> Any:
        with folder() as place:
            path = place / "row.json"
            path.write_text(json.dumps([row | more]))
            return or_refused(lambda: bench_rows(Path(path))[0].get("output_throughput"))

    one_node = throughput({"tp": tp})
    spread = {"is_multinode": True, "num_prefill_gpu": 2 * tp, "num_decode_gpu": tp, "decode_tp": tp, "prefill_tp": tp}
    several = throughput(spread)
    return Pair(
        True, several in (one_node, "refused", None) or (isinstance(several, float) and several > 1.9 * one_node)
    )


# -- engines that run


@twin(constants(row_s=st.floats(1e-4, 2e-3)), rel=0.03, share=0.025)
def test_an_engine_that_was_fitted_to_a_server_is_that_server(profile: Profile) -> Pair:
    """A9: the server is a simulated one, whose steps are planned after each other and take a time per row."""
    levels = (1, 3, 8)
    bare = msgspec.structs.replace(
        profile, host=msgspec.structs.replace(profile.host, engine=None, step_s=0.0, row_s=0.0)
    )
    with folder() as place:
        lanesim.save_profile(profile, place / "server.json")
        lanesim.save_profile(bare, place / "bare.json")
        benches = []
        for level in levels:
            (run,) = runs(at_level(place / "server.json", level))
            path = place / f"c{level}.json"
            path.write_text(json.dumps(run | {"request_rate": "inf", "max_concurrency": level}))
            benches.append(str(path))
        flags = ["--profile", str(place / "bare.json"), "--out", str(place / "fitted.json")]
        said("calibrate", "fit", *benches, *flags)
        tpots = [
            [runs(at_level(place / f"{name}.json", level))[0]["mean_tpot_ms"] for level in (*levels, 6)]
            for name in ("server", "fitted")
        ]
    return Pair(*tpots)


def at_level(profile: Path, concurrency: int) -> dict[str, Any]:
    return {
        "profile": profile, "policy": "autoregressive", "num-prompts": 2 * concurrency, "request-rate": "inf",
        "max-concurrency": concurrency, "input-len": 8, "output-len": 12,
    }  # fmt: skip
