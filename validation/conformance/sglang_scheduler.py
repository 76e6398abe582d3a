"""SGLang's own scheduler, driven without a GPU from an unpacked wheel: what it plans at each step of a case.

`get_next_batch_to_run`, the processing of results, admission, retraction, the radix tree and the allocator of pages of
one token are SGLang's code. Modules that need kernels, a server or packages that are not installed are empty names.
Ours are the clock, both event loops without their sockets, the configuration, and which drafts are accepted.
Not driven: pages of several tokens, n-grams, trees, mixed chunks, priorities, max_prefill_tokens, requests with
ignore_eos, the hierarchical cache, data-parallel attention, disaggregation, pools of windows and of states.
Not here: cases, and what lanesim plans (validation.conformance.sglang).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import logging
import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from validation.conformance.sglang import ID_STRIDE, KINDS, PlannedStep, SglangCase, SglangLog, drawn

ROOT = "sglang.srt"
OWN = tuple(
    f"{folder}{name}"
    for folder, names in {
        "": "environ",
        "managers.": "min_free_slots_delayer schedule_batch schedule_policy scheduler",
        "managers.scheduler_components.": "batch_result_processor new_token_ratio_tracker",
        "mem_cache.": "allocation allocation_sizing base_prefix_cache cache_init_params common evict_policy events "
        "memory_pool prefill_budget radix_cache unified_radix_cache utils unified_cache",
        "mem_cache.allocator.": "base token",
        "mem_cache.unified_cache.": "cache_action component_type components session_ref_tracker tree_core_registry "
        "unified_tree_core unified_tree_core_interface",
        "mem_cache.unified_cache.components.": "base full",
        "model_executor.": "forward_batch_info",
        "sampling.": "sampling_params",
        "session.": "streaming_session",
        "speculative.": "eagle_utils spec_info",
    }.items()
    for name in names.split()
)
"""Modules of sglang.srt whose code runs; all others of the package are empty names."""
NOT_INSTALLED = ("orjson", "psutil", "pybase64", "setproctitle", "sgl_kernel", "triton", "xgrammar", "zmq", "pydantic")
NAMESPACES = ("schedule", "exec", "memory", "spec", "disagg", "serving", "observability", "parallel", "model")
"""Of the server's configuration, which are one here."""
ONE = ("attn_dcp_size", "page_size", "pp_size", "schedule_conservativeness", "speculative_eagle_topk")
"""Settings that are 1."""
ZERO = (
    *("max_prefill_bs", "prefill_decode_interval_min_bs", "_prefill_decode_interval_remaining"),
    *("priority_scheduling_preemption_threshold", "processed_tokens_counter"),
)
"""Fields of the scheduler that are 0."""
MAX_CONTEXT, VOCABULARY, ANSWER_IDS = 1 << 12, 1 << 31, 1 << 30
REFUSED = "this wheel is driven as SGLang 0.5.23 is, and differs: {}"


class _Base:
    """Base of SGLang's classes that build on a missing one."""

    def __getattr__(self, name: str) -> Any:
        return _missing(name)


class _Nothing(_Base):
    """A missing name: a base class, a decorator, an annotation, a context or a false value, as the place wants it."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        is_decorator = len(args) == 1 and not named and callable(args[0]) and not isinstance(args[0], _Nothing)
        return args[0] if is_decorator else self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (_Base,) if self is next(base for base in bases if isinstance(base, _Nothing)) else ()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __bool__(self) -> bool:
        return False

    def __instancecheck__(self, one: object) -> bool:
        return False


def _missing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Nothing()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds OWN in the folder of the wheel; everything else of the package, and what is not installed, is empty."""

    def __init__(self, wheel: Path) -> None:
        self._wheel = wheel

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.removeprefix(f"{ROOT}.") in OWN:
            return importlib.machinery.PathFinder.find_spec(name, path)
        if name.partition(".")[0] not in ("sglang", *NOT_INSTALLED):
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = [str(self._wheel / name.replace(".", "/"))]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = _missing


