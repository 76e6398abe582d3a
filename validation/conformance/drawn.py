"""Drawn schedules, seeded, and what an installed vLLM's scheduler decides of them.

A schedule is settings, requests with the steps that they arrive at, and how many drafts are accepted at each position.
Small in everything, so that seats, blocks and budgets run out. Not here: vLLM (realrun.installed.vllm_scheduler).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from traceback import extract_tb

import msgspec

from realrun.installed.vllm_scheduler import Planned, SchedulerSettings, VllmScheduler
from validation.conformance.logs import Decision, Log, LoggedRequest

SINCE = {
    name: since
    for since, names in {
        0: "plain ngram eagle3 mtp async prefix prefix_eagle3 async_prefix threshold whole_prompts priority model_len",
        19: "async_eagle3 async_mtp draft_model parallel_draft_model parallel_eagle async_parallel_eagle",
        24: "by_batch interval",
        32: "async_by_batch async_interval async_priority dspark stop async_stop_eagle3 abort async_abort_eagle3 "
        "dflash async_prefix_dflash",
        33: "ranks_interval v2_draft_model v2_async_eagle3 v2_dspark v2_priority v2_async_stop_mtp prefix_dspark "
        "seats_dspark seats_dflash v2_dflash window prefix_window",
    }.items()
    for name in names.split()
}
"""Events that a schedule is drawn to show -> vLLM's minor version that has them first. Memory runs out in half of them.
A seated request has drafts where one token is padded to a round: nothing drafted them, and none is accepted."""
UNEQUAL = ("window", "prefix_window")
"""Features of which `continuous` knows nothing: the blocks of sliding windows. Schedules that differ do not count."""
MAX_STEPS = 3000


def drawn_log(feature: str, seed: int, engine: str) -> Log:
    """One schedule as the installed scheduler decides it. Raises what that one raises for settings that it refuses."""
    minor = int(engine.rpartition(".")[2])
    methods: tuple[str, ...] = ("draft_model", "eagle3") if minor >= SINCE["draft_model"] else ("eagle3",)
    if "async" in feature and minor < SINCE["async_eagle3"]:
        methods = ()
    settings, requests, rate = drawn(feature, seed, methods)
    scheduler = VllmScheduler(settings)
    draw = random.Random(f"accepted {feature} {seed}")
    accepts: dict[tuple[int, int], int] = {}

    def accepted(index: int, position: int, drafts: int) -> int:
        if (index, position) not in accepts:
            count = 0
            while count < 16 and draw.random() < rate:
                count += 1
            accepts[index, position] = count
        return min(accepts[index, position], drafts)

    steps: list[Decision] = []
    emitted: list[dict[int, int]] = []
    proposed: list[dict[int, int]] = []
    arrived: list[LoggedRequest] = []
    flight: tuple[int, Planned] | None = None
    due: tuple[int, Planned] | None
    for _ in range(MAX_STEPS):
        if not scheduler.num_unfinished and flight is None:
            if len(arrived) == len(requests):
                break
            # Nobody is left: whoever comes next comes now.
            requests[len(arrived)] = _at(requests[len(arrived)], len(steps))
        while len(arrived) < len(requests) and requests[len(arrived)].step <= len(steps):
            request = _at(requests[len(arrived)], len(steps))
            index = len(arrived)
            scheduler.add(
                index,
                request.prompt_tokens,
                request.output_tokens,
                arrival_time=float(index),
                priority=request.priority,
                content=request.content,
                stop_tokens=request.stop_tokens,
            )
            arrived.append(request)
        for index, request in enumerate(arrived):
            if 0 <= request.abort_step <= len(steps) and scheduler.is_unfinished(index):
                scheduler.abort(index)
                arrived[index] = msgspec.structs.replace(request, abort_step=len(steps))
        planned = scheduler.schedule()
        number = len(steps)
        if planned.tokens:
            preempted, skips = tuple(planned.preempted), planned.skips_drafts
            steps.append(Decision(planned.tokens, planned.drafts, preempted, planned.admitted, skips))
            emitted.append({})
            proposed.append({})
        due = (number, planned)
        if settings.async_scheduling:
            due, flight = flight, (due if planned.tokens else None)
        if due is not None:
            number, planned = due
            rounds = {
                index: accepted(index, scheduler.emitted(index), count)
                for index, count in planned.drafts.items()
                if scheduler.is_unfinished(index) and index not in planned.admitted
            }
            drafted = _ngrams(draw, planned, settings) if settings.method == "ngram" else None
            new = scheduler.update(planned, rounds, drafted)
            if planned.tokens:
                emitted[number] = new
                if drafted is not None:
                    proposed[number] = {index: count for index, count in drafted.items() if index in new}
    behind = tuple(proposed) if settings.method == "ngram" else ()
    return Log(f"{feature}-{seed}", engine, settings, tuple(arrived), tuple(steps), tuple(emitted), behind)


def _at(request: LoggedRequest, step: int) -> LoggedRequest:
    return msgspec.structs.replace(request, step=step)


def _ngrams(draw: random.Random, planned: Planned, settings: SchedulerSettings) -> dict[int, int]:
    """Drafts as n-grams have them: often none, often as many as may be, seldom between."""
    most = settings.num_speculative_tokens
    return {index: draw.choice((0, 0, most, most, draw.randint(0, most))) for index in planned.tokens}


def drawn(feature: str, seed: int, methods: tuple[str, ...]) -> tuple[SchedulerSettings, list[LoggedRequest], float]:
    """Settings, requests by their steps, and the share of drafts accepted. A feature without a method draws one."""
    draw = random.Random(f"{feature} {seed}")
    method = next(
        (name for name in ("draft_model", "eagle3", "mtp", "dspark", "dflash", "ngram") if name in feature), None
    )
    if "parallel_eagle" in feature:
        method = "eagle3"
    if "by_batch" in feature or (
        method is None and methods and feature not in ("plain", "async") and draw.random() < 0.4
    ):
        method = draw.choice(methods)
    draft_tokens = draw.choice((1, 2, 3, 5, 7)) if method else 0
    block_size = draw.choice((4, 8, 16, 32))
    max_num_seqs = draw.choice((1, 2, 3, 4, 8, 16))
    budget = max(draw.choice((16, 32, 64, 128, 256)), max_num_seqs * (draft_tokens + 1) + draw.randint(1, 20))
    if "seats" in feature:
        budget = max(16, max_num_seqs, draw.randint(draft_tokens + 2, 4 * draft_tokens + 2))
    is_whole = feature == "whole_prompts"
    longest = draw.choice((30, 60, 150))
    if is_whole:
        budget = max(budget, 512 + max_num_seqs * (draft_tokens + 1))
    requests = _requests(draw, feature, longest, block_size)
    needed = max(
        -(-(each.prompt_tokens + each.output_tokens + 2 * draft_tokens + 2) // block_size) for each in requests
    )
    is_short = draw.random() < 0.5
    num_blocks = needed + 1 + draw.randint(0, 2 * needed) if is_short else needed * (max_num_seqs + 1) + 50
    max_model_len = 512
    if feature == "model_len":
        max_model_len = max(each.prompt_tokens for each in requests) + draw.randint(2, 20)
    table = None
    if "by_batch" in feature:
        edge = draw.randint(1, max(1, max_num_seqs - 1))
        table = ((1, edge, draft_tokens), (edge + 1, edge + 100, draw.randint(0, draft_tokens)))
    settings = SchedulerSettings(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        num_gpu_blocks=num_blocks,
        block_size=block_size,
        enable_prefix_caching="prefix" in feature or draw.random() < 0.3,
        enable_chunked_prefill=not is_whole,
        long_prefill_token_threshold=draw.choice((5, 17, 40)) if feature == "threshold" else 0,
        async_scheduling="async" in feature,
        policy="priority" if "priority" in feature else "fcfs",
        prefill_schedule_interval=draw.choice((2, 3, 5)) if "interval" in feature else 1,
        data_parallel_size=2 if "ranks" in feature else 1,
        use_v2_model_runner="v2" in feature,
        sliding_window=draw.choice((9, 24, 70)) if "window" in feature else 0,
        method=method,
        parallel_drafting="parallel" in feature or method in ("dspark", "dflash"),
        num_speculative_tokens=draft_tokens,
        num_speculative_tokens_per_batch_size=table,
    )
    return settings, requests, draw.choice((0.0, 0.5, 0.8, 1.0))


def _requests(draw: random.Random, feature: str, longest: int, block_size: int) -> list[LoggedRequest]:
    """Requests in order of arrival; where prefixes are shared, two conversations that grow and one prompt of all."""
    count, gap = draw.randint(3, 20), draw.choice((0, 1, 3, 8))
    step, requests = 0, []
    for _ in range(count):
        prompt = draw.randint(1, longest)
        content: tuple[int, ...] = ()
        if "prefix" in feature and draw.random() < 0.8:
            system, turn = draw.randint(1, 4), draw.randint(0, 2)
            begun = [1000 * position for position in range(1, system)]
            content = (*begun, *[100_000 * (1 + turn) + system * 1000 + i for i in range(draw.randint(0, 3))])
            prompt = max(prompt, len(content) * block_size + draw.randint(0, block_size))
        priority = draw.randint(0, 2) if "priority" in feature else 0
        output = draw.randint(1, 40)
        stop = draw.randint(1, output) if "stop" in feature and draw.random() < 0.8 else 0
        abort = step + draw.randint(0, 25) if "abort" in feature and draw.random() < 0.5 else -1
        requests.append(LoggedRequest(step, prompt, output, priority, content, stop, abort))
        step += draw.randint(0, gap)
    return requests


def drawn_logs(seeds: range, engine: str) -> Iterator[tuple[str, list[Log]]]:
    """Logs by feature, none where this vLLM lacks it. Prints the schedules that an assertion in vLLM ends."""
    stopped = []
    for feature, since in SINCE.items():
        logs = []
        for seed in seeds if since <= int(engine.rpartition(".")[2]) else ():
            try:
                logs.append(drawn_log(feature, seed, engine))
            except AssertionError as error:
                *_, last = extract_tb(error.__traceback__)
                if "vllm" not in Path(last.filename).parts:
                    raise
                stopped.append(f"{feature}-{seed}: {Path(last.filename).name}:{last.lineno}")
        yield feature, logs
    if stopped:
        print(f"ended by an assertion of vLLM's own, not compared: {'; '.join(stopped)}")
