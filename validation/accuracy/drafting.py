"""Drafting apart from any GPU's times: PEARL's published speed-ups, and the recorded rounds of DFlash and DSpark.

Not here: `pipelined` on PEARL's table (validation.accuracy.pearl), fits on SpecDecode-Bench's tapes
(validation.accuracy.acceptance).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from sim.acceptance.forms import parse_quoted
from validation.accuracy.closed_loops import error_lines
from validation.accuracy.pearl import FITTED, judge, read
from validation.accuracy.sections import Line, Row, Section, number, percent
from validation.tables import csv_rows, grouped, markdown_table, off_pct

PEARL = "nano_pearl/bench.csv"
TAPES = "dflash_tapes"
DRAFTERS = ("dflash", "dspark")
STAGES = {"s1": 1, "s1t0": 0}
"""Begin the files' names; temperature."""
BLOCK = 7
"""Tokens that both drafters propose in a round."""
LENGTHS = range(1, BLOCK)
SUMMARY = "summary.csv"
FRESH, LATE = "fresh", "self_kv"
LATE_SHARE = 0.6
"""What lanesim tells of heads whose features come a round late: about 0.6 of the acceptance length."""


def pearl_section(data: Path) -> Section:
    """Draft and target on GPUs of their own, beside the target alone."""
    judged = list(judge(read(data / PEARL)))
    lines: list[Line] = []
    for gpu, own in grouped(judged, lambda each: each.row.gpu).items():
        lines += error_lines(f"speed-up, {gpu}, {len(own)} cells", [each.error_pct for each in own])
    signs = sum(each.has_right_sign for each in judged)
    rows = [
        Row(
            gpu=each.row.gpu,
            engine="nano-pearl",
            model=each.row.target_model.rpartition("/")[2].lower(),
            method="pearl",
            k=each.fitted.window,
            workload=f"{each.row.dataset}, {each.row.draft_model.rpartition('/')[2].lower()}",
            concurrency=str(each.row.batch_size),
            together="window",
            errors_pct={"speed-up": each.error_pct},
        )
        for each in judged
    ]
    about = [
        "smart-lty/nano-PEARL@cacb75d (MIT by its pyproject), docs/bench_summary*.md: targets on two H200s or four "
        "L40S, the draft on one more, bf16, static batches; speed-ups are over the target alone on one GPU fewer",
        "policy `pipelined` with a draft device; fitted: window and slowdown of a step, which are not published, for "
        f"each pair and batch on {' and '.join(FITTED)}; the other two data sets judge; k of a cell is that window",
        f"better or worse than plain decoding per GPU, the draft's counted: right in {signs} of {len(judged)} cells",
    ]
    return Section(title="H200 and L40S, nano-PEARL", about=about, lines=lines, rows=rows)


def rounds_section(data: Path) -> Section:
    """Acceptance lengths of shorter drafts from a length that is quoted at 7, and of late features from fresh ones."""
    lines: list[Line] = []
    rows: list[Row] = []
    table: list[list[str]] = []
    errors: dict[str, list[float]] = {drafter: [] for drafter in DRAFTERS}
    for drafter in DRAFTERS:
        for stage, temperature in STAGES.items():
            accepted = read_rounds(data / TAPES / f"tape_{stage}_{drafter}_{FRESH}.csv")
            recorded = [length_at(accepted, k) for k in LENGTHS]
            quoted = parse_quoted(f"length:{length_at(accepted, BLOCK):.4f}@{BLOCK}")
            found = [quoted.model(k).expected_length(k) for k in LENGTHS]
            own = list(map(off_pct, found, recorded))
            errors[drafter] += own
            name = f"{drafter}, temperature {temperature}"
            table.append([name, "recorded", *map(number, recorded)])
            table.append([name, f"from the length at {BLOCK}", *map(percent, own)])
            rows += [
                Row(
                    gpu="–",
                    engine="recorded rounds",
                    model="qwen3-4b",
                    method=drafter,
                    k=k,
                    workload=f"gsm8k, humaneval, mt-bench at temperature {temperature}",
                    together=f"1..{BLOCK - 1}",
                    errors_pct={"acceptance length": error_pct},
                )
                for k, error_pct in zip(LENGTHS, own, strict=True)
            ]
    for drafter, own in errors.items():
        lines += error_lines(f"acceptance length at k = 1..{BLOCK - 1}, {drafter}, {len(own)} values", own)
    late = late_errors_pct(data / TAPES / SUMMARY)
    what = f"acceptance length with features a round late, as {LATE_SHARE:g} of the fresh one, {len(late)} values"
    lines += error_lines(what, late)
    about = [
        "Future-Outlier/speculative-decoding-benchmark@1b1e05b (MIT, (c) 2026 Future-Outlier): accepted tokens of "
        "every round of block-7 drafters on Qwen3-4B, 96 prompts, one A10; its times are of a Python loop and not used",
        f"fitted: one number, the acceptance length at {BLOCK}; shorter drafts are judged on the recorded rounds cut "
        "to k tokens. The share that late features leave is lanesim's rule for both drafters",
    ]
    headings = ["tape", "length", *(f"k={k}" for k in LENGTHS)]
    return Section(
        title="Rounds of DFlash and DSpark", about=about, lines=lines, tail=markdown_table(headings, table, left=2),
        rows=rows,
    )  # fmt: skip


def read_rounds(path: Path) -> list[int]:
    """Drafted tokens accepted in each round."""
    return [int(row["accepted_draft"]) for row in csv_rows(path)]


def length_at(accepted: Sequence[int], k: int) -> float:
    """Acceptance length, bonus included, of rounds cut to k drafted tokens.

    >>> length_at([0, 7, 3], 2)
    2.3333333333333335
    """
    return 1.0 + fmean(min(count, k) for count in accepted)


def late_errors_pct(path: Path) -> list[float]:
    """Errors of LATE_SHARE of the fresh acceptance length against the late one, percent, drafter by drafter and
    temperature."""
    rows = csv_rows(path)
    lengths = {(row["stage"], row["drafter"], row["treatment"]): float(row["tau_incl_bonus"]) for row in rows}
    return [
        off_pct(LATE_SHARE * lengths[stage, drafter, FRESH], lengths[stage, drafter, LATE])
        for drafter in DRAFTERS
        for stage in STAGES
    ]
