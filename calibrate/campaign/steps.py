"""One step of a campaign in one process: python -m calibrate.campaign.steps DEVICE OUT STEP

Every step leaves JSON, Parquet or a profile in OUT. Predictions are written before the first replay, and a replay
refuses to begin without them. Not here: which steps there are (calibrate.campaign.plan), the
report (calibrate.campaign.report).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from calibrate.campaign.plan import CAMPAIGNS, MEASURE, REPLAY, Campaign, Cell, Job

if TYPE_CHECKING:
    from calibrate.measure.pair import PairSpec
    from sim.costs.profile import Profile

PREDICTIONS = "predictions.json"
KEPT = ("request_throughput", "output_throughput", "mean_e2el_ms", "p50_e2el_ms", "p99_ttft_ms", "mean_ttft_ms")
TIED_EPSILON = 0.2
REPEATS = 5
"""Runs of each kind that say what serving adds."""
LOSSLESS_PROMPTS, LOSSLESS_TOKENS, LOSSLESS_SPARE = 8, 64, 16


def run(device: str, out: Path, step: str, campaign: Campaign) -> None:
    """Raises ValueError for what cannot be done, one line."""
    import torch

    torch.set_num_threads(1)
    if step == "ceilings":
        _write(out / "ceilings.json", ceilings(device))
    elif step.startswith(MEASURE):
        job = next(job for job in campaign.jobs if step == f"{MEASURE}{job.name}")
        measure(device, out, job, campaign.repeats)
    elif step == "predict":
        _write(out / PREDICTIONS, {cell.name: predictions(out, campaign, cell) for cell in campaign.cells})
    elif step.startswith(REPLAY):
        replay_cell(device, out, campaign, next(cell for cell in campaign.cells if step == f"{REPLAY}{cell.name}"))
    elif step == "lossless":
        _write(out / "lossless.json", lossless(device, campaign))
    else:
        raise ValueError(f"step {step!r} must be one of {', '.join(campaign.steps)}")


def ceilings(device: str) -> dict[str, Any]:
    """Copy bandwidth and a large matrix product, as measured here, beside what the machine is called."""
    from calibrate.measure.machine import achieved, fingerprint

    dtype = "bfloat16" if device == "cuda" else "float32"
    found = fingerprint(device, dtype)
    flops_per_s, copy_bytes_per_s = achieved(device, dtype)
    return {
        "device": found["device"],
        "dtype": dtype,
        "flops_per_s": flops_per_s,
        "copy_bytes_per_s": copy_bytes_per_s,
        "fingerprint": found,
    }


def measure(device: str, out: Path, job: Job, repeats: int) -> Profile:
    from calibrate.measure.pair import pair_spec

    spec = pair_spec(device, job.target, job.draft, None, job.rows, job.context, None, 0)
    return measure_pair(spec, out, job.budget_s, repeats=repeats)


def measure_pair(
    spec: PairSpec,
    directory: Path,
    budget_s: float,
    *,
    form: Literal["compact", "table"] = "compact",
    repeats: int = REPEATS,
) -> Profile:
    """Time a pair, alone and in service; its points file and its profile are left in `directory`.

    Goes on where an earlier measurement was killed. Raises ValueError for what cannot be measured.
    """
    from calibrate.measure.session import Session
    from calibrate.points import file as points_file
    from calibrate.service.serving import with_serving_costs
    from sim.costs.profile_files import encode

    name = spec.target.shape.name + (f"+{spec.draft.shape.name}" if spec.draft is not None else "")
    points_path = directory / f"{name}.points.jsonl"
    with points_file.alone(points_path):
        session = Session(spec, points_path, budget_s, lambda stage, done, total: None)
        profile = with_serving_costs(session.run(form), session.bench.kernels, repeats=repeats)
    (directory / f"{name}.json").write_bytes(encode(profile))
    return profile


def predictions(out: Path, campaign: Campaign, cell: Cell) -> dict[str, dict[str, float | None]]:
    """Per policy what the simulator says of `cell`."""
    from realrun.validate.compare import predict
    from sim.costs.profile_files import load
    from sim.experiment.assemble import Experiment
    from sim.experiment.scenario import resolve
    from sim.metrics.summary import number, summarise

    path = profile_path(out, campaign)
    scenario, profile = resolve(campaign.scenario(cell, str(path))), load(path)
    found = {}
    for policy in campaign.policies:
        experiment = Experiment(
            scenario=scenario, policy_name=policy, seed=scenario.seed, profile=profile, num_slots=cell.num_prompts
        )
        run = summarise(predict(experiment))
        found[policy] = {name: number(run, name) for name in KEPT}
    return found


def replay_cell(device: str, out: Path, campaign: Campaign, cell: Cell) -> None:
    """Replay `cell` into OUT/replay-CELL and judge it there. Raises ValueError where nothing was predicted before."""
    if not (out / PREDICTIONS).exists():
        raise ValueError(f"{PREDICTIONS} is missing in {str(out)!r}: predictions come before measurements")
    import yaml

    from realrun.cli.replay import replay_command
    from realrun.cli.validate import validate_command

    directory = out / f"replay-{cell.name}"
    scenario = out / f"{cell.name}.yaml"
    scenario.write_text(yaml.safe_dump(campaign.scenario(cell, str(profile_path(out, campaign)))))
    line = [str(scenario), "--device", device, "--out", str(directory), "--overwrite"]
    replay_command.main(line, standalone_mode=False)
    judge = [str(directory), "--json", str(directory / "validation.json"), "--no-plots"]
    validate_command.main(judge, standalone_mode=False)


def lossless(device: str, campaign: Campaign) -> dict[str, Any]:
    """Greedy speculation of a tied pair of the first job's target beside its plain decoding."""
    import torch

    from realrun.kernels.lossless import compare_texts
    from realrun.kernels.options import PairOptions
    from realrun.kernels.pair_kernels import PairKernels
    from realrun.model.attention import usual_attention
    from realrun.model.weights import random_model, tied_pair
    from sim.costs.shapes import model

    shape = model(campaign.jobs[0].target)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    target, draft = tied_pair(
        random_model(shape, dtype=dtype, device=device, seed=0), campaign.tied_layers, TIED_EPSILON
    )
    options = PairOptions(
        slots=LOSSLESS_PROMPTS,
        max_tokens=campaign.input_tokens + LOSSLESS_TOKENS + LOSSLESS_SPARE,
        attention=usual_attention(torch.device(device)),
    )
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(shape.vocab, (LOSSLESS_PROMPTS, campaign.input_tokens), generator=generator).tolist()
    found = compare_texts(
        PairKernels(target, draft, options), target, prompts, num_tokens=LOSSLESS_TOKENS, draft_tokens=4
    )
    return {"target": shape.name, "epsilon": TIED_EPSILON, "draft_layers": campaign.tied_layers, **found}


def profile_path(out: Path, campaign: Campaign) -> Path:
    """Of the pair that is replayed."""
    return out / f"{campaign.jobs[0].name}.json"


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def main(args: list[str]) -> int:
    """Exit code 1 and one line if the step cannot be done."""
    device, out, step = args
    try:
        run(device, Path(out), step, CAMPAIGNS[device])
    except (ValueError, RuntimeError) as error:
        print(f"campaign: {step}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
