"""A scenario: everything that determines a run, from raw data, strict.

Unknown keys, wrong types and values out of range are one clear line each (ValueError). Not here: reading YAML and
overrides (scenario_file), running it (sim.run.simulate).
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache
from math import inf
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec

from sim.acceptance.models import MAX_DRAFT_TOKENS
from sim.bounds import Bounds, check_bounds
from sim.costs.profile import Profile
from sim.costs.profile_files import default_lengths, spelling
from sim.costs.work_costs import GRAPHED_DECODE, GRAPHED_DRAFT
from sim.devices.contention import Regime
from sim.drafters.drafter import Drafter
from sim.drafters.registry import DRAFTERS
from sim.engine.adaptive_length import Band, bands_by_start
from sim.engine.controllers import CONTROLLERS
from sim.engine.draft_length import BatchTable, check_table
from sim.engine.fleet import Routing
from sim.files.json_values import Json
from sim.names import unknown
from sim.plugins import plain_number, shown
from sim.policies.options import CHUNK
from sim.policies.registry import PolicyOptions
from sim.run.scenario_file import FLAT_NAMES, read_scenario, set_dotted
from sim.workload.classes import Goodput, SloClass, check_classes
from sim.workload.generate import AUTO, TIMED_TRACES, Workload
from sim.workload.sessions import Sharing

SCENARIO_SCHEMA = 1
MAX_SEED = 2**63 - 1
RENAMED_DATASET = "sharegpt-like", "sharegpt-long"
"""Old name and new one."""
COUNT = 1_000_000


def _one_of(name: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise ValueError(unknown(name, value, known))


class RuleKey(NamedTuple):
    """What a key of `engine.rules` may hold, and who acts on it."""

    kind: type
    least: float
    most: float
    server: str = ""
    """The one that alone acts on it; empty: several do."""
    idle: float | None = None
    """The value that changes nothing; None: that is the engine's own."""
    since: str = ""
    """Earlier versions do not have it."""
    of_ranks: bool = False
    """It acts between data-parallel ranks. Up to 0.32 vLLM sets its interval aside elsewhere."""


