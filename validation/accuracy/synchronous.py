"""H100s under synchronous vLLM: 0.12 with Qwen3-32B on two, four and eight of them, and the engine of 2025 with and
without EAGLE-3.

Not here: TensorRT-LLM on the same GPU (validation.accuracy.closed_loops), the matrix (validation.accuracy.matrix).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from calibrate.catalogue.derived_profiles import all_reduce_of
from calibrate.judge.cell import Cell, JudgedCell
from calibrate.judge.cell_table import cells_of
from calibrate.judge.cells import Setup, judge_cells, simulate_cell
from sim.costs.engine_costs import engine_of, load_engine, with_engine
from sim.costs.forms.build import build_costs
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.policies.options import EngineLimits, Method
from sim.run.forecast import StepForecast
from validation.accuracy.closed_loops import cells_table, error_lines, judged_errors
from validation.accuracy.matrix import rows_of_cells
from validation.accuracy.sections import Line, Row, Section, number, percent, profile_text
from validation.tables import csv_rows, markdown_table, off_pct

CELLS = "aiconfigurator"
CELLS_GLOB = "silicon_*.csv"
"""Every table of that name in the folder is read, so that cells that were held back are judged where they are."""
REVISION = "095f58a51c4c"
QWEN_PROFILE = "h100-sxm/qwen3-32b-tp2"
QWEN_SETUP = Setup(engine={"max_num_seqs": 1024, "max_num_batched_tokens": 8192}, waves=5)
QWEN_DEGREES = (2, 4, 8)
QWEN_BAR_PCT = 5.0
TP2_BLOCKS = 18433
"""Blocks that vLLM logs on two devices; on more devices as many as fit."""
OUTPUT_SPREAD = 0.05
"""Standard deviation of outputs over their mean, so that the loop does not march in step."""

ISSUE_PROFILE, ISSUE_ENGINE = "h100-sxm/llama-3.1-8b+eagle3", "vllm-0.9"
ISSUE_INPUT_LEN, ISSUE_OUTPUT_LEN = 128, 256
"""Assumed: the issue does not say; at batch 1 a hundred tokens of context are 0.05 ms."""
ISSUE_VANILLA_MS, ISSUE_K2_MS, ISSUE_K2_LENGTH = 7.07, 4.32, 2.36
ISSUE_DRAWS = 200
"""Requests with draws, one after the other."""

LINE = "unlicensed_local_only/specdecode_bench/h100_llama31_8b_step_cost_fit.json"
LINE_ROWS = (1, 8, 16, 32, 64)
LINE_CONTEXT_TOKENS = 512
LINE_QUERIES = (1, 5)


def qwen_section(data: Path) -> Section:
    """Qwen3-32B on two H100s: the ten cells that its profile names fitted it, the others judge; on four and eight,
    where the folder has cells of them, all judge."""
    found = qwen_cells(data / CELLS)
    if not found:
        raise ValueError(f"{CELLS}/{CELLS_GLOB}: no cell of Qwen3-32B on H100s under vLLM 0.12 in bf16")
    lines: list[Line] = []
    rows: list[Row] = []
    tails: list[str] = []
    about = [
        f"ai-dynamo/aiconfigurator@{REVISION} (Apache-2.0), silicon_sample.csv: vLLM 0.12.0, bf16, closed loops; "
        f"outputs spread by {100 * OUTPUT_SPREAD:g} % here, so that the loop does not march in step; TTFT there "
        "carries the admission of the load generator and is not judged",
        profile_text(load(QWEN_PROFILE)),
        f"fitted: {load(QWEN_PROFILE).host.source.partition('; step_s = ')[2]}; on four and eight devices the same "
        "constants, with the all-reduce of the tables",
    ]
    for degree in QWEN_DEGREES:
        cells = found.get(degree, [])
        if not cells:
            about.append(f"on {degree} H100s: no cells in this folder; judged by the same command where they are")
            continue
        profile = load(QWEN_PROFILE) if degree == 2 else qwen_profile(degree)
        judged = judge_qwen(cells, profile)
        errors = judged_errors(judged, "tpot_ms")
        lines += error_lines(f"TPOT on {degree} H100s, {len(errors)} cells", errors, QWEN_BAR_PCT)
        rows += rows_of_cells(judged, gpu="H100", engine="vllm-0.12", model=f"qwen3-32b-tp{degree}", method="none")
        tails.append(cells_table(judged, {"tpot_ms": f"TPOT on {degree} (ms)", "ttft_ms": "TTFT (ms)"}))
    return Section(title="H100, Qwen3-32B, vLLM 0.12", about=about, lines=lines, tail="\n".join(tails), rows=rows)


def qwen_cells(folder: Path) -> dict[int, list[dict[str, str]]]:
    """The rows of Qwen3-32B on H100s under vLLM 0.12 in bf16, each id once, by number of devices."""
    found: dict[int, dict[str, dict[str, str]]] = {}
    for path in sorted(folder.glob(CELLS_GLOB)):
        for row in csv_rows(path):
            if row.get("backend") != "vllm" or not row.get("backend_version", "").startswith("0.12"):
                continue
            is_bf16 = row["precision"] in ("", "bf16") and row["gemm_quant_mode"] in ("", "bf16")
            if row["system"] == "h100_sxm" and row["model_path"].endswith("Qwen3-32B") and is_bf16:
                found.setdefault(int(float(row["tp_size"])), {})[row["id"]] = row
    return {degree: list(rows.values()) for degree, rows in found.items()}


def qwen_profile(degree: int) -> Profile:
    """The profile of two devices for `degree` of them: its constants, with the all-reduce of so many."""
    like = load(QWEN_PROFILE)
    kernels = msgspec.structs.replace(like.compact, all_reduce=all_reduce_of(like.gpu.name, degree))
    name = like.name.replace("-tp2", f"-tp{degree}")
    return msgspec.structs.replace(like, name=name, tensor_parallel=degree, kernels=kernels)


def judge_qwen(cells: Sequence[Mapping[str, str]], profile: Profile) -> list[JudgedCell]:
    rows = [
        {
            "id": row["id"],
            "concurrency": row["batch_size"],
            "input_len": row["isl"],
            "output_len": row["osl"],
            "output_len_std": OUTPUT_SPREAD * float(row["osl"]),
            "num_gpu_blocks": TP2_BLOCKS if profile.tensor_parallel == 2 else "",
            "tpot_ms": row["silicon_tpot_ms"],
            "ttft_ms": row["silicon_ttft_ms"],
        }
        for row in cells
    ]
    table = cells_of("qwen.csv", rows)
    names = profile.host.source.replace(",", " ").split()
    is_fit = [cell.texts["id"] in names for cell in table.cells]
    return judge_cells(table, is_fit, profile, QWEN_SETUP)


def mid_2025_section(data: Path) -> Section:
    """vLLM of mid-2025 at batch 1 (vllm#20780), which its constants are fitted on, and the line that SpecDecode-Bench
    fitted in its own engine of 2025, which judges them."""
    profile = load(ISSUE_PROFILE)
    served = with_engine(profile, load_engine(ISSUE_ENGINE, profile.gpu.name))
    vanilla, k2 = (issue_tpot_ms(served, draft_tokens) for draft_tokens in (0, 2))
    lines = [
        Line.beside("vllm#20780: TPOT, no drafts (ms)", ISSUE_VANILLA_MS, vanilla, is_fit=True),
        Line.beside("vllm#20780: TPOT, EAGLE-3 at k = 2 (ms)", ISSUE_K2_MS, k2, is_fit=True),
        Line.beside("vllm#20780: speed-up at k = 2", ISSUE_VANILLA_MS / ISSUE_K2_MS, vanilla / k2, is_fit=True),
    ]
    here: dict[str, Any] = {"gpu": "H100", "engine": ISSUE_ENGINE, "model": "llama-3.1-8b", "workload": "vllm#20780"}
    rows = [
        Row(**here, is_fit=True, errors_pct={"TPOT": lines[0].error_pct}),
        Row(
            **here,
            method="eagle3",
            k=2,
            is_fit=True,
            errors_pct={"TPOT": lines[1].error_pct, "speed-up": lines[2].error_pct},
            speedup=(ISSUE_VANILLA_MS / ISSUE_K2_MS, vanilla / k2),
        ),
    ]
    table = []
    judged = []
    for queries in LINE_QUERIES:
        for num_rows in LINE_ROWS:
            real_ms, simulated_ms = line_step_ms(data / LINE, profile, num_rows, queries)
            error_pct = off_pct(simulated_ms, real_ms)
            judged.append(error_pct)
            what = "decode" if queries == 1 else f"verify, {queries} tokens a row"
            table.append([what, str(num_rows), number(real_ms), number(simulated_ms), percent(error_pct)])
            rows.append(
                Row(
                    **here | {"workload": f"SpecDecode-Bench's line: a step's {what}"},
                    k=queries - 1,
                    concurrency=str(num_rows),
                    errors_pct={"TPOT": error_pct},
                )
            )
    lines += error_lines(f"SpecDecode-Bench's line, {len(judged)} steps of the target", judged)
    about = [
        "vllm#20780: TPOT at batch 1 with an EAGLE-3 head, vLLM of mid-2025, H100 (figures quoted); prompts of "
        f"{ISSUE_INPUT_LEN} tokens assumed. Fitted: step_s on the TPOT without drafts, draft_phase_s on the speed-up "
        f"at k = 2, where {ISSUE_K2_LENGTH} tokens a step were accepted; draft_pass_s is the published cost of a "
        "further drafted token. k = 3 to 7 are judged by others and are not shown here",
        "SpecDecode-Bench/simulator@2fdccbd61b62 (no licence; figures quoted), predictor.py: seconds of a step of the "
        "target by tokens and KV, fitted in vLLM of 2025 on the same GPU and model, its overhead of 1.207 ms per step "
        "included; nothing of it is fitted here. Its line of the draft does not say how many tokens a draft has, and "
        "is left out",
        profile_text(served),
    ]
    tail = markdown_table(["step of the target", "rows", "their line (ms)", "lanesim (ms)", "error"], table)
    return Section(title="H100, Llama-3.1-8B, vLLM of mid-2025", about=about, lines=lines, tail=tail, rows=rows)


def issue_tpot_ms(profile: Profile, draft_tokens: int) -> float:
    """Mean TPOT at batch 1 without drafts, or with two drafted tokens of the measured acceptance length."""
    found: float = simulate_cell(_issue_cell(draft_tokens), profile, Setup(engine={}, method="eagle3"))["mean_tpot_ms"]
    return found


def _issue_cell(draft_tokens: int) -> Cell:
    return Cell(
        line=0,
        concurrency=1,
        input_len=ISSUE_INPUT_LEN,
        output_len=ISSUE_OUTPUT_LEN,
        num_prompts=ISSUE_DRAWS if draft_tokens else 1,
        num_speculative_tokens=draft_tokens,
        acceptance=f"length:{ISSUE_K2_LENGTH}@2" if draft_tokens else None,
    )


def line_step_ms(path: Path, profile: Profile, rows: int, queries: int) -> tuple[float, float]:
    """A step of the target over `rows` rows of LINE_CONTEXT_TOKENS with `queries` tokens each: by the line in `path`,
    and as vLLM of mid-2025 takes it here."""
    line = json.loads(path.read_text())
    target = line["target"]
    kv_tokens = rows * LINE_CONTEXT_TOKENS
    real_s = target["fixed"] + target["per_batched_token"] * rows * queries + target["per_kv_token"] * kv_tokens
    real_s += line["host_overhead_per_step"]
    engine = engine_of(ISSUE_ENGINE, profile)
    limits = EngineLimits(method=Method.EAGLE3)
    steps = StepForecast(build_costs(profile, engine), limits, LINE_CONTEXT_TOKENS, has_draft=False)
    return 1e3 * real_s, 1e3 * steps.step_s(rows, queries - 1, (), drafted_anew=0)
