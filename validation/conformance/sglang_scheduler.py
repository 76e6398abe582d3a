"""SGLang's scheduler, driven without a GPU from an unpacked wheel: what it plans at each step of a drawn case.

`python -m validation sglang_steps WHEEL [--count N] [--record FILE]`; WHEEL is a folder, the wheel of SGLang 0.5.6
unpacked and not installed. Its `Scheduler.get_next_batch_to_run` and what processes results, `PrefillAdder`,
`ScheduleBatch`, `Req`, `RadixCache` and the allocator of pages of one token are SGLang's code; modules that need
kernels, a server or packages that are not installed are empty names. Written here, with the lines that they stand for:
- the clock, and both event loops of managers/scheduler.py:967 and :992, without their sockets;
- the slots of requests (mem_cache/memory_pool.py: ReqToTokenPool), whose module is full of kernels;
- the memory that a round of drafts takes and gives back (speculative/eagle_worker.py:380 and :494, eagle_info.py:114,
  :376 and :419), which is written for a GPU, and which drafts are accepted.
Not driven: pages of several tokens and EAGLE's overlap (spec v2: alloc_extend and assign_* are Triton kernels), n-gram
drafts (its worker builds trees in C++), mixed chunks, priorities, max_prefill_tokens, the hierarchical cache, data-
parallel attention, disaggregation. Not here: cases, and what lanesim plans (validation.conformance.sglang).
"""

from __future__ import annotations

import gzip
import importlib.abc
import importlib.machinery
import json
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from validation.conformance.sglang import KINDS, PlannedStep, SglangCase, draw, first_difference, packed, simulated
from validation.tables import markdown

OWN = (
    "environ",
    "managers.schedule_batch",
    "managers.schedule_policy",
    "managers.scheduler",
    "managers.scheduler_output_processor_mixin",
    "managers.scheduler_runtime_checker_mixin",
    "mem_cache.allocator",
    "mem_cache.base_prefix_cache",
    "mem_cache.cache_init_params",
    "mem_cache.chunk_cache",
    "mem_cache.common",
    "mem_cache.evict_policy",
    "mem_cache.radix_cache",
    "mem_cache.utils",
    "model_executor.forward_batch_info",
    "sampling.sampling_params",
    "speculative.spec_info",
)
"""Modules of sglang.srt whose code runs; all others of the package are empty names."""
NOT_INSTALLED = ("orjson", "psutil", "pybase64", "setproctitle", "sgl_kernel", "triton", "xgrammar", "zmq")
ROOT = "sglang.srt"
MAX_CONTEXT, VOCABULARY = 1 << 16, 1 << 31


class _Empty(type):
    """A class of any name: base class, decorator, annotation or false value, as the place wants it."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _empty(name)

    def __call__(cls, *args: Any, **named: Any) -> Any:
        if "__init__" in cls.__dict__:
            return type.__call__(cls, *args, **named)
        is_decorator = len(args) == 1 and not named and callable(args[0])
        return args[0] if is_decorator else type.__call__(cls)

    def __bool__(cls) -> bool:
        return "is_no_name" not in cls.__dict__

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__


class _Nothing(metaclass=_Empty):
    is_no_name = True
    """Mark of a stand-in for a missing name; SGLang's classes that build on one lack it in themselves."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _empty(name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        is_decorator = len(args) == 1 and not named and callable(args[0])
        return args[0] if is_decorator else self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return "is_no_name" not in type(self).__dict__

    def __class_getitem__(cls, key: object) -> Any:
        return cls


def _empty(name: str) -> Any:
    return _Empty(name, (_Nothing,), {"is_no_name": True})


