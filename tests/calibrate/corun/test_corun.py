# ruff: noqa: E402
"""`python -m calibrate.corun` on CPU threads: the file, resuming, refusals, the budget, the answer. No seconds."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.corun import __main__ as corun
from calibrate.corun.rates_file import OF_CELL, OPTIONS, Table, line_of
from calibrate.measure import rates
from calibrate.measure.overlap_cells import GRIDS, cells, slots
from calibrate.points.point_works import Cell
from realrun.host import cuda
from tests.calibrate.cli.test_commands import ROOT

LONG_ENOUGH, TOO_SHORT = "600", "1e-9"


def measure(out: Path, *more: str) -> int:
    return corun.main(["--device", "cpu", "--out", str(out), *more])


def rows(out: Path) -> list[dict[str, str]]:
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    """What a run left that was interrupted in its third cell, and its file when it had been run again."""
    out, calls = tmp_path_factory.mktemp("corun") / "corun.csv", []
    measured = rates.measure

    def interrupted(*args: Any) -> rates.Rates:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measured(*args)

    with pytest.MonkeyPatch.context() as patch:
        # Windows of as many passes as there must be, whatever the budget.
        patch.setattr(rates, "MAX_CELL_S", 0.0)
        patch.setattr(rates, "measure", interrupted)
        assert measure(out, "--budget-s", LONG_ENOUGH) == 130
        content = out.read_bytes()
        assert measure(out, "--budget-s", LONG_ENOUGH) == 0
    return content, out


def cell_names(out: Path) -> list[tuple[str, ...]]:
    return [tuple(row[key] for key in OF_CELL) for row in rows(out)]


PLANNED = [(*map(str, (*cell.places[0], *cell.places[1])), "") for cell in cells("cpu", 256)]


def test_a_stopped_run_goes_on_and_measures_only_what_is_missing(stopped: tuple[bytes, Path]) -> None:
    before, out = stopped
    assert before.count(b"\n") == 1 + 2
    assert out.read_bytes().startswith(before)
    assert cell_names(out) == PLANNED


@pytest.mark.slow
def test_a_killed_run_leaves_whole_rows_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That what is missing is measured then, test_a_stopped_run_goes_on_and_measures_only_what_is_missing says."""
    out = tmp_path / "corun.csv"
    command = [sys.executable, "-m", "calibrate.corun", "--device", "cpu", "--out", str(out), "--budget-s", "30"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 120.0
    while not out.exists():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    process.kill()
    process.wait()
    before, known = out.read_bytes(), cell_names(out)
    assert 0 < len(known) < len(PLANNED)
    assert measure(out, "--budget-s", TOO_SHORT) == 0
    assert out.read_bytes() == before
    assert f"{len(PLANNED) - len(known)} of {len(PLANNED)} cells to measure" in capsys.readouterr().out


def test_every_row_has_fingerprint_pair_times_and_rates(stopped: tuple[bytes, Path]) -> None:
    for row in rows(stopped[1]):
        assert row["torch"] == torch.__version__
        assert (row["device"], row["target"], row["draft"]) == ("cpu", "tiny-target", "tiny-draft")
        assert float(row["rate_sum_low"]) <= float(row["rate_sum"]) <= float(row["rate_sum_high"])
        for side in "ab":
            assert float(row[f"{side}_alone_ms"]) > 0.0
            assert int(row[f"{side}_together_passes"]) >= 4
        assert row["starts"] == "abab"
        assert row["sm_mhz_after"] == ""


def test_what_is_measured_is_not_measured_again(
    stopped: tuple[bytes, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    content = stopped[1].read_bytes()
    assert measure(stopped[1], "--budget-s", LONG_ENOUGH) == 0
    assert stopped[1].read_bytes() == content
    said = capsys.readouterr().out.splitlines()
    assert "0 of 6 cells to measure" in said[0]
    assert said[-1].startswith("corun: phi is ")
    assert "prefill beside decode (4 cells, eager)" in said[-1]
    assert "draft beside verify (2 cells, eager)" in said[-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda text: text.replace("\ncpu,", "\nNVIDIA H100,", 1),
            "line 2: another machine's: device was 'NVIDIA H100'",
        ),
        (lambda text: text.replace("a_alone_ms", "a_alone_s"), "line 1: its columns are not this version's"),
        (lambda text: text.replace("\n", "\nx", 3)[:-40], "line"),
        (
            lambda text: text.replace(text.splitlines()[1].split(",")[text.split(",").index("a_alone_ms")], "nan"),
            "must be positive",
        ),
        (lambda text: text.replace(",prefill,target,1,", ",prefill,target,one,"), "line 2: "),
        (lambda text: "a points file\n", "line 1: its columns are not this version's"),
        (lambda text: "", "line 1: its columns are not this version's"),
        (lambda text: "\x00\xff", "line 1"),
    ],
)
def test_a_broken_file_or_another_machines_is_one_line_and_stays(
    stopped: tuple[bytes, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: object,
    said: str,
) -> None:
    out = tmp_path / "other.csv"
    assert callable(change)
    out.write_text(change(stopped[1].read_text()))
    content = out.read_bytes()
    assert measure(out) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert "choose another --out" in line
    assert out.read_bytes() == content


def test_a_spent_budget_measures_nothing_and_says_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(tmp_path / "c.csv", "--budget-s", TOO_SHORT) == 0
    assert not (tmp_path / "c.csv").exists()
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("corun: left: ")] == [
        f"corun: left: {cell.name}" for cell in cells("cpu", 256)
    ]
    assert "with 6 of 6 cells left" in said[-2]
    assert "nothing was measured" in said[-1]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--target", "tiny-target"), "--target and --draft go together"),
        (("--budget-s", "-1"), "--budget-s -1 must be above 0"),
        (("--target", "tiny-target", "--draft", "qwen2.5-0.5b"), "must share vocabulary"),
        (("--target", "nothing", "--draft", "tiny-draft"), "unknown model 'nothing'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    assert measure(tmp_path / "c.csv", *flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_machine_without_cuda_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    assert corun.main(["--device", "cuda", "--out", str(tmp_path / "c.csv")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "torch finds no CUDA device" in line


def test_a_device_that_cannot_be_split_says_so_in_one_line_and_runs_the_other_cells(
    capsys: pytest.CaptureFixture[str],
) -> None:
    planned = cells("cuda", 1024)
    assert list(corun.possible(planned, cuda.find("cpu"))) == [cell for cell in planned if cell.share_pct is None]
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "corun: no cells on 20, 40, 60, 80 % of the multiprocessors: a CPU has no multiprocessors to share"


def test_a_cell_on_shares_is_read_as_it_was_written_and_says_nothing_of_phi(tmp_path: Path) -> None:
    plain, *others = cells("cuda", 1024)
    on_shares = next(cell for cell in others if cell.share_pct == 20)
    # A pair is built for "cuda", whatever the GPU is called.
    fingerprint, options = {"device": "a GPU"}, {"device": "cuda", **dict.fromkeys(OPTIONS, "a pair")}
    side = rates.Steady(1.0, 0.0, 9, 2.0, 0.0, 9, (0.5,) * 4)
    found = [
        rates.Rates(cell, (side, side), 0.1, shares, 0)
        for cell, shares in ((plain, (1.0, 1.0)), (on_shares, (0.25, 0.75)))
    ]
    for each in found:
        Table(tmp_path / "c.csv", fingerprint).add(options, each.cell, line_of(each, None, None))
    assert Table(tmp_path / "c.csv", fingerprint).ran() == [each.ran for each in found]
    known = Table(tmp_path / "c.csv", fingerprint).lines(options)
    assert list(known) == [plain, on_shares]
    assert (known[on_shares]["a_share"], known[on_shares]["b_share"]) == (0.25, 0.75)
    assert "(1 cells, captured)" in corun.answer(known)


def test_corners_come_first_and_captured_before_eager() -> None:
    planned = cells("cuda", 1024)
    corners = planned[:12]
    assert all(cell.is_captured for cell in corners)
    sizes = {kinds: [_sizes(cell) for cell in corners if cell.kinds == kinds] for kinds in {c.kinds for c in corners}}
    assert sizes == {
        "prefill beside decode": [(128, 1), (128, 128), (2048, 1), (2048, 128)],
        "draft beside verify": [(4, 5), (256, 320)],
        "prefill beside prefill": [(2048, 2048), (128, 128)],
        "prefill beside draft": [(2048, 4), (2048, 256), (128, 4), (128, 256)],
    }
    assert len(set(planned)) == len(planned) == 3 * 16 + 2 * 4 + 2 * 4 * 4 + 6
    captured = [index for index, cell in enumerate(planned) if cell.is_captured]
    eager = [index for index, cell in enumerate(planned) if {place.launch for place in cell.places} == {"eager"}]
    assert max(captured) < max(eager)
    assert slots("cuda", 1024) == 130


def _sizes(cell: Cell) -> tuple[int, ...]:
    return tuple(place.total_tokens for place in cell.places)


def test_pairs_on_shares_come_behind_the_same_pair_on_the_whole_gpu() -> None:
    planned = cells("cuda", 1024)
    on_shares = [cell for cell in planned if cell.share_pct is not None]
    assert {cell.share_pct for cell in on_shares} == {20, 40, 60, 80}
    assert {_sizes(cell) for cell in on_shares} == {(128, 1), (128, 128), (512, 1), (512, 128)}
    launches = {tuple(place.launch for place in cell.places) for cell in on_shares}
    assert launches == {("graphed", "graphed"), ("eager", "eager")}
    for cell in on_shares:
        assert planned.index(Cell(cell.places)) < planned.index(cell)


@pytest.mark.parametrize("context", [1024, 512, 256])
def test_a_chunk_longer_than_the_context_is_several_prompts_of_as_many_tokens(context: int) -> None:
    prefills = {place for cell in cells("cuda", context) for place in cell.places if place.kind == "prefill"}
    assert {place.rows * place.tokens for place in prefills} == set(GRIDS["cuda"].chunk_tokens)
    assert max(place.tokens for place in prefills) <= context


@pytest.mark.parametrize(
    ("gib", "pair", "context"),
    [
        (79.0, "llama-3.1-8b", 1024),
        (44.0, "llama-3.1-8b", 512),
        (36.0, "llama-3.1-8b", 256),
        (22.0, "qwen2.5-1.5b", 1024),
    ],
)
def test_the_largest_usual_pair_that_fits_is_taken(
    monkeypatch: pytest.MonkeyPatch, gib: float, pair: str, context: int
) -> None:
    has_memory(monkeypatch, gib)
    spec = corun.fitting("cuda", corun.PAIRS["cuda"])
    assert (spec.target.shape.name, spec.slot_tokens - 256) == (pair, context)


def test_a_pair_that_does_not_fit_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    has_memory(monkeypatch, 22.0)
    with pytest.raises(
        ValueError, match=r"llama-3.1-8b \+ llama-3.2-1b needs .* cuda has 22.0 GiB; name a smaller pair"
    ):
        corun.fitting("cuda", corun.PAIRS["cuda"][:1])


def has_memory(monkeypatch: pytest.MonkeyPatch, gib: float) -> None:
    class Gpu(cuda.Cuda):
        def free_bytes(self) -> int:
            return int(gib * 2**30)

    monkeypatch.setattr(cuda, "find", lambda where: Gpu(torch.device(where)))
    properties = cuda.Properties("a GPU", "8.9", 100, None, int(gib * 2**30), "-")
    monkeypatch.setattr(cuda, "properties", lambda: properties)
