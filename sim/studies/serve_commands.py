"""A tuned draft length in the words of engines: vLLM's speculative config and command line, SGLang's flags and bands.

A line is of the engine that was simulated alone, with its limits, on as many GPUs as the profile has. An engine of no
server, `ideal` or a loop of one's own, keeps to vLLM's scheduler and has its line, with a note. Flags and keys are of
vLLM 0.33 and SGLang 0.5.23. Not here: which length (tune).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile import Profile
from sim.costs.shapes import Formats, ModelShape
from sim.files.json_values import Json
from sim.policies.options import Method
from sim.policies.registry import find_policy
from sim.run.limits import engine_for, limits_of, served_by
from sim.run.scenario import Engine, Scenario, to_plain
from sim.workload.generate import num_requests

REPOSITORIES = {
    "apertus-8b": "swiss-ai/Apertus-8B-2509",
    "codellama-34b": "codellama/CodeLlama-34b-hf",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "llama-68m": "JackFram/llama-68m",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "tinyllama-1.1b": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
}
"""Name of a model in a profile -> the repository on Hugging Face of that very name. Heads of EAGLE-3 and DSpark belong
to one fine-tune of their target and have no entry."""
PUBLISHED_FORMATS = {"gpt-oss-120b": "mxfp4", "gpt-oss-20b": "mxfp4"}
"""Format of the experts in the repository where it is not bf16."""
ONLINE = "fp8"
"""Format to which vLLM and SGLang bring a bf16 checkpoint as they load it (`--quantization fp8`)."""
TARGET, DRAFT = "<target>", "<draft>"
"""Where no repository is known."""
SGLANG_ALGORITHMS = {
    Method.EAGLE3: "EAGLE3",
    Method.MTP: "NEXTN",
    Method.DRAFT_MODEL: "STANDALONE",
    Method.NGRAM: "NGRAM",
}
VLLM, SGLANG, TRTLLM = "vllm", "sglang", "trtllm"
"""Beginnings of engines' names: servers. None of TensorRT-LLM's flags is written here."""
SGLANG_CONFIG = "speculative_adaptive.json"
SGLANG_KV = {"fp8": "fp8_e4m3"}
CARRIED = frozenset((
    "schema", "profile", "policy", "seed", "replications", "energy", "engine.name", "engine.max_num_seqs",
    "engine.max_num_batched_tokens", "engine.max_model_len", "engine.block_size", "engine.num_gpu_blocks",
    "engine.gpu_memory_utilization", "engine.async_scheduling", "engine.enable_prefix_caching",
    "engine.enable_chunked_prefill", "engine.long_prefill_token_threshold", "workload.num_prompts",
    "workload.request_rate", "workload.burstiness", "workload.max_concurrency", "workload.input_len",
    "workload.output_len", "workload.random_range_ratio", "speculation.method", "speculation.num_speculative_tokens",
    "speculation.num_speculative_tokens_per_batch_size", "speculation.synthetic_acceptance_length",
    "speculation.synthetic_acceptance_rates", "goodput.ttft_ms", "goodput.tpot_ms", "goodput.e2el_ms",
))  # fmt: skip
"""Keys of a scenario that vLLM's lines carry, or that change no run."""
NOTED = frozenset((
    "workload.dataset_name", "workload.dataset_path", "workload.length_range", "speculation.acceptance",
    "speculation.controller",
))  # fmt: skip
"""Keys that a note of theirs is about."""
VLLM_POLICIES = ("autoregressive", "continuous")
WITHOUT_MODEL = (Method.NGRAM, Method.MTP)
"""Methods that draft from the target's own checkpoint, or from no weights at all."""
Table = Sequence[Sequence[int]]


class Checkpoint(NamedTuple):
    """What to load, and the format it is brought to meanwhile."""

    name: str
    quantization: str | None = None
    note: str | None = None
    """What a placeholder stands for."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What to type."""

    speculative_config: dict[str, Any] | None
    """vLLM's `--speculative-config`; None without speculation."""
    vllm_serve: str
    """Empty where another engine was simulated."""
    sglang_flags: str
    """Flags of `python -m sglang.launch_server`; empty where another engine was simulated or SGLang cannot draft so."""
    sglang_adaptive_config: dict[str, Any] | None
    """The file that the flags name; None for one length, and where SGLang adapts nothing but EAGLE."""
    notes: list[str] = []
    """What the lines lack, or engines make of them."""

    @property
    def start(self) -> str:
        """The line that starts the engine that was simulated; empty where none does."""
        return self.vllm_serve or (f"python -m sglang.launch_server {self.sglang_flags}" if self.sglang_flags else "")


