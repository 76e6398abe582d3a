"""Send a scenario's own requests to a server at their own times, each timed where its user would time it.

An open loop: a request goes out when it is due, whatever became of those before it, as arrivals do. Prompts are words
that nobody else has, but for what requests have in common (their content, block by block). Not here: the network
(calibrate.server.network), one streamed answer (calibrate.server.endpoint), the verdict (calibrate.server.served_run).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise

from msgspec import structs

from calibrate.served.load import ServedRequest
from calibrate.server.endpoint import MAX_FAILURES, WORDS, Endpoint, Streamed, refuse_collected, stream
from calibrate.server.network import Client, Late, RequestFailed
from sim.interface.request import Request

WAKE_S = 0.2
"""Longest sleep, so that a signal is heard."""
MAX_STREAMS = 1024
"""Requests in flight beyond which one that is due waits for another to end: its lateness is recorded."""
TOLD_BY_WORDS = 256
"""Words of the prompt that tells how many tokens a word has."""


def tokens_per_word(client: Client, endpoint: Endpoint) -> float:
    """Tokens of a prompt of words over their number. Raises RequestFailed."""
    told = stream(client, endpoint, _words(random.Random("words"), TOLD_BY_WORDS), 2)
    return max(0.1, told.prompt_tokens / TOLD_BY_WORDS)


def send(
    client: Client,
    endpoint: Endpoint,
    requests: Sequence[Request],
    *,
    words_per_token: float,
    block_tokens: int,
    seed: int | str = 0,
    max_concurrency: int | None = None,
    on_sent: Callable[[ServedRequest], None],
) -> None:
    """Send `requests` in order of arrival and have `on_sent` hear each that has ended, in whatever order.

    Ends early, with a ValueError, where the server fails more than MAX_FAILURES times or once takes longer than the
    client waits. Raises one at the end, too, where most tokens came together, with an answer's first.
    """
    begun_s = time.perf_counter()
    failed: list[RequestFailed] = []
    answered: list[Streamed] = []

    def check() -> None:
        if len(failed) > MAX_FAILURES or any(isinstance(failure, Late) for failure in failed):
            raise failed[0]

    def one(request: Request) -> None:
        prompt = prompt_of(request, words_per_token, block_tokens, seed)
        sent = ServedRequest(
            index=request.index, due_s=_kept(request.arrival_s), sent_s=_kept(time.perf_counter() - begun_s)
        )
        try:
            timed = stream(client, endpoint, prompt, request.output_tokens)
        except RequestFailed as failure:
            failed.append(failure)
            on_sent(structs.replace(sent, failed=failure.reason.partition(":")[0]))
            return
        answered.append(timed)
        on_sent(
            structs.replace(
                sent,
                first_s=_kept(timed.pieces_s[0] - begun_s),
                last_s=_kept(timed.pieces_s[-1] - begun_s),
                prompt_tokens=timed.prompt_tokens,
                output_tokens=timed.output_tokens,
                gaps_s=tuple(_kept(later_s - earlier_s) for earlier_s, later_s in pairwise(timed.pieces_s)),
            )
        )

    under_way: list[Future[None]] = []
    with ThreadPoolExecutor(min(max_concurrency or MAX_STREAMS, len(requests))) as pool:
        try:
            for request in requests:
                _wait_until(begun_s + request.arrival_s)
                under_way.append(pool.submit(one, request))
                check()
            # In short steps, so that a signal is heard.
            while wait(under_way, WAKE_S).not_done:
                check()
            check()
            for future in under_way:
                future.result()
        except BaseException:
            client.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    if any(len(each.pieces_s) > 1 for each in answered):
        refuse_collected(client, endpoint, answered)


def _kept(moment_s: float) -> float:
    """Rounded to 10 microseconds: a file of many requests stays small."""
    return round(moment_s, 5)


def _wait_until(moment_s: float) -> None:
    """Sleep in short steps, so that a signal is heard."""
    while (left_s := moment_s - time.perf_counter()) > 0.0:
        time.sleep(min(WAKE_S, left_s))


def prompt_of(request: Request, words_per_token: float, block_tokens: int, seed: int | str) -> str:
    """Words of a prompt of about as many tokens; equal blocks of content have equal words.

    >>> first, second = (Request(i, "", 0.0, 40, 4, content=(7, 8)) for i in (0, 1))
    >>> [len(prompt_of(each, 1.0, 16, 0).split()) for each in (first, second)]
    [40, 40]
    >>> prompt_of(first, 1.0, 16, 0).split()[:32] == prompt_of(second, 1.0, 16, 0).split()[:32]
    True
    """
    blocks = request.content[: request.prompt_tokens // block_tokens]
    parts = [_words(random.Random(f"{seed} block {each}"), round(block_tokens * words_per_token)) for each in blocks]
    rest = round((request.prompt_tokens - len(blocks) * block_tokens) * words_per_token)
    return " ".join([*parts, _words(random.Random(f"{seed} request {request.index}"), max(1 - len(parts), rest))])


def _words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS, k=count))
