# ruff: noqa: E402
"""What serving adds, measured on the threaded host: structure and hand-made runs; seconds are never asserted."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch")

from calibrate.measure import serving_overhead
from calibrate.measure.fits.serving_costs import ServingCosts, completed
from calibrate.measure.pair import options_of, pair_spec
from calibrate.measure.serving_overhead import look_s, measure_serving, served, waits
from realrun.host.machine import frozen_heap
from realrun.kernels.device_passes import PassShape
from realrun.kernels.host_slots import PairOptions, PromptChunk
from realrun.kernels.issuer import Issuer
from realrun.kernels.pair_kernels import PairKernels
from realrun.model.weights import random_model
from realrun.replay.machine_speed import probe
from realrun.replay.measured_costs import MeasuredWork
from realrun.replay.replays import Replay
from sim.costs.forms.build import build_costs
from sim.costs.profile_files import load
from sim.hosts.simulated import SimHost
from sim.interface.work import Chunk, Kind, Model, Work
from tests.realrun.replay.test_rehearsal import CountingCpu
from tests.sim.report.test_timelines import WORK

VERIFY = Work(kind=Kind.VERIFY, rows=2, row_tokens=10, context_tokens=100, head_rows=10)
DRAFT = Work(kind=Kind.DRAFT, model=Model.DRAFT, rows=2, row_tokens=2, context_tokens=100, head_rows=2, draft_tokens=4)


def lasting(submitted: list[Work], lasts_s: list[float]) -> list[MeasuredWork]:
    """A run's works, which lasted so long."""
    works = []
    for work, last_s in zip(submitted, lasts_s, strict=True):
        record = msgspec.structs.replace(
            WORK, kind=work.kind.value, model=work.model.value, issued_s=last_s, end_s=last_s
        )
        works.append(MeasuredWork(record=record, eligible_s=0.0, reacted_s=0.0, emitted=(), work=work))
    return works


def test_the_hosts_time_before_a_work_reaches_to_its_first_kernel_where_the_device_waited() -> None:
    """Eligible at 1 s, issued from 1.1 to 1.5 s; the device starts at 1.4 s, or is busy until 2 s."""
    record = msgspec.structs.replace(WORK, issue_start_s=1.1, issued_s=1.5, end_s=3.0)
    for start_s, prepare_s, launch_s in ((1.4, 0.4, 0.1), (2.0, 0.1, 0.4)):
        timed = msgspec.structs.replace(record, start_s=start_s)
        work = MeasuredWork(record=timed, eligible_s=1.0, reacted_s=3.0, emitted=())
        assert tuple(work.cost)[:3] == pytest.approx((prepare_s, launch_s, 3.0 - start_s))
        assert waits([[[work]]], lambda _: True, 0.0).prepare_s == pytest.approx(prepare_s)


def test_the_bookkeeping_of_a_pass_counts_once_in_service() -> None:
    """Works of two requests had 0.4 s before them. A row takes 0.1 s of it, so that the work itself takes 0.2 s."""
    record = msgspec.structs.replace(WORK, requests=(0, 1), issue_start_s=1.1, issued_s=1.5, start_s=1.4, end_s=3.0)
    work = MeasuredWork(record=record, eligible_s=1.0, reacted_s=3.0, emitted=())
    profile = load("h100-sxm/llama-2-7b+tinyllama-1.1b")
    profile = msgspec.structs.replace(profile, host=msgspec.structs.replace(profile.host, step_s=0.05, row_s=0.1))
    added = waits([[[work]]], lambda _: True, 0.1)
    costs = ServingCosts(works=added, prompts=added, look_s=0.0, probed_s=())
    host = completed(profile, costs, is_cpu=False).host
    assert (host.step_s, host.eager_step_s) == pytest.approx((0.2, 0.2))
    told = build_costs(msgspec.structs.replace(profile, host=host)).cost(VERIFY)
    assert told.prepare_s == pytest.approx(work.cost.prepare_s)


def test_what_a_look_takes_is_what_works_last_longer_by_looks_per_second() -> None:
    """Verify takes 3 ms instead of 2, draft as before, at 1,000 looks a second: (4 / 3 - 1) / 1000."""

    def of(verify_s: float) -> Replay:
        works: Any = lasting([VERIFY, DRAFT], [verify_s, 0.001])
        return SimpleNamespace(works=works, record=SimpleNamespace(end_s=0.5, num_polls=500))  # type: ignore[return-value]

    plain, polled = of(0.002), of(0.003)
    assert look_s([plain], [polled]) == pytest.approx(1e-3 / 3.0)
    assert look_s([polled], [plain]) == 0.0


def test_serving_on_a_gpu_is_measured_with_the_graphs_that_a_replay_launches() -> None:
    spec = pair_spec("cuda", "llama-3.1-8b", "llama-3.2-1b", 64, 4096)
    options = options_of(spec)
    assert options.cuda_graphs
    assert options.batch_buckets == (1, 2, 4, 8, 16, 32, 64)