def checkpoint(shape: ModelShape, placeholder: str) -> Checkpoint:
    """The repository of a model, or the placeholder where none is known that holds these weights.

    >>> from sim.costs.shapes import model
    >>> checkpoint(model("llama-3.1-8b"), "<target>").name, checkpoint(model("tiny-target"), "<target>").name
    ('meta-llama/Llama-3.1-8B', '<target>')
    """
    repository, formats = REPOSITORIES.get(shape.name), _weight_formats(shape)
    published = {PUBLISHED_FORMATS[shape.name]} if shape.name in PUBLISHED_FORMATS else set()
    if repository is not None and formats == published:
        return Checkpoint(repository)
    if repository is not None and formats == {ONLINE} and not published:
        return Checkpoint(repository, quantization=ONLINE)
    weights = f" with {' and '.join(sorted(formats))} weights" if formats else ""
    return Checkpoint(placeholder, note=f"{placeholder} stands for a checkpoint of {shape.name}{weights}")


def _weight_formats(shape: ModelShape) -> set[str]:
    """Formats of the matrices, without bf16; the three ways of running mxfp4 are one format on disk."""
    formats = shape.formats or Formats()
    names = [formats.projections, formats.mlp, *([formats.experts] if shape.experts is not None else [])]
    return {"mxfp4" if name.startswith("mxfp4") else name for name in names} - {"bf16"}


def deployment(
    scenario: Scenario,
    profile: Profile,
    table: Table,
    plausible: Mapping[int, Sequence[int]],
    *,
    target_model: str | None = None,
    draft_model: str | None = None,
) -> Deployment:
    """The lines for `table`; `plausible` lengths by the start of its rows are what SGLang may choose from there. Models
    are the repositories of the profile's, where known, unless others are given."""
    limits, server = limits_of(scenario, profile), server_of(scenario, profile)
    target = checkpoint(profile.target, TARGET) if target_model is None else Checkpoint(target_model)
    draft = _draft(profile, limits.method, draft_model)
    longest = max(row[2] for row in table)
    is_vllm, is_sglang = server == VLLM, server == SGLANG
    config = _speculative_config(limits.method, draft, longest, table) if longest else None
    bands = _sglang_bands(limits.method, profile, table, plausible) if longest and is_sglang else None
    flags = _sglang_flags(scenario, profile, target, draft, table, has_bands=bands is not None) if is_sglang else ""
    notes = [target.note, draft.note if draft is not None and longest else None]
    notes.append(_stands_in(scenario, profile) if is_vllm else None)
    notes += _notes(profile, limits.method, table, is_vllm=is_vllm)
    if not (is_vllm or flags):
        notes.append(f"no line starts {engine_for(scenario, profile).name} as it was simulated")
    return Deployment(
        speculative_config=config if is_vllm else None,
        vllm_serve=_vllm_serve(scenario, profile, target, config) if is_vllm else "",
        sglang_flags=flags,
        sglang_adaptive_config=bands,
        notes=[note for note in notes if note is not None],
    )


def server_of(scenario: Scenario, profile: Profile) -> str:
    """The server whose engine is simulated; vLLM's for an engine of no server, which has its limits."""
    family = engine_for(scenario, profile).name.partition("-")[0]
    return family if family in (SGLANG, TRTLLM) else VLLM


def _stands_in(scenario: Scenario, profile: Profile) -> str | None:
    name = engine_for(scenario, profile).name
    return None if name.startswith(VLLM) else f"engine {name!r} is no server's: the line is vLLM's, with its limits"


