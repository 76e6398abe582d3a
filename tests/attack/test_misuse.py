"""Plug-ins and callers of `import lanesim` that break one rule each: lanesim's own error, one line that names what
broke it; nothing is cast, passed over or found out later."""

from __future__ import annotations

import gc
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lanesim
from sim.acceptance import forms
from sim.cli.main import run
from sim.policies import pd, registry
from sim.report.results import to_json
from tests.attack.samples import PAIR

BASE: dict[str, Any] = {"profile": "cpu/tiny", "num_prompts": 6, "request_rate": 20, "output_len": 8}
LOAD: dict[str, Any] = BASE | {"policy": "pd"}
TUNED: dict[str, Any] = BASE | {"policy": "continuous", "draws": 2, "workers": 1}
HALVES = {"policy_options.partition": {"prefill": 0.5, "decode": 0.5}}
GRID: dict[str, Any] = {"scenario": {"profile": "cpu/tiny", "policy": "pd", "workload": {"num_prompts": 3}}}


@pytest.fixture(autouse=True)
def unregistered() -> Iterator[None]:
    policies, acceptances = dict(registry._registered), dict(forms._registered)
    yield
    registry._registered.clear()
    registry._registered.update(policies)
    forms._registered.clear()
    forms._registered.update(acceptances)


class Counted:
    """Can stand where an index is wanted, and is no number."""

    def __index__(self) -> int:
        return 2


class Mine(lanesim.Acceptance):
    def __init__(self, lengths: Any = None, rates: Any = None) -> None:
        self.lengths, self.rates = lengths, rates

    def unconditional_rates(self, num_speculative_tokens: int) -> tuple[float, ...]:
        if self.rates is not None:
            return self.rates(num_speculative_tokens)  # type: ignore[no-any-return]
        return tuple(0.5**j for j in range(1, num_speculative_tokens + 1))

    def run_lengths(self, window: Any, depth: int) -> Any:
        found = lanesim.run_lengths(window.draws(0) < lanesim.thresholds(0.5), depth)
        return found if self.lengths is None else self.lengths(found)


def broken(*_: Any) -> Any:
    raise KeyError("inside")


def nothing(*_: Any) -> None:
    """A function without an answer."""


def accepting(build: Any = None, policy: str = "pd", **answers: Any) -> None:
    lanesim.register_acceptance("mine", build or (lambda values, k: Mine(**answers)), "mine:.5")
    lanesim.simulate(policy=policy, acceptance="mine:.5", **BASE)


def scheduling(*, settings: dict[str, Any] | None = None, profile: str = "cpu/tiny", **fields: Any) -> None:
    given = {"name": "mine", "summary": "s", "source": "x", "build": pd.coroutines} | fields
    lanesim.register(lanesim.Policy(**given))
    lanesim.simulate(policy=given["name"], **BASE | {"profile": profile} | (settings or {}))


def breaking(serving: Any, options: Any, limits: Any) -> list[Any]:
    async def worker() -> None:
        await serving.admit()
        broken()

    return [worker()]


def unshared(serving: Any, options: Any, limits: Any) -> list[Any]:
    stream, decode = serving.host.stream("prefill"), lanesim.RequestQueue("decode")
    serving.host.stream("decode", sm_share=options.share("decode"))
    return [pd.prefill_lane(serving, options, limits, decode, stream)]


def awaiting(serving: Any, options: Any, limits: Any) -> list[Any]:
    async def worker() -> None:
        await None  # type: ignore[misc]

    return [worker()]


def saving(**changes: Any) -> None:
    lanesim.save_profile(lanesim.changed(lanesim.load_profile("cpu/tiny"), **changes), "x.json")


