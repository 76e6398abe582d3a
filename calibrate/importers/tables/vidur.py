"""Imports Vidur's mlp.csv (microsoft/vidur, MIT): GEMMs and element-wise kernels of one layer, at every eighth token.

PATH is the file, or a folder below which one mlp.csv has the target's dimensions; other models' files there, if any,
give the error of constants that never saw the target. Times are medians of kernels alone, in steps of 1 us.
What the file lacks (attention, sampler, all-reduce, host) is the shipped profile's of that GPU, and the errors say so.
Not here: reading and checking the file (calibrate.importers.tables.time_stats), the fit (calibrate.fit.kernels), what
is shipped (calibrate.importers.tables.shipped_rest).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from calibrate.fit.errors import Array, kind_error, relative_error
from calibrate.fit.held_out import VERIFY_TOKENS
from calibrate.fit.kernels import Body, body_s, fit_gemm, fit_line
from calibrate.fit.tables import MAX_TOKENS
from calibrate.hardware.datasheets import Datasheet, check_fits, datasheet
from calibrate.importers.roofs import check_each
from calibrate.importers.tables.shipped_rest import all_reduce_of, error_of, no_error, rest_of
from calibrate.importers.tables.time_stats import TimeStats, check_positive, files_of, read_time_stats
from sim.costs.kernels import Elementwise, Gemm
from sim.costs.profile import SCHEMA, UNLOADED, Gpu, KindError, Overlap, Profile
from sim.costs.profile_files import round_constant
from sim.costs.shapes import ModelShape

REPOSITORY, LICENCE = "microsoft/vidur", "MIT"
FILE = "mlp.csv"
GEMMS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
"""In the order of ModelShape.gemms."""
ELEMENTWISE = {"input_layernorm": 1, "post_attention_layernorm": 1, "attn_rope": 1, "mlp_act": 1, "add": 2}
"""Other kernels of a layer, and how often each runs: the block that was timed adds the residual twice and times the
second one (vidur/profiling/mlp/mlp_impl.py). An engine that fuses norm and addition is faster."""
DIMENSIONS = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd")
COUNTS = (*DIMENSIONS, "num_tokens", "num_tensor_parallel_workers")
HELD_OUT_IN = 5
LEAST_COUNTS = 20
"""Token counts that a fit needs."""


class Mlp(NamedTuple):
    """One model's file at one degree of parallelism: seconds [tokens] of a layer's GEMMs and of its other kernels."""

    name: str
    body: Body
    elementwise_s: Array

    def where(self, use: Array) -> Mlp:
        tokens = np.array(self.body.tokens)[use].tolist()
        return Mlp(self.name, Body(self.body.gemms, tokens, self.body.seconds[use]), self.elementwise_s[use])


def import_vidur(
    path: str | Path, gpu: str, shape: ModelShape, tensor_parallel: int = 1, *, revision: str = "unrecorded revision"
) -> Profile:
    """A profile of `shape` alone on `tensor_parallel` of `gpu`. Raises ValueError naming the file and what is wrong."""
    sheet, place = datasheet(gpu), Path(path)
    check_fits(shape.name, shape.weight_bytes, sheet.gpu, tensor_parallel)
    rest = rest_of(gpu, shape)
    all_reduce = all_reduce_of(rest, tensor_parallel)
    own, others = _files(place, sheet.gpu, shape, tensor_parallel)
    tokens = np.array(own.body.tokens)
    if len(tokens) < LEAST_COUNTS:
        raise ValueError(f"{FILE}: {len(tokens)} token counts are too few to fit; want {LEAST_COUNTS}")
    is_held_out = np.arange(len(tokens)) % HELD_OUT_IN == HELD_OUT_IN // 2
    used, held_out = own.where(~is_held_out), own.where(is_held_out)
    gemm = fit_gemm([used.body], sheet.gpu, sheet.multiprocessors)
    elementwise = _fit_elementwise(used, sheet.gpu, shape, tensor_parallel)
    kernels = msgspec.structs.replace(
        rest.compact,
        gemm=gemm,
        elementwise=elementwise,
        all_reduce=all_reduce,
        measured=msgspec.structs.replace(rest.compact.measured, tokens=int(tokens.max())),
    )
    errors = _own_errors(held_out, len(tokens), gemm, elementwise, sheet.gpu, shape, tensor_parallel)
    if others:
        errors["body_model_left_out"] = _left_out(own, others, sheet)
    name = f"{gpu}/{shape.name}"
    taken = "attention, sampler and host" + (", all-reduce of its tables" if all_reduce is not None else "")
    return Profile(
        schema=SCHEMA,
        name=name if tensor_parallel == 1 else f"{name}-tp{tensor_parallel}",
        gpu=sheet.gpu,
        target=shape,
        draft=None,
        tensor_parallel=tensor_parallel,
        kernels=kernels,
        host=rest.host,
        overlap=Overlap(),
        errors=errors | _taken_errors(rest, shape, tensor_parallel),
        conditions=UNLOADED,
        source=f"{REPOSITORY}@{revision} ({LICENCE}), {FILE}: GEMMs and element-wise kernels of one layer, fitted by "
        f"lanesim on four fifths of the token counts; {taken} from the shipped {rest.name} ({rest.source})",
        fingerprint=None,
        date=date.today().isoformat(),
    )


def _files(path: Path, gpu: Gpu, shape: ModelShape, tensor_parallel: int) -> tuple[Mlp, list[Mlp]]:
    """The target's file and the other gated models' that hold `tensor_parallel`."""
    files = files_of(path, FILE, gpu.name)
    tables = {file: _read(file) for file in files}
    found = {file: [table.one(column) for column in DIMENSIONS] for file, table in tables.items()}
    wanted = [shape.heads, shape.kv_heads, shape.hidden, shape.intermediate]
    own = [file for file in files if found[file] == wanted and _is_gated(tables[file])]
    if len(own) > 1:
        raise ValueError(f"{len(own)} files below {path} have the dimensions of {shape.name}; name one {FILE}")
    if not own:
        has = "; ".join(_describe(found[file], _is_gated(tables[file])) for file in files)
        raise ValueError(
            f"{path}: no {FILE} of {shape.name}, which has {_describe(wanted, True)}; there {_are(len(files))} {has}"
        )
    others = [
        _mlp(file, tables[file], gpu, _shape_of(file, found[file]), tensor_parallel)
        for file in files
        if file not in own and _is_gated(tables[file]) and tensor_parallel in _degrees(tables[file])
    ]
    return _mlp(own[0], tables[own[0]], gpu, shape, tensor_parallel), others


def _read(path: Path) -> TimeStats:
    """The element-wise columns are read of gated models alone: phi-2 has one norm less."""
    gated = read_time_stats(path, GEMMS, COUNTS, texts=("use_gated_mlp",))
    return (
        read_time_stats(path, (*GEMMS, *ELEMENTWISE), COUNTS, texts=("use_gated_mlp",)) if _is_gated(gated) else gated
    )


def _is_gated(table: TimeStats) -> bool:
    return set(table.texts["use_gated_mlp"]) == {"True"}


def _degrees(table: TimeStats) -> list[int]:
    return [int(degree) for degree in np.unique(table.counts["num_tensor_parallel_workers"])]


def _describe(dimensions: Sequence[int], is_gated: bool) -> str:
    heads, kv_heads, hidden, intermediate = dimensions
    text = f"{heads} heads on {kv_heads}, hidden {hidden}, MLP {intermediate}"
    return text if is_gated else f"{text} not gated (no Llama-like model; not in the cost form)"


def _are(number: int) -> str:
    return "is one of" if number == 1 else "are those of"


def _shape_of(file: Path, dimensions: Sequence[int]) -> ModelShape:
    """Enough of another model's shape to compose its GEMMs."""
    heads, kv_heads, hidden, intermediate = dimensions
    return ModelShape(
        name=file.parent.name.lower(),
        layers=1,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab=1,
        tied_embeddings=True,
        max_context=1,
    )


