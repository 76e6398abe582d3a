"""The words of docs/accuracy.md and its cells: sections with their lines. Not here: any simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.costs.profile import Profile
from validation.tables import markdown_table, off_pct

HOST_TIMES = ("step_s", "row_s", "gap_s", "draft_pass_s", "draft_phase_s", "frontend_s", "graph_launch_s", "result_s")
FITTED = "fitted:"
"""What follows it in a bullet of a section says which constants were fitted, and on what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure of a run: real, simulated, and the error in percent of the real one; None where unknown."""

    what: str
    real: float | None = None
    simulated: float | None = None
    error_pct: float | None
    bar_pct: float | None = None
    """The error asked for, in size; None where none is."""
    is_size: bool = False
    """The error is a size, or a mean of sizes, without a sign."""
    is_fit: bool = False
    """A constant was fitted on it: it judges nothing."""
    peer: float | None = None
    """What LLMServingSim's committed simulation has, and its error."""
    peer_error_pct: float | None = None

    @classmethod
    def beside(cls, what: str, real: float, simulated: float, **more: Any) -> Line:
        """The line with the error of `simulated`."""
        return cls(what=what, real=real, simulated=simulated, error_pct=off_pct(simulated, real), **more)

    @property
    def is_met(self) -> bool | None:
        if self.bar_pct is None or self.error_pct is None:
            return None
        return abs(self.error_pct) <= self.bar_pct


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cell; errors in percent of the real figure, None where it was not measured."""

    gpu: str
    engine: str
    model: str
    method: str = "none"
    k: int = 0
    workload: str
    concurrency: str = "1"
    together: str = ""
    """What the summary has in place of `k`, where cells of several draft lengths are one line; empty: k."""
    is_fit: bool = False
    throughput: tuple[float, float] | None = None
    """Output tokens per second, real and simulated."""
    errors_pct: Mapping[str, float | None] = field(default_factory=dict)
    """Errors by `tok/s`, `TPOT` (or `ITL`), `TTFT`, `speed-up`, `acceptance length`."""
    speedup: tuple[float, float] | None = None
    peer: str = ""
    peer_errors_pct: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One run, or one table of cells."""

    title: str
    about: Sequence[str]
    """Source, engine, profile, constants and what they were fitted on: one bullet each."""
    lines: Sequence[Line]
    tail: str = ""
    """Markdown below the lines."""
    has_peer: bool = False
    rows: Sequence[Row] = ()
    """Rows that the matrix has of it."""


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.1f}" if abs(value) >= 100.0 else f"{value:.3g}" if abs(value) < 1.0 else f"{value:.2f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f} %"


def error(line: Line) -> str:
    return f"{line.error_pct:.2f} %" if line.is_size and line.error_pct is not None else percent(line.error_pct)


def bar(line: Line) -> str:
    if line.is_fit:
        return "fit"
    return "" if line.bar_pct is None else f"{line.bar_pct:g} %"


def met(line: Line) -> str:
    return {None: "", True: "yes", False: "**no**"}[line.is_met]


def section_text(section: Section) -> str:
    headings = ["metric", "real", "lanesim", "error", "bar", "met"]
    peer = ["LLMServingSim", "its error"] if section.has_peer else []
    rows = [
        [line.what, number(line.real), number(line.simulated), error(line), bar(line), met(line)]
        + ([number(line.peer), percent(line.peer_error_pct)] if section.has_peer else [])
        for line in section.lines
    ]
    about = "".join(f"- {each}\n" for each in section.about)
    parts = [f"## {section.title}\n", about, markdown_table([*headings, *peer], rows) if rows else "", section.tail]
    return "\n".join(part for part in parts if part)


def summary_text(sections: Sequence[Section]) -> str:
    """Every line that has a bar, whether it is met, and how many are."""
    judged = [(section, line) for section in sections for line in section.lines if line.bar_pct is not None]
    rows = [[section.title, line.what, error(line), bar(line), met(line) or "not run"] for section, line in judged]
    num_met = sum(line.is_met is True for _, line in judged)
    return f"{num_met} of {len(judged)} bars met.\n\n" + markdown_table(
        ["run", "metric", "error", "bar", "met"], rows, left=2
    )


def fitted_text(sections: Sequence[Section]) -> str:
    """The bullets that say what was fitted, section by section, from that word on; one without such a bullet is left
    out."""
    lines = []
    for section in sections:
        found = [bullet[bullet.lower().index(FITTED) + len(FITTED) :] for bullet in section.about if is_fitted(bullet)]
        if found:
            lines.append(f"- {section.title}: {'; '.join(each.strip() for each in found)}\n")
    return "".join(lines)


def is_fitted(bullet: str) -> bool:
    return FITTED in bullet.lower()


def profile_text(profile: Profile) -> str:
    """The profile, its form and the host's constants in use."""
    host = profile.host
    times = ", ".join(f"{name[:-2]} {getattr(host, name) * 1e3:.4g} ms" for name in HOST_TIMES)
    form = "compact constants" if profile.kernels.__class__.__name__ == "CompactKernels" else "table of points"
    return f"profile `{profile.name}` ({form}): {profile.source}; host: {times}"