def checking_lines(
    scenario: Scenario, profile: Profile, *, target_model: str | None = None, draft_model: str | None = None
) -> tuple[str, str, list[str]]:
    """The `vllm serve` and `vllm bench serve` lines that would check a scenario on the GPU, and in what they differ.

    Prompts are random, of the workload's mean lengths where they vary. A scenario on one rank of several is that load
    on every rank. Raises ValueError for an engine that vLLM's line does not start.

    >>> import lanesim
    >>> given = lanesim.Scenario.of(profile="cpu/tiny", policy="continuous", input_len=64, request_rate=4)
    >>> checking_lines(given, lanesim.load_profile(given.profile))[1].split()[:3]
    ['vllm', 'bench', 'serve']
    """
    if server_of(scenario, profile) != VLLM:
        raise ValueError(
            f"engine {engine_for(scenario, profile).name!r} is simulated, which a vLLM line does not start; want a "
            "vllm-... engine, or `lanesim tune`, which prints SGLang's flags"
        )
    workload, speculation = scenario.workload, scenario.speculation
    method, ranks = limits_of(scenario, profile).method, profile.data_parallel
    target = checkpoint(profile.target, TARGET) if target_model is None else Checkpoint(target_model)
    draft = _draft(profile, method, draft_model)
    config, notes = None, [target.note, _stands_in(scenario, profile), _not_carried(scenario)]
    if speculation.num_speculative_tokens and any(find_policy(name).is_speculative for name in scenario.policy):
        config, more = _checking_config(scenario, profile, method, draft)
        notes += [draft.note if draft is not None else None, *more]
    means = served_by(scenario, profile).mean_tokens(scenario.seed)
    prompt_tokens, output_tokens = round(means.prompt) - workload.prefix_len, round(means.output)
    if workload.random_range_ratio is not None:
        prompt_tokens, output_tokens = (
            fixed or mean for fixed, mean in zip(workload.fixed_len, (prompt_tokens, output_tokens), strict=True)
        )
    if workload.dataset_name != "fixed" and (workload.input_len is None or workload.output_len is None):
        notes.append(
            f"{workload.dataset_name}: every request has its mean lengths, {prompt_tokens} and {output_tokens} tokens; "
            "simulate with --input-len and --output-len to compare like with like"
        )
    if config is not None and "rejection_sample_method" not in config:
        notes.append(
            f"{speculation.acceptance}: random prompts are accepted otherwise; take acceptance from the result"
        )
    asked = [f"{name.removesuffix('_ms')}:{ms:g}" for name, ms in scenario.goodput.bounds_ms.items() if ms is not None]
    in_flight = workload.max_concurrency
    flags: Flags = {
        "model": target.name,
        "dataset-name": "random",
        "random-prefix-len": workload.prefix_len or None,
        "random-input-len": prompt_tokens,
        "random-output-len": output_tokens,
        "num-prompts": ranks * num_requests(workload),
        "request-rate": ranks * workload.request_rate,
        "seed": scenario.seed,
        "ignore-eos": True,
        "save-result": True,
        "save-detailed": True,
        "random-range-ratio": workload.random_range_ratio or None,
        "burstiness": workload.burstiness if workload.burstiness != 1.0 else None,
        "max-concurrency": None if in_flight is None else ranks * in_flight,
        "goodput": asked or None,
    }
    if workload.length_range is not None:
        notes.append(
            f"workload.length_range={list(workload.length_range)}: vllm bench draws around a mean; every request has "
            "its mean lengths"
        )
    if workload.dataset_path is not None:
        notes.append(f"{workload.dataset_name}: requests arrive at random, not as the trace has them")
    serve = _vllm_serve(scenario, profile, target, config)
    bench = shlex.join(["vllm", "bench", "serve", *_words(flags)])
    return serve, bench, [note for note in notes if note is not None]


def _not_carried(scenario: Scenario) -> str | None:
    """The keys that are not at their defaults and that no flag says."""
    default = Scenario(profile=scenario.profile, policy=scenario.policy)
    before, after = dict(_leaves(to_plain(default))), dict(_leaves(to_plain(scenario)))
    carried = {*CARRIED, *NOTED}
    if scenario.workload.num_prefixes == 1:
        carried.add("workload.prefix_len")
    if isinstance(scenario.engine.cuda_graph, bool):
        carried.add("engine.cuda_graph")
    differs = {key: value for key, value in after.items() if key not in carried and value != before.get(key)}
    left = [key if isinstance(value, list | tuple) else f"{key}={value}" for key, value in differs.items()]
    left += [f"policy={name}" for name in scenario.policy if name not in VLLM_POLICIES]
    return f"not in these lines: {', '.join(left)}" if left else None


