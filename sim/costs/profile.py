"""The profile: its strict, versioned schema. One GPU and engine, one target with or without a draft, constants with
their source and their error on held-out points.

Not here: files (profile_files), constants and points (compact_kernels, table_kernels), what a work costs (forms).
"""

from __future__ import annotations

from math import hypot
from typing import Final, Literal, TypeVar

import msgspec

from sim.bounds import Bounded, Count, Factor, NotNegative, Positive, Seconds, Share, SomeSeconds, SomeShare, Whole
from sim.costs.compact_kernels import CompactKernels, LinearKernels
from sim.costs.shapes import ModelShape, kv_bytes_per_token, rank_weight_bytes
from sim.costs.table_kernels import TableKernels

SCHEMA = 1
"""Version of the schema that this code reads and writes."""
UNLOADED: Final = "kernel tables, unloaded"
SERVED: Final = "served"
IN_A_LOOP: Final = "passes in a loop"
SERVED_KINDS = ("prefill", "decode", "verify", "draft", "draft_prefill")


class Gpu(Bounded, frozen=True, kw_only=True):
    """Datasheet roofs: dense bf16 FLOP/s, memory bandwidth, memory."""

    name: str
    memory_bytes: Count
    peak_flops: Positive
    bandwidth_bytes_per_s: Positive


class HostCosts(Bounded, frozen=True, kw_only=True):
    """Time of the CPU that drives the GPU."""

    eager_kernel_s: Seconds
    """Time to issue one kernel without CUDA graphs, Python included."""
    graph_launch_s: Seconds
    """Time to replay one captured pass."""
    kernels_per_layer: Count
    max_graph_tokens: Whole = 512
    """A pass of more tokens is not captured."""
    captures_chunks: bool = True
    """Passes with prompt chunks replay captured pieces (vLLM); False: launched eagerly, as in `lanesim replay`."""
    graph_small_sizes: tuple[Count, ...] = (1, 2, 4)
    graph_size_step: Count = 8
    """Captured token counts: `graph_small_sizes`, then multiples of `graph_size_step` up to `max_graph_tokens`."""
    result_s: Seconds
    """Time from the end of a work on the device to its result on the host: copy and wake-up."""
    engine: str | None = None
    """Whose step_s, row_s, gap_s, draft_pass_s and so on these are: an engine of sim/engines that was fitted together
    with the kernels, or "measured here". None: nobody's, they are 0, and the engine of a scenario adds them."""
    is_async: bool | None = None
    """Asynchronous scheduling (a step is planned while the one before it runs) where levels of a server showed it or
    its absence; None: the default of the engine of that name."""
    step_s: Seconds
    """Scheduling, input preparation and output processing before each work."""
    row_s: Seconds
    """The same, per sequence in the work."""
    eager_step_s: Seconds | None = None
    """`step_s` of works with prompt chunks where these are launched eagerly and the others replayed; None: the same."""
    eager_result_s: Seconds | None = None
    """`result_s` of these works."""
    gap_s: Seconds = 0.0
    """Device time that every pass of the target takes beyond its kernels, however far ahead it is submitted."""
    draft_pass_s: Seconds = 0.0
    """The same for every pass of the draft."""
    draft_phase_s: Seconds = 0.0
    """The same once for all passes that follow one verify, however many tokens they draft: sampling what was accepted,
    preparing the drafter's inputs. A drafter that is kept up to date without drafting takes it as well."""
    uneven_launch_s: Seconds = 0.0
    """Host time to launch a captured pass of rows that do not all carry the longest draft, which full graphs were
    captured for: piece by piece, attention between them. 0: not measured, full graphs of every draft length."""
    prompt_kernel_s: Seconds = 0.0
    """Time to issue one kernel of a pass with prompt chunks of which no piece is captured or compiled, where that is
    more than `eager_kernel_s`: each operator goes through the engine's Python. 0: not measured."""
    frontend_s: Seconds = 0.0
    """Time from a request's coming in to the engine's queue: HTTP and tokenising, many requests at once."""
    frontend_token_s: Seconds = 0.0
    """Seconds that each token of its prompt adds to that."""
    ngram_row_s: Seconds = 3e-5
    """Host time per row to look up an n-gram draft once its tokens are sampled; the default is assumed."""
    is_synchronous: bool = False
    """Issuing a pass is executing it, as on a CPU: a work holds its issuer to its end, so that nothing of the next one
    is hidden behind it, and issuers slow each other down as `overlap` says, not by inflation."""
    idle_ramp: None = None
    """Always null: no GPU loses time after a pause."""
    served: dict[str, Positive] = msgspec.field(default_factory=dict)
    """Ratio of a pass's time in service to its time over and over in a loop, which finds its data in the
    caches; by SERVED_KINDS, 1 where nothing is said."""
    look_s: Seconds = 0.0
    """Seconds that each look of a polling idle worker takes from what is being issued: they share an interpreter."""
    probed_s: tuple[Positive, ...] = ()
    """Seconds of fixed passes on this machine meanwhile (realrun.replay.machine_speed); a replay takes them again."""
    inflation_eager: tuple[Factor, ...] = (1.0,)
    """Slowdown of each issuing thread with 1, 2, 3 ... of them, passes launched eagerly; the last one holds beyond."""
    inflation_graphed: tuple[Factor, ...] = (1.0,)
    source: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.served.keys() <= set(SERVED_KINDS):
            raise ValueError(f"served={self.served} must map {', '.join(SERVED_KINDS)} to factors above 0")
        if list(self.graph_small_sizes) != sorted(set(self.graph_small_sizes)):
            raise ValueError(f"graph_small_sizes={list(self.graph_small_sizes)} must rise")
        for field in ("inflation_eager", "inflation_graphed"):
            if getattr(self, field)[:1] != (1.0,):
                raise ValueError(f"{field}={list(getattr(self, field))} must begin with 1.0, which is one thread")


