"""A tuned draft length in the words of engines: vLLM's speculative config and command line, SGLang's flags and bands.

Every line is for the engine's own limits as they were simulated. Not here: which length (tune).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sim.costs.profile import Profile
from sim.experiment.limits import limits_of
from sim.experiment.scenario import Scenario
from sim.policies.options import Method
from sim.workload.generate import mean_tokens, num_requests

SGLANG_ALGORITHMS = {
    Method.EAGLE3: "EAGLE3",
    Method.MTP: "NEXTN",
    Method.DRAFT_MODEL: "STANDALONE",
    Method.NGRAM: "NGRAM",
}
SGLANG_CONFIG = "speculative_adaptive.json"


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What to type."""

    speculative_config: dict[str, Any] | None
    """vLLM's `--speculative-config`; None without speculation."""
    vllm_serve: str
    sglang_flags: str
    sglang_adaptive_config: dict[str, Any] | None
    """The file that the flags name; None for one length, and where SGLang adapts nothing but EAGLE."""


def deployment(
    scenario: Scenario,
    profile: Profile,
    table: Sequence[Sequence[int]],
    plausible: Mapping[int, Sequence[int]],
    *,
    target_model: str | None = None,
    draft_model: str | None = None,
) -> Deployment:
    """The lines for `table`; `plausible` lengths by the start of its rows are what SGLang may choose from there. Models
    go by the profile's names unless others are given."""
    limits = limits_of(scenario, profile)
    target = target_model or profile.target.name
    draft = draft_model or (profile.draft.name if profile.draft is not None else None)
    longest = max(row[2] for row in table)
    serve = [
        "vllm", "serve", target,
        "--max-num-seqs", str(limits.max_num_seqs),
        "--max-num-batched-tokens", str(limits.max_num_batched_tokens),
        "--gpu-memory-utilization", f"{scenario.engine.gpu_memory_utilization:g}",
    ]  # fmt: skip
    if profile.tensor_parallel > 1:
        serve += ["--tensor-parallel-size", str(profile.tensor_parallel)]
    if not scenario.engine.cuda_graph:
        serve.append("--enforce-eager")
    if longest == 0:
        return Deployment(
            speculative_config=None, vllm_serve=shlex.join(serve), sglang_flags="", sglang_adaptive_config=None
        )
    config: dict[str, Any] = {"method": limits.method.value, "num_speculative_tokens": longest}
    if limits.method is not Method.NGRAM:
        config["model"] = draft
    if len(table) > 1:
        config["num_speculative_tokens_per_batch_size"] = [list(row) for row in table]
    serve += ["--speculative-config", json.dumps(config)]
    return Deployment(
        speculative_config=config,
        vllm_serve=shlex.join(serve),
        sglang_flags=_sglang_flags(limits.method, draft, table),
        sglang_adaptive_config=_sglang_bands(limits.method, table, plausible),
    )


def checking_lines(
    scenario: Scenario, profile: Profile, *, target_model: str | None = None, draft_model: str | None = None
) -> tuple[str, str, list[str]]:
    """The `vllm serve` and `vllm bench serve` lines that would check a scenario on the GPU, and in what they differ.

    Prompts are random, of the workload's mean lengths where they vary.

    >>> import lanesim
    >>> given = lanesim.Scenario.of(profile="cpu/tiny", policy="continuous", input_len=64, request_rate=4)
    >>> checking_lines(given, lanesim.load_profile(given.profile))[1].split()[:3]
    ['vllm', 'bench', 'serve']
    """
    workload, k = scenario.workload, scenario.speculation.num_speculative_tokens
    seqs = limits_of(scenario, profile).max_num_seqs
    lines = deployment(scenario, profile, [[1, seqs, k]], {}, target_model=target_model, draft_model=draft_model)
    prompt_tokens, output_tokens = (round(mean) for mean in mean_tokens(workload, scenario.seed))
    notes = []
    if workload.dataset_name != "fixed" and (workload.input_len is None or workload.output_len is None):
        notes.append(
            f"{workload.dataset_name}: every request has its mean lengths, {prompt_tokens} and {output_tokens} tokens; "
            "simulate with --input-len and --output-len to compare like with like"
        )
    if k:
        notes.append(
            f"{scenario.speculation.acceptance}: random prompts are accepted otherwise; take acceptance from the result"
        )
    bench = [
        "vllm", "bench", "serve", "--model", target_model or profile.target.name,
        "--dataset-name", "random",
        "--random-input-len", str(prompt_tokens), "--random-output-len", str(output_tokens),
        "--num-prompts", str(num_requests(workload)), "--request-rate", f"{workload.request_rate:g}",
        "--seed", str(scenario.seed), "--ignore-eos", "--save-result", "--save-detailed",
    ]  # fmt: skip
    if workload.burstiness != 1.0:
        bench += ["--burstiness", f"{workload.burstiness:g}"]
    if workload.max_concurrency is not None:
        bench += ["--max-concurrency", str(workload.max_concurrency)]
    asked = {name.removesuffix("_ms"): bound for name, bound in scenario.goodput.bounds_ms.items() if bound is not None}
    if asked:
        bench += ["--goodput", *(f"{name}:{bound:g}" for name, bound in asked.items())]
    return lines.vllm_serve, shlex.join(bench), notes


def _sglang_flags(method: Method, draft: str | None, table: Sequence[Sequence[int]]) -> str:
    steps = table[0][2] or max(row[2] for row in table)
    if method not in SGLANG_ALGORITHMS:
        return ""
    flags = ["--speculative-algorithm", SGLANG_ALGORITHMS[method]]
    if method is Method.NGRAM:
        return shlex.join([*flags, "--speculative-num-draft-tokens", str(steps)])
    flags += [
        "--speculative-draft-model-path", draft or "DRAFT",
        "--speculative-num-steps", str(steps),
        "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", str(steps + 1),
    ]  # fmt: skip
    if len(table) > 1 and method is Method.EAGLE3:
        flags += ["--speculative-adaptive", "--speculative-adaptive-config", SGLANG_CONFIG]
    return shlex.join(flags)


def _sglang_bands(
    method: Method, table: Sequence[Sequence[int]], plausible: Mapping[int, Sequence[int]]
) -> dict[str, Any] | None:
    """Bands from the rows. The length of the row is always among the candidates."""
    if len(table) == 1 or method is not Method.EAGLE3:
        return None
    return {str(start): {"candidate_steps": sorted({*plausible.get(start, ()), k})} for start, _, k in table}
