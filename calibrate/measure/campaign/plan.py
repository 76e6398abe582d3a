"""Campaigns: a smoke step, rates of two streams, a pair measured (passes alone and at once), three replays of it.

Not here: doing it (calibrate.measure.campaign.steps), calling the steps one by one
(calibrate.measure.campaign.runner).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sim.files.json_values import Json

if TYPE_CHECKING:
    from calibrate.measure.pair import PairSpec

SMOKE, CORUN, MEASURE, REPLAY, REPORT = "smoke", "corun", "measure ", "replay ", "report"


SMOKE_FILE = "smoke.json"
"""File of the first step in the campaign's directory."""
OPEN, OPEN_SHARE = "open", 0.6
"""Name of the open loop, and its rate relative to what was served."""
DONE = "done"
"""The folder there of steps that are over."""
UNTIL = SMOKE, CORUN
"""Steps to end with, the first ones."""
ALWAYS = SMOKE, REPORT
"""Steps of a moment, run in every call."""


def done_file(out: Path, step: str) -> Path:
    """It is there when the step is over."""
    return out / DONE / step.replace(" ", "-")


class MeasuredPair(NamedTuple):
    """One pair and the seconds that its measurement is planned with; rows and context as of `calibrate measure`.

    KV of all rows and the weights must fit the device together.
    """

    target: str
    draft: str
    budget_s: float
    rows: int | None = None
    context: int | None = None

    @property
    def name(self) -> str:
        return f"{self.target}+{self.draft}"

    def spec(self, device: str) -> PairSpec:
        from calibrate.measure.pair import pair_spec

        return pair_spec(device, self.target, self.draft, None, self.rows, self.context, None, 0)

    def profile_path(self, out: Path) -> Path:
        return out / f"{self.name}.json"

    def points_path(self, out: Path) -> Path:
        return out / f"{self.name}.points.jsonl"


class Loop(NamedTuple):
    """One replay of every policy of the campaign: a closed loop of `concurrency`, or the open loop (None), whose
    requests come at OPEN_SHARE of what `continuous` served in the campaign's first closed loop."""

    concurrency: int | None
    num_prompts: int

    @property
    def name(self) -> str:
        return OPEN if self.concurrency is None else f"c{self.concurrency}"


class Campaign(NamedTuple):
    job: MeasuredPair
    loads: tuple[Loop, ...]
    policies: tuple[str, ...]
    input_tokens: int
    output_tokens: int
    repeats: int = 4
    """Runs of each kind that say what serving adds."""
    replications: int = 3
    """Runs of each policy in a replay: equal ones differ by some percent."""
    corun_s: float = 480.0
    """Seconds for the rates of two streams."""

    @property
    def steps(self) -> list[str]:
        """Names of the steps, in order."""
        return [SMOKE, CORUN, f"{MEASURE}{self.job.name}", *(f"{REPLAY}{load.name}" for load in self.loads), REPORT]

    def scenario(self, load: Loop, profile: str, request_rate: float) -> dict[str, Json]:
        """The raw scenario of `load` with the profile at this path; an open loop's requests come at that rate."""
        is_open = load.concurrency is None
        return {
            "profile": profile,
            "policy": list(self.policies),
            "replications": self.replications,
            "workload": {
                "num_prompts": load.num_prompts,
                "request_rate": request_rate if is_open else "inf",
                "max_concurrency": load.concurrency,
                "input_len": self.input_tokens,
                "output_len": self.output_tokens,
            },
        }


def _in_ten_minutes(campaign: Campaign) -> Campaign:
    """Shorter grids, three policies in one closed loop and the open one, one run of each."""
    return campaign._replace(
        job=campaign.job._replace(budget_s=120.0),
        loads=campaign.loads[:2],
        policies=("continuous", "pd", "pdv"),
        repeats=2,
        replications=1,
        corun_s=200.0,
    )


POLICIES = ("autoregressive", "pd", "pdv", "unified", "continuous")
_LARGE = Campaign(
    job=MeasuredPair("llama-3.1-8b", "llama-3.2-1b", 300.0, 64, 4096),
    loads=(Loop(16, 48), Loop(None, 48), Loop(1, 6), Loop(64, 128)),
    policies=POLICIES,
    input_tokens=512,
    output_tokens=128,
)
_SMALL = _LARGE._replace(job=MeasuredPair("qwen2.5-1.5b", "qwen2.5-0.5b", 300.0, 32, 2048))
CAMPAIGNS = {
    "cuda": _LARGE,
    "cuda-10min": _in_ten_minutes(_LARGE),
    "cuda-24gb": _SMALL,
    "cuda-24gb-10min": _in_ten_minutes(_SMALL),
    "cpu": Campaign(
        job=MeasuredPair("tiny-target", "tiny-draft", 15.0),
        loads=(Loop(4, 8), Loop(None, 8), Loop(1, 3), Loop(8, 16)),
        policies=POLICIES,
        input_tokens=48,
        output_tokens=16,
        repeats=1,
        replications=1,
        corun_s=10.0,
    ),
}
"""Campaigns by name. That of ten minutes is for a GPU that is lent; that of a CPU rehearses the others'
every step in two."""


def device_of(campaign: str) -> str:
    """The device of a name in CAMPAIGNS.

    >>> device_of("cuda-24gb")
    'cuda'
    """
    return campaign.partition("-")[0]
