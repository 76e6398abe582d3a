"""Answers that show themselves: in print and in Jupyter as the command does, as a frame, and as a picture.

What the functions of `lanesim` return; each is the answer of a study with `sentence`, `frame()` and `plot()` beside its
own fields. Imports pandas, rich and matplotlib inside functions. Not here: fields (sim.studies), tables (say).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sim.compare.side_by_side import Comparison
from sim.compare.verdict import METRIC, Interval
from sim.metrics.summary import Run
from sim.names import install_line
from sim.report.pictures.panels import panel, set_ticks
from sim.report.store_frame import UNITS
from sim.studies.answer import Stated
from sim.studies.attainment import Attainment
from sim.studies.comparison.varied import Varied
from sim.studies.plan.search import Rental
from sim.studies.tune import ContextTuning, Tuning

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from rich.console import Console

WIDTH = 120
"""Characters of a line in a notebook."""


class Shown:
    """Print, Jupyter's display, and the sentence of an answer."""

    __slots__ = ()

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The answer in a line."""

    @abstractmethod
    def _tell(self, console: Console) -> None: ...

    def __str__(self) -> str:
        return self._shown().export_text()

    def _repr_html_(self) -> str:
        return self._shown().export_html(inline_styles=True, code_format='<pre style="line-height:1.2">{code}</pre>')

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _shown(self) -> Console:
        from rich.console import Console

        # In a notebook rich would show every line by itself, beside what it is requested.
        console = Console(record=True, file=StringIO(), width=WIDTH, force_jupyter=False)
        self._tell(console)
        return console


class ShownComparison(Shown, Comparison, frozen=True, kw_only=True):
    """Policies side by side (what `lanesim compare --json` holds); in a notebook it shows its tables.

    `runs` is a row of metrics per policy and seed, `policies` their means with 95 % intervals, `paired` the differences
    seed by seed.

    >>> import lanesim
    >>> result = lanesim.compare(profile="cpu/tiny", policy=("baseline", "pd"), num_prompts=20, request_rate=5)
    >>> result.paired_frame().loc[0, ["a", "b", "metric"]].tolist()
    ['pd', 'baseline', 'mean_ttft_ms']
    """

    @property
    def sentence(self) -> str:
        """The policy that serves fastest, and on what that depends."""
        return self.verdict

    def frame(self) -> pd.DataFrame:
        """One row per policy and seed, a column per metric, units in the names; per-stream blocks left out."""
        return runs_frame(self.runs)

    def paired_frame(self) -> pd.DataFrame:
        """One row per pair of policies and metric: `a`, `b`, `metric`, `difference`, `ci95_low`, `ci95_high`."""
        import pandas as pd

        names = ["a", "b", "metric", "difference", "ci95_low", "ci95_high"]
        rows = [
            (pair.a, pair.b, UNITS.get(pair.metric, pair.metric), pair.difference, *(pair.ci95 or (None, None)))
            for pair in self.paired
        ]
        return pd.DataFrame(rows, columns=names)

    def plot(self) -> Axes:
        """Mean E2EL of each policy with its 95 % interval. Raises ValueError without the plotting libraries."""
        return _draw_intervals([(row.policy, row.mean[METRIC], row.ci95[METRIC]) for row in self.policies], E2EL)

    def _tell(self, console: Console) -> None:
        from sim.report.tables import comparison_tables

        comparison_tables(console, self)


E2EL = "mean E2EL (ms)"


class ShownVaried(Shown, Varied, frozen=True, kw_only=True):
    """Values of keys side by side (what `lanesim compare --vary --json` holds).

    >>> import lanesim
    >>> cache = {"prefix_cache": [True, False]}
    >>> lanesim.compare(profile="cpu/tiny", num_prompts=20, request_rate=5, draws=0, vary=cache).loads[0].keys
    {}
    """

    @property
    def sentence(self) -> str:
        """The setting that serves fastest, or at how many loads each does."""
        return self.verdict

    def frame(self) -> pd.DataFrame:
        """One row per load, setting (`policy`) and seed, the keys of the load first, then as `ShownComparison.frame`
        has it."""
        import pandas as pd

        frames = []
        for each in self.loads:
            rows = runs_frame(each.comparison.runs)
            for name, value in reversed(each.keys.items()):
                rows.insert(0, name, value)
            frames.append(rows)
        return pd.concat(frames, ignore_index=True)

    def plot(self) -> Axes:
        """Mean E2EL of each setting under each load, with its 95 % interval. Raises ValueError without the plotting
        libraries."""
        rows = [
            (", ".join(filter(None, [each.name, row.policy])), row.mean[METRIC], row.ci95[METRIC])
            for each in self.loads
            for row in each.comparison.policies
        ]
        return _draw_intervals(rows, E2EL)

    def _tell(self, console: Console) -> None:
        from sim.report.varied_tables import print_varied

        print_varied(console, self)


class ShownAnswer(Shown, Stated, frozen=True, kw_only=True):
    """The answer of a study."""

    @property
    def sentence(self) -> str:
        """The answer in a line, as the command begins."""
        from rich.console import Console

        from sim.report.say import said_of

        return said_of(self, Console(width=WIDTH)).sentence

    def frame(self) -> pd.DataFrame:
        """One row per row of the answer, its scalars as columns."""
        import pandas as pd

        return pd.DataFrame(list(self._rows()))

    @abstractmethod
    def _rows(self) -> Iterator[dict[str, Any]]: ...

    def _tell(self, console: Console) -> None:
        from sim.report.say import print_answer

        print_answer(console, self)


class ShownTuning(ShownAnswer, Tuning, frozen=True, kw_only=True):
    """Draft lengths by load (what `lanesim tune --json` holds); a row per concurrency and draft length."""

    def plot(self) -> Axes:
        """Speed-up over no speculation by requests in flight, a line per draft length. Raises ValueError without the
        plotting libraries."""
        lines: dict[str, list[tuple[float, float | None]]] = {}
        for point in self.points:
            for each in point.lengths:
                lines.setdefault(f"K = {each.k}", []).append((point.concurrency, each.speedup))
        return _draw_lines(lines, "requests in flight", f"{self.objective} over no speculation", level=1.0)

    def _rows(self) -> Iterator[dict[str, Any]]:
        for point in self.points:
            for each in point.lengths:
                yield {"concurrency": point.concurrency, "answer": point.k, **_scalars(each)}


class ShownContexts(ShownAnswer, ContextTuning, frozen=True, kw_only=True):
    """Draft lengths by load and prompt length; a row per prompt length."""

    def plot(self) -> Axes:
        """Loss of a table for each prompt length, and of one for all, percent. Raises ValueError without the plotting
        libraries."""
        losses = {"a table each": "regret", "one for all": "regret_without"}
        lines = {
            name: [(each.prompt_tokens, 100.0 * getattr(each, field)) for each in self.contexts]
            for name, field in losses.items()
        }
        return _draw_lines(lines, "prompt tokens", "loss against the best length (%)")

    def _rows(self) -> Iterator[dict[str, Any]]:
        yield from map(_scalars, self.contexts)


class ShownAttainment(ShownAnswer, Attainment, frozen=True, kw_only=True):
    """Highest loads within the SLOs (what `lanesim capacity --json` holds); a row per policy."""

    def plot(self) -> Axes:
        """Highest load of each policy with 90 % of the draws. Raises ValueError without the plotting libraries."""
        return _draw_intervals([(row.policy, row.load, row.draws_interval or row.ci95) for row in self.highest], RATE)

    def _rows(self) -> Iterator[dict[str, Any]]:
        for row in self.highest:
            yield _scalars(row) | dict(
                zip(("draws_low", "draws_high"), row.draws_interval or (None, None), strict=True)
            )


class ShownRental(ShownAnswer, Rental, frozen=True, kw_only=True):
    """Deployments to rent (what `lanesim plan --json` holds); a row per deployment."""

    def plot(self) -> Axes:
        """Rate of a replica of each deployment with 90 % of the draws. Raises ValueError without the plotting
        libraries."""
        rows = [(row.deployment, row.rate_per_replica, row.rate_interval) for row in self.deployments]
        return _draw_intervals(rows, f"{RATE} of one replica")

    def _rows(self) -> Iterator[dict[str, Any]]:
        yield from map(_scalars, self.deployments)


RATE = "requests/s within the SLOs"


Told = TypeVar("Told", bound=msgspec.Struct)


def shown_as(kind: type[Told], answer: msgspec.Struct) -> Told:
    """The answer as one of its kind that shows itself."""
    return kind(**msgspec.structs.asdict(answer))


def runs_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """`runs` as rows: every metric that is one number or label, under a name with its unit."""
    import pandas as pd

    rows = [
        {UNITS.get(key, key): value for key, value in run.items() if not isinstance(value, dict | list)} for run in runs
    ]
    return pd.DataFrame(rows)


def _scalars(row: msgspec.Struct) -> dict[str, Any]:
    """Fields that are one number or text."""
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    return {name: value for name, value in values.items() if value is None or isinstance(value, str | int | float)}


# -- pictures


def _new_axes(width: float, height: float) -> Axes:
    """One axes in a figure of its own, inches. Raises ValueError without the plotting libraries."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ValueError(f"figures need matplotlib: {install_line('figures')}") from None
    axes: Axes = plt.subplots(figsize=(width, height), layout="constrained")[1]
    return axes


def _draw_intervals(rows: Sequence[tuple[str, float | None, Interval | None]], unit: str) -> Axes:
    """A point with its interval per row, the first on top; rows without a value keep their place."""
    axes = _new_axes(6.4, 1.2 + 0.35 * len(rows))
    for place, (_, value, interval) in enumerate(rows):
        if value is None:
            continue
        low, high = interval or (value, value)
        axes.errorbar(value, place, xerr=[[max(0.0, value - low)], [max(0.0, high - value)]], fmt="o", capsize=3)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    panel(axes, x=unit)
    return axes


def _draw_lines(
    lines: Mapping[str, Sequence[tuple[float, float | None]]], x: str, y: str, *, level: float | None = None
) -> Axes:
    """A line per name, and a thin one at `level`."""
    axes = _new_axes(6.4, 3.6)
    for name, points in lines.items():
        known = [(at, value) for at, value in points if value is not None]
        axes.plot(*zip(*known, strict=True), marker="o", label=name) if known else None
    if level is not None:
        axes.axhline(level, color="grey", linewidth=0.8)
    set_ticks(axes, sorted({at for points in lines.values() for at, _ in points}))
    axes.legend(frameon=False, fontsize=8)
    panel(axes, x=x, y=y)
    return axes
