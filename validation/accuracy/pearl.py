"""`pipelined` with a draft GPU of its own against published runs of PEARL, per node and per GPU.

Read is smart-lty/nano-PEARL's table of batches with and without PEARL (docs/bench_summary*.md, columns as in
`Row`). Acceptance of a cell is its mean accepted run m: a token is accepted with probability m / (m + 1). What the
table does not say, the window and how much longer a step with PEARL takes than one without, is fitted for each pair and
batch on two data sets (FITTED); the other two are judged. PEARL takes one GPU more than its reference. Not here: the
section of docs/accuracy.md (validation.accuracy.drafting).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import NamedTuple

import msgspec

from sim.costs.compact_kernels import LinearKernels, LinearPass
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from validation.tables import csv_rows, grouped, off_pct

FITTED = ("AIME", "CNNDM")
WINDOWS = range(2, 25)
GPUS = {"H200": (2, 3), "L40S": (4, 5)}
"""GPUs of the reference and of PEARL, by kind: targets on 2 and 4, the draft on one more."""
LIKE = "a100-pdverify/codellama-34b+tinyllama-1.1b"
"""Whose models and GPU stand in: only the two pass times matter here."""
OUTPUT_TOKENS = 2000
"""Long, since PEARL runs a fixed number of steps with its batch full."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A cell of the table."""

    gpu: str
    draft_model: str
    target_model: str
    batch_size: int
    dataset: str
    ar_tok_per_s: float
    pearl_tok_per_s: float
    pearl_mean_accepted_tokens_MAT: float  # noqa: N815 - the file's own name

    @property
    def speedup(self) -> float:
        return self.pearl_tok_per_s / self.ar_tok_per_s

    @property
    def rate(self) -> float:
        """Probability that a drafted token is accepted."""
        return self.pearl_mean_accepted_tokens_MAT / (1.0 + self.pearl_mean_accepted_tokens_MAT)


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What was fitted of one pair at one batch size."""

    window: int
    slowdown: float
    """A step with PEARL over one without."""


def tokens_per_step(rate: float, window: int) -> float:
    """Tokens that a row gets per step of the policy: with a window 1 + rate + ... + rate^(window - 1), without one
    1."""
    share = rate / (1.0 + rate - rate**window)
    return (1.0 - share) + share * (1.0 - rate**window) / (1.0 - rate)


def fit(rows: Sequence[Row]) -> Fit:
    """The window and slowdown that miss the fitted cells least, in logarithms."""

    def of(window: int) -> tuple[float, Fit]:
        ratios = [log(tokens_per_step(row.rate, window) / row.speedup) for row in rows]
        mean = sum(ratios) / len(ratios)
        return sum(abs(ratio - mean) for ratio in ratios), Fit(window=window, slowdown=exp(mean))

    return min((of(window) for window in WINDOWS), key=lambda found: found[0])[1]


def simulated_speedup(row: Row, fitted: Fit) -> float:
    """Tokens per second of `pipelined` over those of plain decoding at the measured step."""
    step_s = row.batch_size / row.ar_tok_per_s
    profile = _profile(step_s * fitted.slowdown, step_s * fitted.slowdown / fitted.window)
    scenario = Scenario.of(
        profile=LIKE,
        policy="pipelined",
        num_speculative_tokens=fitted.window,
        acceptance=f"iid:{row.rate:.4f}",
        input_len=1,
        output_len=OUTPUT_TOKENS,
        num_prompts=max(8, row.batch_size),
        request_rate="inf",
        max_concurrency=row.batch_size,
        **{"policy_options.draft_devices": 1, "policy_options.poll_s": 0.0},
    )
    record = simulate(resolve(scenario, profile, "pipelined"), 0, record_works=True)
    checks = [work for work in record.works if work.kind == "verify"]
    tokens_per_row = sum(request.emitted_tokens - 1 for request in record.requests) / sum(work.rows for work in checks)
    mean_step_s = (checks[-1].end_s - checks[0].start_s) / len(checks)
    return row.batch_size * tokens_per_row / mean_step_s / row.ar_tok_per_s


def _profile(verify_s: float, draft_pass_s: float) -> Profile:
    like = load(LIKE)
    kernels = msgspec.structs.replace(
        like.linear, target=LinearPass(pass_s=verify_s), draft=LinearPass(pass_s=draft_pass_s)
    )
    assert isinstance(kernels, LinearKernels)
    return msgspec.structs.replace(like, kernels=kernels)


def read(path: Path) -> list[Row]:
    return [msgspec.convert(row, Row, strict=False) for row in csv_rows(path)]


class Judged(NamedTuple):
    """A cell that did not fit, beside its simulation."""

    row: Row
    fitted: Fit
    speedup: float
    """Simulated."""

    @property
    def error_pct(self) -> float:
        return off_pct(self.speedup, self.row.speedup)

    @property
    def per_gpu(self) -> float:
        """What a speed-up is worth when PEARL's further GPU is counted."""
        reference, own = GPUS[self.row.gpu]
        return reference / own

    @property
    def has_right_sign(self) -> bool:
        """Better or worse than plain decoding per GPU, as measured."""
        return (self.speedup * self.per_gpu > 1.0) == (self.row.speedup * self.per_gpu > 1.0)


def judge(rows: Sequence[Row]) -> Iterator[Judged]:
    """Every cell that is not of the data sets that fit, pair by pair and batch by batch."""
    for own in grouped(rows, lambda row: (row.gpu, row.draft_model, row.target_model, row.batch_size)).values():
        fitted = fit([row for row in own if row.dataset in FITTED])
        for row in own:
            if row.dataset not in FITTED:
                yield Judged(row, fitted, simulated_speedup(row, fitted))
