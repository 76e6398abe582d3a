"""Cells of each source: one function per form of file that others publish, by name in validation/sections.yaml.

Not here: simulating them (validation.judge.judges).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

import msgspec
import numpy as np

from calibrate.served.load import FITTED, JUDGED, ServedLoad
from calibrate.served.load_table import table_of
from calibrate.served.stamped_requests import read_requests
from sim.acceptance.models import MarkovAcceptance, RunLengths
from sim.acceptance.tape import TapeAcceptance, read_tapes
from sim.costs.datasheets import POWER
from sim.costs.profile_files import load
from sim.draws import Floats
from validation.judge.specs import RunSpec, path_of
from validation.tables import csv_rows, evaluated, grouped

Row = Mapping[str, str]
Rows = list[dict[str, Any]]

PROMPT_TOKENS = {"gsm8k": 717, "humaneval": 206, "rag_shared_prefix": 682}
"""Prompt tokens of the A100 study by its server logs: prompt and generation throughput at concurrency 1."""
STUDY_NUMBERS = [
    "conc", "nreq", "k", "tau", "tot_out", "goodput", "ttft_mean", "itl_mean", "itl_p50", "e2e_mean", "e2e_p50",
    "e2e_p95",
]  # fmt: skip
Z_95 = NormalDist().inv_cdf(0.95)
STEP_ROWS, STEP_QUERIES, STEP_CONTEXT = (1, 8, 16, 32, 64), (1, 5), 512
"""Steps that SpecDecode-Bench's line is judged at: rows, tokens a row, context of each row."""
BLOCK = 7
"""Tokens that DFlash and DSpark propose in a round."""
POWER_GPU, BROKEN = "a100-sxm", 0.5
"""GPU of Splitwise's settings, and the share of a shorter prompt's power below which one is left out."""
FIT_DRAFT_TOKENS = 7
"""Longest draft that a fit looks at."""
SLOWEST = 1e-3
"""Smallest switching chance tried: states of a thousand tokens; slower ones belong to a request."""
STARTS = (
    (0.95, 0.05, 0.02, 0.05, 0.999),
    (0.90, 0.50, 0.10, 0.10, 0.97),
    (0.80, 0.30, 0.30, 0.30, 0.95),
    (0.99, 0.50, 0.01, 0.02, 0.97),
)
"""Hit rate, miss rate, to_hit, share of to_miss, fade."""
OVERLAP_LOAD = ("table", "gpu", "model", "engine", "isl", "osl", "qps", "concurrency")
OVERLAP_METRICS = {
    "tpot_mean_ms": "tpot_ms", "ttft_p50_ms": "ttft_p50_ms", "ttft_mean_ms": "ttft_ms", "itl_p99_ms": "itl_p99_ms",
}  # fmt: skip
STAGES = {"s1": 1, "s1t0": 0}
"""Begin the names of their files; temperature."""


def cells_of_run(run: RunSpec, data: Path) -> list[ServedLoad]:
    """The cells of a run, with what its specification sets. Raises ValueError and OSError."""
    if run.reader in CELLS:
        cells = CELLS[run.reader](path_of(run.file, data), run)
        return [msgspec.structs.replace(cell, **run.set) for cell in cells]
    rows = run.cells if run.cells else ROWS[run.reader](path_of(run.file, data), run)
    cells = table_of(
        run.file or run.reader, [{**row, **run.set} for row in rows], has_requests=run.requests is not None
    ).cells
    fitted_ids = load(run.profile).host.source.replace(",", " ").split() if isinstance(run.profile, str) else ()
    predicted = {} if run.predicted is None else _predicted(path_of(run.predicted, data))
    if tree := next((cell.topk for cell in cells if cell.topk > 1), None):
        raise ValueError(f"topk={tree}: trees of drafts are not simulated. Give chains, topk=1")
    return [
        msgspec.structs.replace(
            cell,
            method=run.method if cell.num_speculative_tokens else "none",
            role=FITTED if cell.id and cell.id in fitted_ids else cell.role,
            output_len_std=run.output_spread * (cell.output_len or 0) or cell.output_len_std,
            predicted=predicted.get((cell.input_len, cell.output_len, cell.concurrency), {}),
        )
        for cell in cells
    ]


def _predicted(path: Path) -> dict[tuple[float | None, float | None, float], dict[str, float]]:
    return {
        (int(row["input_len"]), int(row["output_len"]), int(row["concurrency"])): {
            name: float(row[name]) for name in ("tpot_ms", "ttft_ms")
        }
        for row in csv_rows(path)
    }