def _mlp(file: Path, table: TimeStats, gpu: Gpu, shape: ModelShape, tensor_parallel: int) -> Mlp:
    """Medians over repeated token counts. Raises ValueError for times that the GPU cannot have taken."""
    table = table.only("num_tensor_parallel_workers", tensor_parallel)
    table = table.rows((table.counts["num_tokens"] > 0) & (table.counts["num_tokens"] <= MAX_TOKENS))
    check_positive(table, (*GEMMS, *ELEMENTWISE))
    tokens, gemms = table.counts["num_tokens"], shape.gemms(tensor_parallel)
    for operation, (columns, depth) in zip(GEMMS, gemms, strict=True):
        weight_bytes = np.full_like(tokens, float(columns * depth * shape.dtype_bytes))
        flops = 2.0 * tokens * columns * depth
        check_each(table.place, operation, table.seconds[operation], flops, weight_bytes, gpu)
    moved = tokens * shape.elementwise_bytes_per_token / tensor_parallel
    elementwise_s = np.sum([count * table.seconds[operation] for operation, count in ELEMENTWISE.items()], axis=0)
    check_each(table.place, "what is not a GEMM", elementwise_s, 0.0 * tokens, moved, gpu)
    counts = np.unique(tokens)
    gemm_s = np.sum([table.seconds[operation] for operation in GEMMS], axis=0)
    return Mlp(
        shape.name,
        Body(gemms, [int(count) for count in counts], _medians(tokens, counts, gemm_s)),
        _medians(tokens, counts, elementwise_s),
    )


