# ruff: noqa: E402
"""At temperature 1 the joint distribution of output tokens is the target's own: a chi-square test with stated power.

Thousands of requests with one prompt run through the batched loop; the first three tokens of each fall into
VOCAB ** 3 cells whose probabilities the library's forward pass gives. False alarm ALPHA. Each mutant of the sampling
rules is first enumerated exactly, which gives the power of the test against it; then it is run and must fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
stats = pytest.importorskip("scipy.stats")

from realrun.kernels.pair_kernels import PairKernels, PromptChunk
from realrun.kernels.pair_options import PairOptions
from realrun.model import sampling, weights
from realrun.model.weights import random_model
from sim.interface.work import Model
from tests.realrun.support import tiny_options, tiny_shape

VOCAB = 4
JOINT_TOKENS = 3
DRAFT_TOKENS = 2
NUM_REQUESTS = 6000
BATCH = 500
PROMPT = (1, 3, 0, 2, 2)
ALPHA = 1e-4
SEED = 11

pytestmark = pytest.mark.slow


@cache
def models() -> tuple[Any, Any]:
    """Two unrelated models with soft distributions: about a third of the drafted tokens are rejected."""
    shapes = tiny_shape(layers=2, vocab=VOCAB), tiny_shape(layers=1, vocab=VOCAB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "LOGIT_STD", 0.7)
        target, draft = (
            random_model(shape, dtype=torch.float64, seed=seed) for shape, seed in zip(shapes, (3, 4), strict=True)
        )
    return target, draft


@cache
def next_tokens(model_index: int, text: tuple[int, ...]) -> list[float]:
    logits = models()[model_index](torch.tensor([PROMPT + text]), use_cache=False).logits[0, -1]
    return torch.softmax(logits, -1).tolist()


def target_joint() -> list[float]:
    cells = []
    for text in product(range(VOCAB), repeat=JOINT_TOKENS):
        probability = 1.0
        for position, token in enumerate(text):
            probability *= next_tokens(0, text[:position])[token]
        cells.append(probability)
    return cells


def mutant_joint(weights_of: Callable[..., list[float]], accept_shift: int = 0) -> list[float]:
    """Exact distribution of the first tokens under given rules.

    `weights_of(p, q, accepted)` are the weights of the token after `accepted` drafted ones, from the target's
    distributions p [DRAFT_TOKENS + 1] and the draft's q [DRAFT_TOKENS] along the draft; `accept_shift` moves the
    position whose p the acceptance test looks at.
    """
    cells = dict.fromkeys(product(range(VOCAB), repeat=JOINT_TOKENS), 0.0)

    def run(text: tuple[int, ...], probability: float) -> None:
        if len(text) >= JOINT_TOKENS:
            cells[text[:JOINT_TOKENS]] += probability
            return
        for drafted in product(range(VOCAB), repeat=DRAFT_TOKENS):
            p = [next_tokens(0, text + drafted[:depth]) for depth in range(DRAFT_TOKENS + 1)]
            q = [next_tokens(1, text + drafted[:depth]) for depth in range(DRAFT_TOKENS)]
            reached = probability
            for depth, token in enumerate(drafted):
                reached *= q[depth][token]
            for accepted in range(DRAFT_TOKENS + 1):
                stop = 1.0
                if accepted < DRAFT_TOKENS:
                    token = drafted[accepted]
                    passes = min(1.0, p[accepted + accept_shift][token] / q[accepted][token])
                    stop, reached = reached * (1 - passes), reached * passes
                else:
                    stop = reached
                weights = weights_of(p, q, accepted)
                for token, weight in enumerate(weights):
                    if stop * weight > 0:
                        run(text + drafted[:accepted] + (token,), stop * weight / sum(weights))

    for token, probability in enumerate(next_tokens(0, ())):
        run((token,), probability)
    return list(cells.values())


def positive_part(p: list[float], q: list[float]) -> list[float]:
    return [max(0.0, a - b) for a, b in zip(p, q, strict=True)]


def lawful(p: list[list[float]], q: list[list[float]], accepted: int) -> list[float]:
    return positive_part(p[accepted], q[accepted]) if accepted < DRAFT_TOKENS else p[accepted]


def without_residual(p: list[list[float]], q: list[list[float]], accepted: int) -> list[float]:
    return p[accepted]


def one_position_early(p: list[list[float]], q: list[list[float]], accepted: int) -> list[float]:
    early = max(accepted - 1, 0)
    return positive_part(p[early], q[accepted]) if accepted < DRAFT_TOKENS else p[early]


def run_without_residual(target: Any, draft: Any, accepted: Any, draft_lengths: Any) -> Any:
    return target[torch.arange(len(target)), accepted]


RESIDUAL = sampling.residual
ACCEPT = sampling.accept_sampled


def run_one_position_early(target: Any, draft: Any, accepted: Any, draft_lengths: Any) -> Any:
    early = torch.cat((target[:, :1], target[:, :-1]), dim=1)
    return RESIDUAL(early, draft, accepted, draft_lengths)


def run_accept_one_late(target: Any, draft: Any, drafted: Any, draft_lengths: Any, draws: Any) -> Any:
    late = torch.cat((target[:, 1:], target[:, -1:]), dim=1)
    return ACCEPT(late, draft, drafted, draft_lengths, draws)


MUTANTS: dict[str, tuple[str, Any, Callable[[], list[float]]]] = {
    "missing residual": ("residual", run_without_residual, lambda: mutant_joint(without_residual)),
    "token taken one position early": ("residual", run_one_position_early, lambda: mutant_joint(one_position_early)),
    "acceptance one position late": ("accept_sampled", run_accept_one_late, lambda: mutant_joint(lawful, 1)),
}


def power(mutant: list[float]) -> float:
    """Chance that the test notices this distribution: noncentral chi-square, lambda = n sum (m - p)^2 / p."""
    cells = len(mutant)
    distance = sum((m - p) ** 2 / p for m, p in zip(mutant, target_joint(), strict=True))
    threshold = stats.chi2.isf(ALPHA, cells - 1)
    return float(stats.ncx2.sf(threshold, cells - 1, NUM_REQUESTS * distance))


def p_value_of_a_run(draft_lengths: tuple[int, ...] = (DRAFT_TOKENS,)) -> float:
    """Run all requests and compare the counts of their first tokens with the target's joint distribution."""
    options: PairOptions = tiny_options(slots=BATCH, max_tokens=16, temperature=1.0, seed=SEED)
    kernels = PairKernels(*models(), options)
    issuer = kernels.issuer("all")
    counts = dict.fromkeys(product(range(VOCAB), repeat=JOINT_TOKENS), 0)
    for first in range(0, NUM_REQUESTS, BATCH):
        slots = [kernels.admit(PROMPT, first + number) for number in range(BATCH)]
        for model in (Model.TARGET, Model.DRAFT):
            kernels.prefill([PromptChunk(slot, len(PROMPT)) for slot in slots], issuer, model=model).result()
        while live := [slot for slot in slots if len(slot.output) < JOINT_TOKENS]:
            for number, draft_tokens in enumerate(draft_lengths):
                part = live[number :: len(draft_lengths)]
                if part and draft_tokens:
                    kernels.draft(part, draft_tokens, issuer)
            kernels.verify(live, issuer).result()
        for slot in slots:
            counts[tuple(slot.output[:JOINT_TOKENS])] += 1
            kernels.release(slot)
    expected = [probability * NUM_REQUESTS for probability in target_joint()]
    assert min(expected) >= 5
    statistic = sum((count - mean) ** 2 / mean for count, mean in zip(counts.values(), expected, strict=True))
    return float(stats.chi2.sf(statistic, len(expected) - 1))


