"""The policies by name: one file each, built as coroutines over a host.

A third party adds one through the entry-point group `lanesim.policies`, naming a `Policy`. Not here: any scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields

from sim.engine.serving import Serving
from sim.interface.host import Host
from sim.interface.wait import Task
from sim.names import unknown
from sim.plugins import (
    PluginError,
    checked_count,
    checked_list,
    checked_name,
    checked_text,
    installed,
    loaded,
    naming_plugin,
    shown,
)
from sim.policies import adaptive, baseline, disaggregated, pd, pdv, pipelined, unified
from sim.policies.continuous import loop as continuous
from sim.policies.options import EngineLimits, PolicyOptions

GROUP = "lanesim.policies"
"""Entry points of installed packages."""
LANE_OPTIONS = ("batching", "kv", "stream_priorities", "partition")
CONTINUOUS_SETTINGS = (
    "enable_prefix_caching",
    "rules",
)
"""Keys of the engine that continuous batching alone obeys."""
Build = Callable[[Serving, PolicyOptions, EngineLimits], list[Task]]


MAX_GPUS = 10_000
"""Most GPUs of one replica."""


def _one(_: PolicyOptions) -> int:
    return 1


async def _named(what: str, task: Task) -> None:
    with naming_plugin(what):
        await task


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A scheduler: `build` makes its streams and returns its coroutines, in the order in which they start.

    >>> import lanesim
    >>> async def one_by_one(serving, options, stream):
    ...     while True:
    ...         request = await serving.admit()
    ...         await lanesim.rounds.submit_prefill(serving, request, stream)
    ...         serving.commit_prefill(request)
    ...         while not request.is_finished:
    ...             await lanesim.rounds.run_round(serving, [request], options, stream, stream)
    >>> def build(serving, options, limits):
    ...     return [one_by_one(serving, options, serving.host.stream("gpu"))]
    >>> mine = lanesim.register(lanesim.Policy(name="one-by-one", summary="no batch", source="example", build=build))
    >>> lanesim.simulate(profile="cpu/tiny", policy="one-by-one", num_prompts=5, request_rate=10).metrics["completed"]
    5
    """

    name: str
    summary: str
    source: str
    build: Build
    needs_draft: bool = False
    """Makes no sense with a draft length of 0."""
    is_speculative: bool = True
    """False: drafts nothing whatever the draft length is."""
    num_gpus: Callable[[PolicyOptions], int] = _one
    """GPUs of one replica."""
    num_engines: Callable[[PolicyOptions], int] = _one
    """GPUs of one replica that seat requests, each within the engine's limits."""
    has_workers: bool = False
    """Serves as many requests at once as it has workers."""
    drafts_ahead: bool = False
    """Drafts before the result of the verify before is known: room for one more draft, no replay."""
    is_continuous: bool = False
    """Continuous batching: keeps its KV and batches, so `batching` and `kv` cannot be otherwise."""
    chooses_drafter: bool = False
    """Its rounds go through `rounds`, which knows of several draft models (speculation.drafts)."""
    lanes: tuple[tuple[str, ...], ...] = ()
    """Its streams that can be given shares of the multiprocessors (`policy_options.partition`); those that take turns
    stand together."""
    takes: tuple[str, ...] | None = None
    """Keys of `policy_options` that mean something to it; None: it does not say."""

    def __post_init__(self) -> None:
        checked_name("policy", self.name)
        what = f"policy {self.name!r}"
        for key in ("summary", "source"):
            checked_text(f"{what}: {key}", getattr(self, key))
        for key in ("build", "num_gpus", "num_engines"):
            if not callable(getattr(self, key)):
                raise PluginError(f"{what}: {key}={shown(getattr(self, key))} must be a function")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool) and not isinstance(value, bool):
                raise PluginError(f"{what}: {field.name}={shown(value)} must be true or false")
        for lanes in checked_list(f"{what}: lanes", self.lanes):
            for lane in checked_list(f"{what}: lanes", lanes):
                checked_name(f"{what}: lane", lane)
        if len(set(self.lane_names)) < len(self.lane_names):
            raise PluginError(f"{what}: lanes={shown(self.lanes)} name one twice")
        for key in () if self.takes is None else checked_list(f"{what}: takes", self.takes):
            if key not in PolicyOptions.__struct_fields__:
                raise PluginError(unknown(f"key in takes of {what}", str(key), PolicyOptions.__struct_fields__))

    def gpus(self, options: PolicyOptions) -> tuple[int, int]:
        """GPUs of one replica, and how many of them seat requests. Raises ValueError."""
        what = f"policy {self.name!r}"
        with naming_plugin(what):
            num_gpus, num_engines = self.num_gpus(options), self.num_engines(options)
        count = checked_count(f"{what}: GPUs of a replica", num_gpus, 1, MAX_GPUS)
        return count, checked_count(f"{what}: GPUs that seat requests", num_engines, 1, count)

    def coroutines(self, serving: Serving, options: PolicyOptions, limits: EngineLimits) -> list[Task]:
        """What `build` makes; an exception in it, or in a coroutine of a plug-in, names the policy."""
        if POLICIES.get(self.name) is self:
            return self.build(serving, options, limits)
        what = f"policy {self.name!r}"
        with naming_plugin(what):
            tasks = checked_list(f"{what}: what build gives", self.build(serving, options, limits))
        for task in tasks:
            if not isinstance(task, Coroutine):
                raise PluginError(f"{what}: build gave {shown(task)}; want coroutines")
        if problem := self._problem_of_lanes(serving.host, options):
            for task in tasks:
                task.close()
            raise PluginError(f"{what}: build made {problem}")
        return [_named(what, task) for task in tasks]

    def _problem_of_lanes(self, host: Host, options: PolicyOptions) -> str | None:
        """A lane that has no stream, or whose stream is without its share."""
        made = host.streams
        for lane in self.lane_names:
            if lane not in made:
                return f"no stream for its lane {lane!r}, but {', '.join(made) or 'none'}"
            if made[lane].sm_share != options.share(lane):
                given, wanted = shown(made[lane].sm_share), options.share(lane)
                return f"stream {lane!r} with sm_share={given}; want options.share({lane!r}), which is {wanted}"
        return None

    @property
    def lane_names(self) -> list[str]:
        return [name for lanes in self.lanes for name in lanes]

    def takes_option(self, key: str) -> bool:
        return self.takes is None or key in self.takes