FORM: dict[str, Any] = {"name": "mine", "build": broken, "form": "f"}
MISUSES: dict[str, tuple[Callable[..., object], dict[str, Any], str]] = {
    "lengths with a half": (accepting, {"lengths": lambda x: x + 0.5}, "'mine': run_lengths gave float64"),
    "lengths too few": (accepting, {"lengths": lambda x: x[:-2]}, "'mine': run_lengths gave an array of shape"),
    "lengths beyond the draft": (accepting, {"lengths": lambda x: x + 200}, "gave lengths from 200"),
    "lengths below 0": (accepting, {"lengths": lambda x: x.astype(int) - 3}, "gave lengths from -3"),
    "lengths in a list": (accepting, {"lengths": np.ndarray.tolist}, "'mine': run_lengths gave list"),
    "lengths that break": (accepting, {"lengths": broken}, "'mine': run_lengths: KeyError: 'inside'"),
    "rates above 1": (accepting, {"rates": lambda k: (1.5,) * k}, "'mine': unconditional_rates gave"),
    "rates too few": (accepting, {"rates": lambda k: ()}, "It must give 4 numbers from 0 to 1"),
    "rates that rise": (accepting, {"rates": lambda k: tuple(np.arange(k) / k)}, "They cannot rise"),
    "no rates": (accepting, {"rates": nothing}, "unconditional_rates gave None"),
    "rates that break": (accepting, {"rates": broken}, "unconditional_rates: KeyError: 'inside'"),
    "no model": (accepting, {"build": nothing}, "acceptance 'mine' gave None"),
    "a build that breaks": (accepting, {"build": broken}, "acceptance 'mine': KeyError: 'inside'"),
    "a build that is a number": (lanesim.register_acceptance, FORM | {"build": 5}, "build=5 must be a function"),
    "an escape in a name": (lanesim.register_acceptance, FORM | {"name": "a\x1b[2J"}, r"acceptance 'a\x1b[2J'"),
    "a name that is never found": (lanesim.register_acceptance, FORM | {"name": "Mine"}, "in lower case"),
    "no form": (lanesim.register_acceptance, FORM | {"form": None}, "form=None"),
    "no GPUs": (scheduling, {"num_gpus": lambda o: 0}, "policy 'mine': GPUs of a replica=0"),
    "a billion GPUs": (scheduling, {"num_gpus": lambda o: 10**9}, "GPUs of a replica=1000000000"),
    "GPUs that are an index": (scheduling, {"num_gpus": lambda o: Counted()}, "GPUs of a replica=<"),
    "GPUs that are a number": (scheduling, {"num_gpus": 1}, "num_gpus=1 must be a function"),
    "GPUs that break": (scheduling, {"num_gpus": broken}, "policy 'mine': KeyError: 'inside'"),
    "nowhere to seat": (scheduling, {"num_engines": lambda o: 0}, "GPUs that seat requests=0"),
    "keys in a text": (scheduling, {"takes": "decode_batch"}, "takes='decode_batch' must be a list"),
    "lanes in a flat list": (scheduling, {"lanes": ("prefill", "decode")}, "lanes='prefill' must be a list"),
    "a lane twice": (scheduling, {"lanes": (("a",), ("a",))}, "name one twice"),
    "a lane without a stream": (
        scheduling,
        {"lanes": (("prefill",), ("decode",), ("verify",))},
        "policy 'mine': build made no stream for its lane 'verify', but decode, prefill",
    ),
    "a lane without its share": (
        scheduling,
        {"build": unshared, "lanes": (("prefill",), ("decode",)), "settings": HALVES, "profile": PAIR},
        "build made stream 'prefill' with sm_share=None. It must be options.share('prefill'), which is 0.5",
    ),
    "an escape in a policy": (scheduling, {"name": "a\x1b[2J"}, r"policy 'a\x1b[2J'"),
    "an escape in a summary": (scheduling, {"summary": "a\x1b[2J"}, r"summary='a\x1b[2J'"),
    "a flag in words": (scheduling, {"has_workers": "yes"}, "has_workers='yes' must be true or false"),
    "no build": (scheduling, {"build": None}, "build=None must be a function"),
    "a build of nothing": (scheduling, {"build": nothing}, "what build gives=None"),
    "a build of no coroutines": (scheduling, {"build": lambda *_: [broken]}, "It must give coroutines"),
    "a coroutine that breaks": (scheduling, {"build": breaking}, "policy 'mine': KeyError: 'inside'"),
    "a coroutine that awaits nothing": (scheduling, {"build": awaiting}, "policy 'mine': TypeError"),
    "a policy by its name": (lanesim.register, {"policy": "pd"}, "'pd' is not a lanesim.Policy"),
    "a seed that is an index": (lanesim.compare, LOAD | {"seed": Counted()}, "seed: expected `int`"),
    "concurrencies that are no numbers": (
        lanesim.tune,
        TUNED | {"concurrencies": np.array([1.5])},
        "concurrencies=np.float64(1.5)",
    ),
    "a number of lengths": (lanesim.tune, TUNED | {"lengths": 4}, "lengths=4 must be a list"),
    "half a draw": (lanesim.tune, TUNED | {"draws": 1.5}, "draws=1.5"),
    "a sweep by no workers": (lanesim.sweep, {"grid": GRID | {"grid": {"seed": [0]}}, "workers": 0}, "workers=0"),
    "a sweep of nothing": (lanesim.sweep, {"grid": None}, "grid None must be a mapping"),
    "a profile by its name": (lanesim.save_profile, {"profile": "cpu/tiny", "path": "x.json"}, "needs a Profile"),
    "a profile with an escape": (saving, {"name": "a\x1b[2J"}, "'name' holds the control character"),
    "a change of no profile": (lanesim.changed, {"profile": {}, "source": "x"}, "{} is not a Profile"),
    "an unknown field": (saving, {"sauce": "x"}, "Did you mean 'source'"),
    "a result that is a number": (lanesim.load, {"path": 5}, "load(5)"),
    "a scenario that is a number": (lambda: lanesim.compare(5), {}, "scenario 5 must be"),
    "a quote that is a number": (lanesim.parse_quoted, {"text": 0.7}, "acceptance 0.7"),
    "half a drafted token": (
        lanesim.parse_quoted("iid:.7").model,
        {"k": 1.5},
        "num_speculative_tokens=1.5",
    ),
    "a chance above 1": (lanesim.thresholds, {"chances": 2.0}, "must be numbers from 0 to 1"),
    "draws that are no booleans": (
        lanesim.run_lengths,
        {"accepts": np.array([0.5]), "depth": 2},
        "needs an array of booleans",
    ),
    "a curve of words": (lanesim.Curve, {"tokens": ("a",), "seconds": (1.0,)}, "tokens=('a',)"),
    "a policy with a billion GPUs to prefill": (
        lanesim.compare,
        LOAD | {"policy": "disaggregated", "policy_options.pools.prefill": 10**9},
        "policy_options.pools.prefill=1000000000 must be at most",
    ),
}


