"""Flags and keys that we write and servers know, as read from the sources inside their wheels on 2026-11-22.

vllm 0.33.0 (files of 2026-11-01): vllm/engine/arg_utils.py; fields of SpeculativeConfig in vllm/config/speculative.py.
sglang 0.5.23 (files of 2026-10-30): sglang/srt/arg_groups/fields and
the graph backends of exec_. A name that is new in our lines is looked up there before it is added here.
"""

from __future__ import annotations

from sim.cli.compare import CompareFlags, compare_command
from sim.cli.options import gather, with_assumptions
from sim.costs.profile_files import load
from sim.run.resolve import resolve_all
from sim.run.scenario import parse_scenario
from sim.studies.serve_commands import deployment


def serving(*words: str) -> str:
    """The line that starts the server that `lanesim compare` with these words simulates."""
    flags = CompareFlags(**compare_command.make_context("compare", list(words)).params)
    scenario = parse_scenario(with_assumptions(gather(flags)))
    profile = load(scenario.profile)
    resolve_all(scenario, profile)
    table = ((1, 1, scenario.speculation.num_speculative_tokens),)
    return deployment(scenario, profile, table, {}, **flags.repositories).start


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


VLLM_SERVE = _names("""
--async-scheduling --block-size --data-parallel-size --enable-chunked-prefill --enable-expert-parallel
--enable-prefix-caching --enforce-eager --gpu-memory-utilization --kv-cache-dtype --long-prefill-token-threshold
--max-model-len --max-num-batched-tokens --max-num-seqs --num-gpu-blocks-override --quantization --speculative-config
--tensor-parallel-size
""")
VLLM_SPECULATIVE_CONFIG = _names("""
method model num_speculative_tokens num_speculative_tokens_per_batch_size parallel_drafting
""")
SGLANG_LAUNCH_SERVER = _names("""
--attn-dp-size --chunked-prefill-size --cuda-graph-backend-decode --cuda-graph-backend-prefill --dp-size
--enable-mixed-chunk --ep-size --kv-cache-dtype --max-running-requests --max-total-tokens --model-path --quantization
--scheduler-recv-interval --speculative-adaptive --speculative-adaptive-config --speculative-algorithm
--speculative-draft-model-path --speculative-eagle-topk --speculative-num-draft-tokens --speculative-num-steps
--tp-size
""")
VLLM_METHODS = _names("ngram draft_model suffix eagle eagle3 mtp dflash dspark")
SGLANG_ALGORITHMS = _names("EAGLE EAGLE3 NEXTN STANDALONE NGRAM DFLASH DSPARK UNO")
