"""Drive an OpenAI-compatible endpoint oneself: closed loops of streamed requests, timed where the user would time them.

Every request asks for the same number of tokens from a prompt of its own, so that no prefix is shared. How many tokens
a prompt and an answer have is what the server says (`usage`), not what was asked for. Where there is a `/metrics`,
drafts and steps are read from it. Nothing but the endpoint's own address is ever called.
Not here: fitting (calibrate.production.fit), what a saved `/metrics` says (calibrate.production.metrics).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from calibrate.production.metrics import Growth, Sample, parse
from calibrate.production.served import Accepted, Served

if TYPE_CHECKING:
    from httpx import Client, Response

CONNECT_S, SILENT_S = 10.0, 300.0
"""Longest to connect, and without a byte from the server."""
WORDS = (
    *("river", "stone", "lamp", "window", "garden", "paper", "engine", "winter", "market", "silver", "thunder"),
    *("valley", "candle", "bridge", "cotton", "harbour", "ladder", "mirror", "needle", "orange", "pepper", "quarter"),
    *("ribbon", "saddle", "timber", "umbrella", "velvet", "whisper", "yellow", "anchor"),
)
MOST_FAILURES = 3
NOT_SO = (400, 404, 405, 422)
"""Answers to a path or a field that a server does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One request, in seconds of this machine's clock."""

    sent_s: float
    first_s: float
    last_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where requests go."""

    url: str
    """Up to and without /v1."""
    model: str
    is_chat: bool
    """Speaks /v1/chat/completions alone."""
    is_strict: bool = False
    """Refuses what OpenAI does not have, such as vLLM's `ignore_eos`: answers may end early then."""

    @property
    def path(self) -> str:
        return f"{self.url}/v1/chat/completions" if self.is_chat else f"{self.url}/v1/completions"

    def body(self, prompt: str, output_tokens: int) -> dict[str, Any]:
        """Greedy, streamed, of a fixed length where the server takes vLLM's `ignore_eos`."""
        asked: dict[str, Any] = {
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
    """`url` without /v1 and what follows. Raises ValueError for what is no http address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(
            f"{url!r}: want the address of a server, such as http://localhost:8000, or a file of --measured"
        )
    path = parts.path.rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path.removesuffix("/v1"), "", ""))


@contextmanager
def connected(url: str, most: int) -> Iterator[Client]:
    """A client for `most` streams at once; its failures are one line that names the server."""
    try:
        import httpx
    except ImportError:
        raise ValueError("lanesim probe needs the production extra: pip install 'lanesim[production]'") from None
    limits = httpx.Limits(max_connections=most + 2, max_keepalive_connections=most + 2)
    timeout = httpx.Timeout(SILENT_S, connect=CONNECT_S)
    try:
        # Proxies of the environment are for other addresses than the one to measure.
        with httpx.Client(timeout=timeout, limits=limits, trust_env=False) as client:
            yield client
    except httpx.HTTPError as error:
        raise ValueError(f"{url}: {' '.join(str(error).split()) or type(error).__name__}") from None


def find(client: Client, url: str, model: str | None) -> Endpoint:
    """The endpoint at `url`, by default of the one model that it serves. Raises ValueError."""
    if model is None:
        models = _json(client.get(f"{url}/v1/models"), url)
        names = [str(each.get("id")) for each in models.get("data", []) if isinstance(each, dict)]
        if len(names) != 1:
            served = f"serves {len(names)} models: {', '.join(names[:5])}" if names else "names no model"
            raise ValueError(f"{url} {served}; say which with --model")
        model = names[0]
    for is_chat, is_strict in product((False, True), repeat=2):
        endpoint = Endpoint(url=url, model=model, is_chat=is_chat, is_strict=is_strict)
        tried = client.post(endpoint.path, json=endpoint.body("river", 2))
        if tried.status_code == 200:
            return endpoint
        if tried.status_code not in NOT_SO:
            break
    raise ValueError(f"{endpoint.path} answers {tried.status_code}: {' '.join(tried.text.split())[:200]}")


def look(client: Client, url: str) -> dict[Sample, float] | None:
    """The server's `/metrics`; None where it has none of its own."""
    answer = client.get(f"{url}/metrics")
    if answer.status_code != 200:
        return None
    try:
        return parse(answer.text, f"{url}/metrics")
    except ValueError:
        return None


def level(
    client: Client,
    endpoint: Endpoint,
    *,
    concurrency: int,
    num_requests: int,
    input_words: int,
    output_tokens: int,
    seed: int = 0,
    on_done: Callable[[int], None] = lambda done: None,
) -> Served:
    """A closed loop of `concurrency` streams until `num_requests` are answered; means of those in its steady middle.

    Raises ValueError where the server fails more than MOST_FAILURES times.
    """
    before = look(client, endpoint.url)
    timed: list[Timed] = []
    failures: list[str] = []

    def one(number: int) -> None:
        draw = random.Random(f"{seed} {concurrency} {number}")
        prompt = " ".join(draw.choices(WORDS, k=input_words))
        try:
            timed.append(stream(client, endpoint, prompt, output_tokens))
        except ValueError as error:
            failures.append(str(error))
            if len(failures) > MOST_FAILURES:
                raise
        on_done(len(timed))

    with ThreadPoolExecutor(concurrency) as pool:
        try:
            for done in [pool.submit(one, number) for number in range(num_requests)]:
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)
    after = look(client, endpoint.url)
    steady = middle(timed, concurrency)
    if not steady:
        raise ValueError(
            f"{endpoint.path}: no answer had two tokens at {concurrency} at once: {'; '.join(failures[:1])}"
        )
    return Served(
        source=f"{concurrency} at once",
        concurrency=float(concurrency),
        prompt_tokens=sum(each.prompt_tokens for each in steady) / len(steady),
        output_tokens=sum(each.output_tokens for each in steady) / len(steady),
        ttft_s=sum(each.first_s - each.sent_s for each in steady) / len(steady),
        tpot_s=sum((each.last_s - each.first_s) / (each.output_tokens - 1) for each in steady) / len(steady),
        output_tokens_per_s=concurrency
        * sum(each.output_tokens for each in steady)
        / sum(each.last_s - each.sent_s for each in steady),
        accepted=_drafts(before, after, endpoint.url),
        num_requests=len(steady),
    )


