"""Blocks of 16 tokens: what is free, who gets a block and which one, and what is found again.

Not here: what a preempted request finds of itself, which is vLLM's own (tests/validation/test_conformance.py).
"""

from __future__ import annotations

import pytest

from sim.engine.paged import PagedPool
from sim.engine.serving import Serving
from sim.hosts.scripted import ScriptHost
from sim.interface.request import Request
from sim.interface.work import Chunk
from tests.sim.support import NotedController, request


class Engine:
    """Requests with prompts of `prompts` tokens, seated one after the other as told."""

    def __init__(self, *prompts: int, num_blocks: int, is_caching: bool = True, kept_blocks: int = 0) -> None:
        self.requests = [request(index, prompt=prompt, output=99) for index, prompt in enumerate(prompts)]
        self.pool = PagedPool(num_blocks, 16, 5, is_caching=is_caching, kept_blocks=kept_blocks)
        host = ScriptHost(lambda work: 0.0)
        self.serving = Serving(host, self.requests, self.pool, NotedController(0, 0))
        host.spawn(self.serving.arrivals())
        host.run_until()

    def seat(self, max_tokens: int = 1000) -> Chunk | None:
        """The first chunk of who waits first, or None where there is no room."""
        seated = self.serving.seat_now(max_tokens)
        return seated[1] if seated else None

    def prefill(self) -> Request:
        """Seat and prefill who waits first."""
        first = self.serving.inbox[0]
        chunk = self.seat()
        assert chunk is not None
        self.serving.commit_chunk(first, chunk.new_tokens)
        return first

    @property
    def blocks(self) -> tuple[int, int]:
        """(free, held)."""
        return self.pool.num_free, self.pool.num_held


def test_a_seat_takes_blocks_for_its_chunk_the_last_of_them_in_part() -> None:
    engine = Engine(100, num_blocks=10)
    assert engine.seat(20) == Chunk(20, 0)
    assert engine.blocks == (8, 2)


@pytest.mark.parametrize(("prompt", "fits"), [(48, True), (49, False)])
def test_a_request_is_seated_where_all_its_tokens_fit_to_the_last_block(prompt: int, fits: bool) -> None:
    engine = Engine(prompt, num_blocks=3)
    assert (engine.seat(16) is not None) is fits
    assert engine.blocks == ((2, 1) if fits else (3, 0))


def test_a_table_grows_by_what_it_lacks_or_not_at_all() -> None:
    engine = Engine(20, num_blocks=5)
    first = engine.prefill()
    assert engine.pool.grow(first, 32)
    assert engine.blocks == (3, 2)
    assert engine.pool.grow(first, 33)
    assert engine.blocks == (2, 3)
    assert not engine.pool.grow(first, 81)
    assert engine.blocks == (2, 3)
    assert engine.pool.grow(first, 80)
    assert engine.blocks == (0, 5)


def test_a_finished_request_gives_its_blocks_back() -> None:
    engine = Engine(40, num_blocks=5)
    engine.serving.emit(engine.prefill(), 99)
    assert engine.blocks == (5, 0)


@pytest.mark.parametrize(("num_blocks", "fits"), [(5, False), (6, True)])
def test_what_a_sequence_keeps_beside_its_tokens_is_taken_with_its_seat_and_comes_back_with_it(
    num_blocks: int, fits: bool
) -> None:
    engine = Engine(40, 20, num_blocks=num_blocks, kept_blocks=3)
    assert (engine.seat() is not None) is fits
    assert engine.blocks == ((0, 6) if fits else (5, 0))
    first = engine.requests[0]
    assert engine.pool.blocks_for(first) == 9 + 3
    if fits:
        engine.serving.commit_chunk(first, 40)
        engine.serving.preempt(first)
        assert engine.blocks == (6, 0)
        assert engine.seat() == Chunk(9, 32)
        engine.serving.emit(first, 99)
        assert engine.blocks == (6, 0)


def test_blocks_that_were_found_are_held_and_not_free() -> None:
    """Two of the three blocks are whole: they come back with the first chunk."""
    engine = Engine(40, num_blocks=5)
    engine.serving.preempt(engine.prefill())
    assert engine.blocks == (5, 0)
    assert engine.seat() == Chunk(9, 32)
    assert engine.blocks == (2, 3)


def test_nothing_is_found_without_caching_or_of_another() -> None:
    alone = Engine(40, num_blocks=5, is_caching=False)
    alone.serving.preempt(alone.prefill())
    assert alone.seat() == Chunk(41, 0)
    two = Engine(48, 48, num_blocks=9)
    two.serving.preempt(two.prefill())
    two.serving.inbox.rotate(-1)
    assert two.seat() == Chunk(48, 0)


def test_the_last_token_is_computed_again_though_its_block_is_intact() -> None:
    """Two whole blocks, the chunk that fills them under way, and no output yet: the logits are still to come."""
    engine = Engine(32, num_blocks=5)
    engine.seat()
    first = engine.requests[0]
    first.in_flight = 32
    engine.serving.preempt(first)
    assert engine.seat() == Chunk(16, 16)


def test_of_two_blocks_with_the_same_content_the_newer_is_found() -> None:
    """As above: the second block is computed again into the third of five. The old copy goes to request 1, which leaves
    the new one, and request 2's block, for request 0."""
    engine = Engine(32, 16, 16, num_blocks=5)
    engine.seat()
    first = engine.requests[0]
    first.in_flight = 32
    engine.serving.preempt(first)
    first.in_flight = 0
    assert engine.seat() == Chunk(16, 16)
    engine.serving.commit_chunk(first, 16)
    second, third = engine.prefill(), engine.prefill()
    assert engine.blocks == (1, 4)
    engine.serving.preempt(first)
    engine.pool.grow(second, 32)
    engine.serving.emit(third, 99)
    assert engine.seat() == Chunk(1, 32)
    assert engine.blocks == (0, 5)


@pytest.mark.parametrize(("ends_differ", "found"), [(True, 16), (False, 32)])
def test_a_block_whose_key_has_the_token_behind_it_is_found_where_that_is_common(ends_differ: bool, found: int) -> None:
    """Two blocks in common: what follows the second one differs, or the prompts part later."""
    asked = [request(index, prompt=40, output=9) for index in range(2)]
    for each in asked:
        each.content = (5, 6)
    pool = PagedPool(10, 16, 0, hashes_next_token=True, ends_differ=ends_differ)
    pool.expect(asked)
    assert [pool.seat(each, 40) for each in asked] == [Chunk(40, 0), Chunk(40 - found, found)]