_BUILT_IN = (
    Policy(
        name="autoregressive",
        summary="continuous batching without speculation",
        source="vLLM",
        build=continuous.coroutines,
        is_speculative=False,
        is_continuous=True,
        takes=(),
    ),
    Policy(
        name="continuous",
        summary="verify rows and prefill chunks in one pass under a token budget, then drafting",
        source="vLLM v1",
        build=continuous.coroutines,
        is_continuous=True,
        takes=(),
    ),
    Policy(
        name="baseline",
        summary="workers that take one request end to end, one stream",
        source="reports 000, 004",
        build=baseline.coroutines,
        chooses_drafter=True,
        has_workers=True,
        takes=("workers", "batching", "kv"),
    ),
    Policy(
        name="pd",
        summary="prefill lane and decode lane, two streams",
        source="reports 002, 004",
        build=pd.coroutines,
        chooses_drafter=True,
        takes=("decode_batch", "poll_s", "batch_by", "prefill_chunk_tokens", *LANE_OPTIONS),
        lanes=(("prefill",), ("decode",)),
    ),
    Policy(
        name="pdv",
        summary="prefill, decode and verify lanes, three streams",
        source="reports 000, 004",
        build=pdv.coroutines,
        chooses_drafter=True,
        needs_draft=True,
        takes=(
            "decode_batch",
            "verify_batch",
            "verify_lead",
            "hybrid_requests",
            "poll_s",
            "batch_by",
            "prefill_chunk_tokens",
            *LANE_OPTIONS,
        ),
        lanes=(("prefill",), ("decode",), ("verify",)),
    ),
    Policy(
        name="unified",
        summary="one worker, three streams",
        source="report 002",
        build=unified.coroutines,
        chooses_drafter=True,
        needs_draft=True,
        takes=("decode_batch", "queue_factor", "spin_s", "pipelined", *LANE_OPTIONS),
        lanes=(("prefill",), ("draft", "verify")),
    ),
    Policy(
        name="adaptive",
        summary="the lane policy that a table says for the load",
        source="report 002",
        build=adaptive.coroutines,
        chooses_drafter=True,
        needs_draft=True,
        takes=(
            "adaptive_table",
            "hysteresis",
            "workers",
            "decode_batch",
            "verify_batch",
            "verify_lead",
            "hybrid_requests",
            "queue_factor",
            "spin_s",
            "pipelined",
            "poll_s",
            "batch_by",
            "prefill_chunk_tokens",
            "batching",
            "kv",
            "stream_priorities",
        ),
    ),
    Policy(
        name="pipelined",
        summary="drafts the next window while the target verifies the last one; a rejection throws it away",
        source="report 000, PEARL",
        build=pipelined.coroutines,
        needs_draft=True,
        drafts_ahead=True,
        num_gpus=lambda options: 1 + min(1, options.draft_devices),
        takes=("decode_batch", "poll_s", "draft_devices", "prefill_chunk_tokens", "batching", "stream_priorities"),
    ),
    Policy(
        name="disaggregated",
        summary="prefill GPUs and decode GPUs, KV sent over a link, draft model on GPUs of its own if asked",
        source="report 003, DistServe",
        build=disaggregated.coroutines,
        num_gpus=lambda options: options.prefill_devices + options.decode_devices + options.draft_devices,
        num_engines=lambda options: options.decode_devices,
        takes=(
            "prefill_devices",
            "decode_devices",
            "draft_devices",
            "draft_autoscale",
            "decode_batch",
            "poll_s",
            "batch_by",
            "prefill_chunk_tokens",
            "batching",
            "kv",
        ),
    ),
)

