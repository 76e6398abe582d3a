"""A request before it is admitted: the frontend, the queue by priority, and when an engine looks at it.

An engine looks at what has arrived at its step boundaries, some only every few steps; some hold new prompts back for
more to come; data-parallel ranks that share their experts step together. Not here: seats and memory
(sim.engine.serving), which replica a request goes to (sim.engine.fleet).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf, isnan

from sim.engine.time_series import Gauge
from sim.interface.host import Host
from sim.interface.request import Request
from sim.interface.wait import Signal


class Lockstep:
    """The step that data-parallel ranks are in: it begins and ends for all of them together.

    As in vLLM with `--data-parallel-size`: in each layer all ranks' tokens go to the experts and back, so that no rank
    is ahead of another; one without requests takes part with a dummy batch, which takes no time of the others. A
    request that comes to it meanwhile waits for the step under way.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._tokens: list[int] = []
        """Tokens of the ranks that have begun or are about to."""
        self._num_begun = self._num_ended = 0
        self._over = Signal()

    async def between(self) -> None:
        """Wait until no rank's step is under way."""
        while self._num_begun:
            await self._host.wait(self._over)

    async def begin(self, tokens: int) -> int:
        """Wait until this rank's step of `tokens` tokens can begin; returns the tokens of all ranks in it."""
        await self.between()
        self._tokens.append(tokens)
        await self._host.sleep(0.0)  # for the others that are free at this instant
        self._num_begun += 1
        return sum(self._tokens)

    async def end(self) -> None:
        """Wait until the step is over for all ranks in it."""
        self._num_ended += 1
        if self._num_ended < self._num_begun:
            await self._host.wait(self._over)
            return
        self._tokens = []
        self._num_begun = self._num_ended = 0
        self._host.notify(self._over)


class Intake:
    """Requests that have arrived and are not admitted, of one engine or of a part of it."""

    def __init__(
        self,
        host: Host,
        *,
        frontend_s: float = 0.0,
        frontend_token_s: float = 0.0,
        receive_interval: int = 1,
        batch_wait: tuple[int, float] = (0, 0.0),
        balance: tuple[int, float] = (0, 0.0),
        queue: Gauge | None = None,
        group: Lockstep | None = None,
    ) -> None:
        self.host = host
        self.inbox: deque[Request] = deque()
        """Arrived, not admitted; the highest priority first, then in order of arrival."""
        self.changed = Signal()
        """Notified on arrival, and on release while somebody waits in the inbox."""
        self.queue = Gauge() if queue is None else queue
        """Requests waiting for admission."""
        self.frontend_s, self.frontend_token_s = frontend_s, frontend_token_s
        """Every request's between its arrival and the queue, and what each token of its prompt adds; whoever gives them
        spawns `frontend`."""
        self.receive_interval = receive_interval
        """Steps without prompts from one look at what has arrived to the next."""
        self.batch_wait_steps, self.batch_wait_tokens = batch_wait
        """Steps that new prompts are held back for at most while rows run; tokens of a step at which they are not."""
        self.balance_steps, self.balance_queue = balance
        """While rows run, prompts begin in every so many steps or where so many wait; 0 steps: in any."""
        self.group = group
        """The data-parallel ranks in lockstep of which this engine is one."""
        self.num_arrived = 0
        self.num_plans = 0
        """Looks at what has arrived (`take_in`), one for each step that is planned."""
        self.num_steps, self.last_prompt_step = 0, -inf
        """Steps that were planned and carry something, and the last of them that carries a prompt."""
        self.has_priorities = False
        """Some request may wait ahead of one that came before it."""
        self.has_left_waiting = False
        """Somebody waited behind the last step that could carry prompts."""
        self.route: Callable[[Request], None] | None = None
        """Takes what arrives in place of the inbox."""
        self._entering: deque[tuple[float, Request]] = deque()
        """Arrived, and when each is in the queue."""
        self._came = Signal()
        self._steps_unseen = self._steps_held_back = self._steps_balanced = 0
        self._holds_back = False

    def arrive(self, request: Request) -> None:
        """`request` has come in; it waits behind all that wait, once the frontend is through with it."""
        self.num_arrived += 1
        delay_s = self.frontend_s + self.frontend_token_s * request.prompt_tokens
        if delay_s:
            self._entering.append((self.host.now_s + delay_s, request))
            self.host.notify(self._came)
        else:
            self.queue_up(request)

    async def frontend(self) -> None:
        """Pass arrivals on to the queue in their order, each once the frontend is through with it."""
        while True:
            while not self._entering:
                await self.host.wait(self._came)
            ready_s, request = self._entering.popleft()
            if ready_s > self.host.now_s:
                await self.host.sleep_until(ready_s)
            self.queue_up(request)

    def queue_up(self, request: Request) -> None:
        """`request` waits behind all of its priority and above, here or in its part."""
        if self.route is not None:
            self.route(request)
            return
        inbox, index = self.inbox, len(self.inbox)
        request.known_s = self.host.now_s
        if request.priority:
            self.has_priorities = True
        while index and inbox[index - 1].priority < request.priority:
            index -= 1
        self.insert(index, request)
        self.host.notify(self.changed)

    def insert(self, index: int, request: Request) -> None:
        """`request` waits ahead of the one at `index`."""
        self.inbox.insert(index, request)
        self.queue.set(len(self.inbox), self.host.now_s)

    def remove(self, request: Request) -> None:
        """`request` waits no longer."""
        self.inbox.remove(request)
        self.queue.set(len(self.inbox), self.host.now_s)

    def take_in(self, *, after_rows: bool = False, num_rows: int = 0) -> None:
        """The engine is at a step boundary: what has arrived meanwhile is queued now. `after_rows`: the step before it
        carried rows alone, of which `receive_interval` pass between two looks. With `num_rows` running, prompts may be
        held back for others to come."""
        self.num_plans += 1
        self._steps_unseen += 1
        if not after_rows or self._steps_unseen >= self.receive_interval:
            self._steps_unseen = 0
            if self.inbox:
                self._see()
        self._holds_back = False
        if self.batch_wait_steps and num_rows and self.has_queued:
            tokens = num_rows + sum([request.prompt_tokens for request in self.inbox if request.queued_s >= 0.0])
            self._holds_back = self._steps_held_back < self.batch_wait_steps and tokens < self.batch_wait_tokens
            self._steps_held_back = self._steps_held_back + 1 if self._holds_back else 0
        if self.balance_steps:
            is_all = not num_rows or len(self.inbox) >= self.balance_queue
            is_due = is_all or self._steps_balanced + 1 >= self.balance_steps
            self._steps_balanced = 0 if is_due else self._steps_balanced + 1
            self._holds_back |= not is_due

    def _see(self) -> None:
        now_s = self.host.now_s
        for request in reversed(self.inbox):
            if request.queued_s != request.queued_s:
                request.queued_s = now_s
            elif not self.has_priorities:
                break

    @property
    def has_queued(self) -> bool:
        """True where a request waits that the engine has seen and does not hold back."""
        return bool(self.inbox) and not self._holds_back and not isnan(self.inbox[0].queued_s)
