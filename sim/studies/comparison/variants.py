"""Values of a scenario's keys, resolved: settings to compare, under each load.

A key that says what is served (CONDITIONS) makes loads, any other settings. Short keys: `speculation=off,ngram,eagle3`,
`prefix_cache=on,off`, `context=1.5k,3k`, `gpu=h100-sxm,h200-sxm`; any flag's name or dotted key does, too.
Not here: the comparison of them (varied).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import product
from math import inf

from sim.acceptance.pairs import ANY, PROMPTS, SHORT_K
from sim.costs.datasheets import gpu_name
from sim.costs.profile import Profile
from sim.costs.profile_files import load, shipped, spelling
from sim.drafters.drafter import Drafter
from sim.drafters.registry import HEADS, SPELLINGS
from sim.files.json_values import Json
from sim.files.yaml_values import parse_yaml
from sim.model_names import ProfileKey
from sim.names import in_words, unknown
from sim.run.resolve import Resolved, resolve_all
from sim.run.scenario import parse_scenario
from sim.run.scenario_file import FLAT_NAMES, set_dotted
from sim.studies.sweeps.grid import CONDITIONS

POLICY = "continuous"
"""Served where none is given: as vLLM does."""
REPLICATIONS = 4
"""Runs of each of several settings or policies where none are given (docs/adr/015-verdicts.md)."""
SWITCH = {"on": True, "off": False, True: True, False: False}
OFF = ("off", "none", False, 0)
SHORT = {"prefix_cache": "engine.rules.enable_prefix_caching", "context": "workload.input_len"}
"""Short keys that stand for one dotted key."""
Keys = dict[str, Json]


def replicated(raw: Keys, grid: Iterable[str] = ()) -> Keys:
    """`raw` with REPLICATIONS where it has several policies, or settings of `grid`, to compare and none are given."""
    is_one = _num_policies(raw) == 1 and all(map(_is_condition, grid))
    return raw if is_one else {"replications": REPLICATIONS} | raw


def _num_policies(raw: Keys) -> int:
    policies = raw.get("policy")
    return len(policies) if isinstance(policies, list | tuple) else 1


class Variants:
    """Every load's settings, resolved. Raises ValueError for what cannot run."""

    def __init__(self, raw: Mapping[str, Json], grid: Mapping[str, Sequence[Json]], profile: Profile | None = None):
        self.grid = {key: list(values) for key, values in grid.items()}
        for key, values in self.grid.items():
            if len(values) < 2 or len({str(value) for value in values}) < len(values):
                raise ValueError(f"{key}={','.join(map(str, values))} must be two or more different values")
        methods = [str(value) for value in self.grid.get("speculation", ()) if value not in OFF]
        for name in (method.partition("@")[0] for method in methods):
            if name not in SPELLINGS:
                raise ValueError(unknown("method of speculation", name, ["off", *SPELLINGS]))
        sharing = [method for method in methods if "@" not in method]
        self.notes: dict[str, None] = {}
        speculation = raw.get("speculation")
        given = speculation.get("acceptance") if isinstance(speculation, Mapping) else None
        if len(sharing) > 1 and given not in (None, *PROMPTS):
            self.notes[f"acceptance {given} of {in_words(sharing)} alike. Give each its own: {sharing[0]}@FORM"] = None
        drafting = [each for each in methods if not SPELLINGS[each.partition("@")[0]].looks_up]
        self._paired = next(iter(drafting or methods), None)
        """The value of `speculation` whose drafter every other one is given, too."""
        self._raw, self._profile = raw, profile
        settings = {key: values for key, values in self.grid.items() if not _is_condition(key)}
        self.by_load = [
            (load_keys, self._settings(load_keys, settings))
            for load_keys in _combinations({key: each for key, each in self.grid.items() if key not in settings})
        ]

    def _settings(self, load_keys: Keys, settings: Mapping[str, Sequence[Json]]) -> list[Resolved]:
        """[settings x policies] of one load."""
        resolved = []
        combined = _combinations(settings)
        for keys, label in zip(combined, _settings_named(combined), strict=True):
            raw = replicated({"policy": [POLICY]} | deepcopy(dict(self._raw)), settings)
            for key, value in (load_keys | keys).items():
                self._put(raw, key, value)
            if not raw.get("speculation") and raw.get("profile") and self._profile_of(raw).draft is None:
                set_dotted(raw, "speculation.num_speculative_tokens", 0)
            scenario = parse_scenario(raw, self._profile)
            policies = resolve_all(scenario, self._profile or load(scenario.profile))
            for one in policies:
                names = [label] * bool(keys) + [one.policy.name] * (len(policies) > 1 or not keys)
                resolved.append(replace(one, label=", ".join(names)))
        return resolved

    def _profile_of(self, raw: Keys) -> Profile:
        return self._profile or load(str(raw["profile"]))

    def _put(self, raw: Keys, key: str, value: Json) -> None:
        if key == "speculation" and not isinstance(value, Mapping):
            self._speculate(raw, value)
        elif key == "prefix_cache":
            if value not in SWITCH:
                raise ValueError(f"prefix_cache={value!r} must be on or off")
            set_dotted(raw, SHORT[key], SWITCH[value])
        elif key == "context":
            set_dotted(raw, SHORT[key], tokens_of(value))
        elif key == "gpu":
            raw["profile"] = self._profile_with(raw, gpu=str(value))
        else:
            set_dotted(raw, FLAT_NAMES.get(key, key), value)

    def _speculate(self, raw: Keys, value: Json) -> None:
        """`off`, or a method with the acceptance of its drafts after @: `eagle3@length:2.83@3`."""
        if value in OFF:
            # With the drafter's profile and acceptance, of which nothing is used: so its draws of costs are the same.
            if self._paired is not None:
                self._speculate(raw, self._paired)
            set_dotted(raw, "speculation.num_speculative_tokens", 0)
            return
        name, _, acceptance = str(value).partition("@")
        method = SPELLINGS[name]
        set_dotted(raw, "speculation.method", method.name)
        paired = SPELLINGS[self._paired.partition("@")[0]] if method.looks_up and self._paired else method
        if not paired.looks_up:
            raw["profile"] = self._profile_with(raw, method=paired)
        given = raw["speculation"]
        assert isinstance(given, dict)
        if acceptance:
            given["acceptance"] = acceptance
        assumed: dict[str, Json] = {"num_speculative_tokens": SHORT_K, "acceptance": ANY}
        raw["speculation"] = assumed | given

    def _profile_with(self, raw: Keys, *, gpu: str | None = None, method: Drafter | None = None) -> str:
        """The profile of the same models on another GPU, or of the same target with a drafter of that method."""
        if self._profile is not None and gpu is not None:
            raise ValueError("gpu: a profile that was loaded is of one GPU. Give its name")
        name = spelling(str(raw.get("profile", "")))
        here, _, models = name.partition("/")
        if gpu is not None:
            return spelling(f"{gpu_name(gpu.lower())}/{models}")
        profile, head = self._profile_of(raw), None if method is None or method.head is None else method.name
        has = "" if profile.draft is None else profile.draft.name
        fits_any = method is not None and bool(method.on_heads)

        def fits(draft: str | None) -> bool:
            return draft == head if head else bool(draft) and draft not in HEADS

        if has and (fits_any or fits(has)):
            return name
        key = ProfileKey.of(name)
        pairs = [(each, ProfileKey.of(each)) for each in shipped() if each.startswith(f"{here}/")]
        near = [each for each, other in pairs if other.target == key.target and other.degrees == key.degrees]
        drafts = {each: ProfileKey.of(each).draft for each in near}
        fitting = [each for each in near if fits(drafts[each])]
        if head and not any(drafts.values()) and not name.endswith(".json"):
            return f"{name.partition('+')[0]}+{head}"
        if len(fitting) != 1:
            known = in_words(fitting or [each for each in near if drafts[each]]) or "none"
            raise ValueError(
                f"speculation={method or ''}: {name} has no such draft. Shipped pairs: "
                f"{known}. `lanesim plan` and `calibrate import` make others"
            )
        return fitting[0]


