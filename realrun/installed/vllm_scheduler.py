"""vLLM's `Scheduler`, of whatever version can be imported, driven alone: requests in, a plan out, results in.

Theirs: scheduler, queues, KV cache manager, block pool, hashes, output processing, and the methods of their
configurations from which budgets and look-ahead follow. Ours: what a runner would return, as many accepted drafts as
the caller says. Neither a model nor a kernel is loaded, so that its sources, unpacked from a wheel, are enough beside
torch. Not here: who decides what is accepted and how time passes (realrun.installed.serving, validation.conformance).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

LAYER = "layer"
"""Name of a layer whose KV the pool holds."""
STOP_TOKEN = 1
OWN_TOKENS, POSITION_BITS = 1 << 40, 24
"""Tokens that no other request has begin here, above all ids of content."""
QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CONFIGURE_LOGGING": "0",
}
"""Environment of its import, where nothing else is set."""
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of the scheduler, under vLLM's names."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_gpu_blocks: int
    block_size: int = 16
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    async_scheduling: bool = False
    policy: str = "fcfs"
    prefill_schedule_interval: int = 1
    """Steps from one admission of prompts to the next; up to 0.32 data-parallel engines alone have it."""
    data_parallel_size: int = 1
    """Engines that share their experts: with several they, and not the scheduler, count the interval from 0.33 on."""
    use_v2_model_runner: bool = False
    sliding_window: int = 0
    """Tokens that half of the layers look back; 0: all layers see the whole context."""
    method: str | None = None
    """speculative_config.method; None: no speculation."""
    parallel_drafting: bool = False
    num_speculative_tokens: int = 0
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] | None = None


class Planned(NamedTuple):
    """One step of the scheduler; requests by their index."""

    tokens: dict[int, int]
    """Scheduled, in its order."""
    drafts: dict[int, int]
    """Drafts among them."""
    computed: dict[int, int]
    """Tokens in KV before the step."""
    sampling: list[int]
    """Those of whom the step brings tokens."""
    preempted: list[int]
    """Those that gave way since the last step with tokens."""
    admitted: dict[int, int]
    """Tokens of its prefix that each request seated in this step has from the cache."""
    draft_tokens: int
    """Drafts that the runner makes behind this step for each that samples."""
    skips_drafts: bool
    """It makes none, since no request could use them."""
    output: Any


class VllmScheduler:
    """One scheduler and its KV cache. Raises ImportError without vLLM, and what vLLM raises for settings it refuses."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self._vllm = _Vllm()
        config = self._vllm.config(settings)
        self._scheduler = self._vllm.scheduler(config, settings)
        self._hasher = self._vllm.hasher(config, settings)
        self._requests: dict[int, Any] = {}
        self._num_preempted: dict[int, int] = {}
        self._contents: dict[int, tuple[int, ...]] = {}
        self._stops: dict[int, int] = {}
        self._num_calls = 0
        self._gave_way: set[int] = set()
        """Preempted in plans without tokens."""

    @property
    def version(self) -> str:
        return self._vllm.version

    @property
    def num_unfinished(self) -> int:
        return len(self._requests)

    def add(
        self,
        index: int,
        prompt_tokens: int,
        max_tokens: int,
        *,
        arrival_time: float,
        priority: int = 0,
        content: tuple[int, ...] = (),
        stop_tokens: int = 0,
    ) -> None:
        """Request `index` comes in; the lowest `priority` goes first. It begins with the whole blocks of `content`, and
        has tokens of its own behind them. Its output token number `stop_tokens`, if any, ends its answer."""
        self._stops[index] = prompt_tokens + stop_tokens - 1 if stop_tokens else -1
        tokens = [self._token(index, content, position) for position in range(prompt_tokens)]
        request = self._vllm.request(index, tokens, max_tokens, arrival_time, priority, self._hasher)
        self._contents[index] = content
        self._requests[index] = request
        self._num_preempted[index] = 0
        self._scheduler.add_request(request)

    def abort(self, index: int) -> None:
        """Whoever asked for `index` is gone."""
        self._scheduler.finish_requests([str(index)], self._vllm.aborted)
        del self._requests[index], self._num_preempted[index], self._contents[index]

    def _token(self, index: int, content: tuple[int, ...], position: int) -> int:
        if position == self._stops[index]:
            return STOP_TOKEN
        block = position // self.settings.block_size
        return content[block] if block < len(content) else OWN_TOKENS + (index << POSITION_BITS) + position

    def schedule(self) -> Planned:
        """The next step; without tokens where there is nothing to do."""
        scheduler, interval = self._scheduler, self.settings.prefill_schedule_interval
        seated = {request.request_id for request in scheduler.running}
        is_counted = interval > 1 and getattr(scheduler, "local_prefill_interval", 1) == 1
        throttles = {"throttle_prefills": self._num_calls % interval != 0} if is_counted else {}
        self._num_calls += bool(self._requests)
        output = scheduler.schedule(**throttles)
        tokens = {int(name): count for name, count in output.num_scheduled_tokens.items()}
        drafts = {int(name): len(ids) for name, ids in output.scheduled_spec_decode_tokens.items()}
        computed: dict[int, int] = {}
        admitted: dict[int, int] = {}
        sampling: list[int] = []
        preempted: list[int] = []
        for index, count in tokens.items():
            request = self._requests[index]
            computed[index] = request.num_computed_tokens - count
            if str(index) not in seated or request.num_preemptions > self._num_preempted[index]:
                admitted[index] = computed[index]
            if self._samples(request):
                sampling.append(index)
        for index, before in self._num_preempted.items():
            now = self._requests[index].num_preemptions
            if now > before:
                self._gave_way.add(index)
                self._num_preempted[index] = now
        if tokens:
            preempted, self._gave_way = sorted(self._gave_way), set()
        draft_tokens = getattr(output, "num_spec_tokens_to_schedule", None)
        if not self.settings.num_speculative_tokens_per_batch_size or draft_tokens is None:
            draft_tokens = self.settings.num_speculative_tokens
        skips_drafts = bool(getattr(output, "skip_drafts", False))
        draft_tokens = 0 if skips_drafts else draft_tokens
        return Planned(tokens, drafts, computed, sampling, preempted, admitted, draft_tokens, skips_drafts, output)

    def _samples(self, request: Any) -> bool:
        """True if the step just planned ends with a token of `request`: its last chunk, or a round."""
        if self.settings.async_scheduling:
            return bool(request.num_output_placeholders > 0)
        return bool(request.num_computed_tokens >= request.num_tokens)

    def is_unfinished(self, index: int) -> bool:
        return index in self._requests

    def emitted(self, index: int) -> int:
        return int(self._requests[index].num_output_tokens)

    def update(
        self, planned: Planned, accepted: Mapping[int, int], drafted: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """The results of `planned`: of each that sampled as many drafts as `accepted` has, and one more. Synchronous:
        drafts for the next step are `drafted`, or as long as planned. Returns new tokens by request."""
        names = [str(index) for index in planned.tokens]
        before = {index: self.emitted(index) for index in planned.tokens if index in self._requests}
        sampling = set(planned.sampling)
        sampled: list[list[int]] = []
        for index in planned.tokens:
            if index in sampling and index in before:
                content, first = self._contents[index], before[index] + self._requests[index].num_prompt_tokens
                ends = first + accepted.get(index, 0) + 1
                sampled.append([self._token(index, content, position) for position in range(first, ends)])
            else:
                sampled.append([])
        self._scheduler.update_from_output(planned.output, self._vllm.runner_output(names, sampled))
        emitted = {}
        for index, first in before.items():
            request = self._requests[index]
            if request.num_output_tokens > first:
                emitted[index] = request.num_output_tokens - first
            if request.is_finished():
                del self._requests[index], self._num_preempted[index], self._contents[index]
        if self.settings.num_speculative_tokens and not self.settings.async_scheduling:
            lengths = [
                (planned.draft_tokens if drafted is None else drafted.get(index, 0)) if index in sampling else 0
                for index in planned.tokens
            ]
            self._scheduler.update_draft_token_ids(self._vllm.drafts(names, lengths))
        return emitted


class _Vllm:
    """Modules of the installed vLLM, and objects made of its classes."""

    def __init__(self) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        # What it refuses it raises; its advice on performance concerns no clock of ours.
        logging.getLogger("vllm").setLevel(logging.ERROR)
        self._core = import_module("vllm.v1.core.sched.scheduler")
        self._kv = import_module("vllm.v1.kv_cache_interface")
        self._kv_utils = import_module("vllm.v1.core.kv_cache_utils")
        self._config = import_module("vllm.config")
        self._request = import_module("vllm.v1.request")
        self._sampling = import_module("vllm.sampling_params")
        self._outputs = import_module("vllm.v1.outputs")
        self.aborted = self._request.RequestStatus.FINISHED_ABORTED
        self.version = str(getattr(import_module("vllm.version"), "__version__", "unknown"))

    def config(self, settings: SchedulerSettings) -> Any:
        """A VllmConfig of parts that know their rules; what needs a model or a GPU is left out."""
        os.environ[RUNNER] = str(int(settings.use_v2_model_runner))
        config = _bare(self._config.VllmConfig)
        plain = msgspec.structs.asdict(settings)
        config.scheduler_config = _of(self._config.SchedulerConfig, is_encoder_decoder=False, **plain)
        config.cache_config = self._config.CacheConfig(
            block_size=settings.block_size, enable_prefix_caching=settings.enable_prefix_caching
        )
        config.cache_config.num_gpu_blocks = settings.num_gpu_blocks
        config.parallel_config = self._config.ParallelConfig()
        config.parallel_config.data_parallel_size = settings.data_parallel_size
        config.observability_config = _of(self._config.ObservabilityConfig)
        config.attention_config = SimpleNamespace(hisparse_config=None)
        config.model_config = _model(settings)
        config.speculative_config = self._speculation(settings)
        for name in ("kv_transfer_config", "ec_transfer_config", "kv_events_config", "lora_config", "diffusion_config"):
            setattr(config, name, None)
        config.aux_output_config = SimpleNamespace(enabled=False)
        config.ec_manager_config = SimpleNamespace(get_encoder_cache_manager_obj=lambda: None)
        set_budget = getattr(config, "_set_max_num_scheduled_tokens", None)
        if set_budget is not None:
            set_budget()
        return config

    def _speculation(self, settings: SchedulerSettings) -> Any:
        if settings.method is None:
            return None
        speculation = _bare(self._config.SpeculativeConfig)
        speculation.method = settings.method
        speculation.num_speculative_tokens = settings.num_speculative_tokens
        speculation.parallel_drafting = settings.parallel_drafting
        speculation.num_speculative_tokens_per_batch_size = [
            list(row) for row in settings.num_speculative_tokens_per_batch_size or ()
        ]
        speculation.disable_eagle_block_drop = False
        speculation.draft_model_config = SimpleNamespace(hf_config=SimpleNamespace(model_type="draft"))
        return speculation

    def scheduler(self, config: Any, settings: SchedulerSettings) -> Any:
        """The scheduler that the configuration names."""
        import torch

        shape = {"block_size": settings.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
        specs = [self._kv.FullAttentionSpec(**shape)]
        if settings.sliding_window:
            specs.append(self._kv.SlidingWindowSpec(**shape, sliding_window=settings.sliding_window))
        groups = [self._kv.KVCacheGroupSpec([f"{LAYER}{group}"], spec) for group, spec in enumerate(specs)]
        blocks = self._kv.KVCacheConfig(num_blocks=settings.num_gpu_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        return config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=blocks,
            structured_output_manager=_NoGrammar(),
            block_size=settings.block_size,
            log_stats=False,
        )

    def hasher(self, config: Any, settings: SchedulerSettings) -> Any:
        """Function that names the blocks of a request; None where nothing is cached."""
        if not settings.enable_prefix_caching:
            return None
        self._kv_utils.init_none_hash(_digest)
        ahead = getattr(config, "num_hash_lookahead_tokens", 0)
        return self._kv_utils.get_request_block_hasher(settings.block_size, _digest, *[ahead][: ahead > 0])

    def request(
        self, index: int, tokens: Sequence[int], max_tokens: int, arrival_time: float, priority: int, hasher: Any
    ) -> Any:
        stops = {"stop_token_ids": [STOP_TOKEN], "ignore_eos": True}
        sampling = self._sampling.SamplingParams(temperature=0.0, max_tokens=max_tokens, **stops)
        return _of(
            self._request.Request,
            request_id=str(index),
            prompt_token_ids=list(tokens),
            sampling_params=sampling,
            pooling_params=None,
            eos_token_id=None,
            arrival_time=arrival_time,
            priority=priority,
            block_hasher=hasher,
        )

    def runner_output(self, names: list[str], sampled: list[list[int]]) -> Any:
        return self._outputs.ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def drafts(self, names: list[str], lengths: Sequence[int]) -> Any:
        return self._outputs.DraftTokenIds(names, [[0] * length for length in lengths])


class _NoGrammar:
    """Stand-in for the manager of structured output: no request has a grammar."""

    def should_advance(self, request: Any) -> bool:
        return False

    def accept_tokens(self, request: Any, tokens: list[int]) -> bool:
        return True

    def validate_tokens(self, request: Any, tokens: list[int]) -> list[int]:
        return tokens


def _digest(value: object) -> bytes:
    from hashlib import blake2b
    from pickle import dumps

    return blake2b(dumps(value, protocol=5), digest_size=16).digest()


def _bare(kind: Any) -> Any:
    """An object of `kind`, with its methods and simple defaults, that checks nothing."""
    return object.__new__(kind)


def _of(kind: Any, **given: Any) -> Any:
    """`kind(...)` with those of `given` that this version knows."""
    from inspect import signature

    known = signature(kind).parameters
    return kind(**{name: value for name, value in given.items() if name in known})


def _model(settings: SchedulerSettings) -> SimpleNamespace:
    """Facts that a scheduler reads of a model: a decoder of text."""
    return SimpleNamespace(
        max_model_len=settings.max_model_len,
        is_encoder_decoder=False,
        is_multimodal_model=False,
        is_diffusion=False,
        is_hybrid=False,
        multimodal_config=None,
        supports_multimodal_inputs=False,
        runner_type="generate",
        uses_mrope=False,
        skip_tokenizer_init=True,
        enable_return_routed_experts=False,
        return_sampling_mask=False,
        max_logprobs=0,
    )


def installed_version() -> str:
    """Raises ImportError where no vLLM, or nothing that it needs, is installed."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    return str(import_module("vllm.version").__version__)
