# ruff: noqa: E402
"""Co-runs of a lent GPU, on CPU threads: resuming, the budget, the answer, and which they are. No seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from calibrate.fit import points_file
from calibrate.fit.point_works import Corun
from calibrate.measure import session
from calibrate.measure.campaign.corun import fitting, rate_coruns
from calibrate.measure.overlap_cells import GRIDS, NUM_FIRST, coruns, slots
from calibrate.measure.pair import pair_spec
from realrun.host import cuda

PLANNED = coruns("cpu", 256)
SPEC = pair_spec("cpu", "tiny-target", "tiny-draft", None, 4, 256, None, 0)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    """What a run left that was interrupted in its third co-run, and its file when it had been run again."""
    out, calls = tmp_path_factory.mktemp("corun") / "p.points.jsonl", []
    measured = session.measure

    def interrupted(*args: Any) -> points_file.Ran:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measured(*args)

    with pytest.MonkeyPatch.context() as patch:
        # Windows of as many passes as there must be, whatever the budget.
        patch.setattr(session, "MAX_CORUN_S", 0.0)
        patch.setattr(session, "measure", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rate_coruns(SPEC, out, 600.0)
        content = out.read_bytes()
        rate_coruns(SPEC, out, 600.0)
    return content, out


def test_a_stopped_run_goes_on_and_measures_only_what_is_missing(stopped: tuple[bytes, Path]) -> None:
    before, out = stopped
    assert before.count(b"\n") == 1 + 2
    assert out.read_bytes().startswith(before)
    held = points_file.read(out)
    assert [each.corun for each in held.rates] == PLANNED
    assert (held.fingerprint["torch"], held.options["target"]) == (torch.__version__, "tiny-target")
    assert all(min(each.sums) > 0.0 for each in held.rates)


def test_what_is_measured_is_not_measured_again(
    stopped: tuple[bytes, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    content = stopped[1].read_bytes()
    rate_coruns(SPEC, stopped[1], 600.0)
    assert stopped[1].read_bytes() == content
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1
    assert "0 of 7 to measure" in said[0]


def test_a_spent_budget_measures_nothing_and_says_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rate_coruns(SPEC, tmp_path / "p.points.jsonl", 1e-9)
    assert not (tmp_path / "p.points.jsonl").exists()
    said = capsys.readouterr().out.splitlines()
    assert said[1:] == [f"corun: 7 left, from {PLANNED[0].name} on; evidence --only corun goes on with them"]


def test_eight_pairs_of_short_and_long_kernels_come_first_and_three_passes_at_once() -> None:
    planned = coruns("cuda", 1024)
    corners = ((128, 1), (128, 128), (2048, 1), (2048, 128))
    assert [(corun.kinds, _sizes(corun)) for corun in planned[:NUM_FIRST]] == [
        *(("prefill beside decode", sizes) for sizes in (*corners, (512, 32), (1024, 32))),
        *(("draft beside verify", sizes) for sizes in ((128, 160), (256, 320))),
        ("prefill beside draft beside verify", (512, 128, 160)),
    ]
    assert all(corun.is_captured for corun in planned)
    assert len(set(planned)) == len(planned) == 16 + 4 + 1


def _sizes(corun: Corun) -> tuple[int, ...]:
    return tuple(timed.total_tokens for timed in corun.passes)


@pytest.mark.parametrize("context", [1024, 512, 256])
def test_a_chunk_longer_than_the_context_is_several_prompts_of_as_many_tokens(context: int) -> None:
    prefills = {timed for corun in coruns("cuda", context) for timed in corun.passes if timed.kind == "prefill"}
    assert {timed.rows * timed.tokens for timed in prefills} == set(GRIDS["cuda"].chunk_tokens)
    assert max(timed.tokens for timed in prefills) <= context


@pytest.mark.parametrize(("gib", "context"), [(79.0, 1024), (44.0, 512), (36.0, 256)], ids=["80 GB", "48 GB", "40 GB"])
def test_the_longest_context_that_fits_is_taken(monkeypatch: pytest.MonkeyPatch, gib: float, context: int) -> None:
    has_memory(monkeypatch, gib)
    spec = pair_spec("cuda", "llama-3.1-8b", "llama-3.2-1b", None, 64, 4096, None, 0)
    roomy = fitting(spec)
    assert (roomy.rows, roomy.slot_tokens - 256) == (slots("cuda", context), context)
    has_memory(monkeypatch, 22.0)
    with pytest.raises(ValueError, match=r"co-runs need .* with 256 tokens in KV, and cuda has 22.0 GiB"):
        fitting(spec)


def has_memory(monkeypatch: pytest.MonkeyPatch, gib: float) -> None:
    class Gpu(cuda.Cuda):
        def free_bytes(self) -> int:
            return int(gib * 2**30)

    monkeypatch.setattr(cuda, "find", lambda where: Gpu(torch.device(where)))
    properties = cuda.Properties("a GPU", "8.9", 100, None, int(gib * 2**30), "-")
    monkeypatch.setattr(cuda, "properties", lambda: properties)
