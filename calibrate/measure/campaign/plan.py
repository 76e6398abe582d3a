"""The campaign of a lent GPU: five steps in the order of what they are worth, each within a time of its own.

Not here: their commands, called one by one (calibrate.measure.campaign.runner).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from sim.files.json_values import Json

if TYPE_CHECKING:
    from calibrate.measure.pair import PairSpec

Step = Literal["smoke", "measure", "closed", "open", "many"]
STEPS: tuple[Step, ...] = get_args(Step)
SMOKE, MEASURE, CLOSED, OPEN, MANY = STEPS
LIMITS_S: dict[str, float] = {SMOKE: 30.0, MEASURE: 190.0, CLOSED: 110.0, OPEN: 100.0, MANY: 120.0}
"""Seconds on a GPU after which a step is ended; what it has by then is kept."""
SMOKE_FILE, PREDICTION = "smoke.json", "prediction.json"
"""Files in the campaign's directory: of the first step, and of what the second predicts of the replays."""
OPEN_SHARE = 0.6
"""Rate of the open loop, relative to what the largest closed loop is predicted to serve."""
DONE = "done"
"""The folder there of steps that are over."""


def done_file(out: Path, step: str) -> Path:
    """It is there when the step is over."""
    return out / DONE / step


class MeasuredPair(NamedTuple):
    """A pair, its budget, and rows and context as of `calibrate measure`; KV of all rows and the weights must fit."""

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

        return pair_spec(device, self.target, self.draft, self.rows, self.context)

    def profile_path(self, out: Path) -> Path:
        return out / f"{self.name}.json"

    def points_path(self, out: Path) -> Path:
        return out / f"{self.name}.points.jsonl"


class Loop(NamedTuple):
    """One replay: a closed loop of `concurrency`, or an open one (None)."""

    name: str
    concurrency: int | None
    num_prompts: int
    policies: tuple[str, ...]
    replications: int = 1
    """Runs of each policy, in turn: equal ones differ by some percent."""

    @property
    def title(self) -> str:
        return self.name if self.concurrency is None else f"{self.name}, {self.concurrency} in flight"


class Campaign(NamedTuple):
    job: MeasuredPair
    loads: tuple[Loop, ...]
    input_tokens: int
    output_tokens: int
    patience: float = 1.0
    """Times that a limit is longer than on a GPU."""

    def limit_s(self, step: str) -> float:
        return self.patience * LIMITS_S[step]

    @property
    def largest(self) -> Loop:
        """The closed loop of most requests in flight."""
        return max(self.loads, key=lambda load: load.concurrency or 0)

    def scenario(self, load: Loop, profile: str, request_rate: float) -> dict[str, Json]:
        """The raw scenario of `load`. An open loop serves no more at once than the largest closed one."""
        is_open = load.concurrency is None
        return {
            "profile": profile,
            "policy": list(load.policies),
            "replications": load.replications,
            "engine": {"max_num_seqs": self.largest.concurrency},
            "workload": {
                "num_prompts": load.num_prompts,
                "request_rate": request_rate if is_open else "inf",
                "max_concurrency": load.concurrency,
                "input_len": self.input_tokens,
                "output_len": self.output_tokens,
            },
        }


BESIDE = "continuous"
LANES = "pd", "pdv", "unified"
POLICIES = ("autoregressive", *LANES, BESIDE)
_LARGE = Campaign(
    job=MeasuredPair("llama-3.1-8b", "llama-3.2-1b", 100.0, 64, 4096),
    loads=(
        Loop(CLOSED, 16, 48, (BESIDE, "pd", "pdv"), 3),
        Loop(OPEN, None, 96, (BESIDE, "pd"), 3),
        Loop(MANY, 64, 128, POLICIES),
    ),
    input_tokens=512,
    output_tokens=128,
)
CAMPAIGNS = {
    "cuda": _LARGE,
    "cuda-24gb": _LARGE._replace(job=MeasuredPair("qwen2.5-1.5b", "qwen2.5-0.5b", 100.0, 32, 2048)),
    "cpu": Campaign(
        job=MeasuredPair("tiny-target", "tiny-draft", 15.0),
        loads=(
            Loop(CLOSED, 4, 8, (BESIDE, "pd", "pdv"), 2),
            Loop(OPEN, None, 8, (BESIDE, "pd")),
            Loop(MANY, 8, 16, POLICIES),
        ),
        input_tokens=48,
        output_tokens=16,
        patience=10.0,
    ),
}
"""Campaigns by name; that of a CPU rehearses the others' every step."""


def device_of(campaign: str) -> str:
    """The device of a name in CAMPAIGNS.

    >>> device_of("cuda-24gb")
    'cuda'
    """
    return campaign.partition("-")[0]
