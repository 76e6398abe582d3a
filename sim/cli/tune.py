"""`lanesim tune`: the command line of sim.studies.tune."""

from __future__ import annotations

from typing import Any

import click

from sim.cli.console import claim, progress, write_text
from sim.cli.options import ListOptions, gather, inputs_of, scenario_options

EXAMPLE = (
    "\b\nExample:\n  lanesim tune --profile h100-sxm/llama-3.1-8b+eagle3 --acceptance length:2.6@3 \\\n"
    "    --num-speculative-tokens 5 --max-num-seqs 32 --input-len 512 --output-len 128"
)


@click.command("tune", cls=ListOptions, epilog=EXAMPLE)
@scenario_options
@click.option("--lengths", default=None, help="Draft lengths to try. [default: 0,1,.. to num_speculative_tokens]")
@click.option("--concurrencies", default=None, help="Requests in flight to try. [default: 1,2,4,.. to max_num_seqs]")
@click.option("--draws", type=int, default=20, show_default=True, help="Worlds within the errors of costs, acceptance.")
@click.option(
    "--controllers",
    default=None,
    help="Those to run as well, by their tax: by_batch, sglang_adaptive, goodput with commas. [default: none]",
)
@click.option("--target-model", default=None, help="Name of the target for `vllm serve`. [default: the profile's]")
@click.option("--draft-model", default=None, help="Name of the draft. [default: the profile's]")
@click.option("--workers", type=click.IntRange(min=1), default=None, help="Processes. [default: one per core]")
@click.option("--json", "json_path", default=None, metavar="FILE", help="Write the answer as JSON; - = stdout.")
def tune_command(**flags: Any) -> None:
    """Best draft length by load, as a vLLM table and SGLang's bands, with what it gains and how sure that is.

    Runs a closed loop at every concurrency and draft length, in every draw of what costs and acceptance might as well
    be. With --goodput it maximises requests per second that meet the SLOs.
    """
    from sim.costs.profile_files import load
    from sim.experiment.scenario import resolve
    from sim.studies.tune import tune

    options = {name: flags.pop(name) for name in ("draws", "target_model", "draft_model", "workers")}
    concurrencies = whole_numbers("--concurrencies", flags.pop("concurrencies"))
    lengths = whole_numbers("--lengths", flags.pop("lengths"))
    named = flags.pop("controllers")
    json_path, path = flags.pop("json_path"), flags["scenario"]
    raw = gather(flags)
    raw.setdefault("policy", ["continuous"])
    if lengths is not None and lengths:
        raw.setdefault("speculation", {})["num_speculative_tokens"] = max(lengths)
    scenario = resolve(raw)
    claim(files={"--json": json_path}, inputs=inputs_of(path, scenario))
    with progress() as on_step:
        result = tune(
            scenario,
            load(scenario.profile),
            concurrencies=concurrencies,
            lengths=lengths,
            controllers=[name.strip() for name in named.split(",")] if named else (),
            on_done=on_step,
            **options,
        )
    if json_path is not None:
        from sim.report.results import to_json

        write_text(json_path, to_json(result.plain))
    if json_path != "-":
        from rich.console import Console

        from sim.report.answers import print_tuning

        print_tuning(Console(), result)


def whole_numbers(flag: str, text: str | None) -> list[int] | None:
    """Comma-separated whole numbers of a flag."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{flag} {text!r}: want whole numbers with commas, such as 0,1,3") from None