def parse_vary(text: str) -> tuple[str, list[Json]]:
    """Key and values of `--vary KEY=A,B`; a value with a comma stands in quotes.

    >>> parse_vary("speculation=off,ngram,eagle3@length:2.8@3"), parse_vary("engine.max_num_seqs=64,256")
    (('speculation', ['off', 'ngram', 'eagle3@length:2.8@3']), ('engine.max_num_seqs', [64, 256]))
    >>> parse_vary("speculation=off,'eagle3@vllm:.7,.5'")
    ('speculation', ['off', 'eagle3@vllm:.7,.5'])
    """
    key, equals, rest = text.partition("=")
    if not equals or not key.strip() or not rest:
        raise ValueError(f"--vary {text!r} must be KEY=A,B, such as prefix_cache=on,off or engine.max_num_seqs=64,256")
    values = parse_yaml(f"[{rest}]", f"--vary {text!r}")
    assert isinstance(values, list)
    return key.strip(), values


def check_given(varied: Iterable[str], given: Iterable[str]) -> None:
    """Raise ValueError for a key that is varied beside a value of its own, or twice."""
    known = {dotted(key): key for key in given}
    for key in varied:
        if dotted(key) in known:
            raise ValueError(f"{key} is varied, and {known[dotted(key)]} is given as well: leave one out")
        known[dotted(key)] = key


def dotted(key: str) -> str:
    """The dotted key that a short key or a flag's name stands for."""
    return SHORT.get(key) or FLAT_NAMES.get(key, key)


def tokens_of(value: Json) -> int:
    """A token count, in thousands of 1,024 where it ends in k. Raises ValueError.

    >>> tokens_of("1.5k"), tokens_of(700)
    (1536, 700)
    """
    text = str(value).strip().lower()
    with suppress(ValueError):
        count = float(text.removesuffix("k")) * (1024 if text.endswith("k") else 1)
        if count % 1 == 0:
            return int(count)
    raise ValueError(f"{value} must be a whole number of tokens, such as 1500 or 1.5k")


def spelt(keys: Keys) -> str:
    """`max_num_seqs=64, prefix_cache=off`."""
    return ", ".join(f"{key.rpartition('.')[2]}={plain_value(value)}" for key, value in keys.items())


def _settings_named(settings: Sequence[Keys]) -> list[str]:
    """Names of settings, without the acceptance that follows a method where they differ without."""
    short = [
        spelt({key: str(value).partition("@")[0] if key == "speculation" else value for key, value in keys.items()})
        for keys in settings
    ]
    return short if len(set(short)) == len(short) else [spelt(keys) for keys in settings]


def _combinations(grid: Mapping[str, Sequence[Json]]) -> list[Keys]:
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _is_condition(key: str) -> bool:
    return dotted(key).startswith(CONDITIONS) or dotted(key) in ("seed", "replications")


def plain_value(value: Json) -> Json:
    """The value that JSON has: an infinite rate is a text."""
    return "inf" if value == inf else value
