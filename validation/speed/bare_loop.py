"""A bare continuous-batching loop of the same decisions as `continuous`, without host, policy or SimPy.

The interface costs nothing in it: a plain loop over steps with the run's cost model and draws, arrivals read
from a sorted list, leaves from a heap. The speed benchmark compares against it, and checks that both take the same
steps.
"""

from __future__ import annotations

import heapq
from collections import deque

from sim.acceptance.draws import AcceptanceDraws
from sim.costs.cost import CostModel
from sim.engine.kv import KvPool
from sim.interface.request import Request
from sim.interface.work import Chunk, Kind, Work


def run_reference(
    requests: list[Request],
    costs: CostModel,
    draws: AcceptanceDraws,
    draft_tokens: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    slots_per_request: int,
    pool: KvPool,
) -> tuple[int, float]:
    """Serve all requests into the memory of an empty `pool`; (number of steps, time of the last token, s). Every
    request of a step takes `slots_per_request` tokens of its budget beside its own; drafts are looked up. Fills in the
    requests' token times.
    """
    waiting = deque(requests)
    prompts: list[Request] = []
    leaving: list[tuple[int, int, int, Request]] = []
    """(step, arrival index, tokens in KV, request), soonest first."""
    gains: dict[int, int] = {}
    free_blocks, blocks_for = pool.num_blocks, pool.blocks_for
    num_rows = context_tokens = step = 0
    now_s = 0.0
    cost = costs.cost
    while waiting or prompts or num_rows:
        if not prompts and not num_rows and waiting[0].arrival_s > now_s:
            now_s = waiting[0].arrival_s
        budget = max_num_batched_tokens - num_rows * (draft_tokens + 1 + slots_per_request)
        chunks = []
        completed = []
        taken = 0
        while budget > slots_per_request:
            if taken == len(prompts):
                if num_rows + taken >= max_num_seqs or not waiting or waiting[0].arrival_s > now_s:
                    break
                blocks = blocks_for(waiting[0])
                if blocks > free_blocks:
                    break
                free_blocks -= blocks
                prompts.append(waiting.popleft())
            request = prompts[taken]
            chunk = Chunk(
                min(request.prompt_tokens - request.prefilled_tokens, budget - slots_per_request),
                request.prefilled_tokens,
            )
            request.prefilled_tokens += chunk.new_tokens
            chunks.append(chunk)
            budget -= chunk.new_tokens + slots_per_request
            taken += 1
            if request.prefilled_tokens == request.prompt_tokens:
                completed.append(request)
        row_tokens = num_rows * (draft_tokens + 1)
        work = Work(
            kind=Kind.STEP,
            rows=num_rows,
            row_tokens=row_tokens,
            context_tokens=context_tokens,
            chunks=tuple(chunks),
            head_rows=row_tokens + len(completed),
        )
        prepare_s, launch_s, device_s, _ = cost(work)
        end_s = now_s + prepare_s + max(launch_s, device_s)
        now_s = end_s + costs.result_s
        if draft_tokens and num_rows + len(completed):
            now_s += cost(Work(kind=Kind.HOST, rows=num_rows + len(completed))).prepare_s
        context_tokens += num_rows + gains.pop(step, 0)
        while leaving and leaving[0][0] == step:
            _, _, kept_tokens, request = heapq.heappop(leaving)
            request.last_token_s = now_s
            num_rows -= 1
            context_tokens -= kept_tokens
            free_blocks += blocks_for(request)
        del prompts[: len(completed)]
        for request in completed:
            request.first_token_s = request.last_token_s = now_s
            num_rounds, gained = request.output_tokens - 1, 0
            if draft_tokens and num_rounds:
                accepted = draws.rounds(request.index, 1, request.output_tokens, draft_tokens).tolist()
                num_rounds, gained = len(accepted), sum(accepted)
                for offset, count in enumerate(accepted, start=step + 1):
                    gains[offset] = gains.get(offset, 0) + count
            if num_rounds == 0:
                free_blocks += blocks_for(request)
                continue
            num_rows += 1
            context_tokens += request.prompt_tokens
            kept_tokens = request.prompt_tokens + num_rounds + gained
            heapq.heappush(leaving, (step + num_rounds, request.index, kept_tokens, request))
        step += 1
    return step, now_s
