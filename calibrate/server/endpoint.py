"""Requests to an OpenAI-compatible endpoint, sent at their own times, each streamed answer timed where its user would
time it.

A request goes out when it is due, whatever became of those before it, as arrivals do. Prompts are words that nobody
else has, but for what requests have in common (their content, block by block). How many tokens a prompt and an answer
have is what the server says (`usage`), not what was requested. Where there is a `/metrics`, drafts and steps are read
from it. Not here: the network (calibrate.server.network), what a `/metrics` says (calibrate.served.metrics).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from msgspec import Meta, Struct, structs

from calibrate.served.load import MAX_TOKENS, ServedRequest
from calibrate.served.metrics import NoMetrics, Sample, parse
from calibrate.server.network import Client, Late, Reply, RequestFailed
from sim.files.json_values import Json, convert, parse_json
from sim.files.read import MIB
from sim.interface.request import Request

MAX_METRICS_BYTES = 8 * MIB
"""A server's look at itself has a few hundred KB."""
MAX_MODELS_BYTES = MAX_PROPS_BYTES = MIB
MAX_EVENT_BYTES = 4096
"""Bytes of a token's event in the mean; they have a few hundred."""
MAX_LENGTH = 2
"""Times the tokens that were requested: an answer that is longer is cut off."""
WORDS = (
    *("river", "stone", "lamp", "window", "garden", "paper", "engine", "winter", "market", "silver", "thunder"),
    *("valley", "candle", "bridge", "cotton", "harbour", "ladder", "mirror", "needle", "orange", "pepper", "quarter"),
    *("ribbon", "saddle", "timber", "umbrella", "velvet", "whisper", "yellow", "anchor"),
)
WAKE_S = 0.2
"""Longest sleep, so that a signal is heard."""
MAX_STREAMS = 1024
"""Requests in flight beyond which one that is due waits for another to end: its lateness is recorded."""
TOLD_BY_WORDS = 256
"""Words of the prompt that tells how many tokens a word has."""
MAX_FAILURES = 3
MAX_AT_ONCE = 0.5
"""Share of an answer's later tokens that come with its first: beyond it, something collects them on the way."""
MODELS = "/v1/models"
NOT_SO = (400, 404, 405, 422)
"""Answers to a path or a field that a server does not know."""


T = TypeVar("T")
Count = Annotated[int, Meta(ge=0, le=int(MAX_TOKENS))]


