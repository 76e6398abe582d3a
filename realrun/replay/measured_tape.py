"""A pair with real weights from two folders, and what its draft gets accepted: a tape over the answers of a replay.

Greedy, as vLLM's rejection sampler at temperature 0: a drafted token is accepted where the target would choose it and
all before it were accepted. So far the draft has read the true text, and one pass of it over prompt and answer says how
many tokens would be accepted at every position (sim.acceptance.tape). Not covered: sampling, trees, drafts that read
the target's features, and near ties in passes of another shape (`rounds_alike` counts them).
Not here: timed passes (realrun.kernels).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from realrun.model.weights import load_model
from realrun.replay.measured_costs import MeasuredWork
from realrun.replay.replays import Replay
from realrun.replay.testbed import dtype_of
from sim.acceptance.models import MAX_DRAFT_TOKENS
from sim.acceptance.tape import TapeAcceptance, replay
from sim.costs.profile import Profile
from sim.costs.shapes import ModelShape
from sim.files.json_values import Json, read_json, value_at
from sim.interface.request import Request
from sim.interface.work import Kind
from sim.run.experiment import Experiment

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

HEAD_ROWS = 256
"""Positions whose logits are in memory at once."""
SIZES = {
    "vocab_size": "vocab",
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "intermediate_size": "intermediate",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
}
"""A configuration's keys and those of a profile's model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """A pair with real weights, and what it is asked: texts decide what is accepted."""

    target: Path
    """Folder in the format of transformers, as `draft`."""
    draft: Path
    prompts: tuple[tuple[list[int], str], ...]
    """[requests] token ids and content class."""

    def check(self, requests: Iterable[Request], vocab: int) -> None:
        """Raise ValueError unless there is a prompt for each request, as long as the workload has it."""
        for request in requests:
            if request.index >= len(self.prompts):
                raise ValueError(f"the file of prompts holds {len(self.prompts)}. Lower workload.num_prompts")
            tokens, _ = self.prompts[request.index]
            if len(tokens) != request.prompt_tokens:
                raise ValueError(
                    f"prompts: line {request.index + 1} has {len(tokens)} tokens and its request "
                    f"{request.prompt_tokens}. Take lengths from the same file: --set workload.dataset_name=jsonl"
                )
            if not all(0 <= token < vocab for token in tokens):
                raise ValueError(
                    f"line {request.index + 1} of the prompts has a token outside the vocabulary of {vocab}"
                )


class ClassTape(NamedTuple):
    name: str
    tapes: list[list[int]]

    def summary(self, draft_tokens: int) -> dict[str, Json]:
        """Acceptance over the rounds of playing each tape once with drafts of `draft_tokens`."""
        played = TapeAcceptance(tuple(np.array(tape, dtype=np.uint8) for tape in self.tapes))
        rates = played.unconditional_rates(draft_tokens)
        return {
            "class": self.name,
            "requests": len(self.tapes),
            "rounds": sum(len(replay(tape, draft_tokens)) for tape in self.tapes),
            "acceptance_length": 1.0 + sum(rates),
            "acceptance_rates": list(rates),
        }


def by_class(tapes: Sequence[Sequence[int]], classes: Sequence[str]) -> list[ClassTape]:
    """All requests, then each class where there are several; answers of one token, which no draft saw, left out."""
    known = [
        (label, [min(value, MAX_DRAFT_TOKENS + 1) for value in tape])
        for label, tape in zip(classes, tapes, strict=True)
        if len(tape) > 1
    ]
    names = dict.fromkeys(label for label, _ in known)
    by_label = [ClassTape("all", [tape for _, tape in known])] if known else []
    if len(names) > 1:
        by_label += [ClassTape(name, [tape for label, tape in known if label == name]) for name in names]
    return by_label


def write_tapes(folder: Path, tapes: Sequence[ClassTape]) -> None:
    """tape.jsonl of all, the first, and tape-CLASS.jsonl of each class: what `--acceptance tape:FILE` reads."""
    for number, each in enumerate(tapes):
        name = f"tape-{each.name}.jsonl" if number else "tape.jsonl"
        (folder / name).write_text("".join(json.dumps({"yields": tape}) + "\n" for tape in each.tapes))


def rounds_alike(works: Iterable[MeasuredWork], tapes: Sequence[Sequence[int]], draft_tokens: int) -> tuple[int, int]:
    """Rounds of a replay with drafts of `draft_tokens` that lie on the tapes, and those that accepted as those say."""
    num_rounds = num_alike = 0
    for work in works:
        if work.record.kind not in (Kind.VERIFY, Kind.STEP) or work.record.is_cancelled:
            continue
        for index, emitted, accepted in zip(work.record.requests, work.emitted, work.accepted, strict=False):
            if 0 < emitted < len(tapes[index]):
                num_rounds += 1
                num_alike += accepted == min(tapes[index][emitted] - 1, draft_tokens)
    return num_rounds, num_alike