def _medians(tokens: Array, counts: Array, seconds: Array) -> Array:
    return np.array([float(np.median(seconds[tokens == count])) for count in counts])


def _fit_elementwise(used: Mlp, gpu: Gpu, shape: ModelShape, tensor_parallel: int) -> Elementwise:
    """A line by tokens, of least relative squares."""
    number = sum(ELEMENTWISE.values())
    fixed_s, token_s = fit_line(np.array(used.body.tokens, dtype=float), used.elementwise_s)
    if fixed_s <= 0.0 or token_s <= 0.0:
        raise ValueError(f"{FILE}: element-wise kernels must take longer for more tokens; are columns swapped?")
    moved = shape.elementwise_bytes_per_token / tensor_parallel
    return Elementwise(
        bandwidth_share=round_constant(moved / (token_s * gpu.bandwidth_bytes_per_s)),
        kernel_s=round_constant(fixed_s / number),
        kernels_per_layer=number,
    )


def _own_errors(
    held_out: Mlp,
    num_counts: int,
    gemm: Gemm,
    elementwise: Elementwise,
    gpu: Gpu,
    shape: ModelShape,
    tensor_parallel: int,
) -> dict[str, KindError]:
    tokens = np.array(held_out.body.tokens, dtype=float)
    body = relative_error(body_s(gemm, gpu, held_out.body), held_out.body.seconds)
    moved = tokens * shape.elementwise_bytes_per_token / tensor_parallel
    streamed_s = moved / (elementwise.bandwidth_share * gpu.bandwidth_bytes_per_s)
    rest_s = elementwise.kernels_per_layer * elementwise.kernel_s + streamed_s
    in_verify = (tokens >= VERIFY_TOKENS[0]) & (tokens <= VERIFY_TOKENS[1])
    how = f"{len(tokens)} of {shape.name}'s {num_counts} token counts, not in the fit (times in steps of 1 us)"
    return {
        "body": kind_error(body, f"{how}; layer GEMMs"),
        "verify_body": kind_error(body[in_verify], f"{how}; GEMMs at {VERIFY_TOKENS[0]}..{VERIFY_TOKENS[1]} tokens"),
        "elementwise": kind_error(relative_error(rest_s, held_out.elementwise_s), f"{how}; norms, rotary, activation"),
    }


def _left_out(own: Mlp, others: Sequence[Mlp], sheet: Datasheet) -> KindError:
    """Of constants that never saw this model, at all its token counts."""
    gemm = fit_gemm([other.body for other in others], sheet.gpu, sheet.multiprocessors)
    errors = relative_error(body_s(gemm, sheet.gpu, own.body), own.body.seconds)
    names = ", ".join(other.name for other in others)
    return kind_error(errors, f"constants fitted on {names} alone; layer GEMMs at all {len(errors)} token counts")


def _taken_errors(rest: Profile, shape: ModelShape, tensor_parallel: int) -> dict[str, KindError]:
    whole = f"attention is that of the shipped {rest.name}: no whole pass was measured together"
    shared = no_error(f"constants of the shipped {rest.name}, whose errors are those of one device")
    attention = {
        kind: error_of(rest, shape, kind) if tensor_parallel == 1 else shared
        for kind in ("decode_attention", "prefill_attention")
    }
    return {
        "lm_head": no_error(f"{FILE} has no LM head: the GEMM constants are applied to its shape"),
        **attention,
        **dict.fromkeys(("decode", "prefill"), no_error(whole)),
        "verify": error_of(rest, shape, "verify"),
    }
