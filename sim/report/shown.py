"""Answers that show themselves: in print and in Jupyter as the command does, as a frame, and as a picture.

What the functions of `lanesim` return; each is the answer of a study with `sentence`, `frame()` and `plot()` beside its
own fields, which FORMS fills in. Imports pandas, rich and matplotlib inside functions. Not here: fields (sim.studies),
tables (say).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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
E2EL, RATE = "mean E2EL (ms)", "requests/s within the SLOs"
Row = dict[str, Any]
Told = TypeVar("Told", bound=msgspec.Struct)


class Shown:
    """Print, Jupyter's display, sentence, frame and picture of an answer."""

    __slots__ = ()

    @property
    def _form(self) -> Form:
        return next(FORMS[kind] for kind in type(self).__mro__ if kind in FORMS)

    @property
    def sentence(self) -> str:
        """The answer in a line, as the command begins."""
        from rich.console import Console

        from sim.report.say import said_of

        assert isinstance(self, Stated | Comparison | Varied)
        return " ".join(said_of(self, Console(width=WIDTH)).answer.split())

    def frame(self) -> pd.DataFrame:
        """One row per row of the answer, its scalars as columns; of a comparison one per run, units in the names."""
        import pandas as pd

        return pd.DataFrame(list(self._form.rows(self)))

    def plot(self) -> Axes:
        """The picture of the answer with its 95 % intervals, or 90 % of its draws. Raises ValueError without the
        plotting libraries."""
        return self._form.plot(self)

    def __str__(self) -> str:
        return self._shown().export_text()

    def _repr_html_(self) -> str:
        return self._shown().export_html(inline_styles=True, code_format='<pre style="line-height:1.2">{code}</pre>')

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _shown(self) -> Console:
        from rich.console import Console

        from sim.report.say import print_answer

        # In a notebook rich would show every line by itself, beside what it is requested.
        console = Console(record=True, file=StringIO(), width=WIDTH, force_jupyter=False)
        assert isinstance(self, Stated | Comparison | Varied)
        print_answer(console, self)
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

    def paired_frame(self) -> pd.DataFrame:
        """One row per pair of policies and metric: `a`, `b`, `metric`, `difference`, `ci95_low`, `ci95_high`."""
        import pandas as pd

        names = ["a", "b", "metric", "difference", "ci95_low", "ci95_high"]
        rows = [
            (pair.a, pair.b, UNITS.get(pair.metric, pair.metric), pair.difference, *(pair.ci95 or (None, None)))
            for pair in self.paired
        ]
        return pd.DataFrame(rows, columns=names)


class ShownVaried(Shown, Varied, frozen=True, kw_only=True):
    """Values of keys side by side (what `lanesim compare --vary --json` holds).

    >>> import lanesim
    >>> cache = {"prefix_cache": [True, False]}
    >>> lanesim.compare(profile="cpu/tiny", num_prompts=20, request_rate=5, draws=0, vary=cache).loads[0].keys
    {}
    """


class ShownTuning(Shown, Tuning, frozen=True, kw_only=True):
    """Draft lengths by load (what `lanesim tune --json` holds); a row per concurrency and draft length."""


class ShownContexts(Shown, ContextTuning, frozen=True, kw_only=True):
    """Draft lengths by load and prompt length; a row per prompt length."""


class ShownAttainment(Shown, Attainment, frozen=True, kw_only=True):
    """Highest loads within the SLOs (what `lanesim capacity --json` holds); a row per policy."""


class ShownRental(Shown, Rental, frozen=True, kw_only=True):
    """Deployments to rent (what `lanesim plan --json` holds); a row per deployment."""


def shown_as(kind: type[Told], answer: msgspec.Struct) -> Told:
    """The answer as one of its kind that shows itself."""
    return kind(**msgspec.structs.asdict(answer))


def runs_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """`runs` as rows: every metric that is one number or label, under a name with its unit."""
    import pandas as pd

    return pd.DataFrame(list(_run_rows(runs)))


def _run_rows(runs: Sequence[Run], **load: Any) -> Iterator[Row]:
    """The same one by one, the keys of their load first."""
    for run in runs:
        yield load | {UNITS.get(key, key): value for key, value in run.items() if not isinstance(value, dict | list)}


def _scalars(row: msgspec.Struct) -> Row:
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


def _draw_intervals(given: Iterable[tuple[str, float | None, Interval | None]], unit: str) -> Axes:
    """A point with its interval per row, the first on top; rows without a value keep their place."""
    rows = list(given)
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
    points: Sequence[tuple[str, float, float | None]], x: str, y: str, *, level: float | None = None
) -> Axes:
    """A line through (its name, x, y), and a thin one at `level`."""
    axes, lines = _new_axes(6.4, 3.6), dict[str, list[tuple[float, float]]]()
    for name, at, value in points:
        lines.setdefault(name, []).extend([] if value is None else [(at, value)])
    for name, known in lines.items():
        axes.plot(*zip(*known, strict=True), marker="o", label=name) if known else None
    if level is not None:
        axes.axhline(level, color="grey", linewidth=0.8)
    set_ticks(axes, sorted({at for _, at, _ in points}))
    axes.legend(frameon=False, fontsize=8)
    panel(axes, x=x, y=y)
    return axes


def _means(result: Comparison, load: str = "") -> Iterator[tuple[str, float | None, Interval | None]]:
    for row in result.policies:
        yield ", ".join(filter(None, [load, row.policy])), row.mean[METRIC], row.ci95[METRIC]


# -- what each answer shows


class Form(NamedTuple):
    """The rows of an answer's frame, and its picture."""

    rows: Callable[[Any], Iterable[Row]]
    plot: Callable[[Any], Axes]


LOSSES = {"a table each": "regret", "one for all": "regret_without"}
"""Percent lost against the best length by a table for each prompt length, and by one for all."""
FORMS: dict[type, Form] = {
    Comparison: Form(lambda a: _run_rows(a.runs), lambda a: _draw_intervals(_means(a), E2EL)),
    Varied: Form(
        lambda a: (row for each in a.loads for row in _run_rows(each.comparison.runs, **each.keys)),
        lambda a: _draw_intervals((row for each in a.loads for row in _means(each.comparison, each.name)), E2EL),
    ),
    Tuning: Form(
        lambda a: (
            {"concurrency": point.concurrency, "answer": point.k, **_scalars(each)}
            for point in a.points
            for each in point.lengths
        ),
        lambda a: _draw_lines(
            [(f"K = {each.k}", point.concurrency, each.speedup) for point in a.points for each in point.lengths],
            *("requests in flight", f"{a.objective} over no speculation"),
            level=1.0,
        ),
    ),
    ContextTuning: Form(
        lambda a: map(_scalars, a.contexts),
        lambda a: _draw_lines(
            [(name, each.prompt_tokens, 100.0 * getattr(each, LOSSES[name])) for name in LOSSES for each in a.contexts],
            *("prompt tokens", "loss against the best length (%)"),
        ),
    ),
    Attainment: Form(
        lambda a: (
            _scalars(row) | dict(zip(("draws_low", "draws_high"), row.draws_interval or (None, None), strict=True))
            for row in a.highest
        ),
        lambda a: _draw_intervals(((row.policy, row.load, row.draws_interval or row.ci95) for row in a.highest), RATE),
    ),
    Rental: Form(
        lambda a: map(_scalars, a.deployments),
        lambda a: _draw_intervals(
            ((row.deployment, row.rate_per_replica, row.rate_interval) for row in a.deployments),
            f"{RATE} of one replica",
        ),
    ),
}
