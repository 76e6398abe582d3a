"""Values of a scenario's keys side by side, `--vary KEY=A,B`: settings on the same draws, under each load.

A key that says what is served (CONDITIONS) has a comparison for each of its values; the values of any other key are
compared within it, as policies are. Short keys: `speculation=off,ngram,eagle3`, `prefix_cache=on,off`,
`context=1.5k,3k`, `gpu=h100-sxm,h200-sxm`; any flag's name or dotted key does, too. Not here: one comparison
(comparison), its tables (sim.report.varied_tables).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

import msgspec

from sim.acceptance.assumed import assumed_of
from sim.compare.side_by_side import Comparison
from sim.compare.verdict import METRIC, STATED
from sim.costs.datasheets import gpu_name
from sim.costs.profile import Profile
from sim.costs.profile_files import load, shipped, spelling
from sim.costs.shapes import HEADS
from sim.files.json_values import Json
from sim.files.yaml_values import parse_yaml
from sim.model_names import ProfileKey, same_profile
from sim.names import in_words, unknown
from sim.policies.options import Method
from sim.run.resolve import Resolved, resolve_all
from sim.run.scenario import parse_scenario
from sim.run.scenario_file import FLAT_NAMES, set_dotted
from sim.run.vllm_config import METHODS
from sim.studies.grid import CONDITIONS
from sim.studies.serve_commands import VLLM_POLICIES, deployment

VARIED_SCHEMA = 1
POLICY = "continuous"
"""Served where none is given: as vLLM does."""
REPLICATIONS = 3
"""Runs of a setting where none are given: enough to tell a difference from chance."""
SHORT_K = 3
"""Draft length where neither it nor an acceptance is given; assumed acceptances were measured at it."""
SWITCH = {"on": True, "off": False, True: True, False: False}
OFF = ("off", "none", False, 0)
MAX_STARTS = 2
Raw = dict[str, Json]
Keys = dict[str, Json]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The settings under one load."""

    keys: Keys
    """Values of the keys that say what is served; empty where none was varied."""
    comparison: Comparison

    @property
    def name(self) -> str:
        return spelt(self.keys)


