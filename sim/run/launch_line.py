"""The line that starts a server, as people paste it: vLLM's and SGLang's flags as a profile's name and keys.

Not here: writing such lines (sim.studies.serve_commands), vLLM's speculative config (vllm_config).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from sim.drafters.registry import DRAFTERS, drafter_named
from sim.files.json_values import Json, parse_json
from sim.run.vllm_config import speculation_of

STARTS = re.compile(r"serve|(.*\.)?(launch_server|api_server)|.*(vllm-openai|sglang)(:.*)?")
"""Words after which a server's own begin: sub-commands, modules and images of containers."""
FLAGS: dict[str, list[str]] = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes())
"""What is read -> the flags that say it, vLLM's first: parts of a profile's name, or a key of a scenario."""
MEANING = {flag: meaning for meaning, flags in FLAGS.items() for flag in flags}
LENGTH = "speculation.num_speculative_tokens"
CHAIN, TREE = (3, "1"), (5, "4")
"""Steps and tokens a step that SGLang drafts by default: chains for DeepSeek and by a draft model, trees elsewhere
(auto_choose_speculative_params of its server_args.py)."""
SGLANG = "sglang-0.5"
PINS = "SGLANG_SIMULATE_ACC_LEN="
"""The environment of a server whose acceptance is pinned begins so."""
SGLANG_METHODS = {each.sglang: each.name for each in DRAFTERS.values() if each.sglang}
SUFFIXES = {"k": 1_000, "m": 1_000_000, "K": 1 << 10, "M": 1 << 20}


class Launched(NamedTuple):
    """What a line says."""

    model: str
    """With endings of formats and degrees, as a profile's name has it after the GPU."""
    draft: str | None
    """A way of drafting, or a model."""
    keys: dict[str, Json]
    """Keys of a scenario, dotted."""
    unread: list[str]
    repository: str
    """The model alone, as the line loads it."""


def launched(line: str) -> Launched:
    """Raises ValueError where the line names no model, or a value is not understood.

    >>> launched("vllm serve Qwen/Qwen3-32B -tp 2 --kv-cache-dtype fp8 --max-num-seqs 64 --port 80")[:3:2]
    ('Qwen/Qwen3-32B-kv8-tp2', {'engine.max_num_seqs': 64})
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ValueError(f"--serve: {error}") from None
    at = max((index for index, word in enumerate(words) if STARTS.fullmatch(word)), default=-1)
    is_sglang = any("sglang" in word for word in words[: at + 1])
    read: dict[str, str] = {}
    unread: list[str] = []
    for flag, value in _flags(words[at + 1 :]):
        if flag in MEANING:
            read[MEANING[flag]] = "false" if flag.startswith(("no-", "disable-", "enforce-")) else value
        else:
            unread.append(f"--{flag} {value}".rstrip())
    if "model" not in read or (at < 0 and not line.startswith("-")):
        raise ValueError(
            f"--serve {line!r} starts no vLLM or SGLang. Give such as 'vllm serve meta-llama/Llama-3.1-8B -tp 2'"
        )
    keys: dict[str, Json] = {key: _number(key, read[key]) for key in read if "." in key}
    if is_sglang:
        keys["engine.name"] = SGLANG
    draft = _draft(read, keys, unread)
    pinned = [word.removeprefix(PINS) for word in words[: at + 1] if word.startswith(PINS)]
    if pinned and keys.get(LENGTH):
        keys["speculation.acceptance"] = f"pinned:{pinned[-1]}@{keys[LENGTH]}"
    return Launched(_model(read, unread), draft, keys, unread, _repository(read["model"]))


def _flags(words: list[str]) -> Iterator[tuple[str, str]]:
    """Names of flags and their values, empty for a switch; the first word is the model where it is no flag."""
    name, values = "model", list[str]()
    for word in words:
        if not word.startswith("-"):
            values.append(word)
            continue
        if name != "model" or values:
            yield name, " ".join(values)
        name, _, value = word.lstrip("-").partition("=")
        name, values = name.replace("_", "-"), []
        if value:
            yield name, value
            name = "model"
    if name != "model" or values:
        yield name, " ".join(values)


def _number(key: str, text: str) -> float:
    """A value of a scenario's key; vLLM's 8k is 8,000, its 8K 8,192."""
    if text in ("", "true", "false"):
        return text != "false"
    factor = SUFFIXES.get(text[-1], 1)
    try:
        value = float(text[:-1] if factor > 1 else text) * factor
    except ValueError:
        flag = FLAGS[key][0]
        raise ValueError(f"--serve: --{flag} {text} is no number. Give such as --{flag} 8") from None
    return int(value) if value == int(value) and "utilization" not in key else value


def _model(read: dict[str, str], unread: list[str]) -> str:
    name = _repository(read["model"])
    name += "-fp8" if read.get("weights") == "fp8" and "fp8" not in name.lower() else ""
    name += "-kv8" if read.get("kv", "").startswith("fp8") else ""
    tp, dp, spread = (int(_number(degree, read.get(degree, "1"))) for degree in ("tp", "dp", "ep"))
    if dp > 1 and "shares" in read:
        tp //= dp
    elif dp > 1 and "spreads" not in read:
        unread.append(f"{dp} replicas: one is simulated")
        dp = 1
    if "spreads" in read:
        spread = tp * dp
    degrees = {"tp": tp, "ep": spread, "dp": dp}
    return name + "".join(f"-{kind}{count}" for kind, count in degrees.items() if count > 1 or kind == "tp" in read)


def _repository(name: str) -> str:
    """A model's name; of a folder on somebody's machine its last part, which is called like the repository."""
    name = name.rstrip("/")
    return name.rpartition("/")[2].replace("__", "/") if name.startswith(("/", "~", ".", "$")) else name


def _draft(read: dict[str, str], keys: dict[str, Json], unread: list[str]) -> str | None:
    """The drafter; its keys go into `keys`."""
    draft = _repository(read["draft"]) if "draft" in read else None
    if "config" in read:
        block = speculation_of(read["config"])
        method = str(block.pop("method"))
        keys |= {f"speculation.{key}": value for key, value in block.items()}
        config = parse_json(read["config"], "--speculative-config")
        assert isinstance(config, dict)
        draft = _repository(str(config["model"])) if DRAFTERS[method].is_model else method
    elif "algorithm" in read:
        algorithm = read["algorithm"].upper()
        named = None if draft is None else drafter_named(f"/{draft}")
        is_head = algorithm == "EAGLE" and (draft is None or named in DRAFTERS)
        method = (named or "mtp") if is_head else SGLANG_METHODS.get(algorithm, "")
        if not method:
            unread.append(f"--speculative-algorithm {algorithm}: no speculation is simulated")
            keys[LENGTH] = 0
            return None
        if DRAFTERS[method].looks_up:
            keys |= {LENGTH: _number("drafted", read["drafted"])} if "drafted" in read else {}
        else:
            is_chain = DRAFTERS[method].is_model or "deepseek" in read["model"].lower()
            given = keys.get(LENGTH), read.get("topk", "1")
            keys[LENGTH], width = given if LENGTH in keys else CHAIN if is_chain else TREE
            if width != "1":
                tree = f"--speculative-eagle-topk {width}: the tree is simulated as a chain of {keys[LENGTH]} drafts"
                unread.append(f"{tree}, though it verifies and accepts more tokens")
        draft = draft if DRAFTERS[method].is_model else method
    return draft
