"""Prompt and output lengths of recorded workloads, as small quantile tables with both lengths dependent.

A table is the prompt's quantile function and, for each of several equal-sized groups of requests by prompt length, the
output's: so "prompts around 1,100 tokens get long answers" survives, which a correlation would lose. Both are piecewise
linear in probability and fitted to the sorted lengths by least squares, which keeps the means. Not here: arrivals
(sim.workload.generate) and whole traces (sim.workload.traces).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.draws import Floats, Integers

_PROMPT_LEVELS = (
    0.0, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5,
    0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 0.99, 0.995, 0.998, 1.0,
)  # fmt: skip
"""Probabilities of the prompt quantiles."""
_OUTPUT_LEVELS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995, 1.0)
"""Probabilities of the output quantiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTable:
    """Joint distribution of prompt and output tokens."""

    source: str
    recorded_means: tuple[float, float]
    """Mean prompt and output tokens of the source."""
    prompt_tokens: tuple[int, ...]
    """[prompt levels]"""
    output_tokens: tuple[tuple[int, ...], ...]
    """[groups][output levels], short prompts first."""

    def sample(self, prompt_uniforms: Floats, output_uniforms: Floats) -> tuple[Integers, Integers]:
        """[requests] prompt and [requests] output tokens for uniforms in [0, 1)."""
        prompts = np.interp(prompt_uniforms, _PROMPT_LEVELS, self.prompt_tokens)
        groups = (prompt_uniforms * len(self.output_tokens)).astype(np.int64)
        levels = np.asarray(_OUTPUT_LEVELS)
        above = np.searchsorted(levels, output_uniforms, side="right")
        quantiles = np.asarray(self.output_tokens, dtype=np.float64)
        low, high = quantiles[groups, above - 1], quantiles[groups, above]
        share = (output_uniforms - levels[above - 1]) / (levels[above] - levels[above - 1])
        outputs = low + share * (high - low)
        return np.rint(prompts).astype(np.int64), np.rint(outputs).astype(np.int64)


LENGTH_TABLES = {
    "azure-conv": LengthTable(
        source="Azure LLM inference trace 2023, conversation (AzurePublicDataset, CC-BY-4.0), 19,366 requests",
        recorded_means=(1154.7, 211.13),
        prompt_tokens=(
            4, 18, 23, 106, 185, 190, 190, 190, 353, 392, 392, 392, 392, 657, 1025, 1025, 1045, 1070, 1098, 1121,
            1208, 1267, 1796, 2826, 4130, 4130, 4130, 4130, 4712, 5436, 7801,
        ),
        output_tokens=(
            (12, 12, 12, 69, 101, 123, 145, 162, 169, 181, 203, 218, 218, 248, 338, 1000),
            (13, 13, 17, 18, 58, 62, 69, 76, 82, 91, 106, 162, 192, 219, 219, 343),
            (41, 59, 72, 80, 86, 89, 92, 96, 100, 105, 113, 130, 142, 159, 180, 200),
            (36, 60, 76, 82, 87, 91, 95, 98, 103, 109, 120, 139, 152, 171, 236, 668),
            (24, 41, 61, 76, 76, 314, 399, 399, 399, 412, 422, 442, 503, 584, 613, 778),
            (43, 43, 363, 381, 392, 396, 398, 407, 412, 421, 428, 471, 548, 590, 872, 1000),
            (31, 31, 324, 385, 387, 396, 397, 407, 414, 425, 433, 488, 571, 614, 767, 1000),
            (33, 46, 57, 103, 156, 221, 399, 399, 399, 413, 421, 448, 530, 597, 697, 992),
            (24, 37, 45, 49, 63, 75, 85, 96, 107, 127, 147, 188, 214, 375, 461, 764),
            (23, 28, 30, 35, 41, 46, 51, 58, 67, 78, 99, 129, 153, 185, 336, 757),
        ),
    ),
    "azure-code": LengthTable(
        source="Azure LLM inference trace 2023, code (AzurePublicDataset, CC-BY-4.0), 8,819 requests",
        recorded_means=(2047.85, 27.88),
        prompt_tokens=(
            5, 13, 16, 36, 62, 86, 110, 148, 224, 383, 575, 778, 944, 1070, 1250, 1466, 1684, 1913, 2174, 2433, 2727,
            3167, 3849, 5131, 6303, 7437, 7437, 7437, 7437, 7437, 7437,
        ),
        output_tokens=(
            (6, 6, 6, 7, 8, 10, 12, 14, 16, 19, 26, 52, 80, 147, 250, 1420),
            (6, 6, 6, 7, 8, 9, 11, 14, 16, 21, 29, 56, 86, 170, 266, 708),
            (6, 6, 6, 7, 8, 9, 11, 13, 16, 21, 28, 53, 81, 152, 266, 824),
            (6, 6, 6, 7, 8, 9, 11, 12, 14, 18, 25, 49, 84, 149, 408, 940),
            (6, 6, 6, 7, 8, 10, 11, 13, 16, 20, 29, 54, 98, 152, 360, 922),
        ),
    ),
    "sharegpt-long": LengthTable(
        source="ShareGPT sample of LLMServingSim (MIT), llama-3.1-8b tokens, 300 requests with outputs from 512 on",
        recorded_means=(857.46, 652.51),
        prompt_tokens=(
            262, 262, 263, 271, 297, 325, 355, 363, 382, 426, 489, 516, 575, 621, 655, 734, 794, 834, 895, 1021, 1111,
            1214, 1317, 1463, 1646, 1848, 2349, 2782, 3416, 3982, 3998,
        ),
        output_tokens=(
            (513, 520, 526, 530, 540, 555, 579, 587, 623, 709, 756, 770, 770, 770, 819, 819),
            (512, 515, 519, 524, 552, 575, 596, 644, 733, 768, 768, 769, 769, 769, 1004, 1004),
            (518, 520, 531, 539, 567, 591, 617, 678, 725, 768, 768, 772, 773, 777, 784, 784),
        ),
    ),
}  # fmt: skip
"""Lengths by dataset name."""
