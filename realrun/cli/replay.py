"""`lanesim replay`: the command line of realrun.replay.replays."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sim.cli.console import claim
from sim.cli.flags import Overwrite, command, key
from sim.cli.options import Policies, WorkloadFlags, gather, inputs_of
from sim.cli.signals import exit_code, put_off, stopped_word
from sim.names import install_line

if TYPE_CHECKING:
    from realrun.replay.measured_tape import ClassTape, Folders
    from realrun.replay.replays import Replay
    from sim.costs.profile import Profile
    from sim.files.json_values import Json
    from sim.run.experiment import Experiment
    from sim.run.scenario import Scenario

NUM_PROMPTS = 200
"""Requests of a replay that does not say how many: it runs in real time."""
EXAMPLE = (
    "lanesim replay --policy pd --policy pdv --profile cpu/tiny --set num_prompts=24 \\\n"
    "    --set request_rate=10 --set input_len=64 --set output_len=32 --device cpu --out results/replay"
)


class ReplayFlags(WorkloadFlags, frozen=True, kw_only=True):
    policy: Policies = ()
    device: Annotated[Literal["cpu", "cuda"], "Where the passes run."]
    out: Annotated[Path, "Results directory."]
    weights: Annotated[
        Path | None,
        key("replay.weights"),
        "Folder of target and draft in transformers' format, and prompts.jsonl of input_tok_ids and class.",
    ] = None
    overwrite: Overwrite = False


@command("replay", ReplayFlags, example=EXAMPLE, short_help="Run the same schedulers on a real GPU.")
def replay_command(flags: ReplayFlags) -> None:
    """Run the same schedulers on a real GPU, in real time, and record what happened.

    The models have the profile's dimensions and random weights. The scenario's acceptance and seed decide which drafts
    are accepted, so only times can differ from a simulation.

    With replay.weights the models decide which drafts they accept. The command writes that as tapes for --acceptance
    tape:FILE, and `lanesim validate` simulates it.
    """
    from sim.costs.profile_files import load
    from sim.files.arrow_tables import check_parquet
    from sim.report.results import place_of, writing
    from sim.run.resolve import resolve_all
    from sim.run.scenario import parse_scenario

    raw = gather(flags)
    workload = raw.setdefault("workload", {})
    if isinstance(workload, dict):
        workload.setdefault("num_prompts", NUM_PROMPTS)
    scenario = parse_scenario(raw)
    out, weights = flags.out, flags.weights
    pair = [] if weights is None else [weights / name for name in ("target", "draft", "prompts.jsonl")]
    claim(folders={"--out": out}, inputs=[*inputs_of(flags.scenario, scenario), *pair])
    check_parquet()
    profile = load(scenario.profile)
    resolve_all(scenario, profile)
    _check_installed()
    replays, described, tapes = _run(scenario, profile, _folders(*pair) if pair else None, flags.device)
    from realrun.replay.measured_tape import write_tapes
    from realrun.replay.replays import result_of, write_replays

    result = result_of(scenario, replays, described)
    is_partial = result["replay"]["partial"]
    folder = place_of(out, is_partial=is_partial)
    with put_off(), writing(folder) as scratch:
        write_replays(scratch, scenario, result, replays)
        write_tapes(scratch, tapes)
    _report(result, folder)
    if is_partial:
        kept = "" if folder == out else f". {out} still has the complete one"
        print(f"lanesim: {stopped_word()}. {folder} holds a partial record{kept}", file=sys.stderr)
        raise SystemExit(exit_code())


def _check_installed() -> None:
    """Raise ValueError, one line, without what real runs need."""
    try:
        import pyarrow  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except (ImportError, OSError) as error:
        # A torch that is installed and does not load names the library that it lacks.
        raise ValueError(
            f"replay runs real models and writes parquet: {' '.join(str(error).split())}. "
            f"Run {install_line('gpu,analysis')}"
        ) from None


def _folders(target: Path, draft: Path, prompts: Path) -> Folders:
    """The pair that decides itself what is accepted."""
    from realrun.replay.measured_tape import Folders
    from sim.workload.content import read_prompt_tokens

    return Folders(target=target, draft=draft, prompts=tuple(read_prompt_tokens(prompts)))


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
    scenario: Scenario, profile: Profile, genuine: Folders | None, device_name: str
) -> tuple[list[Replay], dict[str, Json], list[ClassTape]]:
    """Build the pair and replay everything; also what there is to say about it, and what was accepted."""
    import torch

    from realrun.host import cuda
    from realrun.replay.measured_tape import accepted_of, load_pair
    from realrun.replay.pair_executor import PairExecutor
    from realrun.replay.replayable import check_replayable
    from realrun.replay.replays import about, replay_all
    from realrun.replay.testbed import SPARE_SLOTS, build_kernels, sizes_for

    torch.set_num_threads(1)
    cuda.find(device_name)
    device = torch.device(device_name)
    planned = _experiments(scenario, profile, 1, is_dictated=genuine is None)
    for experiment in planned:
        check_replayable(experiment)
    sizes = sizes_for(planned, device)
    pair = load_pair(genuine, profile, planned, device) if genuine is not None else ()
    kernels = build_kernels(profile, sizes, device, seed=scenario.seed, loaded=pair)
    prompts = [tokens for tokens, _ in genuine.prompts] if genuine is not None else []
    executor = PairExecutor(kernels, seed=scenario.seed, prompts=prompts)
    experiments = _experiments(scenario, profile, sizes.slots - SPARE_SLOTS, is_dictated=genuine is None)
    replays = replay_all(experiments, executor, on_run=_note)
    described = about(device_name, is_dictated=genuine is None)
    tapes: list[ClassTape] = []
    if genuine is not None and len(replays) == len(experiments):
        described["accepted"], tapes = accepted_of(pair, genuine, replays, executor.outputs)
    return replays, described, tapes


def _note(replay: Replay) -> None:
    if sys.stderr.isatty():
        record = replay.record
        print(f"{record.policy}, seed {record.seed}: {record.end_s:.1f} s", file=sys.stderr)


def _report(result: dict[str, Any], out: Path) -> None:
    from rich.console import Console

    from sim.report.said import NEXT, SURE, Said, print_said
    from sim.report.tables import new_table, number

    keys = ("mean_ttft_ms", "mean_e2el_ms", "output_throughput")
    rows = [[run["policy"], str(run["seed"]), *(number(run[key]) for key in keys)] for run in result["runs"]]
    lines = [
        (SURE, f"{each['class']}: {each['requests']} requests accept {each['acceptance_length']:.2f} tokens a verify.")
        for each in result["replay"].get("accepted", {}).get("classes", [])
    ]
    if result["replay"]["is_disturbed_by_allocations"]:
        count = result["replay"]["num_device_allocations"]
        lines.append((SURE, f"Times are disturbed: the device allocator went to the driver {count} times."))
    table = new_table(["scheduler", "seed"], ["mean TTFT (ms)", "mean E2EL (ms)", "tokens/s"], rows)
    answer = f"{len(rows)} runs were served. {out} has them."
    lines.append((NEXT, f"lanesim validate {out}"))
    print_said(Console(markup=False), Said(answer, [("", table)], lines, more=f"{out}/summary.json"))
