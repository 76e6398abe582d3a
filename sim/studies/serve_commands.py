"""A tuned draft length in the words of engines: vLLM's speculative config and command line, SGLang's flags and bands.

A line is of the engine that was simulated, with its limits, on as many GPUs as the profile has. An engine of no server,
`ideal` or a loop of the user's, has vLLM's line, with a note. Flags and keys are of vLLM 0.33 and SGLang 0.5.23.
Not here: which length (tune).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile import Profile
from sim.costs.shapes import Formats, ModelShape
from sim.files.json_values import Json
from sim.run.limits import engine_for, limits_of
from sim.run.scenario import Scenario

_HELD = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes())
REPOSITORIES: Mapping[str, str] = _HELD["repositories"]
"""Name of a model in a profile -> the repository on Hugging Face of that very name. Heads of EAGLE-3 and DSpark belong
to one fine-tune of their target and have no entry."""
PUBLISHED_FORMATS: Mapping[str, str] = _HELD["published_formats"]
"""Format of the experts in the repository where it is not bf16."""
POOLS: Mapping[str, Mapping[str, str]] = _HELD["pools"]
"""By server: what makes one only prefill, or only decode, and the router before them."""
ONLINE = "fp8"
"""Format to which vLLM and SGLang bring a bf16 checkpoint as they load it (`--quantization fp8`)."""
TARGET, DRAFT = "<target>", "<draft>"
VLLM, SGLANG, TRTLLM = "vllm", "sglang", "trtllm"
"""Beginnings of engines' names: servers. None of TensorRT-LLM's flags is written here."""
SGLANG_CONFIG = "speculative_adaptive.json"
SGLANG_KV = {"fp8": "fp8_e4m3"}
VLLM_POLICIES = ("autoregressive", "continuous")
Table = Sequence[Sequence[int]]
Flags = Mapping[str, str | float | None]
"""Values by name; True stands alone, and what is None or False is left out."""


class Checkpoint(NamedTuple):
    """The repository to load, and the format it is brought to meanwhile."""

    name: str
    quantization: str | None = None
    note: str | None = None


class ServeLines(msgspec.Struct, frozen=True, kw_only=True):
    speculative_config: dict[str, Any] | None
    """vLLM's `--speculative-config`; None without speculation."""
    vllm_serve: str
    """Empty where another engine was simulated."""
    sglang_flags: str
    """Flags of `python -m sglang.launch_server`; empty where another engine was simulated or SGLang cannot draft so."""
    sglang_adaptive_config: dict[str, Any] | None
    notes: list[str] = []

    @property
    def start(self) -> str:
        """The line that starts the engine that was simulated; empty where none does."""
        return self.vllm_serve or (f"python -m sglang.launch_server {self.sglang_flags}" if self.sglang_flags else "")


def checkpoint(shape: ModelShape, placeholder: str) -> Checkpoint:
    """The repository of a model, or the placeholder where none is known that holds these weights."""
    repository, formats = REPOSITORIES.get(shape.name), shape.formats or Formats()
    names = [formats.projections, formats.mlp, *([formats.experts] if shape.experts is not None else [])]
    # The three ways of running mxfp4 are one format on disk.
    wanted = {"mxfp4" if name.startswith("mxfp4") else name for name in names} - {"bf16"}
    published = {PUBLISHED_FORMATS[shape.name]} if shape.name in PUBLISHED_FORMATS else set()
    if repository is not None and wanted == published:
        return Checkpoint(repository)
    if repository is not None and wanted == {ONLINE} and not published:
        return Checkpoint(repository, quantization=ONLINE)
    weights = f" with {' and '.join(sorted(wanted))} weights" if wanted else ""
    return Checkpoint(placeholder, note=f"{placeholder} stands for a checkpoint of {shape.name}{weights}")


def server_of(scenario: Scenario, profile: Profile) -> str:
    """The server whose engine is simulated; vLLM's for an engine of no server, which has its limits."""
    family = engine_for(scenario, profile).name.partition("-")[0]
    return family if family in (SGLANG, TRTLLM) else VLLM


