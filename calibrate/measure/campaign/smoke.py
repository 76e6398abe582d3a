"""Checks before anything is measured: whether this machine can be, and is the one that was measured before.

One red check, and the campaign refuses with a line that says what failed. A check that does not apply (a CPU has no
graphs) says so. Not here: the measurement (calibrate.measure), the memory of a device (realrun.host.device).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from time import perf_counter

import torch

from calibrate.fit import points_file
from calibrate.fit.point_works import TimedPass
from calibrate.measure.campaign.plan import CAMPAIGNS, SMOKE_FILE, Campaign, MeasuredPair, device_of
from calibrate.measure.pair import DEFAULTS, PairSpec, build
from calibrate.measure.timing import Bench
from realrun.host import cuda
from realrun.host.device import DeviceStream, RealDevice
from realrun.host.machine import fingerprint
from realrun.model.attention import FLASH, MATH, AttentionKernel, GatheringAttention, Rectangle, make_attention
from realrun.model.kv import SlottedKv
from sim.costs.shapes import ModelShape
from sim.files.json_values import Json
from sim.files.write import write_text

NEEDED = ("torch", "transformers", "scipy", "pyarrow")
TOLERANCES = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""Largest difference from the reference, as a share of its largest value: some units in the last pass."""
WIDTHS = (1, 5, 64)
"""Query tokens per row: decode, verify, a chunk of a prompt."""
STARTS = (0, 17, 190)
"""Tokens in KV before them, row by row."""
STREAMS, HOLD_S = 8, 0.05
"""Streams that policies replayed together ask for, and how long each is held."""
MAX_TOGETHER = 1.5
"""Times that all streams together may take of what one takes: sharing queues they take several."""


class Red(ValueError):
    """A check failed."""


@dataclass(frozen=True)
class Ground:
    device: str
    runs_on: RealDevice
    job: MeasuredPair

    @cached_property
    def spec(self) -> PairSpec:
        return self.job.spec(self.device)

    @cached_property
    def bench(self) -> Bench:
        return Bench(build(self.spec))


def imports(_: Ground) -> str:
    return ", ".join(f"{name} {import_module(name).__version__}" for name in NEEDED)


def kernels(ground: Ground) -> str | None:
    """A GPU's attention beside the reference, for every model."""
    where = torch.device(ground.device)
    if where.type == "cpu":
        return None
    shapes = {source.shape for source in (ground.spec.target, ground.spec.draft) if source is not None}
    worst = max(_difference(shape, where) for shape in sorted(shapes, key=lambda shape: shape.name))
    return f"{FLASH} is within {worst:.1e} of {MATH}"


def _difference(shape: ModelShape, where: torch.device) -> float:
    """The largest difference over ragged rows of every width, and all widths in one pass."""
    dtype = getattr(torch, DEFAULTS[where.type]["dtype"])
    generator = torch.Generator(where).manual_seed(0)
    kv = SlottedKv(
        layers=1,
        slots=len(STARTS),
        kv_heads=shape.kv_heads,
        max_tokens=256,
        head_dim=shape.head_dim,
        dtype=dtype,
        device=where,
    )
    starts = torch.tensor(STARTS, device=where)
    slots = torch.arange(len(STARTS), device=where).flip(0)
    rectangles = [Rectangle(slots, starts, torch.full_like(starts, width), width) for width in WIDTHS]
    ours, reference = make_attention(shape.heads, kv), GatheringAttention(shape.heads, kv)
    worst = 0.0
    for rows in (*([each] for each in rectangles), rectangles):
        size = sum(each.num_tokens for each in rows), shape.heads, shape.head_dim
        queries = torch.randn(size, generator=generator, device=where, dtype=torch.float32).to(dtype)
        given, wanted = (_attended(kernel, rows, queries) for kernel in (ours, reference))
        share = float((given - wanted).abs().max() / wanted.abs().max())
        if not share <= TOLERANCES[dtype]:
            raise Red(f"{FLASH} is {share:.1e} off the reference for {shape.name}, {size[0]} queries")
        worst = max(worst, share)
    return worst