def test_captured_works_and_those_on_prompts_are_told_apart_and_stand_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every decoding pass of the judged rounds is a graph, every prompt's is not."""
    profile, launched = load("cpu/tiny"), []
    models = [random_model(shape, dtype=torch.float32) for shape in (profile.target, profile.draft) if shape]
    # Nothing is really captured here.
    options = PairOptions(slots=4, max_tokens=160, draft_tokens_max=4, cuda_graphs=True, batch_buckets=(1, 4))
    kernels, issue = PairKernels(*models, options, runs_on=CountingCpu()), Issuer.issue

    def watched(self: Issuer, shape: PassShape, rows: Any) -> Any:
        launched.append((bool(shape.chunks), (pending := issue(self, shape, rows)).is_graph))
        return pending

    with monkeypatch.context() as patch:
        measured = serving_overhead.run

        def begun(*given: Any) -> Any:
            patch.setattr(Issuer, "issue", watched)
            return measured(*given)

        patch.setattr(serving_overhead, "run", begun)
        patch.setattr(serving_overhead, "REQUESTS", 4)
        costs = measure_serving(profile, kernels, 1)
    found = completed(profile, costs, is_cpu=False).host
    assert msgspec.convert(msgspec.to_builtins(costs), ServingCosts) == costs
    assert set(launched) == {(True, False), (False, True)}
    assert found.eager_step_s is not None
    assert found.eager_result_s is not None
    assert not found.captures_chunks
    assert "eager_step_s and eager_result_s" in found.source


def test_prompts_are_priced_by_what_eager_works_add_and_decoding_ones_by_what_graphs_do() -> None:
    profile = load("h100-sxm/llama-2-7b+tinyllama-1.1b")
    prompt = Work(kind=Kind.PREFILL, chunks=(Chunk(100, 0),), head_rows=1)
    host = msgspec.structs.replace(profile.host, step_s=1e-3, eager_step_s=3e-3, result_s=2e-3, eager_result_s=5e-3)
    plain, told = (
        build_costs(msgspec.structs.replace(profile, host=each))
        for each in (msgspec.structs.replace(host, eager_step_s=None, eager_result_s=None), host)
    )
    assert told.cost(prompt).prepare_s - plain.cost(prompt).prepare_s == pytest.approx(2e-3)
    assert told.cost(VERIFY) == plain.cost(VERIFY)
    for costs, result_s in ((plain, 2e-3), (told, 5e-3)):
        sim = SimHost(costs, None)
        tickets = {}

        async def submit(sim: Any = sim, tickets: Any = tickets) -> None:
            stream = sim.stream("gpu")
            for work in (prompt, VERIFY):
                tickets[work.kind] = sim.run(work, stream)
                await tickets[work.kind]

        sim.spawn(submit())
        sim.run_until()
        waits_s = {kind: ticket.ready_s - ticket.end_s for kind, ticket in tickets.items()}
        assert waits_s == pytest.approx({Kind.PREFILL: result_s, Kind.VERIFY: 2e-3})


def test_a_pass_in_service_is_compared_with_the_profile_by_kind_and_run() -> None:
    profile = load("cpu/tiny")
    costs = build_costs(profile, cuda_graph=False)
    verify_s, draft_s = (costs.cost(work).device_s for work in (VERIFY, DRAFT))
    runs = [
        lasting([VERIFY, VERIFY, VERIFY, DRAFT], [1.1 * verify_s, 1.2 * verify_s, 1.6 * verify_s, 0.9 * draft_s]),
        lasting([VERIFY], [1.4 * verify_s]),
    ]
    assert served(profile, [runs[:1], runs[1:]]) == pytest.approx({"verify": 1.35, "draft": 0.9})
    twice = [lasting([VERIFY], [factor * verify_s]) for factor in (1.2, 5.0)]
    assert served(profile, [[runs[1], *twice]]) == pytest.approx({"verify": 1.4})


def test_a_probe_changes_nothing_that_requests_or_streams_go_by() -> None:
    target = random_model(load("cpu/tiny").target, dtype=torch.float32)
    kernels = PairKernels(target, None, PairOptions(slots=2, max_tokens=48))
    issuer = kernels.issuer("gpu")
    slot = kernels.admit([1, 2, 3])
    kernels.prefill([PromptChunk(slot, 3)], issuer).result()
    state = [kernels.sequences.tokens, kernels.sequences.lengths, kernels.target.kv.lengths]
    before, warmed = [tensor[:-1].clone() for tensor in state], set(issuer.warmed)
    assert min(probe(kernels, [issuer])) > 0.0
    assert all(torch.equal(tensor[:-1], kept) for tensor, kept in zip(state, before, strict=True))
    assert issuer.warmed == warmed
    short = PairKernels(target, None, PairOptions(slots=2, max_tokens=32))
    assert probe(short, [short.issuer("gpu")]) == ()


def test_a_frozen_heap_is_thawed_by_whoever_froze_it() -> None:
    gc.unfreeze()
    with frozen_heap():
        frozen = gc.get_freeze_count()
        with frozen_heap():
            pass
        assert min(frozen, gc.get_freeze_count()) > 0
    assert gc.get_freeze_count() == 0
    gc.freeze()
