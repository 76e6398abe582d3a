"""`lanesim calibrate measure`: flags, defaults by device, progress, and what an interruption leaves.

Not here: measuring (calibrate.measure). Importing this module imports click alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from calibrate.cli.profile_output import check_out, write
from sim.cli.console import progress
from sim.cli.flags import COUNT, Overwrite, Seconds, Tokens, command, key, keys
from sim.cli.signals import exit_code, stopped_word
from sim.names import install_line, unknown

MIN_BUDGET_S = 5.0


class MeasureFlags(Struct, frozen=True, kw_only=True):
    device: Annotated[Literal["cpu", "cuda"], "What to measure."]
    target: Annotated[str, "Target: a name, a config.json, or a directory of weights."]
    draft: Annotated[str | None, "Draft model, likewise."] = None
    out: Annotated[Path, "Profile to write. Its measurements lie beside it."]
    set: Annotated[tuple[str, ...], Meta(title="KEY=VALUE"), "One of the keys below."] = ()
    overwrite: Overwrite = False
    budget: Annotated[
        Seconds | None,
        key("measure.budget_s"),
        "Rough time of the passes [120 cpu, 480 cuda]. What serving adds takes up to 2 minutes more.",
    ] = None
    rows: Annotated[
        int | None, Meta(ge=1, le=COUNT), key("measure.rows"), "Most sequences of a pass [16 cpu, 32 cuda]."
    ] = None
    context: Annotated[
        Tokens | None, key("measure.context"), "Tokens per sequence, multiple of 256 [512 cpu, 2048 cuda]."
    ] = None


@command(
    "measure",
    MeasureFlags,
    example="lanesim calibrate measure --device cpu --draft tiny-draft --target tiny-target --out tiny.json",
)
def measure_command(flags: MeasureFlags) -> None:
    """Time this machine's prefill, draft and verify passes, alone and in pairs, and fit a profile to them.

    It runs the passes of `lanesim replay`, with random weights of the exact dimensions. Measurements are saved in
    OUT.points.jsonl. Run the command again to continue.
    """
    out, device, budget = flags.out, flags.device, flags.budget
    if flags.set:
        raise ValueError(unknown("key", flags.set[0].partition("=")[0], keys(MeasureFlags)))
    check_out(out, [flags.target, flags.draft])
    if budget is not None and not MIN_BUDGET_S <= budget < float("inf"):
        raise ValueError(f"measure.budget_s {budget:g} must be at least {MIN_BUDGET_S:g} seconds, and finite")
    try:
        import scipy  # noqa: F401
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        needs = f"measuring needs torch, transformers and scipy: {install_line('gpu,analysis')}"
        raise ValueError(f"{needs} ({error})") from None
    torch.set_num_threads(1)
    from calibrate.measure.pair import DEFAULTS, pair_spec
    from calibrate.measure.session import measure_pair
    from realrun.host import cuda
    from realrun.validate.gates import of_profile, verdict

    spec = pair_spec(device, flags.target, flags.draft, flags.rows, flags.context)
    points_path = out.with_suffix(".points.jsonl")
    try:
        with progress() as on_step:
            profile = measure_pair(
                spec,
                points_path,
                float(DEFAULTS[device]["budget"]) if budget is None else budget,
                on_step=on_step,
                say=lambda line: print(line, file=sys.stderr),
            )
    except KeyboardInterrupt:
        kept = f"Points so far are in {points_path}. " if points_path.exists() else ""
        print(f"lanesim: {stopped_word()}. {kept}Run the same command to continue", file=sys.stderr)
        raise SystemExit(exit_code()) from None
    except cuda.OutOfMemory:
        raise ValueError(
            f"{spec.target.shape.name} with {spec.rows} rows of {spec.slot_tokens} tokens does not fit the device "
            "beside its activations. Lower measure.rows or measure.context"
        ) from None
    if doubt := verdict(of_profile(profile)):
        print(doubt)
    write(profile, out)
    if num_noisy := sum(point.is_noisy for point in profile.points):
        print(f"{num_noisy} of {len(profile.points)} passes are noisy. {points_path} marks them.")