def _attended(kernel: AttentionKernel, rows: Sequence[Rectangle], queries: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return kernel.run(kernel.plan(rows), queries, 0).float()


def streams(ground: Ground) -> str | None:
    """STREAMS streams at once, none of which may wait for another; None on a device without streams. Raises Red."""
    if not ground.runs_on.is_async:
        return None
    separate = [ground.runs_on.stream() for _ in range(STREAMS)]
    alone_s, together_s = (_held_s(ground.runs_on, some) for some in (separate[:1], separate))
    if together_s > MAX_TOGETHER * alone_s:
        raise Red(f"{STREAMS} streams held at once took {together_s / alone_s:.1f} times as long as one: they queue")
    return f"{STREAMS} held at once took {together_s / alone_s:.2f} times as long as one"


def _held_s(runs_on: RealDevice, streams: Sequence[DeviceStream]) -> float:
    runs_on.synchronize()
    start = streams[0].record()
    for stream in streams:
        stream.hold(HOLD_S)
    ends = [stream.record() for stream in streams]
    runs_on.synchronize()
    return max(end.seconds_after(start) for end in ends)


def capture(ground: Ground) -> str | None:
    """A captured pass gives what the same pass launched kernel by kernel gives."""
    if not ground.runs_on.is_async:
        return None
    bench, spec = ground.bench, ground.spec
    timed = TimedPass("verify", "target", min(8, spec.rows), 5, 64, "eager")
    results = []
    for launch in ("eager", "graphed"):
        issuer = bench.issuer(launch)
        bench.warm(timed._replace(launch=launch), issuer)
        pass_ = bench.ready(timed)
        bench.reset(pass_)
        pending = issuer.issue(pass_.shape, pass_.rows)
        if pending.is_graph is not (launch == "graphed"):
            raise Red(f"{timed.name}, to be {launch}, was not")
        results.append(pending.values())
    if results[0] != results[1]:
        raise Red(f"{timed.name} gives other tokens when it is captured")
    return f"{timed.name} gives the same tokens captured"


CHECKS: tuple[Callable[[Ground], str | None], ...] = (imports, streams, kernels, capture)
"""Checks of the machine, the cheap ones first."""


def smoke(device: str, out: Path, campaign: Campaign) -> None:
    """Run every check once into OUT/smoke.json. Raises ValueError for a red one, or OUT of another machine."""
    cuda.find(device)
    ours = fingerprint(device)
    path = out / SMOKE_FILE
    former = json.loads(path.read_text()) if path.exists() else None
    if former is not None:
        points_file.check_alike(
            f"{str(out)!r} is of another machine", former["fingerprint"], ours, "choose another directory"
        )
        if former["is_green"]:
            return
    checks = []
    ground = Ground(device, cuda.find(device), campaign.job)
    for check in CHECKS:
        checks.append(run_check(check, ground))
        print(f"campaign: smoke: {checks[-1]['name']}: {checks[-1]['said']}", flush=True)
        if not checks[-1]["is_ok"]:
            break
    is_green = all(each["is_ok"] for each in checks)
    write_text(path, json.dumps({"is_green": is_green, "fingerprint": ours, "checks": checks}, indent=1) + "\n")
    if not is_green:
        raise ValueError(f"nothing is measured here: {checks[-1]['name']}: {checks[-1]['said']}")


def run_check(check: Callable[[Ground], str | None], ground: Ground) -> dict[str, Json]:
    started_s = perf_counter()
    try:
        said, is_ok = check(ground) or f"does not apply to a {ground.device}", True
    except Exception as error:
        said, is_ok = " ".join(f"{error}".split()) or type(error).__name__, False
    return {"name": check.__name__, "is_ok": is_ok, "said": said, "seconds": round(perf_counter() - started_s, 1)}


def main(args: Sequence[str]) -> int:
    """Exit code 1 and one line where a check is red."""
    name, out = args
    torch.set_num_threads(1)
    try:
        smoke(device_of(name), Path(out), CAMPAIGNS[name])
    except ValueError as error:
        print(f"campaign: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
