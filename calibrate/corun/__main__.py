"""Lent a GPU for ten minutes: `python -m calibrate.corun --device cuda --out corun.csv`

How fast prefill beside decode and draft beside verify run on two plain streams, relative to each alone: nobody
publishes it. It may be killed anywhere and goes on with the same command; it stops by itself at its budget, the most
valuable cells first. Needs torch and transformers. `lanesim calibrate measure` fits a whole cost profile, for which it
measures a few of these cells. Not here: which cells (calibrate.measure.overlap_cells), how (calibrate.measure.rates),
the file (calibrate.corun.rates_file).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrate.corun.rates_file import Line
    from calibrate.measure.pair import PairSpec
    from calibrate.points.point_works import Cell
    from realrun.host.device import Device

PAIRS = {
    "cuda": (("llama-3.1-8b", "llama-3.2-1b"), ("qwen2.5-1.5b", "qwen2.5-0.5b")),
    "cpu": (("tiny-target", "tiny-draft"),),
}
"""The first that fits the device's memory, unless one is named: 36 to 51 GiB by context, 13 to 17 GiB."""
STREAMS = 6
"""Captured and eager, two sides; and two on shares of the multiprocessors."""
CELL_SHARE = 0.8
"""Share of a cell's time that is measured; the rest is its first passes and captures."""
USUAL_BUDGET_S = 480.0
SMALLER = "name a smaller pair with --target and --draft"