class _EmptyModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _empty(name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds OWN in the folder of the wheel; everything else of the package, and what is not installed, is empty."""

    def __init__(self, wheel: Path) -> None:
        self._wheel = wheel
        self._own = {f"{ROOT}.{name}" for name in OWN}
        self._folders = {"sglang", *(name.rpartition(".")[0] for name in self._own)}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in self._own:
            return importlib.machinery.PathFinder.find_spec(name, path)
        if name.partition(".")[0] not in ("sglang", *NOT_INSTALLED):
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        if name in self._folders:
            assert spec.submodule_search_locations is not None
            spec.submodule_search_locations.append(str(self._wheel / name.replace(".", "/")))
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _RequestSlots:
    """ReqToTokenPool: its module is full of kernels."""

    def __init__(self, torch: Any, size: int) -> None:
        self.size, self.device = size, "cpu"
        self.req_to_token = torch.zeros((size, MAX_CONTEXT), dtype=torch.int32)
        self._free = list(range(size))

    def write(self, indices: Any, values: Any) -> None:
        self.req_to_token[indices] = values.to(self.req_to_token.dtype)

    def available_size(self) -> int:
        return len(self._free)

    def alloc(self, count: int) -> list[int] | None:
        if count > len(self._free):
            return None
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def free(self, index: int | list[int]) -> None:
        self._free.extend([index] if isinstance(index, int) else index)


class SglangDriver:
    """One wheel's scheduler; `wheel` is the folder it was unpacked in. One per process."""

    def __init__(self, wheel: Path) -> None:
        sys.meta_path.insert(0, _Finder(wheel))
        self._torch = import_module("torch")
        self._modules = {name.rpartition(".")[2]: import_module(f"{ROOT}.{name}") for name in OWN}
        # Sampling is not the scheduler's, and its module pulls the kernels in.
        setattr(self._modules["schedule_batch"], "SamplingBatchInfo", _empty("SamplingBatchInfo"))  # noqa: B010

    def steps(self, case: SglangCase) -> list[PlannedStep]:
        """The steps that it plans for `case`."""
        return _Run(self._torch, SimpleNamespace(**self._modules), case).steps()


class _Run:
    def __init__(self, torch: Any, modules: Any, case: SglangCase) -> None:
        self.torch, self.modules, self.case = torch, modules, case
        drafts, environ = case.draft_tokens, modules.environ.envs
        self.args = SimpleNamespace(
            attention_backend="torch_native",
            disaggregation_decode_enable_offload_kvcache=False,
            disaggregation_mode="null",
            enable_mamba_extra_buffer=False,
            page_size=1,
            pp_max_micro_batch_size=case.max_num_seqs,
            schedule_low_priority_values_first=False,
            speculative_algorithm="EAGLE" if drafts else None,
            speculative_eagle_topk=1 if drafts else None,
            speculative_num_draft_tokens=drafts + 1 if drafts else None,
            speculative_num_steps=drafts or None,
        )
        for module in (modules.schedule_batch, modules.common, modules.scheduler):
            module.get_global_server_args = lambda: self.args
        modules.common.support_triton = lambda backend: False
        # An unfinished prompt keeps a slot beside those of its step, for a moment.
        self.slots = _RequestSlots(torch, case.max_num_seqs + 1)
        self.allocator = modules.allocator.TokenToKVPoolAllocator(
            case.num_tokens, torch.float16, "cpu", _Nothing(), False
        )
        self.cache = modules.radix_cache.RadixCache(
            modules.cache_init_params.CacheInitParams(
                disable=False,
                req_to_token_pool=self.slots,
                token_to_kv_pool_allocator=self.allocator,
                page_size=1,
                is_eagle=drafts > 0,
            )
        )
        algorithm = modules.spec_info.SpeculativeAlgorithm
        self.algorithm = algorithm.EAGLE if drafts else algorithm.NONE
        initial = environ.SGLANG_INIT_NEW_TOKEN_RATIO.get()
        least = initial * environ.SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR.get()
        batch = modules.schedule_batch.ScheduleBatch
        mode = modules.scheduler.DisaggregationMode
        self.scheduler = _scheduler(modules.scheduler.Scheduler)(
            chunked_prefill_size=case.max_num_batched_tokens,
            chunked_req=None,
            decode_mem_cache_buf_multiplier=2 * drafts + 1,
            disaggregation_mode=mode.NULL,
            dllm_config=None,
            enable_hicache_storage=False,
            enable_hierarchical_cache=False,
            enable_lora=False,
            enable_metrics=False,
            enable_overlap=case.is_overlap,
            forward_ct=0,
            forward_ct_decode=0,
            grammar_queue=[],
            init_new_token_ratio=initial,
            is_generation=True,
            is_mixed_chunk=False,
            last_batch=None,
            max_prefill_tokens=1 << 30,
            min_new_token_ratio=least,
            model_config=SimpleNamespace(
                is_encoder_decoder=False, is_matryoshka=False, is_multimodal=False, vocab_size=VOCABULARY
            ),
            new_token_ratio=initial,
            new_token_ratio_decay=(initial - least) / environ.SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS.get(),
            num_generated_tokens=0,
            page_size=1,
            policy=modules.schedule_policy.SchedulePolicy("fcfs", self.cache, False, False, False),
            pp_size=1,
            priority_scheduling_preemption_threshold=0,
            req_to_token_pool=self.slots,
            require_mlp_sync=False,
            running_batch=batch(reqs=[], batch_is_full=False),
            server_args=self.args,
            spec_algorithm=self.algorithm,
            token_to_kv_pool_allocator=self.allocator,
            tp_worker=SimpleNamespace(model_runner=SimpleNamespace(mambaish_config=None)),
            tree_cache=self.cache,
            truncation_align_size=None,
            try_preemption=False,
            waiting_queue=[],
        )
        self.index: dict[str, int] = {}

    def steps(self) -> list[PlannedStep]:
        """Both of its event loops: a batch is planned after the results of the one before it, or while that one runs.
        There a row that is through runs once more (`_is_spent`): it is left out, and takes no time alone."""
        scheduler, case = self.scheduler, self.case
        coming = sorted(range(len(case.requests)), key=lambda index: case.requests[index].arrival_s)
        now_s, planned = 0.0, list[PlannedStep]()
        under_way: tuple[Any, float] | None = None
        while True:
            while coming and case.requests[coming[0]].arrival_s <= now_s:
                scheduler.waiting_queue.append(self._request(coming.pop(0)))
            batch, launched, end_s = scheduler.get_next_batch_to_run(), None, now_s
            if batch is not None:
                start_s = now_s if under_way is None else under_way[1]
                noted = self._noted(batch, start_s, None if under_way is None else under_way[0][0].reqs)
                is_step = bool(noted.rows or noted.chunks)
                planned.extend([noted] if is_step else ())
                launched, end_s = self._launch(batch), start_s + is_step
            if under_way is not None:
                now_s = under_way[1]
                scheduler.process_batch_result(*under_way[0])
            elif launched is not None and not case.is_overlap:
                now_s = end_s
                scheduler.process_batch_result(*launched)
            elif batch is None:
                scheduler.new_token_ratio = scheduler.init_new_token_ratio
                if not scheduler.waiting_queue and not scheduler.running_batch.reqs:
                    if not coming:
                        return planned
                    now_s = case.requests[coming[0]].arrival_s
            under_way = (launched, end_s) if launched is not None and case.is_overlap else None
            scheduler.last_batch = batch

    def _request(self, index: int) -> Any:
        asked = self.case.requests[index]
        sampling = self.modules.sampling_params.SamplingParams(
            max_new_tokens=min(asked.output_tokens, self.case.num_tokens - 2 - asked.prompt_tokens), ignore_eos=True
        )
        name = f"r{index}"
        self.index[name] = index
        sampling.normalize(None)
        return self.modules.schedule_batch.Req(
            name, "", list(self.case.token_ids(index)), sampling, vocab_size=VOCABULARY
        )

    def _noted(self, batch: Any, start_s: float, before: Sequence[Any] | None) -> PlannedStep:
        """`before`: requests of the batch under way."""
        if batch.forward_mode.is_extend():
            chunks = [(self.index[req.rid], req.extend_input_len, len(req.prefix_indices)) for req in batch.reqs]
            return PlannedStep(round(start_s, 6), (), tuple(chunks))
        rows = [req for req in batch.reqs if before is None or not _is_spent(req, req in before)]
        return PlannedStep(round(start_s, 6), tuple(self.index[req.rid] for req in rows), ())

    # -- what a worker would do

    def _launch(self, batch: Any) -> tuple[Any, Any]:
        torch = self.torch
        counts = [1] * len(batch.reqs)
        if self.case.draft_tokens and not batch.forward_mode.is_extend():
            counts = self._round(batch)
        batch.output_ids = torch.zeros(sum(counts), dtype=torch.int64)
        ids = [self.case.answer_id(self.index[req.rid], len(req.output_ids)) for req in batch.reqs]
        result = SimpleNamespace(
            can_run_cuda_graph=False,
            copy_done=None,
            extend_input_len_per_req=None,
            extend_logprob_start_len_per_req=None,
            logits_output=None,
            next_token_ids=torch.tensor(ids),
            num_accepted_tokens=0,
        )
        return batch.copy() if self.case.is_overlap else batch, result

    def _round(self, batch: Any) -> list[int]:
        """A draft's slots taken and given back, then those of its verify, of which the accepted ones stay; tokens of
        each row."""
        drafts, alloc = self.case.draft_tokens, self.modules.common.alloc_token_slots
        _, before = alloc(self.cache, len(batch.reqs) * drafts, backup_state=True)
        self.allocator.restore_state(before)
        slots = alloc(self.cache, len(batch.reqs) * (drafts + 1)).reshape(len(batch.reqs), drafts + 1)
        counts = []
        for i, req in enumerate(batch.reqs):
            index, begun = self.index[req.rid], len(req.output_ids)
            for _ in range(self.case.accepted(index, begun) + 1):
                req.output_ids.append(self.case.answer_id(index, len(req.output_ids)))
                req.check_finished()
                if req.finished():
                    break
            count = len(req.output_ids) - begun
            held = int(batch.seq_lens[i])
            self.slots.write((req.req_pool_idx, slice(held, held + count)), slots[i, :count])
            self.allocator.free(slots[i, count:])
            req.kv_committed_len += count
            req.kv_allocated_len = req.kv_committed_len
            batch.seq_lens[i] += count
            batch.seq_lens_cpu[i] += count
            counts.append(count)
        batch.seq_lens_sum = int(batch.seq_lens.sum())
        return counts


def _is_spent(req: Any, is_under_way: bool) -> bool:
    return bool(len(req.output_ids) + is_under_way >= req.sampling_params.max_new_tokens)


def _scheduler(scheduler: Any) -> Any:
    """`Scheduler` with its planning and its processing of results, and nothing of its server."""
    return type(
        "DrivenScheduler",
        (scheduler,),
        {
            "__init__": lambda self, **fields: self.__dict__.update(fields),
            "_add_request_to_queue": lambda self, req, is_retracted=False: self.waiting_queue.append(req),
            "current_scheduler_metrics_enabled": lambda self: False,
            "log_decode_stats": lambda self, *args, **named: None,
            "maybe_send_health_check_signal": lambda self: None,
            "stream_output": lambda self, *args, **named: None,
            "update_spec_metrics": lambda self, *args: None,
        },
    )


MAX_RECORDED, MAX_RECORDED_STEPS = 12, 400
"""Logs of a kind; longer ones are not recorded."""


def main(wheel: Path, count: int = 100, record: Path | None = None) -> int:
    """The table of KINDS; 1 where a case differs. `record` takes the logs of the first short cases of each kind."""
    from pandas import DataFrame

    if not (wheel / "sglang" / "srt").is_dir():
        raise ValueError(f"{wheel}: no unpacked wheel of SGLang there; want a folder that holds sglang/srt")
    driver, rows = SglangDriver(wheel), []
    logs: list[dict[str, Any]] = []
    for kind, given in KINDS.items():
        num_steps = num_equal = 0
        differing: list[str] = []
        for seed in range(count):
            case = draw(seed, **given)
            theirs = driver.steps(case)
            step = first_difference(theirs, simulated(case))
            num_steps += len(theirs)
            num_equal += step is None
            if step is not None:
                differing.append(f"{seed}: {step}")
            num_recorded = sum(log["kind"] == kind for log in logs)
            if len(theirs) <= MAX_RECORDED_STEPS and num_recorded < MAX_RECORDED:
                logs.append({"kind": kind, "seed": seed, "steps": packed(theirs)})
        rows.append([kind, str(count), str(num_steps), str(num_equal), ", ".join(differing[:5])])
    columns = ("kind", "cases", "steps", "equal", "first that differ, seed: step")
    print(markdown(DataFrame(rows, columns=columns)))
    if record is not None:
        record.write_bytes(gzip.compress(json.dumps(logs, separators=(",", ":")).encode(), mtime=0))
    return int(any(row[2 + 1] != row[1] for row in rows))
