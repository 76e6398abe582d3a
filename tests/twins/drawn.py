"""Questions that twins are drawn from: profiles of every form, policies, loads that a few requests make up.

Requests are few and short, so that a run takes hundredths of a second. Not here: how answers are compared
(tests.twins.twin).
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

import lanesim
from sim.costs.engine_costs import DEFAULT_ENGINE
from sim.costs.profile import Profile

TINY = "cpu/tiny"
PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
TABLE = "h200-sxm/llama-3.1-8b+eagle3"
LINEAR = "a100-pdverify/codellama-34b+tinyllama-1.1b"
ENGINE = DEFAULT_ENGINE
LANES = ("pd", "pdv", "unified", "baseline")
PAIRS = (TINY, PAIR, LINEAR)
"""Profiles with a draft model that every policy takes, one of each form but tables."""
ENGINES = ("vllm-0.24", "vllm-0.12", "trtllm-1.0", "ideal")

CONTINUOUS = st.just("continuous")
FEW = st.sampled_from(("autoregressive", "continuous"))
policies = st.sampled_from(("autoregressive", "continuous", *LANES))
several = st.permutations(("autoregressive", "continuous", "pd", "pdv", "unified")).map(lambda names: names[:3])
"""Three policies in some order."""
acceptances = st.sampled_from(("iid:0.7", "length:2.6@3", "vllm:.74,.49,.37", "per-position:.8,.6", "beta:13,8"))


@st.composite
def questions(
    draw: st.DrawFn,
    profiles: tuple[str, ...] = (*PAIRS, TABLE),
    policy: st.SearchStrategy[Any] = policies,
    **given: Any,
) -> dict[str, Any]:
    """Flags of a command on a few requests; `given` ones win, and None leaves one out."""
    profile = draw(st.sampled_from(profiles))
    chosen = draw(policy)
    if profile == TABLE:
        # A head of its target drafts in no other policy.
        chosen = "continuous" if chosen in LANES else chosen
    found = {
        "profile": profile,
        "policy": chosen,
        "num-prompts": draw(st.integers(6, 14)),
        "request-rate": draw(st.sampled_from((0.5, 1.0, 2.0))),
        "input-len": draw(st.integers(8, 200)),
        "output-len": draw(st.integers(2, 24)),
        "num-speculative-tokens": draw(st.integers(1, 5)),
        "acceptance": draw(acceptances),
        "seed": draw(st.integers(0, 99)),
    }
    return {name: value for name, value in (found | given).items() if value is not None}


@st.composite
def constants(draw: st.DrawFn) -> Profile:
    """A small pair on a CPU whose passes take constant times, on an engine that plans each step after the one before
    it."""
    like, lines = lanesim.load_profile(TINY), lanesim.load_profile(LINEAR)
    seconds = st.floats(1e-3, 5e-2)
    kernels = lines.linear
    assert kernels.draft is not None
    host = msgspec.structs.replace(lines.host, engine="measured here", step_s=draw(seconds), row_s=0.0)
    return msgspec.structs.replace(
        like,
        kernels=msgspec.structs.replace(
            kernels,
            target=msgspec.structs.replace(kernels.target, pass_s=draw(seconds)),
            draft=msgspec.structs.replace(kernels.draft, pass_s=draw(seconds)),
        ),
        host=host,
        overlap=msgspec.structs.replace(like.overlap, measured=True),
    )


def scaled(profile: Profile, factor: float) -> Profile:
    """`constants` of which all take so many times as long."""
    kernels, host = profile.linear, profile.host
    assert kernels.draft is not None
    lines = {
        name: msgspec.structs.replace(line, pass_s=factor * line.pass_s)
        for name, line in (("target", kernels.target), ("draft", kernels.draft))
    }
    timed = {name: factor * getattr(host, name) for name in ("step_s", "row_s", "result_s", "ngram_row_s")}
    return msgspec.structs.replace(
        profile,
        kernels=msgspec.structs.replace(kernels, **lines),
        host=msgspec.structs.replace(host, **timed),
        overlap=msgspec.structs.replace(profile.overlap, tau_s=factor * profile.overlap.tau_s),
    )