@pytest.mark.parametrize("case", MISUSES)
def test_a_misuse_is_one_line_that_names_what_broke_a_rule(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    misuse, given, says = MISUSES[case]
    with pytest.raises(ValueError) as refused:
        misuse(**given)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_plug_in_that_breaks_ends_a_command_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lanesim.register(lanesim.Policy(name="mine", summary="s", source="x", build=breaking))
    # What other tests left is theirs.
    gc.collect()
    assert run(["compare", "--profile", "cpu/tiny", "--policy", "mine", "--num-prompts", "4", "--workers", "1"]) == 2
    assert capsys.readouterr().err == "lanesim: policy 'mine': KeyError: 'inside'\n"


def test_nothing_is_said_of_arrivals_that_a_broken_policy_kept_from_beginning(recwarn: pytest.WarningsRecorder) -> None:
    """Arrivals begin behind the policy, whose first step fails."""

    def build(serving: Any, options: Any, limits: Any) -> list[Any]:
        async def worker() -> None:
            broken()

        return [worker()]

    with pytest.raises(ValueError, match="KeyError: 'inside'"):
        scheduling(build=build)
    gc.collect()
    assert [str(each.message) for each in recwarn if "never awaited" in str(each.message)] == []


def test_coroutines_of_a_policy_that_is_refused_are_closed() -> None:
    """Python would complain of each that was never awaited."""
    made: list[Any] = []

    def build(serving: Any, options: Any, limits: Any) -> list[Any]:
        serving.host.stream("gpu")
        made.extend(breaking(serving, options, limits))
        return made

    with pytest.raises(ValueError, match="no stream for its lane"):
        scheduling(build=build, lanes=(("verify",),))
    assert {inspect.getcoroutinestate(each) for each in made} == {inspect.CORO_CLOSED}


def test_arrays_of_whole_numbers_are_as_good_as_lists() -> None:
    found = lanesim.tune(concurrencies=np.array([1, 2]), lengths=np.array([0, 1]), **TUNED)  # type: ignore[arg-type]
    assert [point.concurrency for point in found.points] == [1, 2]
    assert json.loads(to_json(found.plain))["points"][0]["concurrency"] == 1


def test_whole_numbers_of_any_type_are_run_lengths() -> None:
    accepting(lengths=lambda x: x.astype(np.int64))
