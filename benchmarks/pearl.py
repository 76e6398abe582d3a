"""`pipelined` with a draft GPU of its own against published runs of PEARL, per node and per GPU.

    .venv/bin/python -m benchmarks.pearl BENCH.csv

BENCH.csv is smart-lty/nano-PEARL's table of batches with and without PEARL (docs/bench_summary*.md, columns as in
`Row`). Acceptance of a cell is its mean accepted run m: a token is accepted with probability m / (m + 1). What the
table does not say, the window and how much longer a step with PEARL takes than one without, is fitted for each pair and
batch on two data sets (FITTED); the other two are judged. PEARL takes one GPU more than its reference.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from math import exp, log
from pathlib import Path

import msgspec

from sim.costs.kernels import LinearKernels, LinearPass
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.experiment.run import simulate
from sim.experiment.scenario import Scenario

FITTED = ("AIME", "CNNDM")
WINDOWS = range(2, 25)
GPUS = {"H200": (2, 3), "L40S": (4, 5)}
"""Of the reference and of PEARL, by GPU: targets on 2 and 4, the draft on one more."""
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
    """Of one pair at one batch size."""

    window: int
    slowdown: float
    """A step with PEARL over one without."""


def tokens_per_step(rate: float, window: int) -> float:
    """Of the policy: with a window a row gets 1 + rate + ... + rate^(window - 1) tokens, without one 1."""
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
    record = simulate(scenario, "pipelined", 0, profile, record_works=True)
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
    with path.open() as lines:
        return [msgspec.convert(row, Row, strict=False) for row in csv.DictReader(lines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    rows = read(parser.parse_args().table)
    errors: dict[str, list[float]] = {}
    signs: list[bool] = []
    for gpu, draft, target, batch in dict.fromkeys((r.gpu, r.draft_model, r.target_model, r.batch_size) for r in rows):
        own = [r for r in rows if (r.gpu, r.draft_model, r.target_model, r.batch_size) == (gpu, draft, target, batch)]
        fitted = fit([row for row in own if row.dataset in FITTED])
        cells = []
        for row in own:
            if row.dataset in FITTED:
                continue
            found = simulated_speedup(row, fitted)
            per_gpu = GPUS[gpu][0] / GPUS[gpu][1]
            errors.setdefault(gpu, []).append(100.0 * (found / row.speedup - 1.0))
            signs.append((found * per_gpu > 1.0) == (row.speedup * per_gpu > 1.0))
            cells.append(f"{row.dataset} {row.speedup:.2f}x, simulated {found:.2f}x (per GPU {found * per_gpu:.2f}x)")
        names = f"{draft.split('/')[-1]} > {target.split('/')[-1]}"
        print(f"{gpu} {names} batch {batch}: window {fitted.window}, {'; '.join(cells)}")
    for gpu, own_errors in errors.items():
        mean = sum(map(abs, own_errors)) / len(own_errors)
        worst = max(own_errors, key=abs)
        print(f"{gpu}: {len(own_errors)} judged cells, mean size of error {mean:.1f} %, worst {worst:+.1f} %")
    print(f"better or worse than plain decoding per GPU: right in {sum(signs)} of {len(signs)}")


if __name__ == "__main__":
    main()
