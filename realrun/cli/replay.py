"""`lanesim replay`: the command line of realrun.replay.replays."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from sim.cli.console import claim
from sim.cli.flags import Overwrite, command
from sim.cli.options import MaxConcurrency, RequestRate, WorkloadFlags, gather, inputs_of
from sim.cli.signals import exit_code, put_off, stopped_word

if TYPE_CHECKING:
    from realrun.replay.genuine_acceptance import ClassTape, Folders, Tied
    from realrun.replay.replays import Replay
    from sim.costs.profile import Profile
    from sim.files.json_values import Json
    from sim.run.experiment import Experiment
    from sim.run.scenario import Scenario

NUM_PROMPTS = 200
"""Requests of a replay that is not told how many: it runs in real time."""
EXAMPLE = (
    "lanesim replay --policy pd --policy pdv --profile cpu/tiny --num-prompts 24 --request-rate 10 \\\n"
    "    --input-len 64 --output-len 32 --device cpu --out results/replay"
)


class ReplayFlags(WorkloadFlags, frozen=True, kw_only=True):
    """Flags of `lanesim replay`."""

    request_rate: RequestRate = None
    max_concurrency: MaxConcurrency = None
    device: Annotated[Literal["cpu", "cuda"], "Where the passes run."]
    out: Annotated[Path, "Results directory."]
    acceptance_from: Annotated[
        Literal["tape", "model"],
        "tape: dictated by --acceptance and --seed; model: whatever the draft deserves, one of the target's first "
        "layers or --draft-weights.",
    ] = "tape"
    target_weights: Annotated[Path | None, "model: local folder, transformers' format."] = None
    draft_weights: Annotated[Path | None, "model: the same of the draft."] = None
    prompts: Annotated[Path | None, "model: JSON lines of input_tok_ids and class."] = None
    epsilon: Annotated[
        float | None,
        Meta(ge=0.0, le=1e6),
        "model: weight of the target's later layers, 0 = draft and target agree [0.2, about .65 accepted greedily].",
    ] = None
    draft_layers: Annotated[int | None, Meta(ge=1, le=10_000), "model: of the draft [target's / 8]."] = None
    temperature: Annotated[float, Meta(ge=0.0, le=1e6), "0 = greedy kernels, above = sampled."] = 0.0
    overwrite: Overwrite = False


@command("replay", ReplayFlags, example=EXAMPLE, short_help="The same policies on real hardware.")
def replay_command(flags: ReplayFlags) -> None:
    """Run the same policies on real hardware, in real time, and record what happened.

    The profile's models get their exact dimensions and random weights. Which drafts are accepted is dictated by the
    scenario's acceptance and seed (a tape), so that against a simulation only times can differ; or the models decide
    (--acceptance-from model), and `validate` simulates what they were seen to accept. With weights from folders what
    they accept is also written as tapes for --acceptance tape:FILE, of all requests and of each content class.
    """
    from sim.costs.profile_files import load
    from sim.report.results import check_parquet, place_of, writing
    from sim.run.resolve import resolve_all
    from sim.run.scenario import parse_scenario

    raw = gather(flags)
    workload = raw.setdefault("workload", {})
    if isinstance(workload, dict):
        workload.setdefault("num_prompts", NUM_PROMPTS)
    scenario = parse_scenario(raw)
    out, folders = flags.out, [flags.target_weights, flags.draft_weights, flags.prompts]
    claim(folders={"--out": out}, inputs=[*inputs_of(flags.scenario, scenario), *folders])
    check_parquet()
    profile = load(scenario.profile)
    resolve_all(scenario, profile)
    profile, genuine = _pair(profile, flags)
    replays, described, tapes = _run(scenario, profile, genuine, flags.device, flags.temperature)
    from realrun.replay.genuine_acceptance import write_tapes
    from realrun.replay.replays import result_of, write_replays

    result = result_of(scenario, replays, described)
    is_partial = result["replay"]["partial"]
    place = place_of(out, is_partial=is_partial)
    with put_off(), writing(place) as scratch:
        write_replays(scratch, scenario, result, replays)
        write_tapes(scratch, tapes)
    _report(result, place)
    if is_partial:
        kept = "" if place == out else f"; {out} holds the complete one still"
        print(f"lanesim: {stopped_word()}; {place} holds a partial record{kept}", file=sys.stderr)
        raise SystemExit(exit_code())


def _pair(profile: Profile, flags: ReplayFlags) -> tuple[Profile, Tied | Folders | None]:
    """The profile of the pair that runs, and what it is where acceptance comes from the models."""
    from realrun.replay.genuine_acceptance import EPSILON, Folders, tied_profile
    from sim.workload.content import read_prompt_tokens

    is_tape = flags.acceptance_from == "tape"
    target, draft, prompts = own = flags.target_weights, flags.draft_weights, flags.prompts
    for name in ("epsilon", "draft_layers", *(("target_weights", "draft_weights", "prompts") if is_tape else ())):
        value = getattr(flags, name)
        if value is not None and (is_tape or any(own)):
            flag = f"--{name.replace('_', '-')} {value}"
            if is_tape:
                raise ValueError(f"{flag} needs --acceptance-from model; a tape dictates acceptance")
            raise ValueError(f"{flag} makes a draft of the target's first layers; leave it out, or --draft-weights")
    if not any(own):
        if is_tape:
            return profile, None
        epsilon = EPSILON if flags.epsilon is None else flags.epsilon
        return tied_profile(profile, epsilon, flags.draft_layers)
    if target is None or draft is None or prompts is None:
        raise ValueError("want --target-weights, --draft-weights and --prompts together: texts decide what is accepted")
    return profile, Folders(target=target, draft=draft, prompts=tuple(read_prompt_tokens(prompts)))


def _experiments(scenario: Scenario, profile: Profile, max_requests: int, *, is_dictated: bool) -> list[Experiment]:
    from sim.draws import child_seed
    from sim.run.experiment import Experiment
    from sim.run.resolve import resolve

    return [
        Experiment(
            resolve(scenario, profile, policy, num_slots=max_requests),
            child_seed(scenario.seed, replication),
            is_dictated,
        )
        for replication in range(scenario.replications)
        for policy in scenario.policy
    ]


def _run(
    scenario: Scenario, profile: Profile, genuine: Tied | Folders | None, device_name: str, temperature: float
) -> tuple[list[Replay], dict[str, Json], list[ClassTape]]:
    """Build the pair and replay everything; also what there is to say about it, and what was accepted."""
    try:
        import pyarrow  # noqa: F401
        import torch
        import transformers  # noqa: F401
    except (ImportError, OSError) as error:
        # A torch that is installed and does not load names the library that it lacks.
        raise ValueError(
            f"replay runs real models and writes parquet: {' '.join(str(error).split())}; "
            "pip install 'lanesim[gpu,analysis]'"
        ) from None
    from realrun.host import cuda
    from realrun.replay.genuine_acceptance import Folders, Tied
    from realrun.replay.measured_tape import accepted_of, load_pair
    from realrun.replay.pair_executor import PairExecutor
    from realrun.replay.replayable import check_replayable
    from realrun.replay.replays import about, replay_all
    from realrun.replay.testbed import SPARE_SLOTS, build_kernels, sizes_for

    torch.set_num_threads(1)
    cuda.find(device_name)
    device = torch.device(device_name)
    is_dictated = genuine is None
    planned = _experiments(scenario, profile, 1, is_dictated=is_dictated)
    for experiment in planned:
        check_replayable(experiment)
    sizes = sizes_for(planned, device, temperature=temperature)
    pair = load_pair(genuine, profile, planned, device) if isinstance(genuine, Folders) else ()
    kernels = build_kernels(
        profile,
        sizes,
        device,
        temperature=temperature,
        seed=scenario.seed,
        tied=genuine if isinstance(genuine, Tied) else None,
        loaded=pair,
    )
    prompts = [tokens for tokens, _ in genuine.prompts] if isinstance(genuine, Folders) else []
    executor = PairExecutor(kernels, seed=scenario.seed, prompts=prompts)
    experiments = _experiments(scenario, profile, sizes.slots - SPARE_SLOTS, is_dictated=is_dictated)
    replays = replay_all(experiments, executor, on_run=_note)
    described = about(kernels, device_name, genuine)
    tapes: list[ClassTape] = []
    is_whole = len(replays) == len(experiments) and not any(each.is_partial for each in replays)
    if isinstance(genuine, Folders) and temperature:
        warnings.warn("no tape is written: above --temperature 0 chance decides what is accepted, too", stacklevel=2)
    elif isinstance(genuine, Folders) and is_whole:
        described["accepted"], tapes = accepted_of(pair, genuine, replays, executor.outputs)
    return replays, described, tapes


def _note(replay: Replay) -> None:
    """One line per run on a terminal."""
    if sys.stderr.isatty():
        record = replay.record
        print(f"{record.policy}, seed {record.seed}: {record.end_s:.1f} s", file=sys.stderr)


def _report(result: dict[str, Any], out: Path) -> None:
    print(f"{'policy':<16}{'seed':>5}{'mean TTFT ms':>14}{'mean E2EL ms':>14}{'tokens/s':>10}")
    for run in result["runs"]:
        values = [run[key] for key in ("mean_ttft_ms", "mean_e2el_ms", "output_throughput")]
        ttft, e2el, rate = ("-" if value is None else f"{value:.1f}" for value in values)
        print(f"{run['policy']:<16}{run['seed']:>5}{ttft:>14}{e2el:>14}{rate:>10}")
    for each in result["replay"].get("accepted", {}).get("classes", []):
        rates = ",".join(f"{rate:.3f}" for rate in each["acceptance_rates"])
        length = f"{each['acceptance_length']:.2f} tokens a round"
        print(f"{each['class']}: {each['requests']} requests, {length}, --acceptance vllm:{rates}")
    if result["replay"]["is_disturbed_by_allocations"]:
        count = result["replay"]["num_device_allocations"]
        print(f"note: the device allocator went to the driver {count} times during the runs; their times are disturbed")
    print(f"results in {out}")
