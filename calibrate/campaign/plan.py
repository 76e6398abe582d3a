"""What a campaign does, in order of worth: ceilings, solo grids with overlap of the pairs, predictions, replays, one
lossless check, then what can wait: other cells, single models.

Not here: doing it (calibrate.campaign.steps), calling the steps one by one (calibrate.campaign.__main__), the report
(calibrate.campaign.report).
"""

from __future__ import annotations

from typing import Any, NamedTuple

MEASURE, REPLAY = "measure ", "replay "


class Job(NamedTuple):
    """One pair and the seconds that its measurement is planned with; rows and context as of `calibrate measure`.

    KV of all rows and the weights must fit the device together.
    """

    target: str
    draft: str | None
    budget_s: float
    rows: int | None = None
    context: int | None = None
    can_wait: bool = False
    """After the replays: its models are measured as part of another pair already."""

    @property
    def name(self) -> str:
        return self.target if self.draft is None else f"{self.target}+{self.draft}"


class Cell(NamedTuple):
    """One replay: every policy of the campaign at one closed-loop concurrency."""

    name: str
    concurrency: int
    num_prompts: int
    cuda_graph: bool = True
    acceptance: str = "iid:0.7"
    draft_tokens: int = 4
    can_wait: bool = False
    """After the lossless check, as time allows."""


class Campaign(NamedTuple):
    """The pair of the first job is the one that is replayed."""

    jobs: tuple[Job, ...]
    cells: tuple[Cell, ...]
    policies: tuple[str, ...]
    input_tokens: int
    output_tokens: int
    tied_layers: int
    """Of the lossless check's draft."""
    repeats: int = 4
    """Runs of each kind that say what serving adds to the passes."""

    @property
    def steps(self) -> list[str]:
        """Names of the steps in order; of each the file OUT/done/NAME says that it is over."""
        measured = {
            late: [f"{MEASURE}{job.name}" for job in self.jobs if job.can_wait is late] for late in (False, True)
        }
        replayed = {
            late: [f"{REPLAY}{cell.name}" for cell in self.cells if cell.can_wait is late] for late in (False, True)
        }
        return [
            "ceilings",
            *measured[False],
            "predict",
            *replayed[False],
            "lossless",
            *replayed[True],
            *measured[True],
        ]

    def scenario(self, cell: Cell, profile: str) -> dict[str, Any]:
        """The raw scenario of `cell` with the profile at this path."""
        return {
            "profile": profile,
            "policy": list(self.policies),
            "engine": {"cuda_graph": cell.cuda_graph},
            "workload": {
                "num_prompts": cell.num_prompts,
                "request_rate": "inf",
                "max_concurrency": cell.concurrency,
                "input_len": self.input_tokens,
                "output_len": self.output_tokens,
            },
            "speculation": {"num_speculative_tokens": cell.draft_tokens, "acceptance": cell.acceptance},
        }


POLICIES = ("autoregressive", "pd", "pdv", "unified", "continuous")
CAMPAIGNS = {
    "cuda": Campaign(
        jobs=(
            Job("llama-3.1-8b", "llama-3.2-1b", 300.0, 64, 4096),
            Job("llama-2-7b", "tinyllama-1.1b", 200.0, 40, 2048),
            Job("llama-3.1-8b", None, 120.0, 128, 2048, can_wait=True),
            Job("llama-3.2-1b", None, 80.0, 128, 4096, can_wait=True),
            Job("tinyllama-1.1b", None, 80.0, 128, 2048, can_wait=True),
        ),
        cells=(
            Cell("c16", 16, 48),
            Cell("c1", 1, 6),
            Cell("c64", 64, 128),
            Cell("c16-again", 16, 48),
            Cell("c16-third", 16, 48),
            Cell("c16-eager", 16, 48, cuda_graph=False, can_wait=True),
            Cell("c16-half", 16, 48, acceptance="iid:0.5", can_wait=True),
            Cell("c16-k2", 16, 48, draft_tokens=2, can_wait=True),
        ),
        policies=POLICIES,
        input_tokens=512,
        output_tokens=128,
        tied_layers=4,
    ),
    "cpu": Campaign(
        jobs=(Job("tiny-target", "tiny-draft", 15.0),),
        cells=(Cell("c1", 1, 3), Cell("c4", 4, 8)),
        policies=POLICIES,
        input_tokens=48,
        output_tokens=16,
        tied_layers=1,
    ),
}