RULES = {
    CHUNK: RuleKey(int, 0, 1_000_000_000, "vllm", 0),
    "enable_prefix_caching": RuleKey(bool, 0, 1),
    "prefill_schedule_interval": RuleKey(int, 1, COUNT, "vllm", 1, "vLLM's from 0.24", of_ranks=True),
    "enable_chunked_prefill": RuleKey(bool, 0, 1),
    "enable_mixed_chunk": RuleKey(bool, 0, 1, "sglang"),
    "scheduler_recv_interval": RuleKey(int, 1, COUNT, "sglang", 1),
    "prefill_decode_interval": RuleKey(int, 0, COUNT, "sglang", 0, "SGLang's from 0.5.23"),
    "batch_wait_timeout_iters": RuleKey(int, 0, COUNT, "trtllm", 0),
    "batch_wait_max_tokens_ratio": RuleKey(float, 0.0, 1.0, "trtllm", 0),
    "attention_dp_timeout_iters": RuleKey(int, 0, COUNT, "trtllm", 0, of_ranks=True),
}
GONE = (
    {f"engine.{name}": f"engine.rules.{name}" for name in RULES}
    | {f"workload.{name}": f"workload.sharing.{name}" for name in Sharing.__struct_fields__}
    | msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=dict[str, str])
)
"""Former keys, one with the value that is gone, and what to use instead."""


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The engine that serves, its limits and its memory, under vLLM's names."""

    name: str | None = None
    """An engine of sim/engines, or a JSON file; null = the one the profile was measured with, else vllm-0.33."""
    max_num_seqs: Annotated[int | None, Bounds(1, COUNT)] = None
    """Requests admitted and unfinished, under every policy; null = the engine's own limit on that GPU."""
    max_num_batched_tokens: Annotated[int | None, Bounds(16, 1000 * COUNT)] = None
    """Tokens of one target pass, under every policy; null = the engine's own limit on that GPU."""
    max_model_len: Annotated[int | None, Bounds(1, 1000 * COUNT)] = None
    """Tokens of a prompt and its answer at most; null = the target's context. vLLM and TensorRT-LLM end the answer
    there and reject a prompt that has as many. SGLang and other engines reject the request (`rejected_requests` of a
    run)."""
    block_size: Annotated[int, Bounds(1, COUNT)] = 16
    """Tokens of a KV block."""
    num_gpu_blocks: Annotated[int | None, Bounds(1, 1000 * COUNT)] = None
    """KV blocks; null = as many as fit beside the weights. More than memory holds are simulated, with a note."""
    gpu_memory_utilization: Annotated[float, Bounds(0, 1, is_open=True)] = 0.9
    """Share of the GPU's memory for weights, KV and passes."""
    cuda_graph: bool | str = True
    """true: passes are captured in CUDA graphs; draft: only the draft model's; decode: only those without prompts
    (vLLM's FULL_DECODE_ONLY). The others are launched eagerly."""
    async_scheduling: bool | None = None
    """A step (of a lane: a prompt or a round) is planned while the one before it runs; null = as the engine does with
    the scenario's drafter, under autoregressive without one."""
    frontend_s: Annotated[float | None, Bounds(0, COUNT)] = None
    """Seconds from a request's coming in to the engine's queue, such as a client or a gateway adds; null = the engine's
    own."""
    rules: dict[str, bool | int | float] = {}
    """autoregressive, continuous: what the engine does otherwise than by itself, by the names of its own flags.
    long_prefill_token_threshold: longest chunk of one prompt in a step (pd, pdv, pipelined and disaggregated: in a
    work). enable_prefix_caching (vLLM, SGLang: true): a request reuses KV of its prefix that is still in memory, its
    own or another's. prefill_schedule_interval (vLLM from 0.33 on, and from 0.24 on with data-parallel ranks):
    while rows decode, prompts go on in every so many steps, unless some were left waiting. enable_chunked_prefill
    (TensorRT-LLM: false): a prompt may take what a step has left; else it waits for a step with room for all of it.
    enable_mixed_chunk (SGLang: false): a step may hold prompt chunks and decoding rows. scheduler_recv_interval
    (SGLang): decoding steps between two looks at new arrivals. prefill_decode_interval (SGLang 0.5.23): decoding steps
    behind one of prompts before the next prompts. batch_wait_timeout_iters (TensorRT-LLM): steps for
    which new prompts wait for more while rows decode, until a step has batch_wait_max_tokens_ratio of
    max_num_batched_tokens. attention_dp_timeout_iters (TensorRT-LLM's attention_dp_config with enable_balance,
    data-parallel ranks): while rows decode, prompts begin in every so many steps."""

    def __post_init__(self) -> None:
        check_bounds("engine", self)
        for name, value in self.rules.items():
            if name not in RULES:
                raise ValueError(unknown("key of engine.rules", name, RULES))
            kind, least, most, *_ = RULES[name]
            is_number = not isinstance(value, bool) and isinstance(value, int | kind)
            if not (isinstance(value, bool) if kind is bool else is_number) or not least <= value <= most:
                wanted = "true or false" if kind is bool else f"{kind.__name__} from {least:g} to {most:,.0f}"
                raise ValueError(f"engine.rules.{name}={value!r} must be {wanted}")
        if isinstance(self.cuda_graph, str) and self.cuda_graph not in (GRAPHED_DRAFT, GRAPHED_DECODE):
            wanted = f"true, false, {GRAPHED_DRAFT} or {GRAPHED_DECODE}"
            raise ValueError(f"engine.cuda_graph={self.cuda_graph!r} must be {wanted}")