def deployment(
    scenario: Scenario,
    profile: Profile,
    table: Table,
    plausible: Mapping[int, Sequence[int]],
    *,
    target_model: str | None = None,
    draft_model: str | None = None,
) -> ServeLines:
    """The lines for `table`; `plausible` lengths by the start of its rows are what SGLang may choose from there. Models
    are the repositories of the profile's, where known, unless others are given."""
    server = _Server(scenario, profile, target_model, draft_model)
    family, drafts = server_of(scenario, profile), any(k for _, _, k in table)
    notes = [server.target.note, server.draft.note if drafts and server.draft else None]
    if family == VLLM:
        config = server.speculative_config(table) if drafts else None
        line, bands, flags = server.vllm_serve(config), None, ""
        notes += server.vllm_notes(table)
    else:
        config, line = None, ""
        bands = server.sglang_bands(table, plausible) if drafts and family == SGLANG else None
        flags = server.sglang_flags(table, bands) if family == SGLANG else ""
        notes += [] if flags else [f"no line starts {server.engine} as it was simulated"]
    return ServeLines(
        speculative_config=config,
        vllm_serve=line,
        sglang_flags=flags,
        sglang_adaptive_config=bands,
        notes=[note for note in notes if note is not None],
    )


class _Server:
    def __init__(self, scenario: Scenario, profile: Profile, target_model: str | None, draft_model: str | None) -> None:
        self.scenario, self.profile, self._costs = scenario, profile, engine_for(scenario, profile)
        self.limits = limits_of(scenario, profile, self._costs)
        self.engine, self.method = self._costs.name, self.limits.method
        self.target = checkpoint(profile.target, TARGET)
        if target_model is not None:
            is_narrow = ONLINE in target_model.lower()
            self.target = Checkpoint(target_model, None if is_narrow else self.target.quantization)
        kv = (profile.target.formats or Formats()).kv
        self._kv, self._ranks = kv, profile.data_parallel
        self._shares_experts = self._ranks > 1 and profile.target.experts is not None
        # Devices that experts are spread over; a profile of several ranks that does not say spreads them over all.
        self._devices = profile.tensor_parallel * self._ranks
        spread = profile.expert_parallel or (self._devices if self._ranks > 1 else 1)
        self._spread = 1 if profile.target.experts is None else spread
        self._draft_model = draft_model

    @cached_property
    def draft(self) -> Checkpoint | None:
        """Loaded beside the target; None where that is nothing."""
        if self._draft_model is not None:
            return None if self.method.looks_up else Checkpoint(self._draft_model)
        if not self.method.has_checkpoint:
            return None
        if self.profile.draft is None:
            return Checkpoint(DRAFT, note=f"{DRAFT} stands for a draft model, which the profile lacks")
        draft = checkpoint(self.profile.draft, DRAFT)
        if draft.note is not None and self.method.reads_features:
            return draft._replace(note=f"{draft.note} of {self.profile.target.name}")
        return draft

    def speculative_config(self, table: Table) -> dict[str, Json]:
        longest, method = max(k for _, _, k in table), self.method
        is_table = any(k != longest for _, _, k in table)
        config: dict[str, Json] = {
            "method": method.vllm_method or method.name,
            "model": None if self.draft is None else self.draft.name,
            "num_speculative_tokens": longest,
            "parallel_drafting": bool(method.vllm_method) or None,
            "num_speculative_tokens_per_batch_size": [list(row) for row in table] if is_table else None,
        }
        return {key: value for key, value in config.items() if value is not None}

    def vllm_serve(self, speculative_config: Mapping[str, Json] | None) -> str:
        given, limits, profile = self.scenario.engine, self.limits, self.profile
        blocks = given.num_gpu_blocks
        # vLLM refuses to start where the pool of one rank is less than the longest context.
        held = (
            kv_capacity_tokens(
                profile, given.gpu_memory_utilization, with_draft=speculative_config is not None, engine=self._costs
            )
            if blocks is None
            else blocks * given.block_size
        )
        switches = {
            "async-scheduling": given.async_scheduling,
            "enable-chunked-prefill": given.rules.get("enable_chunked_prefill"),
            "enable-prefix-caching": None if given.rules.get("enable_prefix_caching", True) else False,
        }
        flags: Flags = {
            "max-num-seqs": limits.max_num_seqs,
            "max-num-batched-tokens": limits.max_num_batched_tokens,
            "gpu-memory-utilization": given.gpu_memory_utilization,
            "tensor-parallel-size": _several(profile.tensor_parallel),
            "data-parallel-size": _several(self._ranks),
            "enable-expert-parallel": self._spread > 1,
            "quantization": self.target.quantization,
            "kv-cache-dtype": self._kv if self._kv != "bf16" else None,
            "block-size": given.block_size if blocks is not None or given.block_size != 16 else None,
            "num-gpu-blocks-override": blocks,
            "long-prefill-token-threshold": given.rules.get("long_prefill_token_threshold") or None,
            **{name if value else f"no-{name}": True for name, value in switches.items() if value is not None},
            "max-model-len": given.max_model_len or ("auto" if held < profile.target.max_context else None),
            "enforce-eager": not given.cuda_graph,
            "speculative-config": None if speculative_config is None else json.dumps(speculative_config),
        }
        return shlex.join(["vllm", "serve", self.target.name, *_words(flags)])

    def vllm_notes(self, table: Table) -> list[str]:
        lengths, notes = {k for _, _, k in table}, []
        if not self.engine.startswith(VLLM):
            notes.append(f"engine {self.engine!r} is no server's: the line is vLLM's, with its limits")
        if self._ranks > 1 and len(lengths) > 1:
            longest = max(lengths)
            notes.append(f"vLLM turns the table off under data parallelism and drafts {longest} at every batch size")
        if 1 < self._spread < self._devices:
            spread = f"{self._spread} of {self._devices} devices"
            notes.append(f"the profile spreads experts over {spread}, and vLLM over all or none")
        return notes if self.method.vllm_note is None else [*notes, self.method.vllm_note]

    def sglang_flags(self, table: Table, bands: Mapping[str, Json] | None) -> str:
        """SGLang divides both limits among ranks that share their experts, which cannot have a draft model. Empty where
        it cannot draft so."""
        given, limits, shares = self.scenario.engine, self.limits, self._ranks if self._shares_experts else 1
        eager, blocks = None if given.cuda_graph else "disabled", given.num_gpu_blocks
        steps = table[0][2] or max(k for _, _, k in table)
        is_ngram, is_lone = self.method.looks_up, self.method.is_model and self._shares_experts
        if steps and (self.method.sglang is None or is_lone):
            return ""
        speculation: Flags = {
            "speculative-algorithm": self.method.sglang,
            "speculative-draft-model-path": None if is_ngram or self.draft is None else self.draft.name,
            "speculative-num-steps": None if is_ngram else steps,
            "speculative-eagle-topk": None if is_ngram else 1,
            "speculative-num-draft-tokens": steps if is_ngram else steps + 1,
        }
        flags: Flags = {
            "model-path": self.target.name,
            "max-running-requests": limits.max_num_seqs * shares,
            "chunked-prefill-size": limits.max_num_batched_tokens * shares,
            "tp-size": _several(self.profile.tensor_parallel * shares),
            "attn-dp-size" if shares > 1 else "dp-size": _several(self._ranks),
            "ep-size": _several(self._spread),
            "quantization": self.target.quantization,
            "kv-cache-dtype": SGLANG_KV.get(self._kv),
            "max-total-tokens": None if blocks is None else blocks * given.block_size,
            "enable-mixed-chunk": given.rules.get("enable_mixed_chunk") or None,
            "scheduler-recv-interval": _several(int(given.rules.get("scheduler_recv_interval", 1))),
            "prefill-decode-interval": given.rules.get("prefill_decode_interval") or None,
            "cuda-graph-backend-decode": eager,
            "cuda-graph-backend-prefill": eager,
            **(speculation if steps else {}),
            "speculative-adaptive": bands is not None,
            "speculative-adaptive-config": None if bands is None else SGLANG_CONFIG,
        }
        return shlex.join(_words(flags))

    def sglang_bands(self, table: Table, plausible: Mapping[int, Sequence[int]]) -> dict[str, Json] | None:
        """Bands from the rows. The length of the row is always among the candidates."""
        if len(table) == 1 or not self.method.sglang_adapts or self._shares_experts:
            return None
        return {str(start): {"candidate_steps": sorted({*plausible.get(start, ()), k})} for start, _, k in table}


def _words(flags: Flags) -> Iterator[str]:
    for name, value in flags.items():
        if value is not None and value is not False:
            yield f"--{name}"
            yield from () if value is True else [f"{value:g}" if isinstance(value, float) else str(value)]


def _several(count: int) -> int | None:
    return count if count > 1 else None