def _leaves(plain: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Every key of nested blocks, dotted, and its value."""
    for key, value in plain.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


Flags = Mapping[str, str | float | Sequence[str] | None]
"""Values by name; True stands alone, and what is None or False is left out."""


def _words(flags: Flags) -> Iterator[str]:
    """The words of a command line."""
    for name, value in flags.items():
        if value is None or value is False:
            continue
        yield f"--{name}"
        if isinstance(value, str | int | float):
            yield from () if value is True else [f"{value:g}" if isinstance(value, float) else str(value)]
        else:
            yield from value


def _draft(profile: Profile, method: Method, given: str | None) -> Checkpoint | None:
    """What `method` loads beside the target; None where that is nothing."""
    if given is not None:
        return None if method is Method.NGRAM else Checkpoint(given)
    if method in WITHOUT_MODEL:
        return None
    if profile.draft is None:
        return Checkpoint(DRAFT, note=f"{DRAFT} stands for a draft model, which the profile lacks")
    found = checkpoint(profile.draft, DRAFT)
    if found.note is not None and method.reads_features:
        return found._replace(note=f"{found.note} of {profile.target.name}")
    return found


def _checking_config(
    scenario: Scenario, profile: Profile, method: Method, draft: Checkpoint | None
) -> tuple[dict[str, Json], list[str]]:
    """The speculative config of a scenario as it stands, and what vLLM has not."""
    speculation = scenario.speculation
    k = speculation.num_speculative_tokens
    table: Table = speculation.num_speculative_tokens_per_batch_size or ((1, 1, k),)
    config, notes = _speculative_config(method, draft, k, table), _notes(profile, method, table, is_vllm=True)
    for key in ("synthetic_acceptance_length", "synthetic_acceptance_rates"):
        if (value := getattr(speculation, key)) is not None:
            config |= {"rejection_sample_method": "synthetic", key: value}
    if speculation.controller not in ("fixed", "by_batch"):
        notes.append(f"speculation.controller={speculation.controller} is not in the line, which always drafts {k}")
    return config, notes


def _speculative_config(method: Method, draft: Checkpoint | None, longest: int, table: Table) -> dict[str, Json]:
    is_parallel = method is Method.PARALLEL
    config: dict[str, Json] = {"method": (Method.DRAFT_MODEL if is_parallel else method).value}
    if draft is not None:
        config["model"] = draft.name
    config["num_speculative_tokens"] = longest
    if is_parallel:
        config["parallel_drafting"] = True
    if any(k != longest for _, _, k in table):
        config["num_speculative_tokens_per_batch_size"] = [list(row) for row in table]
    return config


def _vllm_serve(
    scenario: Scenario, profile: Profile, target: Checkpoint, speculative_config: Mapping[str, Json] | None
) -> str:
    engine, limits, kv = scenario.engine, limits_of(scenario, profile), _kv_format(profile)
    is_short = _kv_tokens(scenario, profile, with_draft=speculative_config is not None) < profile.target.max_context
    flags: Flags = {
        "max-num-seqs": limits.max_num_seqs,
        "max-num-batched-tokens": limits.max_num_batched_tokens,
        "gpu-memory-utilization": engine.gpu_memory_utilization,
        "tensor-parallel-size": _several(profile.tensor_parallel),
        "data-parallel-size": _several(profile.data_parallel),
        "enable-expert-parallel": _expert_parallel(profile) > 1,
        "quantization": target.quantization,
        "kv-cache-dtype": kv if kv != "bf16" else None,
        "block-size": engine.block_size if engine.num_gpu_blocks is not None or engine.block_size != 16 else None,
        "num-gpu-blocks-override": engine.num_gpu_blocks,
        "long-prefill-token-threshold": engine.long_prefill_token_threshold or None,
        **_switches(engine),
        "max-model-len": engine.max_model_len or ("auto" if is_short else None),
        "enforce-eager": not engine.cuda_graph,
        "speculative-config": None if speculative_config is None else json.dumps(speculative_config),
    }
    return shlex.join(["vllm", "serve", target.name, *_words(flags)])


def _switches(engine: Engine) -> Flags:
    """Flags of vLLM that stand alone, where the scenario says other than the engine does."""
    given = {
        "async-scheduling": engine.async_scheduling,
        "enable-chunked-prefill": engine.enable_chunked_prefill,
        "enable-prefix-caching": None if engine.enable_prefix_caching else False,
    }
    return {name if value else f"no-{name}": True for name, value in given.items() if value is not None}


def _several(count: int) -> int | None:
    return count if count > 1 else None


def _sglang_flags(
    scenario: Scenario,
    profile: Profile,
    target: Checkpoint,
    draft: Checkpoint | None,
    table: Table,
    *,
    has_bands: bool,
) -> str:
    """SGLang divides both limits among ranks that share their experts; replicas have them each."""
    limits, ranks = limits_of(scenario, profile), profile.data_parallel
    shares = ranks if _shares_experts(profile) else 1
    eager, blocks = None if scenario.engine.cuda_graph else "disabled", scenario.engine.num_gpu_blocks
    drafts = max(row[2] for row in table) > 0
    # Ranks that share their experts cannot have a draft model of its own.
    is_able = not (limits.method is Method.DRAFT_MODEL and _shares_experts(profile))
    if drafts and not (limits.method in SGLANG_ALGORITHMS and is_able):
        return ""
    flags: Flags = {
        "model-path": target.name,
        "max-running-requests": limits.max_num_seqs * shares,
        "chunked-prefill-size": limits.max_num_batched_tokens * shares,
        "tp-size": _several(profile.tensor_parallel * shares),
        "attn-dp-size" if shares > 1 else "dp-size": _several(ranks),
        "ep-size": _several(_expert_parallel(profile)),
        "quantization": target.quantization,
        "kv-cache-dtype": SGLANG_KV.get(_kv_format(profile)),
        "max-total-tokens": None if blocks is None else blocks * scenario.engine.block_size,
        "enable-mixed-chunk": scenario.engine.enable_mixed_chunk or None,
        "scheduler-recv-interval": _several(scenario.engine.scheduler_recv_interval),
        "cuda-graph-backend-decode": eager,
        "cuda-graph-backend-prefill": eager,
        **(_sglang_speculation(limits.method, draft, table) if drafts else {}),
        "speculative-adaptive": has_bands,
        "speculative-adaptive-config": SGLANG_CONFIG if has_bands else None,
    }
    return shlex.join(_words(flags))


def _sglang_speculation(method: Method, draft: Checkpoint | None, table: Table) -> Flags:
    steps = table[0][2] or max(row[2] for row in table)
    is_ngram = method is Method.NGRAM
    return {
        "speculative-algorithm": SGLANG_ALGORITHMS[method],
        "speculative-draft-model-path": None if is_ngram or draft is None else draft.name,
        "speculative-num-steps": None if is_ngram else steps,
        "speculative-eagle-topk": None if is_ngram else 1,
        "speculative-num-draft-tokens": steps if is_ngram else steps + 1,
    }


def _sglang_bands(
    method: Method, profile: Profile, table: Table, plausible: Mapping[int, Sequence[int]]
) -> dict[str, Json] | None:
    """Bands from the rows. The length of the row is always among the candidates."""
    if len(table) == 1 or method is not Method.EAGLE3 or _shares_experts(profile):
        return None
    return {str(start): {"candidate_steps": sorted({*plausible.get(start, ()), k})} for start, _, k in table}


def _notes(profile: Profile, method: Method, table: Table, *, is_vllm: bool) -> list[str]:
    """What vLLM makes of a table, of experts spread over some devices, and of methods that it lacks."""
    notes: list[str] = []
    if not is_vllm:
        return notes
    if profile.data_parallel > 1 and len({k for _, _, k in table}) > 1:
        longest = max(k for _, _, k in table)
        notes.append(f"vLLM turns the table off under data parallelism and drafts {longest} at every batch size")
    devices, spread = profile.tensor_parallel * profile.data_parallel, _expert_parallel(profile)
    if 1 < spread < devices:
        notes.append(f"the profile spreads experts over {spread} of {devices} devices; vLLM over all or none")
    if method is Method.PARALLEL:
        notes.append("a head that drafts in parallel goes by its own method (eagle3, dflash) in place of draft_model")
    return notes


def _shares_experts(profile: Profile) -> bool:
    return profile.data_parallel > 1 and profile.target.experts is not None


def _expert_parallel(profile: Profile) -> int:
    """Devices that experts are spread over. A profile of several ranks that does not say spreads them over all."""
    if profile.target.experts is None:
        return 1
    if profile.expert_parallel is not None:
        return profile.expert_parallel
    return profile.tensor_parallel * profile.data_parallel if profile.data_parallel > 1 else 1


def _kv_format(profile: Profile) -> str:
    return (profile.target.formats or Formats()).kv


def _kv_tokens(scenario: Scenario, profile: Profile, *, with_draft: bool) -> int:
    """What the pool of one rank holds; vLLM refuses to start where that is less than the longest context."""
    engine = scenario.engine
    if engine.num_gpu_blocks is not None:
        return engine.num_gpu_blocks * engine.block_size
    return kv_capacity_tokens(
        profile, engine.gpu_memory_utilization, with_draft=with_draft, engine=engine_for(scenario, profile)
    )