class Varied(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `compare --vary --json`."""

    schema: int = VARIED_SCHEMA
    grid: dict[str, list[Json]]
    """Values by key, as given."""
    loads: list[Load]
    verdict: str
    start: dict[str, str]
    """Lines that start the settings of lowest mean E2EL, by setting; without those that no server runs."""
    notes: list[str]
    """Assumptions."""

    @property
    def plain(self) -> dict[str, Json]:
        """The answer as plain values, ready for JSON."""
        values: dict[str, Json] = msgspec.to_builtins(self)
        for load_of, values_of in zip(self.loads, values["loads"], strict=True):  # type: ignore[arg-type]
            values_of["comparison"] = load_of.comparison.plain  # type: ignore[call-overload,index]
        return values


class Variants:
    """Every load's settings, resolved. Raises ValueError for what cannot run."""

    def __init__(self, raw: Mapping[str, Json], grid: Mapping[str, Sequence[Json]], profile: Profile | None = None):
        self.grid = {key: list(values) for key, values in grid.items()}
        for key, values in self.grid.items():
            if len(values) < 2 or len({str(value) for value in values}) < len(values):
                raise ValueError(f"{key}={','.join(map(str, values))}: want two or more values that differ")
        methods = [str(value) for value in self.grid.get("speculation", ()) if value not in OFF]
        sharing = [method for method in methods if "@" not in method]
        self.notes: dict[str, None] = {}
        if len(sharing) > 1 and (given := dict(raw.get("speculation") or {}).get("acceptance")):  # type: ignore[call-overload]
            self.notes[f"acceptance {given} of {in_words(sharing)} alike; each its own: {sharing[0]}@FORM"] = None
        self._raw, self._profile = raw, profile
        settings = {key: values for key, values in self.grid.items() if not _is_condition(key)}
        self.by_load = [
            (load_keys, self._settings(load_keys, settings))
            for load_keys in _combinations({key: each for key, each in self.grid.items() if key not in settings})
        ]

    def _settings(self, load_keys: Keys, settings: Mapping[str, Sequence[Json]]) -> list[Resolved]:
        """[settings x policies] of one load."""
        resolved = []
        for keys in _combinations(settings):
            raw = {"policy": [POLICY]} | deepcopy(dict(self._raw))
            if settings:
                raw.setdefault("replications", REPLICATIONS)
            for key, value in (load_keys | keys).items():
                self._put(raw, key, value)
            if not raw.get("speculation") and raw.get("profile") and self._profile_of(raw).draft is None:
                set_dotted(raw, "speculation.num_speculative_tokens", 0)
            scenario = parse_scenario(raw, self._profile)
            policies = resolve_all(scenario, self._profile or load(scenario.profile))
            for one in policies:
                names = [spelt(keys)] if keys else []
                names += [one.policy.name] if len(policies) > 1 or not keys else []
                resolved.append(replace(one, label=", ".join(names)))
        return resolved

    def _profile_of(self, raw: Raw) -> Profile:
        return self._profile or load(str(raw["profile"]))

    def _put(self, raw: Raw, key: str, value: Json) -> None:
        """Put a value at its key, short ones at those that they stand for."""
        if key == "speculation" and not isinstance(value, Mapping):
            self._speculate(raw, value)
        elif key == "prefix_cache":
            set_dotted(raw, "engine.rules.enable_prefix_caching", _switch(value))
        elif key == "context":
            set_dotted(raw, "workload.input_len", tokens_of(value))
        elif key == "gpu":
            raw["profile"] = self._profile_with(raw, gpu=str(value))
        else:
            set_dotted(raw, FLAT_NAMES.get(key, key), value)

    def _speculate(self, raw: Raw, value: Json) -> None:
        """`off`, or a method with the acceptance of its drafts after @: `eagle3@length:2.83@3`."""
        if value in OFF:
            set_dotted(raw, "speculation.num_speculative_tokens", 0)
            return
        name, _, acceptance = str(value).partition("@")
        if name not in METHODS:
            raise ValueError(unknown("method of speculation", name, ["off", *METHODS]))
        method = METHODS[name]
        set_dotted(raw, "speculation.method", method.value)
        if not method.looks_up:
            raw["profile"] = self._profile_with(raw, method=method)
        given = raw["speculation"]
        assert isinstance(given, dict)
        if not acceptance and "acceptance" not in given:
            assumed = assumed_of(method.value)
            acceptance = assumed.acceptance
            self.notes[f"acceptance of {name} assumed: {acceptance} ({assumed.source}); yours: {name}@FORM"] = None
        if acceptance:
            given["acceptance"] = acceptance
        given.setdefault("num_speculative_tokens", SHORT_K)

    def _profile_with(self, raw: Raw, *, gpu: str | None = None, method: Method | None = None) -> str:
        """The profile of the same models on another GPU, or of the same target with a drafter of that method."""
        if self._profile is not None and gpu is not None:
            raise ValueError("gpu: a profile that was loaded is of one GPU; give its name")
        name = spelling(str(raw.get("profile", "")))
        here, _, models = name.partition("/")
        if gpu is not None:
            found = same_profile(f"{gpu_name(gpu.lower())}/{models}", shipped())
            if found is None:
                others = [each.partition("/")[0] for each in shipped() if each.partition("/")[2] == models]
                raise ValueError(f"gpu={gpu}: no shipped profile of {models} on it; they are on {in_words(others)}")
            return found
        profile, heads = self._profile_of(raw), method in HEADS
        has = "" if profile.draft is None else profile.draft.name
        if has and (method is Method.PARALLEL or (has == method if heads else has not in HEADS)):
            return name
        key = ProfileKey.of(name)
        pairs = [(each, ProfileKey.of(each)) for each in shipped() if each.startswith(f"{here}/")]
        near = [each for each, other in pairs if other.target == key.target and other.degrees == key.degrees]
        drafts = {each: ProfileKey.of(each).draft for each in near}
        fitting = [
            each for each in near if drafts[each] and (drafts[each] == method if heads else drafts[each] not in HEADS)
        ]
        if len(fitting) != 1:
            known = in_words(fitting or [each for each in near if drafts[each]]) or "none"
            raise ValueError(
                f"speculation={'' if method is None else method.value}: {name} has no such draft; pairs shipped: "
                f"{known}; `lanesim plan` and `calibrate import` make others"
            )
        return fitting[0]


def varied(variants: Variants, compare: Callable[[Sequence[Resolved]], Comparison]) -> Varied:
    """The variants compared, load by load."""
    loads = [Load(keys=keys, comparison=compare(settings)) for keys, settings in variants.by_load]
    bests = [best_of(each.comparison) for each in loads]
    start: dict[str, str] = {}
    for best, (_, settings) in zip(bests, variants.by_load, strict=True):
        resolved = next((one for one in settings if one.label == best), None)
        if resolved is None or resolved.label in start or len(start) == MAX_STARTS:
            continue
        line, more = _start(resolved)
        if line:
            start[resolved.label] = line
            variants.notes |= dict.fromkeys(more)
    grid = {key: [_plain(value) for value in values] for key, values in variants.grid.items()}
    return Varied(grid=grid, loads=loads, verdict=_verdict(loads, bests), start=start, notes=list(variants.notes))


def parse_vary(text: str) -> tuple[str, list[Json]]:
    """Key and values of `--vary KEY=A,B`; a value with a comma stands in quotes.

    >>> parse_vary("speculation=off,ngram,eagle3@length:2.8@3"), parse_vary("engine.max_num_seqs=64,256")
    (('speculation', ['off', 'ngram', 'eagle3@length:2.8@3']), ('engine.max_num_seqs', [64, 256]))
    """
    key, equals, rest = text.partition("=")
    if not equals or not key.strip() or not rest:
        raise ValueError(f"--vary {text!r}: want KEY=A,B, such as prefix_cache=on,off or engine.max_num_seqs=64,256")
    values = parse_yaml(f"[{rest}]", f"--vary {text!r}")
    assert isinstance(values, list)
    return key.strip(), values


def tokens_of(value: Json) -> int:
    """A token count, in thousands of 1,024 where it ends in k. Raises ValueError.

    >>> tokens_of("1.5k"), tokens_of(700)
    (1536, 700)
    """
    text = str(value).strip().lower()
    count = float(text.removesuffix("k")) * (1024 if text.endswith("k") else 1)
    if count != int(count):
        raise ValueError(f"{value}: want a whole number of tokens, such as 1500 or 1.5k")
    return int(count)


def spelt(keys: Keys) -> str:
    """`speculation=ngram, prefix_cache=off`: names that are read, without the acceptance that follows a method."""
    return ", ".join(f"{key.rpartition('.')[2]}={str(_plain(value)).partition('@')[0]}" for key, value in keys.items())


def best_of(comparison: Comparison) -> str | None:
    """The setting of lowest mean E2EL among those with steady means."""
    steady = {row.policy: row.mean[METRIC] for row in comparison.policies if row.load.is_steady}
    known = {label: mean for label, mean in steady.items() if mean is not None}
    return min(known, key=lambda label: known[label], default=None)


def _verdict(loads: Sequence[Load], bests: Sequence[str | None]) -> str:
    if len(loads) == 1:
        return loads[0].comparison.verdict
    if not any(bests):
        return f"no setting keeps up with any of {len(loads)} loads"
    if len(loads[0].comparison.policies) == 1:
        return "; ".join(f"{each.name}: {each.comparison.verdict}" for each in loads)
    clear = Counter(
        best if best is None or _is_clear(each.comparison, best) else None
        for each, best in zip(loads, bests, strict=True)
    )
    parts = [
        f"{label or 'none for sure'} at {count} of {len(loads)} loads"
        for label, count in sorted(clear.items(), key=lambda item: (item[0] is None, -item[1]))
    ]
    return f"serves fastest, by mean E2EL: {', '.join(parts)}"


def _is_clear(comparison: Comparison, best: str) -> bool:
    """No other setting may be as fast."""
    pairs = [row for row in comparison.paired if row.metric == METRIC and best in (row.a, row.b) and not row.unstable]
    return all(row.order in STATED for row in pairs)


def _start(resolved: Resolved) -> tuple[str, list[str]]:
    """The line that starts a server as it was simulated, empty where none does, and notes on it."""
    scenario, k = resolved.scenario, resolved.lengths.given
    if resolved.policy.name not in VLLM_POLICIES:
        return "", []
    lines = deployment(scenario, resolved.profile, [[1, resolved.limits.max_num_seqs, k]], {})
    return lines.start, lines.notes


def _combinations(grid: Mapping[str, Sequence[Json]]) -> list[Keys]:
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _is_condition(key: str) -> bool:
    dotted = "workload.input_len" if key == "context" else FLAT_NAMES.get(key, key)
    return dotted.startswith(CONDITIONS) or dotted in ("seed", "replications")


def _switch(value: Any) -> bool:
    if value not in SWITCH:
        raise ValueError(f"prefix_cache={value!r}: want on or off")
    return SWITCH[value]


def _plain(value: Json) -> Json:
    """The value that JSON has: an infinite rate is a text."""
    return "inf" if value == inf else value
