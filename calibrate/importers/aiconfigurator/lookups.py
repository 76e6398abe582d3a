"""Times of one GPU's kernels at given token counts, looked up in aiconfigurator's tables by what a model asks for.

GEMMs in every number format, expert layers, latent and linear attention, all-reduces and gathers: one engine's tables,
and where those lack something another engine's, which `notes` then says. What no table has (a 4-bit dense GEMM, experts
of a shape that was never measured) comes by a rule, which `notes` says as well. Seconds on one device.
Not here: reading files (kernel_files), what a layer is made of (deployment).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from calibrate.fit.fit_errors import Array
from calibrate.fit.kernel_tables import AttentionTable, GemmTable
from calibrate.importers.aiconfigurator.kernel_files import KernelFiles
from calibrate.importers.aiconfigurator.sparse import Modules, read_modules
from sim.costs.profile import Gpu
from sim.costs.shapes import WEIGHT_BITS, Experts, Linear, ModelShape

if TYPE_CHECKING:
    import pandas as pd

ENGINES = ("vllm", "sglang", "trtllm")
"""Whose tables there are, in the order in which they stand in for one another."""
GEMM_NAMES = {"bf16": "bfloat16", "fp8": "fp8", "fp8-block": "fp8_block", "nvfp4": "nvfp4", "int4": "int4_wo"}
EXPERT_NAMES = {
    "bf16": ("bfloat16",),
    "fp8": ("fp8",),
    "fp8-block": ("fp8_block",),
    "nvfp4": ("nvfp4",),
    "mxfp4": ("w4a16_mxfp4",),
    "mxfp4-fp8": ("w4a8_mxfp4_mxfp8",),
    "mxfp4-marlin": ("int4_wo",),
    "int4": ("int4_wo",),
}
"""Weight format -> moe_dtype, first choice first."""
MARLIN = "mxfp4-marlin"
"""Marlin was timed with int4 weights alone: scaled from those, and never faster than the other kernel for mxfp4."""
KV_NAMES = {"bf16": "bfloat16", "fp8": "fp8"}
SKEWS = ("power_law_1.2", "power_law_1.01", "balanced")
"""Distributions of tokens over experts in the tables, most like a real router first."""
WEIGHT_ONLY = ("int4", "mxfp4", "mxfp4-fp8", "mxfp4-marlin")
"""Formats that are unpacked to bf16 on the way to the multiplier."""
SCALED_BY_BLOCK = ("fp8-block", "nvfp4")
"""Formats whose activations get their scales at run time."""
QUANTISE_S = 5e-6
"""Seconds of the kernels that find and apply them; fitted on served cells (validation/recipes.csv names them)."""
STREAM_SHARE = 0.8
"""Share of the bandwidth at which packed weights of a weight-only GEMM stream, and activations are quantised;
assumed."""
UNPACK_SHARE = 0.85
"""Share of bf16's rate at which they multiply; assumed."""
T = TypeVar("T")


class ExpertTable(NamedTuple):
    """`seconds` [tokens] of an expert layer on the slowest device of a group, at rising `tokens` of the whole group."""

    tokens: Array
    seconds: Array

    def at(self, tokens: Array) -> Array:
        """Seconds [tokens] at any counts: between measured ones linearly, beyond the last in proportion."""
        inside = np.interp(tokens, self.tokens, self.seconds)
        most = self.tokens[-1]
        return np.where(tokens > most, self.seconds[-1] * tokens / most, inside)