def middle(timed: list[Timed], concurrency: int) -> list[Timed]:
    """Without the first of each stream, sent while the loop filled, and those that ended while it drained."""
    by_end = sorted((each for each in timed if each.output_tokens > 1), key=lambda each: each.last_s)
    last_sent_s = max((each.sent_s for each in by_end), default=0.0)
    first = sorted(by_end, key=lambda each: each.sent_s)[:concurrency]
    kept = [each for each in by_end if each not in first and each.last_s <= last_sent_s]
    return kept or [each for each in by_end if each not in first] or by_end


def stream(client: Client, endpoint: Endpoint, prompt: str, output_tokens: int) -> Timed:
    """Send one request and read its answer piece by piece. Raises ValueError for an answer that is none."""
    sent_s = time.perf_counter()
    first_s = last_s = 0.0
    pieces = 0
    usage: dict[str, Any] = {}
    with client.stream("POST", endpoint.path, json=endpoint.body(prompt, output_tokens)) as answer:
        if answer.status_code != 200:
            answer.read()
            raise ValueError(f"{endpoint.path} answers {answer.status_code}: {' '.join(answer.text.split())[:200]}")
        for line in answer.iter_lines():
            data = line.removeprefix("data:").strip()
            if not line.startswith("data:") or data == "[DONE]":
                continue
            event = _event(data, endpoint.path)
            usage = event.get("usage") or usage
            if any(_text(choice) for choice in event.get("choices") or ()):
                last_s = time.perf_counter()
                first_s = first_s or last_s
                pieces += 1
    if not pieces:
        raise ValueError(f"{endpoint.path}: an answer without a token")
    return Timed(
        sent_s=sent_s,
        first_s=first_s,
        last_s=last_s,
        prompt_tokens=int(usage.get("prompt_tokens") or len(prompt.split())),
        output_tokens=int(usage.get("completion_tokens") or pieces),
    )


def _text(choice: Any) -> str:
    if not isinstance(choice, dict):
        return ""
    return str(choice.get("text") or (choice.get("delta") or {}).get("content") or "")


def _event(data: str, where: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise ValueError(f"{where}: a stream of something else than JSON objects: {data[:60]!r}")
    if "error" in event:
        raise ValueError(f"{where}: {str(event['error'])[:200]}")
    return event


def _json(answer: Response, url: str) -> dict[str, Any]:
    found = None
    if answer.status_code == 200:
        try:
            found = answer.json()
        except ValueError:
            found = None
    if not isinstance(found, dict):
        raise ValueError(f"{url}: no OpenAI-compatible server: /v1/models answers {answer.status_code}")
    return found


def _drafts(before: dict[Sample, float] | None, after: dict[Sample, float] | None, url: str) -> Accepted | None:
    if before is None or after is None:
        return None
    return Growth(before, after, f"{url}/metrics").accepted
