"""`lanesim diagnose WITHOUT WITH`: whether a measured speed-up is normal, and what is likely wrong.

Not here: simulating and ranking causes (calibrate.served.diagnosis), reading results (calibrate.served.readers).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, structs

from sim.cli.console import claim, progress, show
from sim.cli.flags import ARGUMENT, DraftTokens, JsonFile, Overwrite, command, key
from sim.cli.options import Engine, Gpu, Method, Overrides, Serve, ServedFlags, gather, is_model
from sim.names import DRAFT_KEY

if TYPE_CHECKING:
    from rich.console import Console

    from calibrate.served.diagnosis import Diagnosis, Pair
    from sim.report.said import Said

EXAMPLE = (
    "lanesim diagnose without.json with.json meta-llama/Llama-3.1-8B-Instruct --gpu h100-sxm \\\n"
    "    --draft eagle3 --set num_speculative_tokens=3"
)
SERVER = "`meta-llama/Llama-3.1-8B-Instruct --gpu h100-sxm`"
SHARED = ("gpu", "serve", "method", "num_speculative_tokens", "acceptance", "engine", "set")
ENDINGS = (".json", ".jsonl", ".csv", ".log", ".txt", ".prom", ".gz")
"""Of results: such a word is no model."""
MOST_CAUSES = 4
METRICS = {"ttft_ms": "TTFT (ms)", "tpot_ms": "TPOT (ms)", "output_throughput": "tokens/s"}
METRICS |= {"ttft_p50_ms": "median TTFT (ms)", "tpot_p50_ms": "median TPOT (ms)"}
NOTHING_WRONG = "Nothing looks wrong."
UNEXPLAINED = "Nothing that lanesim knows explains the difference."


class DiagnoseFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim diagnose`."""

    words: Annotated[tuple[Path, ...], ARGUMENT, Meta(title="WITHOUT WITH [MODEL]")]
    profile: Annotated[str | None, "Cost profile: gpu/target[+draft], or a path."] = None
    gpu: Gpu = None
    serve: Serve = None
    method: Method = None
    num_speculative_tokens: Annotated[DraftTokens | None, key(DRAFT_KEY), "Draft length of the second result."] = None
    acceptance: Annotated[
        str | None, key("speculation.acceptance"), "Acceptance, if the result does not say it. See docs/acceptance.md."
    ] = None
    engine: Annotated[Engine, key("engine.name")] = None
    set: Overrides = ()
    json: JsonFile = None
    overwrite: Overwrite = False


@command("diagnose", DiagnoseFlags, example=EXAMPLE)
def diagnose_command(flags: DiagnoseFlags) -> None:
    """Say whether the speed-up that you measured is normal, and what is likely wrong if it is not.

    WITHOUT and WITH are results of the same benchmark without and with speculation. A result is JSON, JSON lines, what
    `vllm bench serve` or SGLang printed, or a server's log. Both loads are simulated, then eleven possible faults.
    One result alone is compared with what the simulator expects.
    """
    from calibrate.served.diagnosis import Diagnosis, diagnose
    from sim.report.say import said_of

    models = [path for path in flags.words[-1:] if is_model(path) and path.suffix not in ENDINGS]
    results = list(flags.words[: len(flags.words) - len(models)])
    missing = [f"{str(path)!r} is no file" for path in results if is_model(path)]
    if missing or not 1 <= len(results) <= 2:
        got = next(iter(missing), f"{len(results)} files")
        raise ValueError(f"{got}. Give the result without and the one with speculation, then such as {SERVER}")
    claim(files={"--json": flags.json}, inputs=results)
    pair, has = _pair(flags, results, models[0] if models else None)
    with progress() as on_step:
        found = diagnose(pair, has, lambda done: on_step("simulations", done, 0))
    said_of.register(Diagnosis, said)
    show(flags.json, structs.replace(found, verdict=sentences(found)))