def chosen(rows: Sequence[dict[str, str]], patterns: Row) -> list[dict[str, str]]:
    """Rows whose columns are like one of the patterns, which | joins. Raises ValueError where none is."""
    kept = [
        row
        for row in rows
        if all(any(fnmatchcase(row[name], each) for each in text.split("|")) for name, text in patterns.items())
    ]
    if not kept:
        raise ValueError(f"no row with {', '.join(f'{name}={text}' for name, text in patterns.items())}")
    return kept


WORDS: dict[str, Any] = {each.__name__: each for each in (float, format, int, round, sorted)}


def table(path: Path, run: RunSpec) -> Rows:
    """A table under columns of its own. Formulas have its columns, and in `joined` the rows of `run.join` with the same
    values in all columns that both have."""
    rows = [row for row in chosen(csv_rows(path), run.rows) if not run.where or evaluated(run.where, WORDS | row)]
    others = csv_rows(path.with_name(run.join)) if run.join else []
    shared = [name for name in rows[0] if others and name in others[0]]
    joined = grouped(others, lambda row: tuple(row[name] for name in shared))
    several = run.columns if isinstance(run.columns, list) else [run.columns]
    return [
        {ours: evaluated(formula, {**WORDS, **row, "joined": of}) for ours, formula in columns.items()}
        for row in rows
        for of in (joined.get(tuple(row[name] for name in shared), []),)
        for columns in several
    ]


def study(path: Path, run: RunSpec) -> Rows:
    """SpecDecoding-Study's runs of Llama-3.1-8B-Instruct in fp16: means over the repeats of a point, both phases.

    Raises ValueError where repeats differ in what must be the same.
    """
    import pandas as pd

    fixed = {"phase": "phase2_results|phase3_results", "model": "*Llama-3.1-8B-Instruct", "w": "fp16", "kv": "fp16"}
    rows = pd.DataFrame(chosen(csv_rows(path), {**fixed, "spec": "none|eagle3"}))
    rows[STUDY_NUMBERS] = rows[STUDY_NUMBERS].apply(pd.to_numeric)
    rows["most"] = rows["wlp"].map(lambda text: int(json.loads(text)["max_new_tokens"]))
    rows["spec"] = pd.Categorical(rows["spec"], ["none", "eagle3"])
    points = rows.groupby(["wl", "spec", "conc"], observed=True)
    kinds = points[["nreq", "k"]].nunique().stack()
    for (workload, spec, concurrency, name), _ in kinds[kinds > 1].items():
        raise ValueError(f"repeats of {workload} {spec} c={concurrency} differ in {name}")
    # Spread of the output tokens by E2EL at concurrency 1, where a token takes one ITL: the 95th percentile is Z_95
    # standard deviations above the median. Outputs that all have the most tokens are fixed.
    alone = rows[(rows["spec"] == "none") & (rows["conc"] == 1)]
    spreads = ((alone["e2e_p95"] - alone["e2e_p50"]) / alone["itl_mean"] / Z_95).groupby(alone["wl"]).mean()
    is_fixed = (alone["tot_out"] == alone["nreq"] * alone["most"]).groupby(alone["wl"]).all()
    return [
        {
            "label": workload, "arm": spec, "concurrency": concurrency, "input_len": PROMPT_TOKENS[workload],
            "output_len": round(mean["tot_out"] / mean["nreq"]), "output_len_max": int(mean["most"]),
            "output_len_std": "" if is_fixed.get(workload, True) else spreads[workload],
            "num_prompts": int(mean["nreq"]), "num_speculative_tokens": int(mean["k"]),
            "acceptance_length": mean["tau"] if mean["k"] else "", "output_throughput": mean["goodput"],
            "ttft_ms": mean["ttft_mean"], "itl_ms": mean["itl_mean"], "itl_p50_ms": mean["itl_p50"],
            "e2el_ms": mean["e2e_mean"],
        }
        for (workload, spec, concurrency), mean in points[[*STUDY_NUMBERS[1:], "most"]].mean().iterrows()
    ]  # fmt: skip


ROWS: dict[str, Callable[[Path, RunSpec], Rows]] = {
    "table": table, "study": study,
}  # fmt: skip
"""Rows of cells under our columns."""


@lru_cache(maxsize=4)
def real_run(folder: Path) -> ServedLoad:
    """A run of LLMServingSim's, whose prompts have blocks in common."""
    prompts = folder.parents[3] / "workloads/sharegpt-llama-3.1-8b-300-sps10.prefix_blocks.jsonl"
    return read_requests(folder / "vllm/requests.jsonl", prompts)


def timestamps(folder: Path, run: RunSpec) -> list[ServedLoad]:
    """A run as one cell; its judge compares the requests in the folder that `texts` has."""
    return [ServedLoad(method=run.method, num_prompts=len(real_run(folder).requests), texts={"folder": str(folder)})]