def load_pair(
    folders: Folders, profile: Profile, experiments: Sequence[Experiment], device: torch.device
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Target and draft of `profile` with the weights of two folders. Raises ValueError, one line, for folders,
    vocabularies, models and requests that do not fit the profile or each other."""
    drafted = max(experiment.resolved.lengths.max for experiment in experiments)
    if not drafted:
        raise ValueError("replay.weights: nothing is drafted. Give speculation.num_speculative_tokens above 0")
    assert profile.draft is not None
    for experiment in experiments:
        folders.check(experiment.requests(), profile.target.vocab)
    dtype = dtype_of(profile.target)
    target, draft = (load_model(path, dtype=dtype, device=device) for path in (folders.target, folders.draft))
    ours, theirs = draft.config.vocab_size, target.config.vocab_size
    if ours != theirs:
        raise ValueError(
            f"replay.weights: {str(folders.draft)!r} has {ours} tokens in its vocabulary, and the target {theirs}. "
            "Give a draft that shares the target's"
        )
    words = [_words(path) for path in (folders.target, folders.draft)]
    if None not in words and words[0] != words[1]:
        raise ValueError(
            f"replay.weights: {str(folders.draft)!r}: its tokenizer.json has other tokens than the target's. Give a "
            "draft that shares the target's vocabulary"
        )
    for model, shape, path in ((target, profile.target, folders.target), (draft, profile.draft, folders.draft)):
        _check_same(model.config, shape, f"{str(path)!r}")
    longest = max(r.prompt_tokens + r.output_tokens for each in experiments for r in each.requests())
    _check_context(target, draft, longest, drafted)
    return target, draft


def _words(folder: Path) -> Json:
    """The vocabulary of a folder with a tokenizer; None where there is none to compare."""
    path = folder / "tokenizer.json"
    return value_at(read_json(path, "tokenizer", has_prose=True), "model.vocab") if path.is_file() else None


def _check_same(config: PretrainedConfig, shape: ModelShape, where: str) -> None:
    for key, name in SIZES.items():
        if getattr(config, key) != getattr(shape, name):
            raise ValueError(
                f"{where}: {key}={getattr(config, key)}, and {shape.name} of the profile has {getattr(shape, name)}. "
                "Give a --profile of this pair (lanesim calibrate measure --target DIR --draft DIR)"
            )


def _check_context(target: PreTrainedModel, draft: PreTrainedModel, longest: int, draft_tokens: int) -> None:
    """Raise ValueError where prompt, answer and one draft behind it do not fit what a model was made for."""
    for what, model in (("target", target), ("draft", draft)):
        context = model.config.max_position_embeddings
        if longest + draft_tokens > context:
            raise ValueError(
                f"prompt and output of {longest} tokens and a draft of {draft_tokens} exceed the {what}'s context of "
                f"{context}. Give shorter requests or a smaller speculation.num_speculative_tokens"
            )


def accepted_of(
    pair: Sequence[PreTrainedModel], folders: Folders, replays: Sequence[Replay], answers: Mapping[int, Sequence[int]]
) -> tuple[dict[str, Json], list[ClassTape]]:
    """Acceptance of the draft of `pair` over the requests of `replays`, by content class; `answers` are greedy ones."""
    target, draft = pair
    drafting = [each for each in replays if each.experiment.resolved.lengths.max]
    experiment = drafting[0].experiment
    drafted, requests = experiment.resolved.lengths.max, experiment.requests()
    tapes = [
        tape_of(target, draft, folders.prompts[r.index][0], answers[r.index][: r.output_tokens], drafted)
        for r in requests
    ]
    by_content = by_class(tapes, [folders.prompts[r.index][1] for r in requests])
    compared = [rounds_alike(each.works, tapes, drafted) for each in drafting]
    summary: dict[str, Json] = {
        "num_speculative_tokens": drafted,
        "classes": [each.summary(drafted) for each in by_content],
        "rounds_compared": sum(rounds for rounds, _ in compared),
        "rounds_alike": sum(alike for _, alike in compared),
    }
    return summary, by_content


def tape_of(
    target: PreTrainedModel, draft: PreTrainedModel, prompt: Sequence[int], answer: Sequence[int], draft_tokens: int
) -> list[int]:
    """Tokens that a greedy draft yields at each position of `answer`, the target's greedy text, up to where that
    ends itself. Behind the answer the target goes on for `draft_tokens`, so that its last drafts count whole."""
    answer, is_over = _until_end(answer, target)
    text = [*prompt, *answer]
    with torch.inference_mode():
        if not is_over:
            text += _continued(target, text, draft_tokens)
        tokens = torch.tensor([text], device=draft.lm_head.weight.device)
        hidden = draft.model(tokens[:, :-1], use_cache=False).last_hidden_state[0, len(prompt) - 1 :]
        chosen = torch.cat([draft.lm_head(rows).argmax(-1) for rows in hidden.split(HEAD_ROWS)])
    yields = [1]
    for is_same in reversed((chosen == tokens[0, len(prompt) :]).tolist()):
        yields.append(yields[-1] + 1 if is_same else 1)
    return yields[:0:-1][: len(answer)]


def _until_end(answer: Sequence[int], target: PreTrainedModel) -> tuple[list[int], bool]:
    """The answer up to the target's end of text; whether there is one."""
    generation = getattr(target, "generation_config", None)
    known = [getattr(each, "eos_token_id", None) for each in (target.config, generation)]
    ends = {token for each in known for token in (each if isinstance(each, list) else [each])}
    count = next((index + 1 for index, token in enumerate(answer) if token in ends), None)
    return list(answer[:count]), count is not None


def _continued(target: PreTrainedModel, text: Sequence[int], count: int) -> list[int]:
    """`count` greedy tokens of the target after `text`."""
    tokens, past, answer = torch.tensor([text], device=target.lm_head.weight.device), None, []
    for _ in range(count):
        out = target(tokens, past_key_values=past, use_cache=True, logits_to_keep=1)
        tokens, past = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
        answer.append(int(tokens))
    return answer