class FurtherDraft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A draft model beside the profile's own.

    >>> FurtherDraft(draft="llama-68m", acceptance="iid:0.4").num_speculative_tokens
    4
    """

    draft: str
    """A known model, or a profile target+draft of the same target and GPU."""
    acceptance: str
    num_speculative_tokens: Annotated[int, Bounds(1, MAX_DRAFT_TOKENS)] = 4

    def __post_init__(self) -> None:
        check_bounds("speculation.drafts", self)


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """The drafter, and what is accepted of its tokens."""

    method: str = "draft_model"
    """One of draft_model, eagle3, mtp, parallel, dflash, dspark, ngram."""
    num_speculative_tokens: Annotated[int, Bounds(0, MAX_DRAFT_TOKENS)] = 4
    """Draft length, or the longest one of a controller; 0: none."""
    acceptance: str = "iid:0.7"
    """Which drafted tokens are accepted, in one of the forms of docs/acceptance.md."""
    stale_acceptance: str | None = None
    """pipelined drafts before the target's newest features exist. Acceptance of a head that reads them then, such as
    length:2.59@7 in place of length:4.35@7; null: `acceptance`, for a draft that reads none."""
    controller: str = "fixed"
    """Chooses the draft length: fixed, feedback, by_batch, goodput, sglang_adaptive; or what of it is verified:
    adaptive_verification."""
    num_speculative_tokens_per_batch_size: BatchTable | dict[str, Band] | None = None
    """by_batch: vLLM's key, rows of [first batch size, last one, draft length], none above num_speculative_tokens.
    sglang_adaptive: SGLang's file speculative_adaptive_config, bands by smallest batch size; null = SGLang's own."""
    drafts: tuple[FurtherDraft, ...] = ()
    """baseline, pd, pdv, unified, adaptive: further draft models in memory, each with draft (a known model, or a
    profile of that pair), acceptance and num_speculative_tokens. Each round uses the one with the most expected
    tokens per second."""

    def __post_init__(self) -> None:
        check_bounds("speculation", self)
        _one_of("speculation.method", self.method, DRAFTERS)
        _one_of("speculation.controller", self.controller, CONTROLLERS)
        key, table = "speculation.num_speculative_tokens_per_batch_size", self.num_speculative_tokens_per_batch_size
        if table is not None and self.controller != ("sglang_adaptive" if isinstance(table, dict) else "by_batch"):
            raise ValueError(
                f"{key}: rows are read by speculation.controller=by_batch, bands by sglang_adaptive, none by "
                f"{self.controller}"
            )
        if isinstance(table, dict):
            bands_by_start(table)
        elif table is not None:
            check_table(table, self.num_speculative_tokens)
        elif self.controller == "by_batch":
            raise ValueError(f"speculation.controller=by_batch needs {key}")
        if self.drafts and self.controller != "fixed":
            raise ValueError(
                f"speculation.drafts: each has a length of its own, so speculation.controller={self.controller} has "
                "nothing to choose. Give fixed"
            )

    @property
    def drafter(self) -> Drafter:
        return DRAFTERS[self.method]

    @property
    def acceptance_name(self) -> str:
        """`iid` of `iid:0.7`."""
        return self.acceptance.partition(":")[0]


MAX_REPLICAS = 10_000
"""Each is simulated whole."""


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas, how requests are routed to them, and how works of several streams slow each other down."""

    count: Annotated[int, Bounds(1, MAX_REPLICAS)] = 1
    """Replicas, each with the GPUs that its policy needs: one, more for disaggregated and pipelined. As many as a
    profile of experts has data-parallel ranks are those ranks, in lockstep."""
    routing: Routing = Routing.ROUND_ROBIN
    """How requests find their replica."""
    overlap: Regime | None = None
    """What works of several streams do to each other where the profile has no measurement: serial, leftover, or roofs,
    an upper bound; null = leftover, and beside it what both ends of phi's bracket say. processes (pd): each lane is a
    process with its own interpreter and weights, and the GPU gives them slices of time; with phi it is under MPS."""
    phi: Annotated[float | None, Bounds(0, 1)] = None
    """leftover, processes: the rate at which a work goes on while kernels of another stream hold the GPU, 0..1; null =
    slices of time under processes, else the profile's, or 0.07, and both ends of its bracket beside it."""

    def __post_init__(self) -> None:
        check_bounds("devices", self)
        if self.phi is not None and self.overlap not in (None, Regime.LEFTOVER, Regime.PROCESSES):
            raise ValueError(f"devices.phi={self.phi!r} belongs to devices.overlap=leftover, got {self.overlap.value}")

    @property
    def is_overlap_given(self) -> bool:
        """The scenario says what overlap is, so that no bracket stands beside it."""
        return self.overlap is not None or self.phi is not None


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Observation window, seconds of simulated time (null: until everything has drained)."""

    arrivals_end_s: Annotated[float | None, Bounds(0, 1e9, is_open=True)] = None
    """Requests that would arrive later are left out."""
    stop_s: Annotated[float | None, Bounds(0, 1e9, is_open=True)] = None
    """Everything stops; what has not finished is counted as censored."""

    def __post_init__(self) -> None:
        check_bounds("window", self)


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that determines the result of a command (design, section 9).

    >>> import lanesim
    >>> scenario = lanesim.Scenario.of(profile="cpu/tiny", policy=("pd", "pdv"), request_rate=8, num_prompts=30)
    >>> [run["policy"] for run in lanesim.compare(scenario, num_prompts=10).runs]
    ['pd', 'pdv']
    """

    schema: int = SCENARIO_SCHEMA
    """Version of this format."""
    profile: str
    """Name or path of the cost profile: GPU, target and draft."""
    policy: tuple[str, ...]
    """One scheduler, or a list to compare."""
    policy_options: PolicyOptions = PolicyOptions()
    engine: Engine = Engine()
    workload: Workload = Workload()
    speculation: Speculation = Speculation()
    devices: Devices = Devices()
    window: Window = Window()
    goodput: Goodput = Goodput()
    slo_classes: tuple[SloClass, ...] = ()
    """Classes of requests with priorities and SLOs of their own: name, share, priority, ttft_ms, tpot_ms, e2el_ms."""
    seed: Annotated[int, Bounds(0, MAX_SEED)] = 0
    """Seed of arrivals, lengths and acceptance."""
    replications: Annotated[int, Bounds(1, 10_000)] = 1
    """Runs of each policy, each with a child of the seed; `compare` makes 4 of several policies unless it is given."""
    energy: bool = False
    """Runs also say power_w, the mean watts of a GPU with its idle time, and joules_per_output_token; null where the
    power of that GPU is not known (docs/validation/kernels.md)."""

    def __post_init__(self) -> None:
        if self.schema != SCENARIO_SCHEMA:
            raise ValueError(f"schema={self.schema!r}: this version reads schema {SCENARIO_SCHEMA}")
        if not self.policy:
            raise ValueError("policy: name at least one")
        if len(set(self.policy)) < len(self.policy):
            raise ValueError(f"policy: {', '.join(self.policy)} names one twice")
        check_bounds("", self)
        check_classes(self.slo_classes)

    @classmethod
    def of(cls, source: Mapping[str, Any] | str | Path | None = None, /, **changes: Any) -> Scenario:
        """A scenario from a file or raw mapping, and `changes` on top: flat names as flags of `lanesim compare` have
        them, whole blocks, or dotted keys.

        Raises ValueError, one line naming the key.

        >>> Scenario.of(profile="cpu/tiny", policy="pd", request_rate=8, num_prompts=50).workload.request_rate
        8.0
        >>> Scenario.of(profile="cpu/tiny", policy="pd", **{"engine.max_num_seqs": 16}).engine.max_num_seqs
        16
        """
        return parse_scenario(raw_scenario(source, changes))

    @property
    def digest(self) -> str:
        """Hash of the resolved scenario, 16 hex digits."""
        return hashlib.sha256(msgspec.json.encode(to_plain(self), order="deterministic")).hexdigest()[:16]


