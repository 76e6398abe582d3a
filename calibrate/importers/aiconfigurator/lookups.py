"""Times of one GPU's kernels at given token counts, looked up in aiconfigurator's tables by what a model asks for.

GEMMs in every number format, expert layers, latent, sparse and linear attention, all-reduces and gathers: one engine's
tables, and where those lack something another engine's, which `notes` then says. What no table has (a 4-bit dense GEMM,
experts of a shape that was never measured) comes by a rule, which `notes` says as well. Seconds on one device.
Not here: reading files (kernel_files), what a layer is made of (composed).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar, overload

import numpy as np

from calibrate.fit.fit_errors import Array
from calibrate.importers.aiconfigurator.grids import Modules
from calibrate.importers.aiconfigurator.kernel_files import (
    LAYOUT,
    SPLIT,
    AttentionTable,
    GemmTable,
    KernelFiles,
    NotMeasured,
    chosen,
    seconds_of,
)
from sim.costs.layer_kinds import BLOCKS, INDEXED, NEAR, SHARED, WHOLE, Experts, Linear
from sim.costs.shapes import WEIGHT_BITS, ModelShape

if TYPE_CHECKING:
    import pandas as pd

ENGINES = ("vllm", "sglang", "trtllm")
"""Whose tables there are, in the order in which they stand in for one another."""


class Format(NamedTuple):
    """A weight format of WEIGHT_BITS as the tables call it."""

    gemms: str | None
    """gemm_dtype; None: in no table."""
    experts: str
    """moe_dtype."""
    is_weight_only: bool = False
    """Unpacked to bf16 on the way to the multiplier."""
    is_scaled_by_block: bool = False
    """The activations get their scales at run time."""


MARLIN = "mxfp4-marlin"
"""Marlin was timed with int4 weights alone: scaled from those, and never faster than the other kernel for mxfp4."""
FORMATS = {
    "bf16": Format("bfloat16", "bfloat16"),
    "fp8": Format("fp8", "fp8"),
    "fp8-block": Format("fp8_block", "fp8_block", is_scaled_by_block=True),
    "nvfp4": Format("nvfp4", "nvfp4", is_scaled_by_block=True),
    "mxfp4": Format(None, "w4a16_mxfp4", is_weight_only=True),
    "mxfp4-fp8": Format(None, "w4a8_mxfp4_mxfp8", is_weight_only=True),
    MARLIN: Format(None, "int4_wo", is_weight_only=True),
    "int4": Format("int4_wo", "int4_wo", is_weight_only=True),
}
KV_NAMES = {"bf16": "bfloat16", "fp8": "fp8"}
SKEWS = ("power_law_1.2", "power_law_1.01", "balanced")
"""Distributions of tokens over experts in the tables, most like a real router first."""
QUANTISE_S = 5e-6
"""Seconds of kernels that find and apply block scales; fitted on served cells (named in validation/recipes.csv)."""
STREAM_SHARE = 0.8
"""Share of the bandwidth at which packed weights stream and activations are quantised; assumed."""
UNPACK_SHARE = 0.85
"""Share of bf16's rate at which they multiply; assumed."""
STATE_ROWS = 256
"""Engines decode that many sequences at once by default at most."""
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
MODULE_LAUNCH_BOUND_S = 1e-4
"""A table in which no module of sparse attention of one token is shorter was timed launch by launch: vLLM 0.24's take
120 us whatever there is to do, SGLang's 30 on the same GPU. In service decode is inside CUDA graphs."""
MODULES_OF = {64: "DeepseekV32ForCausalLM", 32: "GlmMoeDsaForCausalLM"}
"""An indexer's heads -> models whose modules were timed: with as many heads on a device, both are in vLLM's tables.
Modules over compressed KV are told apart by all heads of all devices."""
KDA_STEPS = ("fused_kda_decode", "kda_fused_decode")
"""Kernels that are a whole step of linear attention: convolution, state and norm."""
LAUNCH_BOUND_S = 1.5e-5
"""A GEMM table in which none is shorter was timed launch by launch: vLLM 0.24's block-scaled FP8 takes 58 us on H200
and 170 us on B200 whatever its size, other engines' take 4."""
NCCL = "NCCL"
"""Collectives timed by NCCL's tests; through torch they take three times as long for small messages."""
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
T = TypeVar("T")