class Lookups:
    """Tables of `files` as `engine` runs them; `notes` collects what another engine's table or a rule stood in for."""

    def __init__(self, files: KernelFiles, engine: str = "vllm", *, has_nccl_alone: bool = False) -> None:
        self.files = files
        self.has_nccl_alone = has_nccl_alone
        self.engine = engine
        self.notes: list[str] = []
        self._gemms: dict[str, GemmTable | None] = {}
        self._frames: dict[Path, pd.DataFrame] = {}

    @cached_property
    def gpu(self) -> Gpu:
        return self.files.datasheet()

    def gemm_s(self, columns: int, depth: int, tokens: Array, weights: str = "bf16") -> Array:
        """One GEMM of each of `tokens` rows with weights in a format of WEIGHT_BITS."""
        table = self._gemm_table(weights)
        if table is None:
            return self._packed_gemm_s(columns, depth, tokens, weights)
        low, high = np.log(SUSTAINED_TOKENS)
        share = np.clip((np.log(tokens) - low) / (high - low), 0.0, 1.0)
        return np.asarray(_at_tokens(table, columns, depth, tokens) * (1.0 + (SUSTAINED_RATIO - 1.0) * share))

    def is_measured(self, tokens: int) -> bool:
        """Whether GEMMs of so many tokens were measured in every format that was looked up."""
        return all(table is None or tokens in table.tokens for table in self._gemms.values())

    def _gemm_table(self, weights: str) -> GemmTable | None:
        if weights not in self._gemms:
            name = GEMM_NAMES.get(weights)
            self._gemms[weights] = None
            if name is not None:
                found = self._first(lambda engine: self._checked_gemms(engine, name), f"{weights} GEMMs")
                if found is None and weights not in WEIGHT_ONLY:
                    raise ValueError(f"no GEMMs with weights in {weights} in the tables of {self.gpu.name!r}")
                self._gemms[weights] = found
        return self._gemms[weights]

    def _checked_gemms(self, engine: str, name: str) -> GemmTable:
        """Raises ValueError for a table that was timed with its launches: in service they are inside CUDA graphs."""
        table = self.files.gemm(engine, name, is_whole=False)
        min_s = float(np.nanmin(table.seconds))
        if min_s > LAUNCH_BOUND_S:
            raise ValueError(f"no {name} GEMM of {engine} below {min_s:g} s: timed with its launches")
        if (engine, name) in TIMED_WITH_SCALES:
            table = self._without_scales(table, engine, name)
        if (engine, name) in UNTUNED:
            table = _least(table, self.files.gemm(UNTUNED[engine, name], name, is_whole=False))
        return _without_outliers(table)

    def _without_scales(self, table: GemmTable, engine: str, name: str) -> GemmTable:
        """`table` less what finding the scale of its activations and applying it took, by tokens and depth."""
        found = np.zeros((len(table.tokens), len(table.depths)))
        for part in ("computescale_perf", "scale_matrix_perf"):
            frame = self.files.read("quantize", engine, part, ["m", "k", "quant_dtype"])
            frame = frame[frame["quant_dtype"] == name].groupby(["m", "k"])["latency"].min().unstack()
            at_tokens = np.stack([np.interp(table.tokens, frame.index, frame[k]) for k in frame.columns])
            found += 1e-3 * np.stack([np.interp(table.depths, frame.columns, line) for line in at_tokens.T])
        least = MAX_SCALES_SHARE * table.seconds
        return table._replace(seconds=np.maximum(table.seconds - found[:, None, :], least))

    def _packed_gemm_s(self, columns: int, depth: int, tokens: Array, weights: str) -> Array:
        """Weight-only formats without a table: packed weights stream, bf16 multiplies."""
        self.note(f"{weights} GEMMs by rule from bf16")
        plain_s = self.gemm_s(columns, depth, tokens)
        share = WEIGHT_BITS[weights] / 16.0
        saved_s = 2.0 * columns * depth * (1.0 - share) / (STREAM_SHARE * self.gpu.bandwidth_bytes_per_s)
        computed_s = 2.0 * tokens * columns * depth / (UNPACK_SHARE * self.gpu.peak_flops)
        return np.maximum(np.maximum(plain_s - saved_s, share * plain_s), np.minimum(computed_s, 1.2 * plain_s))

    def experts_s(self, shape: ModelShape, experts: Experts, weights: str, split: tuple[int, int], at: Array) -> Array:
        """One expert layer, routed tokens in and out, of `at` tokens in the whole group; `split` is (ways in which
        every expert is cut, ways in which experts are spread)."""
        if weights == MARLIN:
            own_s = self.experts_s(shape, experts, "mxfp4", split, at)
            return np.asarray(np.maximum(own_s, self._scaled_experts_s(shape, experts, weights, split, at)))
        table = self._expert_table((shape.hidden, experts.intermediate, experts.per_token, experts.num), weights, split)
        if table is not None:
            return table.at(at)
        return self._scaled_experts_s(shape, experts, weights, split, at)

    def _expert_table(
        self, layout: tuple[int, int, int, int], weights: str, split: tuple[int, int]
    ) -> ExpertTable | None:
        def of(engine: str) -> ExpertTable:
            for frame, name in product(self._expert_frames(engine), EXPERT_NAMES[weights]):
                rows = frame[frame["moe_dtype"] == name]
                for column, value in zip((*LAYOUT, *SPLIT), (*layout, *split), strict=True):
                    rows = rows[rows[column] == value]
                for skew in SKEWS:
                    chosen = rows[rows["distribution"] == skew]
                    if len(chosen) > 1:
                        return _expert_table(chosen)
            raise ValueError("none")

        if self.engine not in TUNES_EXPERTS:
            return self._first(of, f"{weights} experts")
        tables = []
        for engine in ENGINES:
            with suppress(ValueError):
                tables.append(of(engine))
        if not tables:
            return None
        self.note(f"{weights} experts: the fastest of all engines'")
        tokens = np.unique(np.concatenate([table.tokens for table in tables]))
        most = min(table.tokens[-1] for table in tables)
        tokens = tokens[tokens <= most]
        return ExpertTable(tokens, np.min([table.at(tokens) for table in tables], axis=0))

    def _scaled_experts_s(
        self, shape: ModelShape, experts: Experts, weights: str, split: tuple[int, int], at: Array
    ) -> Array:
        """Seconds [tokens] of the measured layout that is most like it, by the ratio of what both read and compute."""

        def of(engine: str) -> tuple[tuple[int, ...], ExpertTable]:
            of_version = (
                frame[frame["moe_dtype"].isin(EXPERT_NAMES[weights])] for frame in self._expert_frames(engine)
            )
            frame = next((frame for frame in of_version if not frame.empty), None)
            if frame is None:
                raise ValueError("none")
            skew = next((skew for skew in SKEWS if (frame["distribution"] == skew).any()), None)
            if skew is None:
                raise ValueError("none")
            frame = frame[frame["distribution"] == skew]
            layouts = frame[[*LAYOUT, *SPLIT]].drop_duplicates()
            wanted = (shape.hidden, experts.intermediate, experts.per_token, experts.num, *split)
            far = sum(
                np.abs(np.log(layouts[column].to_numpy(dtype=float) / value))
                for column, value in zip((*LAYOUT, *SPLIT), wanted, strict=True)
            )
            nearest = tuple(int(value) for value in layouts.iloc[int(np.argmin(far))])
            for column, value in zip((*LAYOUT, *SPLIT), nearest, strict=True):
                frame = frame[frame[column] == value]
            return nearest, _expert_table(frame.drop_duplicates("num_tokens"))

        lacking = f"no experts with weights in {weights} in the tables of {self.gpu.name!r}"
        nearest, table = self._needed(of, f"{weights} experts like these", lacking)
        hidden, wide, per_token, num, cut, spread = nearest
        like = Experts(num=num, per_token=per_token, intermediate=wide)
        self.note(
            f"experts scaled from {num} of {hidden} x {wide}, top {per_token}, cut {cut}, spread {spread}: this layout "
            "was never measured"
        )
        bits = WEIGHT_BITS[weights]
        ratio = self._expert_roof_s(shape.hidden, experts, split, bits, at)
        ratio = ratio / self._expert_roof_s(hidden, like, (cut, spread), bits, at)
        return table.at(at) * ratio

    def _expert_roof_s(self, hidden: int, experts: Experts, split: tuple[int, int], bits: float, at: Array) -> Array:
        """What reading the activated experts and multiplying with them takes at the datasheet's roofs."""
        size = 3.0 * hidden * experts.intermediate / split[0]
        unique = np.array([experts.unique(tokens) for tokens in at]) / split[1]
        read_s = size * np.maximum(1.0, unique) * bits / 8.0 / self.gpu.bandwidth_bytes_per_s
        compute_s = (
            2.0 * size * at * experts.per_token / split[1] / (self.gpu.peak_flops * max(1.0, 16.0 / max(bits, 8.0)))
        )
        return np.maximum(read_s, compute_s) + LAUNCH_S

    def _expert_frames(self, engine: str) -> Iterator[pd.DataFrame]:
        """Tables of experts of every version, the newest first: a newer one may have only what was measured again."""
        columns = ["moe_dtype", "num_tokens", *LAYOUT, *SPLIT, "distribution"]
        for path, version in self.files.versions("moe", engine, "moe_perf"):
            if path not in self._frames:
                self._frames[path] = self.files.read_file(engine, path, version, columns)
            yield self._frames[path]

    def attention(self, table: str, kv: str, window: int) -> AttentionTable:
        """All points of generation_attention_perf or context_attention_perf. Raises ValueError where there are none."""
        which = f"with {kv} KV" + (f" and a window of {window}" if window else "")
        return self._needed(
            lambda engine: self.files.attention(engine, table, KV_NAMES[kv], window),
            f"{table} {which}",
            f"{table} of {self.gpu.name!r}: no rows {which}",
        )

    def latent(self, phase: str, heads: int, kv: str) -> AttentionTable:
        """The kernel of latent attention alone with so many query heads on one device; `phase` is context or
        generation. Measured on DeepSeek-V3's ranks, which all public models share. vLLM's tables hold whole modules,
        launches and all, so another engine's kernels stand in."""
        table = f"{phase}_mla_perf"
        names = ["batch_size", "isl", "step", "num_heads"]

        def of(engine: str) -> AttentionTable:
            frame = self.files.read("mla", engine, table, [*names, "kv_cache_dtype"])
            frame = frame[(frame["num_heads"] == heads) & (frame["kv_cache_dtype"] == KV_NAMES[kv])]
            if frame.empty:
                raise ValueError("none")
            columns = {name: frame[name].to_numpy(dtype=float) for name in names}
            ones = np.ones(len(frame))
            return AttentionTable(
                columns["batch_size"],
                columns["isl"] + columns["step"],
                columns["num_heads"],
                ones,
                ones,
                frame["latency"].to_numpy(dtype=float) * 1e-3,
            )

        lacking = f"{table} of {self.gpu.name!r}: no rows of {heads} heads with {kv} KV"
        return self._needed(of, f"{table} with {kv} KV", lacking)

    def modules(self, phase: str, heads: tuple[int, int], projections: str, kv: str) -> Modules:
        """Sparse attention with its matrices; `heads` is (heads on one device, devices)."""
        return self._needed(
            lambda engine: read_modules(self.files, engine, phase, heads, projections, KV_NAMES[kv]),
            f"sparse attention ({phase})",
            f"no sparse attention of {heads[0]} heads on one of {heads[1]} devices with {projections} matrices and "
            f"{kv} KV in the tables of {self.gpu.name!r}",
        )

    def linear_s(self, linear: Linear, degree: int, tokens: Array) -> Array:
        """The kernels of one layer of linear attention, which go by tokens alone: a sequence's state has one size. Up
        to STATE_ROWS tokens are rows that decode, each with a state of its own; more are a prompt."""
        wanted = {
            "num_k_heads": linear.key_heads // degree,
            "num_v_heads": linear.value_heads // degree,
            "head_k_dim": linear.key_dim,
            "head_v_dim": linear.value_dim,
        }

        def of(engine: str) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
            frame = self.files.read("linear_attention", engine, "gdn_perf", ["batch_size", "seq_len", *wanted])
            for column, value in wanted.items():
                frame = frame[frame[column] == value]
            return _state_curve(frame, "batch_size"), _state_curve(frame[frame["batch_size"] == 1], "seq_len")

        decode, prompt = self._needed(
            of,
            "linear attention",
            f"no linear attention of {wanted['num_k_heads']} key and {wanted['num_v_heads']} value heads in the tables "
            f"of {self.gpu.name!r}",
        )
        self.note(f"linear attention of up to {STATE_ROWS} tokens as rows that decode, of more as a prompt")
        as_rows = np.interp(tokens, *decode)
        beyond = np.interp(tokens, *prompt) * np.maximum(1.0, tokens / prompt[0][-1])
        return np.where(tokens <= STATE_ROWS, as_rows, np.maximum(beyond, np.interp(STATE_ROWS, *decode)))

    def reduce_s(self, devices: int, message_bytes: Array) -> Array:
        """An all-reduce among `devices` in service: the engine's own or NCCL's, whichever is faster at that size, as
        engines choose, under CUDA graphs; and what it takes that the devices do not arrive together. Twice as many as
        were measured take as much more as those do over half of them."""
        if devices == 1:
            return np.zeros(len(message_bytes))
        fastest = self._fastest_reduce_s(devices, message_bytes)
        if fastest is None and devices % 4 == 0:
            half, quarter = (self._fastest_reduce_s(devices // part, message_bytes) for part in (2, 4))
            if half is not None and quarter is not None:
                self.note(f"all-reduces of {devices} by rule from {devices // 2} and {devices // 4}")
                fastest = half + np.maximum(0.0, half - quarter)
        if fastest is None:
            raise ValueError(f"no all-reduce of {devices} devices in the tables of {self.gpu.name!r}")
        return np.asarray(REDUCE_RATIO * fastest + REDUCE_SKEW_S * np.log2(devices))

    def _fastest_reduce_s(self, devices: int, message_bytes: Array) -> Array | None:
        """Seconds [messages] of the fastest table that has so many devices, at each size; None where none has."""

        def of(engine: str) -> tuple[Array, Array]:
            frame = self.files.read("comm", engine, "custom_allreduce_perf", ["num_gpus", "message_size"])
            frame = frame[frame["num_gpus"] == devices]
            if "backend" in frame:
                graphed = frame[frame["backend"].str.endswith("graph")]
                frame = frame if graphed.empty else graphed
            if "implementation" in frame:
                frame = frame.sort_values("latency").drop_duplicates("message_size")
            return _curve(frame)

        own = None if self.has_nccl_alone else self._first(of, f"all-reduces of {devices}")
        curves = [curve for curve in (own, self._nccl("all_reduce", devices)) if curve is not None]
        if self._has_fused_reduces():
            with suppress(ValueError):
                curves.append(of("trtllm"))
        return np.min([_message_s(curve, message_bytes) for curve in curves], axis=0) if curves else None

    @property
    def fuses_quantising(self) -> bool:
        """Whether the all-reduce before a norm brings activations to the next GEMM's format (TensorRT-LLM)."""
        return self.engine == "trtllm"

    @property
    def fuses_norms(self) -> bool:
        """Whether the residual is added and normed in the all-reduce's own kernel (TensorRT-LLM, but for NCCL's)."""
        return self.engine == "trtllm" and not self.has_nccl_alone

    def _has_fused_reduces(self) -> bool:
        """Whether vLLM runs TensorRT-LLM's all-reduces, through FlashInfer: on Blackwell data-centre GPUs."""
        return self.engine == "vllm" and self.gpu.name.startswith(("b200", "b300", "gb"))

    def quantise_s(self, depth: int, tokens: Array, weights: str) -> Array:
        """Bringing [tokens, depth] of bf16 activations to the format of the GEMM that reads them: a kernel of its own
        for block-scaled formats; static scales are applied by the kernel before."""
        if weights not in SCALED_BY_BLOCK:
            return np.zeros(len(tokens))
        moved = tokens * depth * (2.0 + WEIGHT_BITS[weights] / 8.0)
        return QUANTISE_S + moved / (STREAM_SHARE * self.gpu.bandwidth_bytes_per_s)

    def gather_s(self, devices: int, message_bytes: Array) -> Array:
        """All-gather of `message_bytes` in all among `devices` and the reduce-scatter back (NCCL): how vLLM moves
        tokens to the experts of other ranks and their results back by default."""
        if devices == 1:
            return np.zeros(len(message_bytes))
        total = np.zeros(len(message_bytes))
        for name in ("all_gather", "reduce_scatter"):
            curve = self._nccl(name, devices)
            if curve is None:
                raise ValueError(f"no {name} of {devices} devices in the tables of {self.gpu.name!r}")
            total = total + _message_s(curve, message_bytes)
        return total

    def _nccl(self, name: str, devices: int) -> tuple[Array, Array] | None:
        if self.files.find("comm", "nccl", "nccl_perf") is None:
            return None
        frame = self.files.read("comm", "nccl", "nccl_perf", ["num_gpus", "message_size", "op_name"])
        frame = frame[(frame["op_name"] == name) & (frame["num_gpus"] == devices) & (frame["nccl_dtype"] == "half")]
        return None if frame.empty else _curve(frame)

    def _first(self, of: Callable[[str], T], what: str) -> T | None:
        """What `of` gives for this engine, or for the first other one whose tables have it; None where none has."""
        for engine in (self.engine, *(other for other in ENGINES if other != self.engine)):
            try:
                found = of(engine)
            except ValueError:
                continue
            if engine != self.engine:
                self.note(f"{what}: {engine}'s")
            return found
        return None

    def _needed(self, of: Callable[[str], T], what: str, lacking: str) -> T:
        """What `_first` gives. Raises ValueError that says what is `lacking` where no engine has it."""
        found = self._first(of, what)
        if found is None:
            raise ValueError(lacking)
        return found

    def note(self, note: str) -> None:
        """Something stood in: said once."""
        if note not in self.notes:
            self.notes.append(note)


STATE_ROWS = 256
"""Engines decode that many sequences at once by default at most."""
LAYOUT = ("hidden_size", "inter_size", "topk", "num_experts")
SPLIT = ("moe_tp_size", "moe_ep_size")
TIMED_WITH_SCALES = (("trtllm", "fp8"),)
"""Tables of whole modules that find the scale of their activations at run time (7 us of torch operators, whatever the
size): checkpoints bring it with them, and the kernel before the GEMM applies it."""
TUNES_EXPERTS = ("trtllm",)
"""Engines that choose among several kernels of experts, by what they run on and how many tokens there are; the tables
of this one have the CUTLASS backend's and DeepGEMM's, of which its recipes on Blackwell use neither for few tokens."""
MAX_SCALES_SHARE = 0.3
"""Share of a GEMM's time that is left at least."""
UNTUNED = {("trtllm", "nvfp4"): "sglang"}
"""TensorRT-LLM tunes its GEMMs over several kernels when it starts; its table has one kernel for all, 1.4 to 1.8 times
SGLang's time at 64 tokens and as fast at 1,024. The faster one of the two stands."""
LAUNCH_BOUND_S = 1.5e-5
"""A GEMM table in which none is shorter was timed launch by launch: vLLM 0.24's block-scaled FP8 takes 58 us on H200
and 170 us on B200 whatever its size, other engines' take 4."""
REDUCE_RATIO = 1.35
REDUCE_SKEW_S = 1e-6
"""An all-reduce in service over one in the tables, where all devices arrive at once: times, and seconds per doubling of
the devices. Fitted on served cells (validation/recipes.csv names them)."""
SUSTAINED_RATIO = 1.17
SUSTAINED_TOKENS = (128, 2048)
"""GEMMs of passes of so many tokens and more take that much longer in service than in the tables, which are timed at
boost clocks for an instant; none of it up to the first count. Fitted likewise."""
DENTS_UP_TO = 256
OUTLIER = 1.25
"""A GEMM slower by this factor than one of as many tokens, at least as many columns and at least as deep is a slip."""
LAUNCH_S = 1e-5
"""Seconds to launch the kernels of an expert layer, routing among them."""


def _expert_table(frame: pd.DataFrame) -> ExpertTable:
    """The fastest of several kernels at as many tokens, without dents."""
    least = frame.groupby("num_tokens")["latency"].min()
    tokens, seconds = least.index.to_numpy(dtype=float), least.to_numpy(dtype=float) * 1e-3
    return ExpertTable(tokens, _no_dents(tokens, seconds))


def _no_dents(tokens: Array, seconds: Array) -> Array:
    """`seconds` lifted to their concave hull up to DENTS_UP_TO tokens: the experts that so many tokens activate grow
    ever more slowly, so that a time below the line between fewer and more tokens is one draw of the router that was
    luckier than its neighbours."""
    hull: list[int] = []
    few = [int(i) for i in np.flatnonzero(tokens <= DENTS_UP_TO)]
    for i in few:
        while len(hull) > 1:
            a, b = hull[-2:]
            line = seconds[a] + (seconds[i] - seconds[a]) * (tokens[b] - tokens[a]) / (tokens[i] - tokens[a])
            if seconds[b] >= line:
                break
            hull.pop()
        hull.append(i)
    lifted = seconds.copy()
    if few:
        lifted[few] = np.interp(tokens[few], tokens[hull], seconds[hull])
    return lifted


def _state_curve(frame: pd.DataFrame, axis: str) -> tuple[Array, Array]:
    """(tokens, seconds) of the kernels of linear attention together, each once: of several models with the same heads
    the least."""
    phase = "generation" if axis == "batch_size" else "context"
    frame = frame[frame["phase"] == phase]
    if frame.empty:
        raise ValueError("none")
    least = frame.groupby(["kernel_source", axis])["latency"].min().unstack(0).dropna().sum(axis=1)
    return least.index.to_numpy(dtype=float), least.to_numpy(dtype=float) * 1e-3


def _curve(frame: pd.DataFrame) -> tuple[Array, Array]:
    """(message bytes, seconds) of two-byte elements, rising."""
    if frame.empty:
        raise ValueError("none")
    frame = frame.sort_values("message_size")
    return 2.0 * frame["message_size"].to_numpy(dtype=float), frame["latency"].to_numpy(dtype=float) * 1e-3


def _message_s(curve: tuple[Array, Array], message_bytes: Array) -> Array:
    """Linear between sizes; beyond the largest in proportion."""
    sizes, seconds = curve
    inside = np.interp(message_bytes, sizes, seconds)
    return np.where(message_bytes > sizes[-1], seconds[-1] * message_bytes / sizes[-1], inside)


def _least(table: GemmTable, other: GemmTable) -> GemmTable:
    """The lesser time wherever both have one."""
    seconds = table.seconds.copy()
    axes = (table.tokens, table.columns, table.depths)
    others = (other.tokens, other.columns, other.depths)
    pairs = zip(axes, others, strict=True)
    common = [np.intersect1d(own, its, return_indices=True)[1:] for own, its in pairs]
    own, its = np.ix_(*(pair[0] for pair in common)), np.ix_(*(pair[1] for pair in common))
    seconds[own] = np.fmin(seconds[own], other.seconds[its])
    return table._replace(seconds=seconds)


def _without_outliers(table: GemmTable) -> GemmTable:
    """Slips replaced by the least time of a larger matrix; and no GEMM takes longer than one of more tokens."""
    seconds = np.where(np.isnan(table.seconds), np.inf, table.seconds)
    least = seconds
    for axis in (1, 2):
        least = np.flip(np.minimum.accumulate(np.flip(least, axis), axis=axis), axis)
    mended = np.where(seconds > OUTLIER * least, least, seconds)
    mended = np.flip(np.minimum.accumulate(np.flip(mended, 0), axis=0), 0)
    mended = np.where(np.isnan(table.seconds), np.nan, mended)
    return table._replace(seconds=mended)


def _at_tokens(table: GemmTable, columns: int, depth: int, tokens: Array) -> Array:
    """[tokens] of one matrix, linear between measured token counts, which lie next to each other at every step of the
    staircase; holes are passed over. Deeper matrices than any measured cost in proportion."""
    deepest = int(table.depths[-1])
    scale = max(1.0, depth / deepest)
    seconds = table.at(columns, min(depth, deepest)) * scale
    known = np.isfinite(seconds) & (seconds > 0.0)
    if not known.any():
        raise ValueError(f"no GEMM near (n={columns}, k={depth}) in the tables")
    axis, values = table.tokens[known].astype(float), seconds[known]
    inside = np.interp(tokens, axis, values)
    return np.where(tokens > axis[-1], values[-1] * tokens / axis[-1], inside)