class _Usage(Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Newer servers' name of `reasoning_content`."""


class _Choice(Struct):
    text: str | None = None
    delta: _Delta | None = None

    @property
    def has_text(self) -> bool:
        delta = self.delta or _Delta()
        return bool(self.text or delta.content or delta.reasoning_content or delta.reasoning)


class _Event(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model] | None = None


class _Props(Struct):
    total_slots: Annotated[int, Meta(ge=1, le=int(MAX_TOKENS))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address that requests go to."""

    model: str
    is_chat: bool
    """Speaks /v1/chat/completions alone."""
    is_strict: bool = False
    """Refuses what OpenAI does not have, such as vLLM's `ignore_eos`: answers may end early then."""

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def body(self, prompt: str, output_tokens: int) -> dict[str, Json]:
        """Greedy, streamed, of a fixed length where the server takes vLLM's `ignore_eos`."""
        asked: dict[str, Json] = {
            "model": self.model,
            "max_tokens": output_tokens,
            "temperature": 0.0,
            "stream": True,
        }
        if self.is_chat:
            asked["messages"] = [{"role": "user", "content": prompt}]
        else:
            asked["prompt"] = prompt
        if not self.is_strict:
            asked |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
        return asked


def base_of(url: str) -> str:
    """`url` without /v1 and what follows. Raises ValueError for what is no http address.

    >>> base_of("http://h:8000"), base_of("http://h:8000/v1/"), base_of("https://h/serve/v1?x=1")
    ('http://h:8000', 'http://h:8000', 'https://h/serve')
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ValueError(f"{url!r} must be the address of a server, such as http://localhost:8000")
    if "@" in parts.netloc:
        raise ValueError(f"the address of {parts.hostname!r} holds a password. Give the key in LANESIM_API_KEY")
    path = parts.path.rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path.removesuffix("/v1"), "", ""))


def find(client: Client, model: str | None) -> Endpoint:
    """The endpoint that answers, by default of the one model that is served. Raises ValueError."""
    if model is None:
        with client.ask(MODELS, max_bytes=MAX_MODELS_BYTES) as answer:
            if answer.status != 200:
                refusal = answer.refusal()
                refusal.add_note("(--model NAME skips this request)")
                raise refusal
            text = answer.text()
        models = [each.id for each in _typed(client, MODELS, text, _Models, "").data or ()]
        if len(models) != 1:
            served = f"serves {len(models)} models: {', '.join(models[:5])}" if models else "names no model"
            raise client.failure("", f"{served:.150}. Say which with --model")
        model = models[0]
    for is_chat, is_strict in product((False, True), repeat=2):
        endpoint = Endpoint(model=model, is_chat=is_chat, is_strict=is_strict)
        with client.ask(endpoint.path, endpoint.body("river", 2), max_bytes=_max_bytes(2)) as answer:
            if answer.status == 200:
                _tokens(client, endpoint, answer, 2)
                return endpoint
            refusal = answer.refusal()
        if answer.status not in NOT_SO:
            break
    raise refusal


def look(client: Client) -> dict[Sample, float] | None:
    """The server's `/metrics`; None where it has none of its own."""
    with client.ask("/metrics", max_bytes=MAX_METRICS_BYTES) as answer:
        if answer.status != 200:
            return None
        text = answer.text()
    try:
        return parse(text, f"{client.url}/metrics")
    except NoMetrics:
        return None


def slots(client: Client) -> int | None:
    """Requests that a llama.cpp serves at once, by its `/props`; None of other servers."""
    with client.ask("/props", max_bytes=MAX_PROPS_BYTES) as answer:
        if answer.status != 200:
            return None
        text = answer.text()
    try:
        return convert(parse_json(text, "JSON", has_prose=True), _Props, "JSON").total_slots
    except ValueError:
        return None


@dataclass(slots=True)
class Streamed:
    """Tokens of one answer, and when they came by this machine's clock."""

    pieces_s: list[float] = field(default_factory=list)
    """Times of the events that hold tokens."""
    pieces_at_once: int = 0
    """Those that came with the first, itself included."""
    prompt_tokens: int = 0
    output_tokens: int = 0


def stream(client: Client, endpoint: Endpoint, prompt: str, output_tokens: int) -> Streamed:
    """Send one request and read its answer piece by piece. Raises RequestFailed for an answer that is none."""
    body = endpoint.body(prompt, output_tokens)
    with client.ask(endpoint.path, body, max_bytes=_max_bytes(output_tokens)) as answer:
        if answer.status != 200:
            raise answer.refusal()
        tokens = _tokens(client, endpoint, answer, output_tokens)
    if not tokens.pieces_s:
        raise client.failure(endpoint.path, "gives an answer without a token")
    tokens.prompt_tokens = tokens.prompt_tokens or len(prompt.split())
    tokens.output_tokens = tokens.output_tokens or len(tokens.pieces_s)
    return tokens


def _tokens(client: Client, endpoint: Endpoint, answer: Reply, output_tokens: int) -> Streamed:
    """Read a stream to its end, to `[DONE]` or to MAX_LENGTH times `output_tokens`, which is too long. Raises
    RequestFailed."""
    tokens, usage = Streamed(), _Usage()
    first_waits = 0
    is_whole = False
    for number, line in enumerate(answer.lines(), 1):
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            answer.linger()
            is_whole = True
            break
        event = _typed(client, endpoint.path, data, _Event, "in its stream, ", number)
        if event.error is not None:
            said = event.error.get("message", event.error) if isinstance(event.error, dict) else event.error
            raise client.failure(endpoint.path, f"answers an error: {said}")
        if event.usage is not None:
            usage, is_whole = event.usage, True
        if any(choice.has_text for choice in event.choices or ()):
            if not tokens.pieces_s:
                first_waits = answer.waits
            tokens.pieces_s.append(answer.received_s)
            tokens.pieces_at_once += answer.waits == first_waits
        if max(len(tokens.pieces_s), usage.completion_tokens or 0) > MAX_LENGTH * output_tokens:
            raise client.failure(
                endpoint.path, f"answers more than {MAX_LENGTH} times the {output_tokens} tokens of --output-len"
            )
    if tokens.pieces_s and not is_whole:
        raise client.failure(endpoint.path, "ends its stream without [DONE] and without usage")
    counted = usage.completion_tokens
    if counted is not None and counted < len(tokens.pieces_s):
        raise client.failure(
            endpoint.path,
            f"says in its usage that it wrote {counted} tokens, and its stream has {len(tokens.pieces_s)} pieces of "
            "text",
        )
    tokens.prompt_tokens, tokens.output_tokens = usage.prompt_tokens or 0, counted or 0
    return tokens


def _refuse_collected(client: Client, endpoint: Endpoint, answers: list[Streamed]) -> None:
    """Raise RequestFailed where tokens come together: times per token are no longer the server's."""
    gaps = sum(len(each.pieces_s) - 1 for each in answers)
    at_once = sum(each.pieces_at_once - 1 for each in answers)
    if not gaps or at_once > gaps * MAX_AT_ONCE:
        share = 100.0 * at_once / gaps if gaps else 100.0
        raise client.failure(
            endpoint.path,
            f"sends {share:.0f} % of an answer's later tokens with its first: does a proxy collect the stream? Give "
            "the server's own address, or a longer --output-len",
        )


def _max_bytes(output_tokens: int) -> int:
    """Bytes of a streamed answer."""
    return MIB + MAX_LENGTH * output_tokens * MAX_EVENT_BYTES


def _typed(client: Client, path: str, text: str, kind: type[T], where: str, line: int | None = None) -> T:
    has_prose = kind is _Event
    try:
        return convert(parse_json(text, f"{where}JSON", line, has_prose=has_prose), kind, f"{where}JSON")
    except ValueError as error:
        raise client.failure(path, f"answers what no OpenAI-compatible server does: {error}") from None


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
        _refuse_collected(client, endpoint, answered)


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