class _Settings:
    """Names and values, such as the server's configuration with all namespaces in one; any other is None."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        return self if name in ("mamba", "features", "graph", "overlap", "kernel") else None


class SglangDriver:
    """The scheduler of an unpacked `wheel`; one per process. Raises ValueError for a wheel that it cannot drive."""

    def __init__(self, wheel: Path) -> None:
        for name in OWN:
            path = wheel / f"{ROOT}.{name}".replace(".", "/")
            if not (path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()):
                raise ValueError(f"{wheel}: {REFUSED.format(f'no {ROOT}.{name}')}")
        os.environ["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = "python"
        sys.meta_path.insert(0, _Finder(wheel))
        self.settings = settings = _Settings()
        common = {
            "ceil_align": lambda count, unit: -(-count // unit) * unit,
            "is_pin_memory_available": lambda _: False,
        }
        beams = {"num_beam_member_rows": lambda reqs: 0, "beam_retraction_order": lambda order, reqs: order}
        context = {f"get_{name}": lambda: settings for name in NAMESPACES} | {
            "attention_backends": lambda: ("torch_native",) * 2,
            "max_speculative_num_draft_tokens": lambda: settings.speculative_num_draft_tokens,
        }
        shards = {"page_interleave_shard_size": lambda allocator: 1}
        given: dict[str, dict[str, Any]] = {"runtime_context": context, "utils": common, "utils.common": common}
        given |= {"beam_search.batch_tail": beams, "mem_cache.allocator.page_interleave": shards}
        for name, values in given.items():
            vars(import_module(f"{ROOT}.{name}")).update(values)
        self.torch = import_module("torch")
        self.modules = SimpleNamespace(**{name.rpartition(".")[2]: import_module(f"{ROOT}.{name}") for name in OWN})
        rounds = vars(import_module(f"{ROOT}.speculative.spec_utils"))
        rounds["spec_prepare_for_decode"] = self.modules.eagle_utils.eagle_prepare_for_decode
        self.modules.schedule_batch.SamplingBatchInfo = _Nothing()
        self.modules.allocation.assign_req_to_token_pool_func = _write_rows

    def steps(self, case: SglangCase) -> list[PlannedStep]:
        """The steps that it plans for `case`. Raises ValueError where it has other names than this driver."""
        self.case, self.index = case, dict[str, int]()
        try:
            return self._steps(self._scheduler(case))
        except (AttributeError, TypeError) as error:
            raise ValueError(REFUSED.format(error)) from error

    def _scheduler(self, case: SglangCase) -> Any:
        """`Scheduler` with its planning, and nothing of its server; what it lacks is None."""
        modules, drafts, named = self.modules, case.draft_tokens, SimpleNamespace
        self.settings.__dict__ = dict.fromkeys(ONE, 1) | {
            "disable_overlap_schedule": not case.is_overlap,
            "disaggregation_mode": "null",
            "pp_max_micro_batch_size": case.max_num_seqs,
            "radix_eviction_policy": "lru",
            "retraction_policy": "length",
            "speculative_algorithm": "EAGLE" if drafts else None,
            "speculative_num_draft_tokens": drafts + 1 if drafts else None,
            "speculative_num_steps": drafts or None,
        }
        slots = modules.memory_pool.ReqToTokenPool(case.max_num_seqs, MAX_CONTEXT, "cpu", False)
        slots.alloc_aux_to_lengths = lambda **named: None
        pool = modules.token.TokenToKVPoolAllocator(case.num_tokens, self.torch.float16, "cpu", _Nothing(), False)
        parts = (modules.component_type.ComponentType.FULL,)
        tree = modules.cache_init_params.CacheInitParams(
            False, slots, pool, 1, is_eagle=drafts > 0, tree_components=parts
        )
        counts, least = _Nothing(), case.min_free_seats or None
        vars(counts).update(num_generated_tokens=0, forward_ct_decode=0, num_retracted_reqs=0)
        given = {
            "beam_coordinator": named(pending_member_rows=lambda batch: 0, commit_decode=lambda batch: ()),
            "disaggregation_mode": modules.scheduler.DisaggregationMode.NULL,
            "enable_overlap": case.is_overlap,
            "is_generation": True,
            "metrics_reporter": counts,
            "model_config": _Settings(vocab_size=VOCABULARY),
            "req_to_token_pool": slots,
            "token_to_kv_pool_allocator": pool,
            "tree_cache": (cache := modules.unified_radix_cache.UnifiedRadixCache(tree)),
        }
        processor = modules.batch_result_processor.SchedulerBatchResultProcessor
        adapter = named(
            maybe_prepare_mlp_sync_batch=lambda batch, need_sync=None: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
            prepare_for_forward=lambda batch, chunked_req=None: batch,
        )
        own = {
            "__init__": lambda self, **fields: self.__dict__.update(fields),
            "__getattr__": lambda self, name: None,
            "_add_request_to_queue": lambda self, req, is_retracted=False: self.waiting_queue.append(req),
        }
        return type("DrivenScheduler", (modules.scheduler.Scheduler,), own)(
            **(given | dict.fromkeys(ZERO, 0)),
            batch_result_processor=processor(**(dict.fromkeys(processor.__dataclass_fields__, _Nothing()) | given)),
            chunked_prefill_size=case.max_num_batched_tokens,
            dp_attn_adapter=adapter,
            enable_skip_finishing_decode=case.is_overlap,
            grammar_manager=_Nothing(),
            load_inquirer=_Nothing(),
            max_prefill_tokens=1 << 30,
            min_free_slots_delayer=least and modules.min_free_slots_delayer.MinFreeSlotsDelayer(least),
            new_token_ratio_tracker=modules.new_token_ratio_tracker.NewTokenRatioTracker.from_config(),
            ngram_embedding_manager=adapter,
            page_size=1,
            policy=modules.schedule_policy.SchedulePolicy("fcfs", cache, False, False, False),
            prefill_decode_interval=case.prefill_decode_interval,
            result_queue=[],
            running_batch=modules.schedule_batch.ScheduleBatch(reqs=[], batch_is_full=False),
            spec_algorithm=modules.spec_info.SpeculativeAlgorithm.from_string(self.settings.speculative_algorithm),
            tp_worker=named(model_runner=named(attn_backend=named(), prefill_aware_swa=False)),
            waiting_queue=[],
        )

    def _steps(self, scheduler: Any) -> list[PlannedStep]:
        """Both of its event loops. Overlapped, a row that is through runs once more (`_is_spent`): left out."""
        case = self.case
        coming = sorted(range(len(case.requests)), key=lambda index: case.requests[index].arrival_s)
        now_s, planned = 0.0, list[PlannedStep]()
        under_way: tuple[Any, float] | None = None
        while True:
            while coming and case.requests[coming[0]].arrival_s <= now_s:
                scheduler.waiting_queue.append(self._request(coming.pop(0)))
            plan = scheduler.get_next_batch_to_run(scheduler.running_batch, scheduler.last_batch)
            scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
            launched, end_s = None, now_s
            if batch is not None:
                start_s = now_s if under_way is None else under_way[1]
                noted = self._noted(batch, start_s, None if under_way is None else under_way[0])
                is_step = bool(noted.rows or noted.chunks)
                planned.extend([noted] if is_step else ())
                if case.draft_tokens:
                    batch.spec_info = _Nothing()
                launched, end_s = batch.copy() if case.is_overlap else batch, start_s + is_step
            if under_way is not None:
                now_s = under_way[1]
                self._process(scheduler, under_way[0])
            elif launched is not None and not case.is_overlap:
                now_s = end_s
                self._process(scheduler, launched)
            elif batch is None:
                is_idle = not (scheduler.waiting_queue or scheduler.running_batch.reqs or scheduler.chunked_req)
                if is_idle:
                    scheduler.new_token_ratio_tracker.reset()
                    if not coming:
                        return planned
                    now_s = case.requests[coming[0]].arrival_s
            under_way = (launched, end_s) if launched is not None and case.is_overlap else None
            scheduler.result_queue = [] if under_way is None else [(under_way[0], None)]
            scheduler.last_batch = batch

    def _process(self, scheduler: Any, batch: Any) -> None:
        """What a worker would bring: the accepted drafts and one more of each row, or one token of each prompt."""
        is_round, width = batch.forward_mode.is_decode(), self.case.draft_tokens + 1
        firsts = [ANSWER_IDS + self.index[req.rid] * ID_STRIDE + len(req.output_ids) for req in batch.reqs]
        result = _Settings(
            accept_lens=self.torch.tensor([self._brings(req, batch) for req in batch.reqs]),
            get_num_generated_tokens=lambda size: size,
            next_token_ids=self.torch.tensor([first + i for first in firsts for i in range(width if is_round else 1)]),
            num_non_draft_tokens_per_req=1,
            speculative_num_draft_tokens=width,
        )
        processor = scheduler.batch_result_processor
        (processor.process_batch_result_decode if is_round else processor.process_batch_result_prefill)(batch, result)

    def _brings(self, req: Any, batch: Any) -> int:
        is_round = self.case.draft_tokens and batch.forward_mode.is_decode()
        return 1 + (self.case.accepted(self.index[req.rid], len(req.output_ids)) if is_round else 0)

    def _request(self, index: int) -> Any:
        asked, name = self.case.requests[index], f"r{index}"
        # Scheduler.init_req_max_new_tokens: an answer ends before memory does.
        most = min(asked.output_tokens, self.case.num_tokens - asked.prompt_tokens - 2)
        sampling = self.modules.sampling_params.SamplingParams(max_new_tokens=most)
        sampling.normalize(None)
        self.index[name] = index
        tokens = array("q", self.case.token_ids(index))
        return self.modules.schedule_batch.Req(name, "", tokens, sampling, vocab_size=VOCABULARY, eos_token_ids=set())

    def _noted(self, batch: Any, start_s: float, under_way: Any) -> PlannedStep:
        if batch.forward_mode.is_extend():
            chunks = [(self.index[req.rid], req.extend_len, req.prefix_len) for req in batch.reqs]
            return PlannedStep(round(start_s, 6), (), tuple(chunks))
        rows = [self.index[req.rid] for req in batch.reqs if not self._is_spent(req, under_way)]
        return PlannedStep(round(start_s, 6), tuple(rows), ())

    def _is_spent(self, req: Any, under_way: Any) -> bool:
        """What is under way brings its last token."""
        if under_way is None or req not in under_way.reqs:
            return False
        return bool(len(req.output_ids) + self._brings(req, under_way) >= req.sampling_params.max_new_tokens)


def _write_rows(rows: Any, table: Any, starts: Any, ends: Any, slots: Any, count: int) -> None:
    """allocation.assign_req_to_token_pool, a Triton kernel: slots of each request one after the other."""
    taken = 0
    for row, start, end in zip(rows, starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = slots[taken : taken + end - start].to(table.dtype)
        taken += end - start


def drawn_logs(wheel: Path, seeds: range, engine: str) -> Iterator[tuple[str, list[SglangLog]]]:
    logging.disable(logging.WARNING)
    driver = SglangDriver(wheel)
    for kind, given in KINDS.items():
        cases = [drawn(seed, engine, **given) for seed in seeds]
        yield kind, [SglangLog(kind, case, driver.steps(case)) for case in cases]