def _pair(flags: DiagnoseFlags, results: list[Path], model: Path | None) -> tuple[Pair, tuple[bool, bool]]:
    """The two servers, and which of them was measured. Raises ValueError."""
    from calibrate.served.diagnosis import Arm, Pair
    from calibrate.served.judge import LoadSetup
    from calibrate.served.readers import loads_of
    from sim.acceptance.pairs import ANY
    from sim.costs.profile_files import load

    shared = {name: getattr(flags, name) for name in SHARED}
    profiles = () if flags.profile is None else (flags.profile,)
    raw = gather(ServedFlags(**shared, profile=profiles, scenario=model))
    if not raw.get("profile"):
        raise ValueError(f"the model and the GPU are missing. Add them, such as {SERVER}")
    profile, speculation = load(str(raw["profile"])), raw.get("speculation") or {}
    assert isinstance(speculation, dict)
    k, acceptance = (speculation.pop(name, None) for name in ("num_speculative_tokens", "acceptance"))
    blocks = {name: raw.get(name, {}) for name in ("engine", "workload")}
    setup = LoadSetup.of(blocks | {"speculation": speculation})
    draft_tokens = k if isinstance(k, int) and k > 0 else None
    loads = [max(loads_of(path, draft_tokens), key=lambda load: load.concurrency) for path in results]
    if len(loads) == 2 and loads[0].accepted is not None and loads[1].accepted is None:
        loads.reverse()
    drafting = loads[-1]
    is_drafting = len(loads) == 2 or drafting.accepted is not None or flags.num_speculative_tokens is not None
    tokens = draft_tokens or drafting.num_speculative_tokens
    if is_drafting and not tokens:
        raise ValueError(f"{str(results[-1])!r} does not say its draft length. Add --set {DRAFT_KEY}=K")
    without = structs.replace(loads[0], num_speculative_tokens=0, acceptance=None, accepted=None)
    if is_drafting:
        told = flags.acceptance or drafting.acceptance or acceptance or ANY
        drafting = structs.replace(drafting, num_speculative_tokens=tokens, acceptance=told)
    else:
        drafting = without
    has = (len(loads) == 2 or not is_drafting, is_drafting)
    return Pair(Arm(without, setup, profile), Arm(drafting, setup, profile)), has


def said(found: Diagnosis, console: Console) -> Said:
    """The answer, what was measured beside what was expected, and causes."""
    from sim.report.said import SURE, Said
    from sim.report.tables import new_table, number

    rows = [
        [
            *(each.arm, METRICS.get(each.metric, each.metric), number(each.measured), number(each.expected)),
            f"{100 * (each.measured / each.expected - 1):+.0f} %",
        ]
        for each in found.values
    ]
    speedup = f"speed-up {'without' if found.is_expected else 'with'} it"
    causes = [[each.cause, f"{each.speedup:.2f}", f"{each.share:.2f}"] for each in found.causes[:MOST_CAUSES]]
    return Said(
        found.verdict,
        [
            ("", new_table(["", "metric"], ["measured", "expected", "off"], rows)),
            ("possible causes (likely from weight 1 on)", new_table(["cause"], [speedup, "weight"], causes)),
        ],
        [
            (SURE, f"Expected values are simulated with {found.notes[0].partition(',')[0]}."),
            (SURE, "The range is 95 % of the simulator's errors against measured servers."),
            *(("try", f"{each.remedy}.") for each in found.likely[:2]),
        ],
        more="--json FILE: everything. docs/accuracy.md: the errors.",
    )


def sentences(found: Diagnosis) -> str:
    """Whether it is normal, and why it is so; a line each."""
    low, high = found.expected_interval
    normal = f"That is {'' if found.is_expected else 'not '}normal."
    if found.speedup is None:
        worst = max(found.values, key=lambda each: each.error_size)
        name = METRICS.get(worst.metric, worst.metric)
        first = [f"{name} is {worst.measured:.4g} {worst.arm}. {worst.expected:.4g} is expected. {normal}"]
    else:
        first = [
            f"Drafting made this server {found.speedup:.2f} times as fast.",
            f"{found.expected:.2f} times as fast is expected ({low:.2f} to {high:.2f}). {normal}",
        ]
    if not found.likely:
        return "\n".join([*first, NOTHING_WRONG if found.is_expected else UNEXPLAINED])
    cause, *others = found.likely
    label, given = ("It costs most that", "Without") if found.is_expected else ("Likely", "With")
    told = f"{label}{':' if label == 'Likely' else ''} {cause.cause}."
    told += f" {given} that, {cause.speedup:.2f} is expected." if found.speedup is not None else ""
    return "\n".join([*first, told, *[f"Nearly as likely: {other.cause}." for other in others[:1]]])