class Phi(Bounded, frozen=True, kw_only=True):
    """Rate at which a work goes on while kernels of another stream hold the machine, and what it may lie between."""

    value: float
    low: float
    high: float
    source: str
    turn: SomeShare = 1.0
    """Part of its length for which a kernel of a prompt holds the machine, launched alone beside captured passes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.low <= self.value <= self.high <= 1.0:
            raise ValueError(
                f"phi: low={self.low!r}, value={self.value!r} and high={self.high!r} must be in order within 0..1"
            )


ASSUMED_PHI = Phi(value=0.07, low=0.0, high=0.25, source="assumed; servings on three other GPUs say 0 to 0.21")
"""Phi of a profile that names none, of a GPU that was not measured."""
HOPPER_PHI = Phi(
    value=0.1,
    low=0.06,
    high=0.15,
    turn=0.74,
    source="measured: pairs of passes on an H200 and an H100; low and high by drawing the pairs again",
)
MEASURED_PHI = {"h100-sxm": HOPPER_PHI, "h200-sxm": HOPPER_PHI}
"""Phi of profiles of these GPUs, whatever the engine."""


class ShareCurve(Bounded, frozen=True, kw_only=True):
    """Speed of works on shares of a GPU's multiprocessors: solo curves, and neighbours (sim.devices.partition)."""

    saturated_at: SomeShare
    """Share of the multiprocessors that is enough to read at the pace of all of them."""
    queue_slowdown: NotNegative
    """A reader of the whole memory bandwidth on a share x slows compute beside it by 1 + queue_slowdown * x."""
    bandwidth_together: SomeShare
    """Part of the memory bandwidth that works side by side come to."""
    source: str
    errors_pct: dict[str, float]
    """Mean size of the error by what was predicted."""
    standard_errors: dict[str, float] = msgspec.field(default_factory=dict)
    """Standard error of each constant that the measurements gave."""

    def slowdown(self, compute: float, bandwidth: float, share: float, *, reading: float = 0.0) -> float:
        """Time on `share`, relative to the whole device, of a work with these demands: its time is compute's and
        bandwidth's in proportion. `reading` is the share of the multiprocessors that others read on, 0..1."""
        total = compute + bandwidth
        if not total:
            return 1.0
        computing_s = (1.0 + self.queue_slowdown * reading) / share
        reading_s = hypot(1.0, self.saturated_at / share) / hypot(1.0, self.saturated_at)
        return (compute * computing_s + bandwidth * reading_s) / total