PlainScenario = dict[str, Any]
"""A scenario as `to_plain` has it."""


def to_plain(scenario: Scenario) -> PlainScenario:
    """The resolved scenario as plain data for YAML and JSON; an infinite rate becomes the string inf."""
    plain: PlainScenario = msgspec.to_builtins(scenario)
    if plain["workload"]["request_rate"] in (None, inf):
        plain["workload"]["request_rate"] = "inf"
    plain["policy"] = list(plain["policy"])
    if not scenario.energy:
        del plain["energy"]
    return plain


def raw_scenario(source: Mapping[str, Json] | str | Path | None, changes: Mapping[str, Json]) -> dict[str, Json]:
    """Raw data of a file or mapping with `changes` on top, as `Scenario.of` takes them."""
    if source is not None and not isinstance(source, Mapping | str | Path):
        raise ValueError(f"scenario {shown(source)} must be a Scenario, a mapping of keys, or the path of a file")
    raw = (
        read_scenario(Path(source))
        if isinstance(source, str | Path)
        else plain_number(copy.deepcopy(dict(source or {})))
    )
    for name, value in plain_number(dict(changes)).items():
        is_block = isinstance(value, Mapping)
        set_dotted(raw, name if is_block else FLAT_NAMES.get(name, name), value)
    return raw