@pytest.mark.parametrize("draft_lengths", [(DRAFT_TOKENS,), (3, 0, 1)], ids=str)
def test_sampled_output_has_the_targets_joint_distribution(draft_lengths: tuple[int, ...]) -> None:
    assert p_value_of_a_run(draft_lengths) > ALPHA


def test_lawful_rules_enumerate_to_the_target_exactly() -> None:
    assert mutant_joint(lawful) == pytest.approx(target_joint(), abs=1e-12)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_sampler_fails_the_test_that_has_power_against_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, mutant, joint = MUTANTS[name]
    assert power(joint()) > 0.999
    monkeypatch.setattr(sampling, function, mutant)
    assert p_value_of_a_run() < ALPHA


def test_a_requests_tokens_do_not_depend_on_the_batch_it_shares() -> None:
    """Keyed uniforms: alone or among others, with other slots and other draft partners, the text is the same."""

    def texts(batch: int) -> list[list[int]]:
        kernels = PairKernels(*models(), tiny_options(temperature=1.0, seed=SEED))
        issuer = kernels.issuer("all")
        out = []
        for first in range(0, 6, batch):
            slots = [kernels.admit(PROMPT, first + number) for number in range(batch)]
            for model in (Model.TARGET, Model.DRAFT):
                kernels.prefill([PromptChunk(slot, len(PROMPT)) for slot in slots], issuer, model=model).result()
            while live := [slot for slot in slots if len(slot.output) < 12]:
                kernels.draft(live, 3, issuer)
                kernels.verify(live, issuer).result()
            out += [slot.output[:12] for slot in slots]
            for slot in slots:
                kernels.release(slot)
        return out

    assert texts(1) == texts(3) == texts(6)