def steps(path: Path, run: RunSpec) -> list[ServedLoad]:
    """Steps of the target by SpecDecode-Bench's line: seconds by tokens and KV."""
    line = json.loads(path.read_text())
    target = line["target"]
    cells = []
    for queries in STEP_QUERIES:
        what = "decode" if queries == 1 else f"verify, {queries} tokens a row"
        for rows in STEP_ROWS:
            real_s = target["fixed"] + target["per_batched_token"] * rows * queries
            real_s += target["per_kv_token"] * rows * STEP_CONTEXT + line["host_overhead_per_step"]
            cells.append(
                ServedLoad(
                    label=f"SpecDecode-Bench's line: a step's {what}",
                    method="none",
                    num_speculative_tokens=queries - 1,
                    concurrency=rows,
                    input_len=STEP_CONTEXT,
                    measured={"tpot_ms": 1e3 * real_s},
                )
            )
    return cells


def tapes(folder: Path, run: RunSpec) -> list[ServedLoad]:
    """Acceptance lengths of recorded tapes, each with the model that was fitted on its tape."""
    cells = []
    for method in ("eagle3", "ngram"):
        for dataset in ("gsm8k", "instructcoder", "sharegpt"):
            recorded = read_tapes(f"{folder / f'acc_{dataset}.jsonl'}#acc_{method}")
            lengths = [TapeAcceptance(recorded).expected_length(k) for k in range(1, 8)]
            cells += _length_cells(method, dataset, lengths, spec_of(fit_markov(recorded)))
    return cells


def fit_markov(
    tapes: Sequence[Sequence[int] | RunLengths], num_speculative_tokens: int = FIT_DRAFT_TOKENS
) -> MarkovAcceptance:
    """Least squares on the rates that all draft lengths 1..k together show when the tapes are replayed.

    These are the unconditional rates by place for every length: rounds start where others ended, so how they change
    with the length tells how long hits last.
    """
    from scipy.optimize import least_squares

    draft_lengths = range(1, num_speculative_tokens + 1)
    recorded = TapeAcceptance(tuple(np.asarray(tape, dtype=np.uint8) for tape in tapes))
    wanted = np.concatenate([recorded.unconditional_rates(k) for k in draft_lengths])

    def misfit(parameters: Floats) -> Floats:
        model = _markov(parameters)
        shown: Floats = np.concatenate([model.unconditional_rates(k) for k in draft_lengths]) - wanted
        return shown

    bounds = ([0.0, 0.0, SLOWEST, SLOWEST, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0])
    fits = [least_squares(misfit, np.array(start), bounds=bounds) for start in STARTS]
    return _markov(min(fits, key=lambda fit: float(fit.cost)).x)


def _markov(parameters: Floats) -> MarkovAcceptance:
    """Rates as they are; `to_hit`, and `to_miss` as a share of what to_hit leaves below 1; fade."""
    hit_rate, miss_rate, to_hit, share, fade = np.clip(parameters, 0.0, 1.0).tolist()
    return MarkovAcceptance(hit_rate, miss_rate, to_hit, share * (1.0 - to_hit), fade)


def spec_of(model: MarkovAcceptance) -> str:
    """The model in --acceptance's notation, every digit."""
    values = (model.hit_rate, model.miss_rate, model.to_hit, model.to_miss, model.fade)
    return f"markov:{','.join(map(repr, values))}"


def rounds(folder: Path, run: RunSpec) -> list[ServedLoad]:
    """Acceptance lengths of shorter drafts of DFlash and DSpark, each with the length at BLOCK as its quote."""
    cells = []
    for drafter in ("dflash", "dspark"):
        for stage, temperature in STAGES.items():
            path = folder / f"tape_{stage}_{drafter}_fresh.csv"
            accepted = [int(row["accepted_draft"]) for row in csv_rows(path)]
            quote = f"length:{length_at(accepted, BLOCK):.4f}@{BLOCK}"
            workload = f"gsm8k, humaneval, mt-bench at temperature {temperature}"
            cells += _length_cells(drafter, workload, [length_at(accepted, k) for k in range(1, BLOCK)], quote)
    return cells


def length_at(accepted: Sequence[int], k: int) -> float:
    """Acceptance length, bonus included, of rounds cut to k drafted tokens.

    >>> length_at([0, 7, 3], 2)
    2.3333333333333335
    """
    return 1.0 + fmean(min(count, k) for count in accepted)


def _length_cells(method: str, label: str, lengths: Sequence[float], quote: str) -> list[ServedLoad]:
    """Acceptance lengths at 1, 2 and so on."""
    common = ServedLoad(method=method, label=label, concurrency=1, acceptance=quote)
    return [
        msgspec.structs.replace(common, num_speculative_tokens=k, measured={"acceptance_length": length})
        for k, length in enumerate(lengths, start=1)
    ]


