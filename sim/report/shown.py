"""Answers that show themselves: in print and in Jupyter as the command does, and as a frame.

What the functions of `lanesim` return; each is the answer of a study with `sentence` and `frame()` beside its own
fields. Imports pandas and rich inside functions. Not here: fields (sim.studies), tables (say).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sim.compare.side_by_side import Comparison
from sim.metrics.summary import Run
from sim.report.store_frame import UNITS
from sim.studies.answer import Stated
from sim.studies.attainment import Attainment
from sim.studies.comparison.varied import Varied
from sim.studies.plan.search import Rental
from sim.studies.tune import ContextTuning, Tuning

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

WIDTH = 120
"""Characters of a line in a notebook."""
Row = dict[str, Any]
Told = TypeVar("Told", bound=msgspec.Struct)


class Shown:
    """Print, Jupyter's display, sentence and frame of an answer."""

    __slots__ = ()

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

        rows = next(ROWS[kind] for kind in type(self).__mro__ if kind in ROWS)
        return pd.DataFrame(list(rows(self)))

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
    """Policies side by side, as in `lanesim compare --json`. In a notebook it shows its tables.

    `runs` has the metrics of each policy and seed, `policies` their means with 95 % intervals, `paired` the differences
    seed by seed.

    >>> import lanesim
    >>> result = lanesim.compare(profile="cpu/tiny", policy=("baseline", "pd"), num_prompts=20, request_rate=5)
    >>> result.paired_frame().loc[0, ["a", "b", "metric"]].tolist()
    ['pd', 'baseline', 'mean_ttft_ms']
    """

    def paired_frame(self) -> pd.DataFrame:
        """One line per pair of policies and metric: `a`, `b`, `metric`, `difference`, `ci95_low`, `ci95_high`."""
        import pandas as pd

        names = ["a", "b", "metric", "difference", "ci95_low", "ci95_high"]
        rows = [
            (pair.a, pair.b, UNITS.get(pair.metric, pair.metric), pair.difference, *(pair.ci95 or (None, None)))
            for pair in self.paired
        ]
        return pd.DataFrame(rows, columns=names)


class ShownVaried(Shown, Varied, frozen=True, kw_only=True):
    """Values of keys side by side, as in `lanesim compare --vary --json`.

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


# -- frames


ROWS: dict[type, Callable[[Any], Iterable[Row]]] = {
    Comparison: lambda answer: _run_rows(answer.runs),
    Varied: lambda answer: (row for each in answer.loads for row in _run_rows(each.comparison.runs, **each.keys)),
    Tuning: lambda answer: (
        {"concurrency": point.concurrency, "answer": point.k, **_scalars(each)}
        for point in answer.points
        for each in point.lengths
    ),
    ContextTuning: lambda answer: map(_scalars, answer.contexts),
    Attainment: lambda answer: (
        _scalars(row) | dict(zip(("draws_low", "draws_high"), row.draws_interval or (None, None), strict=True))
        for row in answer.highest
    ),
    Rental: lambda answer: map(_scalars, answer.deployments),
}
"""Rows of an answer's frame."""
