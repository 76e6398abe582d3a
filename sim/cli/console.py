"""The terminal of a command: progress while it works, notes at the end, the result as JSON, where it goes.

Not here: tables (sim.report.tables).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, ParamSpec

import click

from sim.files.lock import destinations

if TYPE_CHECKING:
    from sim.files.json_values import Json
    from sim.report.say import Answered
    from sim.workload.generate import Workload

P = ParamSpec("P")
OnStep = Callable[[str, int, int], None]
"""(what is being done, how many of it are done, how many there are)."""


LINE_EVERY_S = 10.0
DRAWN_EVERY_S = 0.1
"""A bar."""
PART = 1 << 16
"""Characters that stdout is given at a time."""
CONSENT = "lanesim.overwrite"
"""Key of click's meta for whether the running command may replace what is there."""


class ProgressLines:
    """A line on stderr every LINE_EVERY_S at most, for pipes and logs; none of what is done before the first."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._started_s = self._said_s = clock()

    def __call__(self, stage: str, done: int, total: int) -> None:
        now_s = self._clock()
        if now_s - self._said_s >= LINE_EVERY_S:
            self._said_s = now_s
            print(f"lanesim: {stage}: {done} of {total}, {now_s - self._started_s:.0f} s", file=sys.stderr, flush=True)


@contextmanager
def progress() -> Iterator[OnStep]:
    """A bar with rate and time left where stderr is a terminal, elsewhere a line now and then."""
    if not sys.stderr.isatty():
        yield ProgressLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft
    from rich.text import Text

    class RateColumn(ProgressColumn):
        """Runs that are done in a second."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.3g}/s" if task.speed else "")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), RateColumn(), TimeLeft())
    # Without a thread that redraws: beside one, workers would not be forked.
    bars = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    tasks: dict[str, TaskID] = {}
    drawn_s = 0.0

    def on_step(stage: str, done: int, total: int) -> None:
        nonlocal drawn_s
        if not tasks:
            bars.start()
        if stage not in tasks:
            for task in tasks.values():
                bars.update(task, visible=False)
            tasks[stage] = bars.add_task(stage, total=total)
            drawn_s = 0.0
        bars.update(tasks[stage], completed=done, total=total)
        if monotonic() - drawn_s >= DRAWN_EVERY_S:
            drawn_s = monotonic()
            bars.refresh()

    try:
        yield on_step
    finally:
        if tasks:
            bars.stop()


@contextmanager
def notes(tell: Callable[[str], None]) -> Iterator[None]:
    """Say each warning of the block once, when it ends: a line per kind, and one on what was extrapolated.

    A kind whose texts differ by run has a `merged` that makes one of them.
    """
    from sim.costs.extrapolation import collecting

    said: dict[type[Warning], dict[str, None]] = {}

    def hear(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        said.setdefault(category, {}).setdefault(str(message))

    with warnings.catch_warnings(), collecting() as extrapolation:
        warnings.showwarning = hear
        try:
            yield
        finally:
            kinds = [getattr(category, "merged", ". ".join)(texts) for category, texts in said.items()]
            for text in (*kinds, str(extrapolation)):
                if text:
                    tell(f"note: {text}")


def _until_it_ends(hold: Callable[P, AbstractContextManager[None]]) -> Callable[P, None]:
    """`hold` for as long as the running command takes, with the consent of its --overwrite."""

    def claim(*args: P.args, **wanted: P.kwargs) -> None:
        context = click.get_current_context()
        wanted["overwrite"] = context.meta.get(CONSENT, False)
        context.with_resource(hold(*args, **wanted))

    return claim


claim = _until_it_ends(destinations)
"""Check, compare with its inputs and lock what the running command will write to. Raises ValueError."""


def note_trace(workload: Workload) -> None:
    """A note on what the run takes of a trace, and on a clock that is odd and counts."""
    from sim.workload.generate import TraceArrivals, recorded

    if (trace := recorded(workload)) is not None:
        warnings.warn(f"{trace.source}: {trace.in_words}", stacklevel=2)
        if trace.note is not None and workload.trace_arrivals is TraceArrivals.RECORDED:
            warnings.warn(trace.note, stacklevel=2)


def write_text(path: str, text: str) -> None:
    """`text` into the file at `path`, whole or not at all; `-` is stdout."""
    from sim.files import write

    if path == "-":
        for start in range(0, len(text), PART):  # The stream has as much again of what it is given.
            sys.stdout.write(text[start : start + PART])
    else:
        write.write_text(Path(path), text)


def show(path: str | None, answer: Answered, *, is_verbose: bool = False, out: Path | None = None) -> None:
    """The answer as JSON where a path was named, and in words unless that is stdout; its folder `out` last."""
    if write_json(path, answer.plain):
        from rich.console import Console

        from sim.report.say import print_answer
        from sim.run.compiled import said

        print_answer(Console(), answer, is_verbose=is_verbose)
        if is_verbose:
            print(said())
        if out is not None:
            print(f"results    {out}")


def write_json(path: str | None, result: Mapping[str, Json]) -> bool:
    """`result` into the file at `path`, where one was named; whether the terminal is left for words."""
    if path is not None:
        from sim.report.results import to_json

        write_text(path, to_json(result))
    return path != "-"