def parse_scenario(raw: Mapping[str, Json], profile: Profile | None = None) -> Scenario:
    """A checked scenario from raw data; default lengths are those of its profile, which is looked up unless it is
    given. Raises ValueError, one line naming the key."""
    raw = dict(raw)
    policy = raw.get("policy")
    if isinstance(policy, str):
        raw["policy"] = [policy]
    elif isinstance(policy, tuple):
        raw["policy"] = list(policy)
    _check_keys(raw, Scenario, "")
    for key in ("profile", "policy"):
        if not raw.get(key):
            such_as = {"profile": "meta-llama/Llama-3.1-8B --gpu h100", "policy": "--policy continuous"}[key]
            raise ValueError(f"no {key} is given. Add such as `{such_as}`, or `{key}:` in the scenario file")
    if profile is None and isinstance(raw["profile"], str):
        raw["profile"] = spelling(raw["profile"])
    workload = raw.setdefault("workload", {})
    if isinstance(workload, dict):
        workload = raw["workload"] = dict(workload)
        rate = workload.get("request_rate")
        if isinstance(rate, str) and rate.lower().lstrip("+") in ("inf", "infinity"):
            workload["request_rate"] = inf
        if workload.get("dataset_name", "fixed") == "fixed" and {"input_len", "output_len"} - set(workload):
            lengths = profile.default_lengths if profile is not None else default_lengths(str(raw["profile"]))
            for name, tokens in zip(("input_len", "output_len"), lengths or (), strict=False):
                workload.setdefault(name, tokens)
        if workload.get("input_len") is not None or workload.get("output_len") is not None:
            workload.setdefault("dataset_name", "fixed")
        if workload.get("dataset_name") == RENAMED_DATASET[0]:
            warnings.warn(
                f"dataset {RENAMED_DATASET[0]} is called {RENAMED_DATASET[1]} now: its answers are long", stacklevel=2
            )
            workload["dataset_name"] = RENAMED_DATASET[1]
        count = workload.get("num_prompts")
        if isinstance(count, str) and count != AUTO:
            workload["num_prompts"] = _count(count)
        if "request_rate" not in workload:
            if workload.get("dataset_name") in TIMED_TRACES:
                workload.setdefault("trace_arrivals", "recorded")
            # A closed loop, as in `vllm bench serve`.
            if workload.get("max_concurrency") is not None and workload.get("trace_arrivals") != "recorded":
                workload["request_rate"] = inf
    try:
        return msgspec.convert(raw, Scenario, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(_explain(str(error))) from None


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"workload.num_prompts={text!r} must be a whole number, or auto") from None


def _explain(message: str) -> str:
    """msgspec's `... - at `$.a.b`` as `a.b: ...`."""
    text, _, path = message.partition(" - at `$.")
    path = path.rstrip("`")
    if not path or text.startswith("unknown"):
        return text
    return text if text.startswith(path) else f"{path}: {text[0].lower() + text[1:]}"


@cache
def field_types(block: Hashable) -> Mapping[str, Any]:
    """Types of a block's keys, evaluated once: a sweep checks thousands of scenarios."""
    return get_type_hints(block)


def is_block(hint: Any) -> bool:
    """The type of a key that holds keys itself."""
    return isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or is_dataclass(hint))


def dotted_keys(block: type = Scenario, prefix: str = "") -> Iterator[str]:
    """Every key of a scenario, dotted; a mapping inside a block is one."""
    for name, hint in field_types(block).items():
        if not prefix and is_block(hint):
            yield from dotted_keys(hint, f"{prefix}{name}.")
        else:
            yield prefix + name


def _check_keys(raw: Mapping[str, Json], block: type, prefix: str) -> None:
    hints = field_types(block)
    for key, value in raw.items():
        for former in (f"{prefix}{key}", f"{prefix}{key}={value}"):
            if former in GONE:
                raise ValueError(f"{former} is no key any more. Use {GONE[former]}")
        if key not in hints:
            known = [prefix + name for name in hints]
            flat = [] if prefix else [dotted for dotted in FLAT_NAMES.values() if "." in dotted]
            raise ValueError(unknown("key", f"{prefix}{key}", [*known, *flat]))
        hint = hints[key]
        if is_block(hint):
            if not isinstance(value, Mapping):
                raise ValueError(f"{prefix}{key}={value!r} must be a block of keys")
            _check_keys(value, hint, f"{prefix}{key}.")
        elif isinstance(hint, type) and issubclass(hint, StrEnum):
            _one_of(f"{prefix}{key}", str(value), list(hint))