def pearl(path: Path, run: RunSpec) -> list[ServedLoad]:
    """Cells of nano-PEARL's table: a token is accepted with probability m / (m + 1), m the mean accepted run."""
    cells = []
    for row in csv_rows(path):
        accepted, plain = float(row["pearl_mean_accepted_tokens_MAT"]), float(row["ar_tok_per_s"])
        cells.append(
            ServedLoad(
                gpu=row["gpu"],
                target=row["target_model"].rpartition("/")[2].lower(),
                draft=row["draft_model"].rpartition("/")[2].lower(),
                method=run.method,
                label=f"{row['dataset']}, {row['draft_model'].rpartition('/')[2].lower()}",
                arm=row["dataset"],
                concurrency=int(row["batch_size"]),
                acceptance=f"iid:{accepted / (1.0 + accepted):.4f}",
                measured={"speedup": float(row["pearl_tok_per_s"]) / plain},
                texts=row,
            )
        )
    return cells


def power(path: Path, run: RunSpec) -> list[ServedLoad]:
    """Splitwise's settings, means of their repetitions: average power of a GPU, over its TDP in the file, and times.

    A setting below BROKEN of the power at a shorter prompt, all else equal, is left out: its prompt phase, which draws
    the most, is longer, so what was sampled is something else.
    """
    rows = [row for row in csv_rows(path) if float(row["average_power"]) > 0.0]
    columns = ("model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size")
    settings = {
        key: {name: fmean(float(row[name]) for row in same) for name in ("average_power", "prompt_time", "token_time")}
        for key, same in grouped(rows, lambda row: tuple(row[name] for name in columns)).items()
    }
    cells = []
    for (model, hardware, tp, prompt, batch, tokens), means in settings.items():
        shorter = [
            other["average_power"]
            for key, other in settings.items()
            if key[:3] == (model, hardware, tp) and key[4] == batch and int(key[3]) < int(prompt)
        ]
        if means["average_power"] >= BROKEN * max(shorter, default=0.0):
            cells.append(
                ServedLoad(
                    target=model,
                    role=FITTED if model == run.method else JUDGED,
                    tp=int(tp),
                    input_len=int(prompt),
                    output_len=int(tokens),
                    concurrency=int(batch),
                    measured={"power_w": means["average_power"] * POWER[POWER_GPU].limit_w},
                    texts={name: repr(value) for name, value in means.items()},
                )
            )
    return cells


def overlap(path: Path, run: RunSpec) -> list[ServedLoad]:
    """Two plain streams, or shares of the multiprocessors, at every load that pegainfer measured with one stream, too.

    A decode step alone is what is published, else the median gap, else the median TPOT at the lowest rate; the longest
    gap less that is a prefill. A longest gap is judged only where the median gap was not needed.
    """
    rows, cells = csv_rows(path), []
    for row in rows:
        like = [each for each in rows if all(each[name] == row[name] for name in OVERLAP_LOAD)]
        off = next((each for each in like if each["mode"] == "off"), None)
        if off is None or not row["mode"].startswith(("stream", "green-ctx")):
            continue
        alone = off["decode_only_itl_p50_ms"] or off["itl_p50_ms"] or _alone(off, rows)
        prefill = 0.0 if row["concurrency"] == "1.0" else float(off["itl_p99_ms"]) - float(alone)
        names = {name: ours for name, ours in OVERLAP_METRICS.items() if row[name] and off[name]}
        if off["itl_p50_ms"] and not off["decode_only_itl_p50_ms"]:
            del names["itl_p99_ms"]
        cells.append(
            ServedLoad(
                gpu=row["gpu"],
                target=row["model"].partition(" ")[0].lower(),
                label=f"{row['mode']}, {float(row['isl']):g}->{float(row['osl']):g}",
                arm=row["mode"].partition(" ")[0],
                concurrency=0 if row["qps"] else int(float(row["concurrency"])),
                request_rate=float(row["qps"]) if row["qps"] else None,
                measured={ours: float(row[name]) for name, ours in names.items()},
                texts={"alone": alone, "prefill": repr(prefill), **{ours: off[name] for name, ours in names.items()}},
            )
        )
    return cells


def _alone(off: Row, rows: Sequence[Row]) -> str:
    like = [row for row in rows if all(row[name] == off[name] for name in ("gpu", "model", "engine", "isl", "osl"))]
    return min((float(row["qps"]), row["tpot_p50_ms"]) for row in like if row["tpot_p50_ms"])[1]


CELLS: dict[str, Callable[[Path, RunSpec], list[ServedLoad]]] = {
    "timestamps": timestamps, "steps": steps, "tapes": tapes, "rounds": rounds, "pearl": pearl, "power": power,
    "overlap": overlap,
}  # fmt: skip
"""Cells of other forms than a table's."""
