"""Engines: what a serving engine of one version adds to the GPU's time, and the limits that it sets by default.

A profile says what the GPU takes. An engine adds constants, measured on that GPU or pooled over others, with the
spread. Data in sim/engines, a JSON per engine and version. A profile measured with an engine has them in `host`.
Not here: what the constants do to a work (sim.costs.work_costs), how they are fitted (calibrate, realrun.validate).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sim.bounds import Bounded, Count, Seconds, Share, Whole
from sim.costs.profile import Gpu, Profile
from sim.files.json_values import convert, parse_json
from sim.files.read import read_text
from sim.names import unknown
from sim.plugins import PluginError, installed, naming_plugin, shown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENGINES = Path(__file__).parent.parent / "engines"
DEFAULT_ENGINE = "vllm-0.33"
"""Engine of profiles that were measured without one."""
MEASURED_HERE = "measured here"
"""Value of a profile's `host.engine` where the loop of its machine was timed, and no public engine."""
UNNAMED = "the profile's own"
"""Engine of profiles from before they named theirs."""
ADDED_BY_AN_ENGINE = "step_s, row_s, gap_s and draft_pass_s are 0 here: an engine adds them"
"""Text in the source of a profile's host where that is so."""
NO_SPECULATION = "none"
NO_ENGINE = "no engine"
"""Name of what a real host adds that no engine and no measurement knows."""
ENGINE_SCHEMA = 1
SMALL_GRAPHS, COARSE_GRAPHS = (1, 2, 4), 256
"""vLLM's captured sizes: these, multiples of 8, and of 16 from there on."""
GIB = 2.0**30


class CapRule(Bounded, frozen=True, kw_only=True):
    """The limits that an engine sets itself on GPUs of at least this memory; the first rule that fits holds.

    >>> rule = CapRule(max_num_seqs=1, max_num_batched_tokens=1, min_memory_gib=70.0, not_on=("a100",))
    >>> def is_on(name, memory_bytes):
    ...     return rule.holds_on(Gpu(name=name, memory_bytes=memory_bytes, peak_flops=1.0, bandwidth_bytes_per_s=1.0))
    >>> is_on("h100-sxm", 70 * GIB), is_on("h100-sxm", 70 * GIB - 1), is_on("a100-sxm", 70 * GIB)
    (True, False, False)
    """

    max_num_seqs: Count
    max_num_batched_tokens: Count
    min_memory_gib: float = 0.0
    not_on: tuple[str, ...] = ()
    """Beginnings of names of GPUs that it leaves out."""

    def holds_on(self, gpu: Gpu) -> bool:
        return gpu.memory_bytes >= self.min_memory_gib * GIB and not gpu.name.startswith(self.not_on)


