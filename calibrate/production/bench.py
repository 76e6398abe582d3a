"""Results of `vllm bench serve --save-result`: one level of load.

Not here: requests one by one (realrun.validate.vllm).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calibrate.production.served import Accepted, Served
from sim.files.json_values import read_json

NEEDED = ("completed", "total_input_tokens", "total_output_tokens", "output_throughput", "mean_ttft_ms", "mean_tpot_ms")


def read_bench(path: Path, *, num_speculative_tokens: int | None = None) -> Served:
    """The level that a result tells. Raises ValueError, one line naming the file and what is missing.

    Requests in flight are `max_concurrency` where the run reached it; at a rate, by Little's law, throughput times mean
    E2EL. Acceptance where the benchmark had it from the server.
    """
    result = read_json(path, "bench result")
    where = f"bench result {str(path)!r}"
    if not isinstance(result, dict):
        raise ValueError(f"{where}: want an object, as `vllm bench serve --save-result` writes")
    for key in NEEDED:
        if not isinstance(result.get(key), int | float):
            raise ValueError(f"{where}: no number under {key!r}; is it of `vllm bench serve --save-result`?")
    completed = int(result["completed"])
    if completed < 1:
        raise ValueError(f"{where}: no request completed")
    output_tokens = result["total_output_tokens"] / completed
    e2el_s = (result["mean_ttft_ms"] + (output_tokens - 1.0) * result["mean_tpot_ms"]) / 1e3
    in_flight = result["output_throughput"] / output_tokens * e2el_s
    limit = result.get("max_concurrency")
    return Served(
        source=path.name,
        concurrency=float(limit) if isinstance(limit, int) and in_flight > 0.75 * limit else max(1.0, in_flight),
        prompt_tokens=result["total_input_tokens"] / completed,
        output_tokens=output_tokens,
        ttft_s=result["mean_ttft_ms"] / 1e3,
        tpot_s=result["mean_tpot_ms"] / 1e3,
        output_tokens_per_s=float(result["output_throughput"]),
        accepted=_accepted(result, num_speculative_tokens),
        num_requests=completed,
    )


def _accepted(result: dict[str, Any], num_speculative_tokens: int | None) -> Accepted | None:
    drafts = float(result.get("spec_decode_num_drafts") or 0.0)
    rates = result.get("spec_decode_per_position_acceptance_rates") or ()
    length = result.get("spec_decode_acceptance_length")
    if rates:
        return Accepted(drafts=drafts or 1.0, draft_tokens=len(rates), rates=tuple(map(float, rates)))
    if length and num_speculative_tokens:
        return Accepted(drafts=drafts or 1.0, draft_tokens=num_speculative_tokens, rates=(), mean_length=float(length))
    return None