class TimedCurve(NamedTuple):
    """`seconds` [points] at rising counts of tokens or bytes."""

    counts: Array
    seconds: Array

    @classmethod
    def of(cls, seconds: pd.Series, scale: float = 1.0) -> TimedCurve:
        """The curve of milliseconds by count; `scale` of each count."""
        return cls(scale * seconds.index.to_numpy(dtype=float), seconds.to_numpy(dtype=float) * 1e-3)

    def at(self, counts: Array) -> Array:
        """Seconds [counts]: between measured counts linearly, beyond the last in proportion."""
        beyond = np.maximum(1.0, counts / self.counts[-1])
        return np.asarray(beyond * np.interp(counts, self.counts, self.seconds))


def sustained(tokens: Array) -> Array:
    low, high = np.log(SUSTAINED_TOKENS)
    return np.asarray(1.0 + (SUSTAINED_RATIO - 1.0) * np.clip((np.log(tokens) - low) / (high - low), 0.0, 1.0))


class Lookups:
    """Tables of `files` as `engine` runs them; `notes` collects what another engine's table or a rule stood in for."""

    def __init__(self, files: KernelFiles, engine: str = "vllm", *, has_nccl_alone: bool = False) -> None:
        self.files, self.gpu, self.engine, self.has_nccl_alone = files, files.gpu, engine, has_nccl_alone
        self.fuses_quantising = engine == "trtllm"
        """The all-reduce before a norm brings activations to the next GEMM's format (TensorRT-LLM)."""
        self.has_trtllm_kernels = self.gpu.name.startswith(("b200", "b300", "gb"))
        """Other engines run TensorRT-LLM's kernels there, through FlashInfer."""
        self.routes_shared = engine == "sglang" and not self.has_trtllm_kernels
        """DeepSeek's shared expert is one more routed one, where experts are cut (models/deepseek_v2.py of 0.5.9)."""
        self.fuses_norms = self.fuses_quantising and not has_nccl_alone
        """The residual is added and normed in the all-reduce's kernel (TensorRT-LLM, but for NCCL's)."""
        self.notes: list[str] = []
        self._gemms: dict[str, GemmTable | None] = {}

    def gemm_s(self, columns: int, depth: int, tokens: Array, weights: str = "bf16") -> Array:
        """One GEMM of each of `tokens` rows with weights in a format of WEIGHT_BITS."""
        if weights not in self._gemms:
            self._gemms[weights] = self._gemm_table(weights)
        table = self._gemms[weights]
        if table is None:
            return self._packed_gemm_s(columns, depth, tokens, weights)
        return np.asarray(_at_tokens(table, columns, depth, tokens) * sustained(tokens))

    def is_measured(self, tokens: int) -> bool:
        """True where GEMMs of so many tokens were measured in every format that was looked up."""
        return all(table is None or tokens in table.tokens for table in self._gemms.values())

    def _gemm_table(self, weights: str) -> GemmTable | None:
        name, _, is_weight_only, _ = FORMATS[weights]
        if name is None:
            return None
        lacking = None if is_weight_only else f"no GEMMs with weights in {weights} in the tables of {self.gpu.name!r}"
        return self._first(lambda engine: self._checked_gemms(engine, name), f"{weights} GEMMs", lacking)

    def _checked_gemms(self, engine: str, name: str) -> GemmTable:
        """The nearest version's timed without launches, as in service under CUDA graphs. Raises NotMeasured."""
        for table in self.files.gemms(engine, name):
            if np.nanmin(table.seconds) <= LAUNCH_BOUND_S:
                break
        else:
            raise NotMeasured(f"no {name} GEMM of {engine} below {LAUNCH_BOUND_S:g} s: timed with its launches")
        if (engine, name) in TIMED_WITH_SCALES:
            table = self._without_scales(table, engine, name)
        if (engine, name) in UNTUNED:
            table = _least(table, next(self.files.gemms(UNTUNED[engine, name], name)))
        return _without_outliers(table)

    def _without_scales(self, table: GemmTable, engine: str, name: str) -> GemmTable:
        """`table` less what finding the scale of its activations and applying it took, by tokens and depth."""
        scales_s = np.zeros((len(table.tokens), len(table.depths)))
        for part in ("computescale_perf", "scale_matrix_perf"):
            frame = self.files.rows(engine, part, quant_dtype=name).groupby(["m", "k"])["latency"].min().unstack()
            at_tokens = np.stack([np.interp(table.tokens, frame.index, frame[k]) for k in frame.columns])
            scales_s += 1e-3 * np.stack([np.interp(table.depths, frame.columns, line) for line in at_tokens.T])
        least = MAX_SCALES_SHARE * table.seconds
        return table._replace(seconds=np.maximum(table.seconds - scales_s[:, None, :], least))

    def _packed_gemm_s(self, columns: int, depth: int, tokens: Array, weights: str) -> Array:
        """Weight-only formats without a table: packed weights stream, bf16 multiplies."""
        self.note(f"{weights} GEMMs by rule from bf16")
        plain_s = self.gemm_s(columns, depth, tokens)
        share = WEIGHT_BITS[weights] / 16.0
        saved_s = 2.0 * columns * depth * (1.0 - share) / (STREAM_SHARE * self.gpu.bandwidth_bytes_per_s)
        computed_s = 2.0 * tokens * columns * depth / (UNPACK_SHARE * self.gpu.peak_flops)
        return np.maximum(np.maximum(plain_s - saved_s, share * plain_s), np.minimum(computed_s, 1.2 * plain_s))

    def experts_s(self, shape: ModelShape, experts: Experts, weights: str, split: tuple[int, int], at: Array) -> Array:
        """One expert layer of `at` tokens in the whole group; `split` is (ways to cut an expert, to spread experts)."""
        if weights == MARLIN:
            of_mxfp4_s = self.experts_s(shape, experts, "mxfp4", split, at)
            return np.asarray(np.maximum(of_mxfp4_s, self._scaled_experts_s(shape, experts, weights, split, at)))
        layout = (experts.hidden or shape.hidden, experts.intermediate, experts.per_token, experts.num, *split)
        curve = self._expert_curve(layout, weights)
        if curve is None:
            return self._scaled_experts_s(shape, experts, weights, split, at)
        return np.asarray(curve.at(at) * self._sustained_experts(at))

    def _expert_curve(self, layout: tuple[int, ...], weights: str) -> TimedCurve | None:
        """None where no table has the layout. On Hopper an engine that tunes takes spread experts for cuts."""
        columns = ("moe_dtype", *LAYOUT, *SPLIT)
        wanted: dict[str, object] = dict(zip(columns, (FORMATS[weights].experts, *layout), strict=True))
        if self.engine in TUNES_EXPERTS and not self.has_trtllm_kernels:
            spread = wanted | dict(zip(SPLIT, (1, layout[-2] * layout[-1]), strict=True))
            if self._is_timed(spread) and not self._is_timed(wanted):
                self.note(f"{weights} experts scaled from spread ones: cut ones were never measured")
                wanted = spread

        def of(engine: str) -> TimedCurve:
            for frame in self.files.versions(engine, "moe_perf", **wanted):
                for skew in SKEWS:
                    with suppress(ValueError):
                        rows = chosen(frame, distribution=skew)
                        if len(rows) > 1:
                            return _expert_curve(rows)
            raise NotMeasured("none")

        if self.engine not in TUNES_EXPERTS:
            return self._first(of, f"{weights} experts")
        curves = []
        for engine in ENGINES:
            with suppress(ValueError):
                curves.append(of(engine))
        if not curves:
            return None
        self.note(f"{weights} experts: the fastest of all engines'")
        tokens = np.unique(np.concatenate([curve.counts for curve in curves]))
        tokens = tokens[tokens <= min(curve.counts[-1] for curve in curves)]
        return TimedCurve(tokens, np.min([curve.at(tokens) for curve in curves], axis=0))

    def _is_timed(self, wanted: dict[str, object]) -> bool:
        with suppress(NotMeasured):
            return bool(len(self.files.rows(self.engine, "moe_perf", **wanted)))
        return False

    def _scaled_experts_s(
        self, shape: ModelShape, experts: Experts, weights: str, split: tuple[int, int], at: Array
    ) -> Array:
        """Seconds [tokens] of the measured layout that is most like it, by the ratio of what both read and compute."""
        width = experts.hidden or shape.hidden
        wanted = (width, experts.intermediate, experts.per_token, experts.num, *split)

        def of(engine: str) -> tuple[tuple[int, ...], TimedCurve]:
            of_format = self.files.rows(engine, "moe_perf", moe_dtype=FORMATS[weights].experts)
            skew = next((skew for skew in SKEWS if (of_format["distribution"] == skew).any()), "none")
            frame = chosen(of_format, distribution=skew)
            layouts = frame[[*LAYOUT, *SPLIT]].drop_duplicates()
            far = np.abs(np.log(layouts.to_numpy(dtype=float) / wanted)).sum(axis=1)
            nearest = {name: int(value) for name, value in layouts.iloc[int(np.argmin(far))].items()}
            return tuple(nearest.values()), _expert_curve(chosen(frame, **nearest).drop_duplicates("num_tokens"))

        lacking = f"no experts with weights in {weights} in the tables of {self.gpu.name!r}"
        nearest, curve = self._first(of, f"{weights} experts like these", lacking)
        if weights == "mxfp4" and nearest[: len(LAYOUT)] != wanted[: len(LAYOUT)]:
            shown = f"mxfp4 experts of {width} x {experts.intermediate} in the tables of {self.gpu.name!r}"
            raise NotMeasured(f"no {shown}, and those of other shapes are up to 3 times off: try other weights")
        hidden, wide, per_token, num, cut, spread = nearest
        self.note(
            f"experts scaled from {num} of {hidden} x {wide}, top {per_token}, cut {cut}, spread {spread}: this layout "
            "was never measured"
        )
        bits = WEIGHT_BITS[weights]
        like = Experts(num=num, per_token=per_token, intermediate=wide)
        measured_s = (
            curve.at(at) * self._sustained_experts(at) / self._expert_roof_s(hidden, like, (cut, spread), bits, at)
        )
        return np.asarray(measured_s * self._expert_roof_s(width, experts, split, bits, at))

    def _sustained_experts(self, at: Array) -> Array:
        """Of an engine that tunes its experts what it saves by that is in it already."""
        return np.ones(len(at)) if self.engine in TUNES_EXPERTS else sustained(at)

    def _expert_roof_s(self, hidden: int, experts: Experts, split: tuple[int, int], bits: float, at: Array) -> Array:
        """Seconds to read the activated experts and to multiply with them, at the datasheet's roofs."""
        size = 3.0 * hidden * experts.intermediate / split[0]
        unique = np.array([experts.unique(tokens) for tokens in at]) / split[1]
        read_s = size * np.maximum(1.0, unique) * bits / 8.0 / self.gpu.bandwidth_bytes_per_s
        compute_s = (
            2.0 * size * at * experts.per_token / split[1] / (self.gpu.peak_flops * max(1.0, 16.0 / max(bits, 8.0)))
        )
        return np.maximum(read_s, compute_s) + LAUNCH_S

    def attention(self, table: str, kv: str, window: int) -> AttentionTable:
        """All points of generation_attention_perf or context_attention_perf. Raises ValueError where there are none."""
        which = f"with {kv} KV" + (f" and a window of {window}" if window else "")
        return self._first(
            lambda engine: self.files.attention(engine, table, KV_NAMES[kv], window),
            f"{table} {which}",
            f"{table} of {self.gpu.name!r}: no rows {which}",
        )

    def latent(self, phase: str, heads: int, kv: str) -> AttentionTable:
        """The kernel of latent attention alone with so many query heads on one device, or the next number measured;
        `phase` is context or generation. Measured on DeepSeek-V3's ranks, which all public models share. vLLM's tables
        hold whole modules, launches and all, so another engine's kernels stand in."""
        table = f"{phase}_mla_perf"

        def of(engine: str) -> AttentionTable:
            frame = self.files.rows(engine, table, kv_cache_dtype=KV_NAMES[kv])
            measured = frame["num_heads"]
            nearest = measured[measured >= heads].min()
            frame = chosen(frame, num_heads=nearest)
            if nearest != heads:
                self.note(f"{table}: {nearest} heads stand for {heads}")
            batch, queries, history = frame[["batch_size", "isl", "step"]].to_numpy(dtype=float).T
            ones = np.ones(len(frame))
            return AttentionTable(batch, queries + history, heads * ones, ones, ones, seconds_of(frame))

        lacking = f"{table} of {self.gpu.name!r}: no rows of {heads} heads with {kv} KV"
        return self._first(of, f"{table} with {kv} KV", lacking)

    def modules(
        self, phase: str, kind: str, indexer_heads: int, heads: tuple[int, int], projections: str, kv: str
    ) -> Modules:
        """Attention of a kind of MODULES with its matrices; `heads` is (heads on one device, devices), `phase` as in
        `latent`. A window alone costs what all compressed groups of a window's size do."""
        ending = "_skip_indexer" if kind == SHARED else ""
        family = WHOLE if kind == NEAR else kind.removesuffix(ending)
        wanted: dict[str, object] = {"num_heads": heads[0], "kv_cache_dtype": KV_NAMES[kv]}
        if family == INDEXED:
            if indexer_heads not in MODULES_OF:
                raise NotMeasured(f"no sparse attention with an indexer of {indexer_heads} heads in any table")
            wanted["architecture"] = MODULES_OF[indexer_heads]
        if family != BLOCKS:
            # Engines time blocks' heads as those of one device.
            wanted["tp_size"] = heads[1]

        def of(engine: str) -> Modules:
            step = self.files.rows(
                engine, f"{family}_generation_module_perf", op_name=f"{family}_generation_module{ending}"
            )
            if step["latency"].min() * 1e-3 > MODULE_LAUNCH_BOUND_S:
                raise NotMeasured(f"{kind} of {engine}: timed with its launches")
            frame = self.files.rows(
                engine,
                f"{family}_{phase}_module_perf",
                op_name=f"{family}_{phase}_module{ending}",
                gemm_type=FORMATS[projections].gemms,
                **wanted,
            )
            least = frame.groupby(["batch_size", "isl", "step"], as_index=False)["latency"].min()
            batch, queries, history = least[["batch_size", "isl", "step"]].to_numpy(dtype=float).T
            return Modules(batch, queries, history, seconds_of(least))

        lacking = (
            f"no sparse attention ({kind}, {phase}) of {heads[0]} heads on one of {heads[1]} devices with "
            f"{projections} matrices and {kv} KV in the tables of {self.gpu.name!r}"
        )
        return self._first(of, f"sparse attention ({kind}, {phase})", lacking)

    def linear_s(self, linear: Linear, degree: int, tokens: Array) -> Array:
        """One layer of linear attention by tokens alone: up to STATE_ROWS are rows that decode, more are a prompt."""
        wanted = {
            "num_k_heads": linear.key_heads // degree,
            "num_v_heads": linear.value_heads // degree,
            "head_k_dim": linear.key_dim,
            "head_v_dim": linear.value_dim,
        }
        table = "kda_perf" if linear.decay_rank else "gdn_perf"

        def phase(name: str, axis: str, **more: object) -> TimedCurve:
            return self._first(
                lambda engine: _state_curve(self.files.rows(engine, table, **wanted, **more, phase=name), axis),
                f"linear attention ({name})",
                f"no linear attention of {wanted['num_k_heads']} key and {wanted['num_v_heads']} value heads in the "
                f"tables of {self.gpu.name!r}",
            )

        decode, prompt = phase("generation", "batch_size"), phase("context", "seq_len", batch_size=1)
        self.note(f"linear attention of up to {STATE_ROWS} tokens as rows that decode, of more as a prompt")
        as_prompt = np.maximum(prompt.at(tokens), np.interp(STATE_ROWS, *decode))
        return np.where(tokens <= STATE_ROWS, np.interp(tokens, *decode), as_prompt)

    def mixing_s(self, hidden: int, streams: int, tokens: Array) -> Array:
        """Kernels that mix residual streams before and after both sublayers of a layer."""

        def of(engine: str) -> TimedCurve:
            frame = self.files.rows(engine, "mhc_module_perf", hidden_size=hidden, hc_mult=streams)
            return TimedCurve.of(
                frame.groupby(["op_name", "num_tokens"])["latency"].min().unstack(0).dropna().sum(axis=1)
            )

        what = f"mixing of {streams} residual streams of {hidden}"
        return self._first(of, what, f"no {what} in the tables of {self.gpu.name!r}").at(tokens)

    def reduce_s(self, devices: int, message_bytes: Array) -> Array:
        """An all-reduce among `devices` in service: the faster of the engine's and NCCL's at that size, and what it
        takes that devices arrive apart. Twice the measured devices take as much more as those over half."""
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

        def of(engine: str) -> TimedCurve:
            frame = self.files.rows(engine, "custom_allreduce_perf", num_gpus=devices)
            if "backend" in frame and not (graphed := frame[frame["backend"].str.endswith("graph")]).empty:
                frame = graphed
            if "implementation" in frame:
                frame = frame.sort_values("latency").drop_duplicates("message_size")
            return _message_curve(frame)

        engines = None if self.has_nccl_alone else self._first(of, f"all-reduces of {devices}")
        curves = [engines, self._nccl("all_reduce", devices)]
        if self.engine == "vllm" and self.has_trtllm_kernels:
            with suppress(ValueError):
                curves.append(of("trtllm"))
        at_size = [curve.at(message_bytes) for curve in curves if curve is not None]
        return np.min(at_size, axis=0) if at_size else None

    def quantise_s(self, depth: int, tokens: Array, weights: str) -> Array:
        """Bringing [tokens, depth] of bf16 to a block-scaled format; static scales are applied by the kernel before."""
        if not FORMATS[weights].is_scaled_by_block:
            return np.zeros(len(tokens))
        moved = tokens * depth * (2.0 + WEIGHT_BITS[weights] / 8.0)
        return QUANTISE_S + moved / (STREAM_SHARE * self.gpu.bandwidth_bytes_per_s)

    def gather_s(self, devices: int, message_bytes: Array) -> Array:
        """All-gather of `message_bytes` and the reduce-scatter back (NCCL), as vLLM moves tokens to experts."""
        total = np.zeros(len(message_bytes))
        for name in ("all_gather", "reduce_scatter"):
            curve = self._nccl(name, devices)
            if curve is None:
                raise ValueError(f"no {name} of {devices} devices in the tables of {self.gpu.name!r}")
            total = total + curve.at(message_bytes)
        return total

    def _nccl(self, name: str, devices: int) -> TimedCurve | None:
        with suppress(NotMeasured):
            return _message_curve(
                self.files.rows(
                    "nccl", "nccl_perf", op_name=name, num_gpus=devices, nccl_dtype="half", kernel_source=NCCL
                )
            )
        return None

    @overload
    def _first(self, of: Callable[[str], T], what: str) -> T | None: ...

    @overload
    def _first(self, of: Callable[[str], T], what: str, lacking: str) -> T: ...

    @overload
    def _first(self, of: Callable[[str], T], what: str, lacking: str | None) -> T | None: ...

    def _first(self, of: Callable[[str], T], what: str, lacking: str | None = None) -> T | None:
        """Result of `of` for this engine, or for the first other one whose tables have it; where none has, None, or
        the first defect of a table, or NotMeasured that says what is `lacking`."""
        defect = None
        for engine in (self.engine, *(other for other in ENGINES if other != self.engine)):
            try:
                value = of(engine)
            except ValueError as error:
                if not isinstance(error, NotMeasured):
                    defect = defect or error
                continue
            if engine != self.engine:
                self.note(f"{what}: {engine}'s")
            return value
        if lacking is not None:
            raise defect or NotMeasured(lacking)
        return None

    def note(self, note: str) -> None:
        """Something stood in: said once."""
        if note not in self.notes:
            self.notes.append(note)


