"""A scheduler as the registry knows it: how it is built, what it takes, how many GPUs it has.

Not here: the schedulers, one file each beside this one, or their names (registry).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields
from typing import Any

from sim.engine.serving import Serving
from sim.interface.host import Host
from sim.interface.wait import Task
from sim.plugins import PluginError, checked_count, checked_list, checked_name, checked_text, naming_plugin, shown
from sim.policies.options import EngineLimits

Options = Any
"""Those that a policy reads, which are its own: each file of a policy has them as a dataclass."""
Build = Callable[[Serving, Options, EngineLimits], list[Task]]
MAX_GPUS = 10_000
"""Most GPUs of one replica."""


def _one(_: Options) -> int:
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
    is_built_in: bool = False
    """Comes with lanesim: what it builds is not looked at."""
    needs_draft: bool = False
    """Makes no sense with a draft length of 0."""
    is_speculative: bool = True
    """False: drafts nothing whatever the draft length is."""
    num_gpus: Callable[[Options], int] = _one
    """GPUs of one replica."""
    num_engines: Callable[[Options], int] = _one
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
    """Keys of `policy_options`, and of `engine.rules`, that mean something to it; None: it does not say."""

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
        if self.takes is not None:
            checked_list(f"{what}: takes", self.takes)

    def gpus(self, options: Options) -> tuple[int, int]:
        """GPUs of one replica, and how many of them admit requests. Raises ValueError."""
        what = f"policy {self.name!r}"
        with naming_plugin(what):
            num_gpus, num_engines = self.num_gpus(options), self.num_engines(options)
        count = checked_count(f"{what}: GPUs of a replica", num_gpus, 1, MAX_GPUS)
        return count, checked_count(f"{what}: GPUs that seat requests", num_engines, 1, count)

    def coroutines(self, serving: Serving, options: Options, limits: EngineLimits) -> list[Task]:
        """Coroutines that `build` makes. An exception in it, or in a coroutine of a plug-in, names the policy."""
        if self.is_built_in:
            return self.build(serving, options, limits)
        what = f"policy {self.name!r}"
        with naming_plugin(what):
            tasks = checked_list(f"{what}: what build gives", self.build(serving, options, limits))
        for task in tasks:
            if not isinstance(task, Coroutine):
                raise PluginError(f"{what}: build gave {shown(task)}. It must give coroutines")
        if problem := self._problem_of_lanes(serving.host, options):
            for task in tasks:
                task.close()
            raise PluginError(f"{what}: build made {problem}")
        return [_named(what, task) for task in tasks]

    def _problem_of_lanes(self, host: Host, options: Options) -> str | None:
        """A lane that has no stream, or whose stream is without its share."""
        made = host.streams
        for lane in self.lane_names:
            if lane not in made:
                return f"no stream for its lane {lane!r}, but {', '.join(made) or 'none'}"
            if made[lane].sm_share != options.share(lane):
                given, wanted = shown(made[lane].sm_share), options.share(lane)
                return f"stream {lane!r} with sm_share={given}. It must be options.share({lane!r}), which is {wanted}"
        return None

    @property
    def lane_names(self) -> list[str]:
        return [name for lanes in self.lanes for name in lanes]

    def takes_option(self, key: str) -> bool:
        return self.takes is None or key in self.takes