POLICIES = {policy.name: policy for policy in _BUILT_IN}
"""Those that come with lanesim."""
_registered: dict[str, Policy] = {}


def register(policy: Policy) -> Policy:
    """Make `policy` known by its name in this process, for scenarios of one's own; a later one of a name replaces it.

    To have it known everywhere, name it in the entry-point group `lanesim.policies` of a package instead. Raises
    ValueError for the name of a built-in one.

    >>> import lanesim
    >>> from sim.policies import pd
    >>> mine = lanesim.register(
    ...     lanesim.Policy(name="my-pd", summary="prefill and decode lanes", source="example", build=pd.coroutines)
    ... )
    >>> lanesim.simulate(profile="cpu/tiny", policy="my-pd", num_prompts=5, request_rate=10).metrics["completed"]
    5
    """
    if not isinstance(policy, Policy):
        raise PluginError(f"register: {shown(policy)} is not a lanesim.Policy")
    if policy.name in POLICIES:
        raise ValueError(f"policy {policy.name!r} is built in: register under another name")
    _registered[policy.name] = policy
    return policy


def registered() -> list[Policy]:
    """What `register` made known in this process."""
    return list(_registered.values())


def policy_names() -> list[str]:
    """Every policy that `find_policy` knows: built in, registered, installed.

    >>> import lanesim
    >>> lanesim.policy_names()[:4]
    ['autoregressive', 'continuous', 'baseline', 'pd']
    """
    return [*POLICIES, *_registered, *installed(GROUP)]


def find_policy(name: str) -> Policy:
    """The policy called `name`, built in, registered or installed. Raises ValueError naming the nearest one."""
    found = POLICIES.get(name) or _registered.get(name)
    if found is not None:
        return found
    entries = installed(GROUP)
    if name not in entries:
        raise ValueError(unknown("policy", name, policy_names()))
    return loaded(f"policy {name!r}", entries[name], Policy)