def main(args: Sequence[str] | None = None) -> int:
    """Exit code: 0 measured what the budget allowed, 2 and one line if nothing can be, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m calibrate.corun", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=sorted(PAIRS), default="cuda")
    parser.add_argument("--out", type=Path, required=True, help="CSV to write, or to go on with")
    parser.add_argument("--target", help="with --draft: a pair in place of the largest usual one that fits")
    parser.add_argument("--draft")
    parser.add_argument("--budget-s", type=float, default=USUAL_BUDGET_S, help="seconds of everything [%(default)g]")
    began_s, given = perf_counter(), parser.parse_args(args)
    try:
        if (given.target is None) is not (given.draft is None):
            raise ValueError("--target and --draft go together: name both or none")
        if not 0.0 < given.budget_s < float("inf"):
            raise ValueError(f"--budget-s {given.budget_s:g} must be above 0, and finite")
        pairs = PAIRS[given.device] if given.target is None else ((given.target, given.draft),)
        run(given.device, given.out, pairs, began_s + given.budget_s)
    except (ValueError, ImportError) as error:
        hint = "; pip install 'lanesim[gpu]'" if isinstance(error, ImportError) else ""
        print(f"corun: {' '.join(str(error).split())}{hint}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("corun: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def run(device: str, out: Path, pairs: Sequence[tuple[str, str]], ends_s: float) -> None:
    """Measure what OUT lacks until the clock is at `ends_s`. Raises ValueError for what cannot be done."""
    import torch

    from calibrate.corun.rates_file import Table, line_of
    from calibrate.measure import machine
    from calibrate.measure.bench import Bench
    from calibrate.measure.clocks import Driver
    from calibrate.measure.overlap_cells import ROOM_TOKENS, cells
    from calibrate.measure.pair import DEFAULTS, build
    from calibrate.measure.rates import MAX_CELL_S, measure
    from realrun.host import cuda
    from realrun.host.garbage_collector import frozen_heap
    from sim.files.lock import locked

    # As in every measurement: a pass has one thread.
    torch.set_num_threads(1)
    cuda.find(device)
    gpu = machine.gpu(device)
    driver = Driver(gpu and gpu.uuid)
    with locked(out, f"--out {str(out)!r}"):
        fingerprint = machine.fingerprint(device, DEFAULTS[device]["dtype"], driver.version)
        table = Table(out, fingerprint)
        spec = fitting(device, pairs)
        options, context_tokens = spec.as_options(), spec.slot_tokens - ROOM_TOKENS
        planned, known = list(possible(cells(device, context_tokens), cuda.find(device))), table.lines(options)
        left = [cell for cell in planned if cell not in known]
        print(
            f"corun: {options['target']} + {options['draft']}, {context_tokens} tokens in KV, {len(left)} of "
            f"{len(planned)} cells to measure; {driver.said}",
            flush=True,
        )
        if left:
            bench, longest_s = Bench(build(spec, STREAMS)), 0.0
            with frozen_heap():
                while left and (left_s := ends_s - (began_s := perf_counter())) > longest_s:
                    cell, before = left[0], driver.read()
                    try:
                        rates = measure(bench, cell, min(MAX_CELL_S, CELL_SHARE * left_s / len(left)))
                    except cuda.OutOfMemory:
                        raise ValueError(f"{cell.name} does not fit {device} beside the pair; {SMALLER}") from None
                    known[left.pop(0)] = line = line_of(rates, before, driver.read())
                    table.add(options, cell, line)
                    longest_s = max(longest_s, perf_counter() - began_s)
                    print(
                        f"corun: {cell.name}: rates {line['a_rate']:.2f} + {line['b_rate']:.2f} = "
                        f"{line['rate_sum']:.2f} (±{line['noise_pct']:.0f} %)",
                        flush=True,
                    )
    for cell in left:
        print(f"corun: left: {cell.name}")
    if left:
        print(f"corun: the budget is spent with {len(left)} of {len(planned)} cells left; the same command goes on")
    print(f"corun: {answer(known)} ({fingerprint['device']}, {out})")


def possible(planned: Sequence[Cell], runs_on: Device) -> Iterator[Cell]:
    """The cells that the device can be split for; says why the others are left out."""
    lacking: dict[int | None, str] = {}
    for share_pct in dict.fromkeys(cell.share_pct for cell in planned if cell.share_pct is not None):
        try:
            runs_on.split(share_pct / 100.0)
        except ValueError as error:
            lacking[share_pct] = str(error)
    for reason in dict.fromkeys(lacking.values()):
        named = ", ".join(f"{share_pct}" for share_pct, said in lacking.items() if said == reason)
        print(f"corun: no cells on {named} % of the multiprocessors: {reason}", flush=True)
    return (cell for cell in planned if cell.share_pct not in lacking)


def fitting(device: str, pairs: Iterable[tuple[str, str]]) -> PairSpec:
    """The first pair, with its longest context, that fits the device's memory. Raises ValueError if none does."""
    from calibrate.measure.overlap_cells import CONTEXTS, ROOM_TOKENS, slots
    from calibrate.measure.pair import needs, pair_spec
    from realrun.host import cuda
    from realrun.model.memory import GIB

    free = cuda.find(device).free_bytes()
    for target, draft in pairs:
        for context in CONTEXTS[device]:
            rows = slots(device, context)
            spec = pair_spec(device, target, draft, None, rows, context + ROOM_TOKENS, None, 0)
            if (least := needs(spec, STREAMS)).total <= free:
                return spec
    raise ValueError(
        f"{target} + {draft} needs {least} with {context} tokens in KV, and {device} has {free / GIB:.1f} GiB; "
        f"{SMALLER}"
    )


def answer(known: Mapping[Cell, Line]) -> str:
    """What phi of plain streams is, in one sentence, of captured passes if there are any.

    A side that would have the share s of a device whose streams only take turns runs at s + phi (1 - s) where a part
    phi of the rest overlaps. Shares sum to 1, so of two sides phi is the sum of their rates less 1, whatever the
    shares are.
    """
    plain = {cell: line for cell, line in known.items() if cell.share_pct is None}
    if not plain:
        return "nothing was measured"
    captured = {cell: line for cell, line in plain.items() if cell.is_captured}
    of_interest, launch = (captured, "captured") if captured else (plain, "eager")
    parts = []
    for kinds in dict.fromkeys(cell.kinds for cell in of_interest):
        lines = [line for cell, line in of_interest.items() if cell.kinds == kinds]
        middle = median(line["rate_sum"] for line in lines) - 1.0
        low, high = (
            min(line["rate_sum_low"] for line in lines) - 1.0,
            max(line["rate_sum_high"] for line in lines) - 1.0,
        )
        parts.append(f"{middle:+.2f} [{low:+.2f}, {high:+.2f}] for {kinds} ({len(lines)} cells, {launch})")
    return f"phi is {'; '.join(parts)}, where 0 is taking turns and 1 is no slowdown"


if __name__ == "__main__":
    sys.exit(main())