class TokenRatio(Bounded, frozen=True, kw_only=True):
    """SGLang's new_token_ratio: the share of what running answers still lack that admission keeps free. A request needs
    room for its prompt and answer beside it. Without memory, requests are retracted and the share is set anew."""

    initial: Share
    """The share at the start, and whenever nothing runs."""
    min_ratio: Share
    decay_steps: Count
    """Steps of rows alone from `initial` to `min_ratio`."""
    max_answer_tokens: Count
    """Longer answers, and remainders, count as so many tokens."""
    retract_steps: Whole
    """After a retraction the share is what is decoded of the answers that stay, and so many tokens of each."""
    leaves_at_once: bool = False
    """From 0.5.23 on: a request that has ended leaves its seat at the next plan, and one that ends with the step under
    way is no row of the next. False: it keeps the seat until the next step of rows."""
    spare_blocks: Whole = 0
    """Blocks that admission keeps free for each prompt of a step, beside its tokens."""
    kept_rounds: Whole = 0
    """Rounds of drafts and a token for which a row keeps slots; 0: slots for a draft and its verify, which come back.
    With slots that are kept the row with the fewest tokens decoded is retracted, and not the newest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_ratio > self.initial:
            raise ValueError(f"min_ratio={self.min_ratio!r} must not be above initial={self.initial!r}")

    def kept(self, draft_tokens: int, block_size: int) -> tuple[bool, int, int]:
        """leaves_at_once, the tokens of spare blocks, and the slots that a row keeps with drafts of such a length."""
        rounds = self.kept_rounds if draft_tokens else 0
        return self.leaves_at_once, self.spare_blocks * block_size, rounds * (draft_tokens + 1)


class StatePool(Bounded, frozen=True, kw_only=True):
    """Memory that SGLang sets aside for the states of linear attention, which bounds the requests that it seats."""

    ratio: float
    """Its bytes over those of the KV cache."""
    slots: Count
    """States of a request: its own, and those that its prefix is found by."""
    overlap_slots: Count
    """The same where steps are planned ahead."""

    def slots_of(self, *, is_async: bool, is_caching: bool) -> int:
        return (self.overlap_slots if is_async else self.slots) if is_caching else 1


class Rules(Bounded, frozen=True, kw_only=True):
    """Behaviour of one version of an engine, each rule as its source has it (`rules_source` of its file). Drafters go
    by their names (sim.drafters); a head that drafts in parallel is parallel_eagle."""

    draft_slots: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Drafter -> (a, b): a + b k slots of a step's token budget are kept for the drafts of each seat."""
    slots_of_scheduled: bool = False
    """They are kept for each request that a step carries, and not for each seat."""
    query_slots: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Drafter -> (a, b): its pass has a + b k tokens of each request, so that the token budget bounds the seats."""
    null_blocks: int = 0
    """KV blocks that no request gets."""
    caches_planned_only: bool = False
    """Scheduling synchronously: a block that the end of a step fills can be shared when the next step is planned, and
    not where the request ends or gives way before; False: at once."""
    caches_drafted_results: bool = False
    """Such blocks can be shared at once where something is drafted."""
    reuses_blank_first: bool = False
    """Blocks that were never whole are taken before all others that are free."""
    pads_last_token: bool = False
    """A first chunk of one token, beside rows or behind a prefix that was shared, is as long as a round."""
    seats_lookahead: bool = False
    """A request is seated with slots for its next draft, as it is later in every step."""
    seats_first_chunk: bool = False
    """A request is seated where its first chunk fits; False: where all that it has would."""
    spares_lone_prompt: bool = False
    """long_prefill_token_threshold does not cut the prompt of the only request that there is."""
    preempts_by_priority: bool = False
    """True: the running request of the lowest priority, the latest of these, loses its memory and waits by its
    priority; False: the last that was seated, which waits ahead of all."""
    has_prefill_interval: bool = False
    """It has a prefill_schedule_interval, or SGLang's prefill_decode_interval."""
    defers_last_token: bool = True
    """True where the interval holds back a request of which one token is left to compute, too."""
    counts_prompt_steps: bool = False
    """One engine alone has an interval, too: counted in steps since the last one that carried a prompt."""
    goes_on_without: bool = False
    """A request that gives way to others while it is planned does not end the step: those behind it are planned."""
    trims_at_max_model_len: bool = False
    """No draft, and no slot for one, reaches beyond the context."""
    drops_cached_block: tuple[str, ...] = ()
    """Drafters whose requests compute the last block again that was shared of their prefix, for its features."""
    hashes_next_token: tuple[str, ...] = ()
    """Drafters under which a block is shared only where the token behind it is the same, too."""
    skips_unused_drafts: tuple[str, ...] = ()
    """Drafters that make no drafts behind a step after which no request could use one."""
    max_graph_tokens: int | None = None
    """Captured sizes end here, at two steps' tokens of all seats, and at the token budget; multiples of a row's."""
    ends_at_max_model_len: bool = False
    """An answer ends where prompt and answer are as long as the context; False: such a request is rejected."""
    whole_prompts: bool = False
    """No chunked prefill: a prompt waits for a step that has room for all of it."""
    no_evict: bool = False
    """A request is admitted where prompt and whole answer fit beside those of all who run: nothing is preempted."""

    token_ratio: TokenRatio | None = None
    """Admission and retraction where prompts go in separate steps; None: a prompt is admitted where it fits."""
    max_num_seqs_drafting: int | None = None
    """Seats of all data-parallel ranks where something is drafted and nobody gives seats; None: as without drafts."""
    max_num_seqs_compressed: int | None = None
    """The same of a model with compressed KV (DeepSeek-V4), drafting or not; None: as others."""
    waits_for_seats: tuple[str, ...] = ()
    """Drafters with which prompts begin once several seats are free: a sixth of all, 2 to 4."""
    seats_by_memory: tuple[int, int] | None = None
    """(a, b): default seats without drafts: a for each context that the KV cache holds, from the caps' to b."""
    window_share: float = 0.0
    """KV of windows has a pool of its own, with this share of the other's tokens; 0: both share blocks; 1: every layer
    holds every token."""
    state_pool: StatePool | None = None
    """States of linear attention have a pool of their own; None: they share the KV cache's blocks."""
    captures_prompts: bool = True
    """Passes with prompt chunks replay captured or compiled pieces; False: Python launches each operator."""
    drafts_before_verify: bool = False
    """Drafter passes but the first run just before the verify, so that behind a prompt only the first one runs."""

    def slots_per_seat(self, drafter: str, draft_tokens: int) -> int:
        """Slots of a step's token budget that are kept for the drafts of one seat, `draft_tokens` a round.

        >>> Rules(draft_slots={"dspark": (-1, 1)}).slots_per_seat("dspark", 7)
        6
        """
        fixed, per_token = self.draft_slots.get(drafter, (0, 0))
        return fixed + per_token * draft_tokens

    def queries_per_seat(self, drafter: str, draft_tokens: int) -> int:
        """Tokens of one request in the drafter's pass, where they bound the seats; else 0."""
        fixed, per_token = self.query_slots.get(drafter, (0, 0))
        return fixed + per_token * draft_tokens

    def graph_sizes(self, max_num_seqs: int, draft_tokens: int, max_num_batched_tokens: int) -> list[int] | None:
        """Token counts that are captured as CUDA graphs, rising; None where there is no rule.

        >>> Rules(max_graph_tokens=512).graph_sizes(8, 2, 2048)
        [3, 6, 9, 18, 24, 33, 42, 48]
        """
        if self.max_graph_tokens is None:
            return None
        row = draft_tokens + 1
        end = min(2 * max_num_seqs * row, self.max_graph_tokens, max_num_batched_tokens)
        sizes = [*SMALL_GRAPHS, *range(8, min(end + 1, COARSE_GRAPHS), 8), *range(COARSE_GRAPHS, end + 1, 16)]
        rounded = {-(-size // row) * row for size in sizes}
        return sorted(size for size in rounded if size <= end)


class EngineTimes(Bounded, frozen=True, kw_only=True):
    """Times and memory that one engine adds on some GPU. The meaning of each time: sim.costs.profile.HostCosts."""

    step_s: Seconds
    row_s: Seconds
    draft_pass_s: Seconds
    gap_s: Seconds
    frontend_s: Seconds = 0.0
    frontend_token_s: Seconds = 0.0
    draft_phase_s: Seconds = 0.0
    uneven_launch_s: Seconds = 0.0
    prompt_kernel_s: Seconds = 0.0
    reserved_bytes: Whole = 0
    """Memory per GPU that it keeps beside weights and KV: activations, CUDA graphs. 0: not measured."""
    draft_reserved_bytes: Whole = 0
    """The same for a drafter, beside the drafter's weights and KV."""
    error_pct: float | None
    """Half the range of the measurements that `step_s` was pooled from, percent of it; None where there was one."""
    source: str
    measured_on: str = ""
    """GPU of the measurements."""
    is_pooled: bool = False
    """Some constant was never measured with this engine on this GPU."""


CONSTANTS = tuple(name for name in EngineTimes.__struct_fields__ if name.endswith("_s"))
"""Names of the times, which a profile's host has, too."""


class EngineCosts(EngineTimes, frozen=True, kw_only=True):
    """An engine on one GPU: its times, its limits, its rules."""

    name: str
    async_methods: tuple[str, ...] = ()
    """Drafters with which it plans a step while the one before it runs, by default: `none`, or speculation.method."""
    caps: tuple[CapRule, ...] = ()
    rules: Rules = Rules()
    scheduler: str | None = None
    """Name of the installed engine whose scheduler plans; None: `continuous` does."""
    scope: str = ""
    """Engine, GPU and tensor-parallel degrees that the constants are for; they act nowhere else."""
    mixes_prompts: bool = True
    """Prompt chunks share a step with the rows that decode; False: they go first, in separate steps."""

    def plans_ahead(self, method: str) -> bool:
        """True where it schedules asynchronously by default when drafting with `method`; `none` drafts nothing."""
        return method in self.async_methods

    def seats(self, profile: Profile, *, is_drafting: bool) -> int:
        """Requests that one rank of `profile` seats by default; ranks that share experts divide those under drafts."""
        seats, rules = self.cap_rule(profile.gpu).max_num_seqs, self.rules
        most = rules.max_num_seqs_drafting if is_drafting else None
        if profile.target.compressed is not None:
            most = rules.max_num_seqs_compressed or most
        if most is None:
            return seats
        ranks = profile.data_parallel if profile.target.experts is not None else 1
        return min(seats, max(1, most // ranks))

    def cap_rule(self, gpu: Gpu) -> CapRule:
        """The default limits on `gpu`."""
        return next(rule for rule in self.caps if rule.holds_on(gpu))


class _Measured(EngineTimes, frozen=True, kw_only=True):
    """The constants on some GPUs."""

    gpus: tuple[str, ...]
    """None of them: all that no other entry names."""
    tensor_parallel: tuple[int, ...] = ()
    """GPUs that share a model; none of them: any number that no earlier entry of the same GPU names."""

    def holds_on(self, gpu: str, tensor_parallel: int) -> bool:
        is_shared = not self.tensor_parallel or tensor_parallel in self.tensor_parallel
        return is_shared and (gpu in self.gpus or not self.gpus)


class _EngineFile(Bounded, frozen=True, kw_only=True):
    """sim/engines/NAME.json."""

    schema: int
    name: str
    inherits: str | None = None
    """The engine whose keys, and rules, it has where it does not say otherwise."""
    async_methods: tuple[str, ...]
    async_source: str
    caps: tuple[CapRule, ...]
    caps_source: str
    rules: Rules = Rules()
    rules_source: str = ""
    constants: tuple[_Measured, ...]
    mixes_prompts: bool = True

    def __post_init__(self) -> None:
        if self.schema != ENGINE_SCHEMA:
            raise ValueError(f"schema={self.schema!r} must be {ENGINE_SCHEMA}")
        if not self.constants or self.constants[-1].gpus or not all(entry.gpus for entry in self.constants[:-1]):
            raise ValueError("the last of `constants`, and no other, is for all other GPUs: gpus = []")
        if self.constants[-1].tensor_parallel:
            raise ValueError("the last of `constants` is for any number of GPUs: tensor_parallel = []")
        last = self.caps[-1] if self.caps else None
        if last is None or last.min_memory_gib or last.not_on:
            raise ValueError("the last of `caps` must hold on every GPU")


def engine_names() -> list[str]:
    """Engines that come with lanesim, sorted."""
    return sorted(path.stem for path in ENGINES.glob("*.json"))


def load_engine(name: str, gpu: str, tensor_parallel: int = 1) -> EngineCosts:
    """The engine called `name`, or the one in the JSON file of that path, where `tensor_parallel` GPUs called `gpu`
    share a model. Raises ValueError with the nearest name, or with what is wrong in the file."""
    is_path = name.endswith(".json")
    if not is_path and name not in engine_names():
        installed = installed_engines()
        if name in installed:
            engine = installed_engine(name)
            like = load_engine(engine.like, gpu, tensor_parallel)
            return msgspec.structs.replace(like, name=engine.label, scheduler=name)
        raise ValueError(unknown("engine", name, [*engine_names(), *sorted(installed)]))
    held = _read(Path(name) if is_path else ENGINES / f"{name}.json")
    entry = next(entry for entry in held.constants if entry.holds_on(gpu, tensor_parallel))
    times = {field: getattr(entry, field) for field in EngineTimes.__struct_fields__}
    return EngineCosts(
        **times | {"source": f"{'pooled: ' if entry.is_pooled else ''}{entry.source}"},
        name=held.name,
        async_methods=held.async_methods,
        caps=held.caps,
        rules=held.rules,
        scope=_scope(held.name, entry),
        mixes_prompts=held.mixes_prompts,
    )


class InstalledEngine(NamedTuple):
    """An engine beside us whose scheduler plans the steps of continuous batching.

    What an entry point of `lanesim.engines` names is a function that returns one, and raises ValueError with one line
    where the engine is not there.

    >>> import lanesim
    >>> async def serve(serving, limits, stream):
    ...     pass
    >>> lanesim.InstalledEngine(label="mine 1.0, installed", like="vllm-0.32", serve=serve).like
    'vllm-0.32'
    """

    label: str
    """Name in tables, with its version."""
    like: str
    """Engine file whose constants, caps and rules it has."""
    serve: Callable[..., Any]
    """(serving, limits, stream) -> the coroutine that serves."""


def installed_engines() -> dict[str, EntryPoint]:
    return installed("lanesim.engines")


@lru_cache(maxsize=8)
def installed_engine(name: str) -> InstalledEngine:
    """The one that the entry point called `name` gives. Raises ValueError."""
    with naming_plugin(f"engine {name!r}"):
        made = installed_engines()[name].load()()
    if not isinstance(made, InstalledEngine):
        raise PluginError(f"engine {name!r} gives {shown(made)}. It must give a lanesim.InstalledEngine")
    return made


def _scope(name: str, entry: _Measured) -> str:
    gpus = ", ".join(entry.gpus) or "any GPU not measured"
    degrees = f", tensor parallel {', '.join(map(str, entry.tensor_parallel))}" if entry.tensor_parallel else ""
    return f"{name} on {gpus}{degrees}"


@lru_cache(maxsize=32)
def _read(path: Path) -> _EngineFile:
    where = f"engine file {str(path)!r}"
    return convert(_whole(path, where), _EngineFile, where)


def _whole(path: Path, where: str) -> Any:
    """What an engine file says, and what it inherits. Raises ValueError."""
    given: Any = parse_json(read_text(path, "engine file"), where)
    parent = given.get("inherits") if isinstance(given, dict) else None
    if parent is None:
        return given
    if parent not in engine_names():
        raise ValueError(f"{where}: inherits: {unknown('engine', str(parent), engine_names())}")
    inherited = _whole(ENGINES / f"{parent}.json", where)
    for entry in inherited["constants"]:
        entry["source"] = f"not measured with this version, as {parent}: {entry['source']}"
    return inherited | given | {"rules": inherited["rules"] | given.get("rules", {})}


def own_engine(profile: Profile) -> EngineCosts | None:
    """The engine that `profile` was measured with: its constants, with the limits and the scheduling of the engine
    of that name; None for a profile that says only what the GPU takes."""
    host = profile.host
    if host.engine is None and not any(getattr(host, name) for name in CONSTANTS):
        return None
    name = host.engine or UNNAMED
    is_public = name in engine_names()
    like = load_engine(name if is_public else DEFAULT_ENGINE, profile.gpu.name, profile.tensor_parallel)
    async_methods = like.async_methods if is_public else ()
    if host.is_async is not None:
        async_methods = load_engine("ideal", profile.gpu.name).async_methods if host.is_async else ()
    return msgspec.structs.replace(
        like,
        name=name,
        **{constant: getattr(host, constant) for constant in CONSTANTS},
        async_methods=async_methods,
        rules=like.rules if is_public else Rules(),
        source=host.source,
        error_pct=None,
        measured_on=profile.gpu.name,
        is_pooled=False,
    )


def engine_of(name: str | None, profile: Profile) -> EngineCosts:
    """The engine called `name` on the profile's GPU. None, or the name of the one it was measured with, is that
    one; where it has none, None is DEFAULT_ENGINE. Raises ValueError."""
    measured = own_engine(profile)
    if measured is not None and name in (None, measured.name):
        return measured
    return load_engine(name or DEFAULT_ENGINE, profile.gpu.name, profile.tensor_parallel)


def without_engine(profile: Profile) -> EngineCosts:
    """Nothing added to `profile`, and nothing planned ahead: passes that no engine's loop drove."""
    ideal = load_engine("ideal", profile.gpu.name)
    return msgspec.structs.replace(ideal, name=NO_ENGINE, async_methods=(), source=NO_ENGINE)


def with_engine(profile: Profile, engine: EngineCosts) -> Profile:
    """`profile` with the constants, the name and the source of `engine`, as if it had been measured with it; how a
    server schedules is kept for its own."""
    host = profile.host
    changed = msgspec.structs.replace(
        host,
        engine=engine.name,
        is_async=host.is_async if engine.name == host.engine else None,
        source=host.source.replace(ADDED_BY_AN_ENGINE, f"{engine.name}: {engine.source}"),
        captures_chunks=host.captures_chunks and engine.rules.captures_prompts,
        **{constant: getattr(engine, constant) for constant in CONSTANTS},
    )
    return msgspec.structs.replace(profile, host=changed)