class Overlap(Bounded, frozen=True, kw_only=True):
    """Rules by which works of several streams share the device."""

    eta_compute: Positive = 1.0
    eta_bandwidth: Positive = 1.0
    tau_s: Seconds = 5e-6
    """Extra time per kernel while another work runs; the default is half the length of a memory-bound kernel."""
    takes_turns: bool = False
    """Works take turns, as threads do at one interpreter, which a kernel holds for tau: it waits for each other work by
    the share of time that this one holds it. False: a kernel waits tau, whatever the others are."""
    demand_floor: Share = 1.0
    """Least demand of any work on both roofs; at 1.0 two works at once never beat one after the other."""
    has_priorities: bool = True
    """Streams of higher priority are served first; False: all alike, as threads on a CPU are."""
    measured: bool = False
    phi: Phi | None = None
    """Phi where the rest was not measured; None: the GPU's (Profile.phi)."""
    partition: ShareCurve | None = None
    """None: what other GPUs made of shares of their multiprocessors (sim.devices.partition)."""
    source: str = "not measured: plain streams go on at an assumed phi while another's kernels hold the GPU"

    @property
    def is_known(self) -> bool:
        """Measured as a whole, or with a phi of its own."""
        return self.measured or self.phi is not None


ROUNDED = 0.01
"""Part, and percent, by which a mean may seem to exceed a largest value, both rounded."""


class KindError(Bounded, frozen=True, kw_only=True):
    """Relative error of one kind of cost on `points` held-out points, or nulls and the reason why there is none."""

    mean_error_pct: NotNegative | None
    max_error_pct: NotNegative | None
    points: Whole
    held_out: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.mean_error_pct is None) != (self.points == 0) or (self.max_error_pct is None) != (self.points == 0):
            raise ValueError("mean_error_pct and max_error_pct must be null exactly when points is 0")
        if self.mean_error_pct is not None and self.max_error_pct is not None:
            mean, most = self.mean_error_pct, self.max_error_pct
            if mean > most * (1.0 + ROUNDED) + ROUNDED:
                raise ValueError(f"mean_error_pct={mean!r} must not be above max_error_pct={most!r}")


PassKind = Literal["prefill", "decode", "draft", "verify"]
Role = Literal["target", "draft"]
Launch = Literal["eager", "graphed"]


class MeasuredPoint(Bounded, frozen=True, kw_only=True):
    """Time of one pass on the profile's machine, as measured: medians over `repetitions`."""

    kind: PassKind
    model: Role
    rows: Count
    tokens: Count
    """Tokens of each row: prompt tokens of a prefill, query tokens of a verify, tokens drafted; 1 for a decode."""
    context_tokens: Whole
    """Tokens of each row that are in KV before the pass."""
    launch: Launch
    device_s: SomeSeconds
    host_s: Seconds
    """Time to issue the pass; on a CPU that is the pass itself."""
    half_width_pct: NotNegative
    """Half of the 95 % interval of the median device time, or of the range of several visits if wider; percent."""
    repetitions: Count
    is_noisy: bool
    is_held_out: bool
    """Not used by the fit, but for its error."""
    sustained_s: SomeSeconds | None = None
    """Device time once more, after sustained load; of profiles that earlier versions measured."""
    l2: Literal["cold", "warm", "unknown"] = "unknown"
    """State of the device's L2 cache before each repetition: "warm" where it may hold what the pass reads."""