def _expert_curve(frame: pd.DataFrame) -> TimedCurve:
    """The fastest of several kernels at as many tokens, without dents."""
    curve = TimedCurve.of(frame.groupby("num_tokens")["latency"].min())
    return curve._replace(seconds=_no_dents(*curve))


def _state_curve(frame: pd.DataFrame, axis: str) -> TimedCurve:
    """Tokens and seconds of the kernels of linear attention together, each once: of several models with the same heads
    the least; where one kernel is a whole step, that alone. Raises NotMeasured where one was timed with its launch."""
    is_step = frame["kernel_source"].isin(KDA_STEPS)
    frame = frame[is_step] if is_step.any() else frame
    if frame.groupby("kernel_source")["latency"].min().max() * 1e-3 > MODULE_LAUNCH_BOUND_S:
        raise NotMeasured("linear attention timed with its launches")
    return TimedCurve.of(frame.groupby(["kernel_source", axis])["latency"].min().unstack(0).dropna().sum(axis=1))


def _message_curve(frame: pd.DataFrame) -> TimedCurve:
    """Message bytes of two-byte elements and seconds, rising."""
    return TimedCurve.of(frame.sort_values("message_size").set_index("message_size")["latency"], scale=2.0)


def _no_dents(tokens: Array, seconds: Array) -> Array:
    """`seconds` lifted to their concave hull up to DENTS_UP_TO tokens. The experts that so many tokens activate grow
    ever more slowly, so that a time below the hull is a lucky draw of the router."""
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


def _least(table: GemmTable, other: GemmTable) -> GemmTable:
    """The lesser time wherever both have one."""
    seconds = table.seconds.copy()
    axes = zip(table[:-1], other[:-1], strict=True)
    common = [np.intersect1d(*pair, return_indices=True)[1:] for pair in axes]
    ours, its = (np.ix_(*points) for points in zip(*common, strict=True))
    seconds[ours] = np.fmin(seconds[ours], other.seconds[its])
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
    """[tokens] of one matrix, linear between measured counts, past holes; deeper than measured in proportion."""
    deepest = int(table.depths[-1])
    scale = max(1.0, depth / deepest)
    seconds = table.at(columns, min(depth, deepest)) * scale
    known = np.isfinite(seconds) & (seconds > 0.0)
    if not known.any():
        raise ValueError(f"no GEMM near (n={columns}, k={depth}) in the tables")
    axis, values = table.tokens[known].astype(float), seconds[known]
    inside = np.interp(tokens, axis, values)
    return np.where(tokens > axis[-1], values[-1] * tokens / axis[-1], inside)