_FORMS: dict[type, str] = {
    CompactKernels: "constants (kernels.form=compact)",
    TableKernels: "points (kernels.form=table)",
    LinearKernels: "a line per model (kernels.form=linear)",
}
K = TypeVar("K", CompactKernels, TableKernels, LinearKernels)


class Profile(Bounded, frozen=True, kw_only=True):
    """Everything that a cost model is made from.

    >>> import lanesim
    >>> pair = lanesim.load_profile("h100-sxm/llama-2-7b+tinyllama-1.1b")
    >>> pair.target.name, pair.draft.name, pair.gpu.memory_bytes > pair.weight_bytes
    ('llama-2-7b', 'tinyllama-1.1b', True)
    """

    schema: int
    name: str
    gpu: Gpu
    target: ModelShape
    draft: ModelShape | None
    tensor_parallel: Count = 1
    data_parallel: Count = 1
    """Ranks with separate requests in lockstep, which share the experts; profile, KV and load are one rank's."""
    expert_parallel: Count | None = None
    """Devices of all ranks that the experts are spread over, cut over the rest; None: the profile does not say."""
    kernels: CompactKernels | TableKernels | LinearKernels
    """Tagged by `form`: "compact" constants, a "table" of measured points, or "linear": a line per model."""
    host: HostCosts
    overlap: Overlap
    errors: dict[str, KindError]
    conditions: Literal["kernel tables, unloaded", "served", "passes in a loop"] | None = None
    """Work of the GPU meanwhile: single kernels at boost clocks, steps of a server, whole passes; None: not said."""
    source: str
    fingerprint: dict[str, str] | None
    date: str
    default_lengths: tuple[int, int] | None = None
    """Prompt and output tokens where a scenario has neither lengths nor a data set; None: the general default."""
    points: tuple[MeasuredPoint, ...] = ()
    """Points measured on this machine, held-out ones included; none where tables were imported."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kernels = self.kernels
        if isinstance(kernels, CompactKernels):
            if self.tensor_parallel > 1 and kernels.all_reduce is None:
                raise ValueError(f"tensor_parallel={self.tensor_parallel} needs kernels.all_reduce")
        elif (kernels.draft is None) != (self.draft is None):
            lacks = "kernels.draft, times of its draft" if kernels.draft is None else "draft, or kernels.draft = null"
            raise ValueError(f"profile {self.name!r} lacks {lacks}: this form has times of every model of the pair")
        if self.kv_bytes_per_token < 1:
            raise ValueError("the models must hold some KV")

    @property
    def mean_errors_pct(self) -> dict[str, float | None]:
        """Mean errors by kind, on passes that no fit saw. None where nothing was validated."""
        return {kind: error.mean_error_pct for kind, error in self.errors.items()}

    @property
    def phi(self) -> Phi:
        """Of its plain streams: that of the profile, or what was measured on such a GPU, or what is assumed."""
        return self.overlap.phi or MEASURED_PHI.get(self.gpu.name, ASSUMED_PHI)

    @property
    def compact(self) -> CompactKernels:
        """The kernels of the compact form. Raises ValueError where they are of another, as the next two do."""
        return self._kernels_as(CompactKernels)

    @property
    def table(self) -> TableKernels:
        return self._kernels_as(TableKernels)

    @property
    def linear(self) -> LinearKernels:
        return self._kernels_as(LinearKernels)

    def _kernels_as(self, form: type[K]) -> K:
        if not isinstance(self.kernels, form):
            raise ValueError(f"profile {self.name!r} has {_FORMS[type(self.kernels)]}, and this needs {_FORMS[form]}")
        return self.kernels

    @property
    def models(self) -> tuple[ModelShape, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def weight_bytes(self) -> int:
        """Weights of all models, over all devices of the tensor-parallel group."""
        return sum(rank_weight_bytes(shape, self.data_parallel) for shape in self.models)

    @property
    def kv_bytes_per_token(self) -> int:
        """KV of one token in all models, over all devices of the group."""
        return sum(kv_bytes_per_token(shape, self.tensor_parallel) for shape in self.models)
