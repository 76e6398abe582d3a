"""The campaign: resumes over calls, skips what is done, goes on past what cannot be, predicts before it replays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrate.campaign import __main__ as campaign
from calibrate.campaign.__main__ import NOT_DONE, done_file, left_out, main
from calibrate.campaign.plan import CAMPAIGNS, Campaign, Cell, Job
from calibrate.campaign.report import MOST_BYTES, ship
from calibrate.campaign.steps import run
from calibrate.fit.measured_profile import profile_of
from sim.costs.profile_files import encode, load
from sim.costs.shapes import model
from tests.calibrate.check.test_profile import of_another_model
from tests.calibrate.fit.test_passes import NOISE, law, measured

SMALL = Campaign(
    jobs=(Job("tiny-target", "tiny-draft", 15.0, 4, 256),),
    cells=(Cell("c2", 2, 3),),
    policies=("autoregressive", "pd"),
    input_tokens=24,
    output_tokens=8,
    tied_layers=1,
    repeats=1,
)


def test_a_call_without_time_begins_nothing_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "out"), "--device", "cuda", "--limit", "5"]) == NOT_DONE
    assert "run the same command again" in capsys.readouterr().out
    assert not list((tmp_path / "out").iterdir())


def test_a_campaign_that_is_done_does_nothing(tmp_path: Path) -> None:
    for step in CAMPAIGNS["cuda"].steps:
        done_file(tmp_path, step).parent.mkdir(exist_ok=True)
        done_file(tmp_path, step).touch()
    assert main([str(tmp_path), "--limit", "0"]) == 0


def test_a_finished_campaign_tells_each_profiles_error_on_the_other_models(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / f"{name}.json").write_bytes(encode(load("cpu/tiny")))
    lines = campaign.left_out([tmp_path / "one.json", tmp_path / "other.json"])
    assert len(lines) == 2
    assert lines[0].startswith("constants of one on other, left out of their fit: ")
    assert "carries no points" in lines[0]


def test_steps_come_in_the_order_of_their_worth() -> None:
    """Both pairs, which have all four models, before any replay; single models and other cells after everything."""
    steps = CAMPAIGNS["cuda"].steps
    kinds = [step.partition(" ")[0] for step in steps]
    until, rest = kinds[: kinds.index("lossless")], kinds[kinds.index("lossless") + 1 :]
    assert until == ["ceilings", "measure", "measure", "predict", *["replay"] * 5]
    assert rest == ["replay"] * 3 + ["measure"] * 3
    assert steps[4:9] == [f"replay {name}" for name in ("c16", "c1", "c64", "c16-again", "c16-third")]
    assert len(set(steps)) == len(CAMPAIGNS["cuda"].jobs) + len(CAMPAIGNS["cuda"].cells) + 3


def test_every_measurement_fits_a_call_of_nine_minutes() -> None:
    assert all(job.budget_s < campaign.LIMIT_S - campaign.LEAST_S for job in CAMPAIGNS["cuda"].jobs)


def test_what_cannot_be_done_is_one_line_and_the_others_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without any profile neither predictions nor replays can be; the rest of the steps is marked done beforehand."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    for step in CAMPAIGNS["cpu"].steps:
        if step.startswith("measure ") or step in ("ceilings", "lossless"):
            done_file(tmp_path, step).parent.mkdir(exist_ok=True)
            done_file(tmp_path, step).touch()
    assert main([str(tmp_path), "--device", "cpu"]) == 1
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 4
    assert "campaign: predict:" in lines[0]
    assert "predictions come before measurements" in lines[1]
    assert lines[-1].startswith("campaign: failed: predict, replay c1, replay c4")


def test_the_pairs_share_their_vocabularies() -> None:
    for job in (job for plan in CAMPAIGNS.values() for job in plan.jobs if job.draft is not None):
        assert model(job.target).vocab == model(job.draft or "").vocab


def test_nothing_measured_ships_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ship(tmp_path, tmp_path / "root", SMALL) == 1
    assert "holds no profile" in capsys.readouterr().err


@pytest.mark.slow
def test_a_whole_campaign_ships_profile_points_and_report(tmp_path: Path) -> None:
    """On the CPU with the tiny pair; what was predicted lies there before anything is replayed."""
    for package in ("torch", "transformers", "pyarrow", "scipy", "matplotlib"):
        pytest.importorskip(package)
    out, root = tmp_path / "out", tmp_path / "root"
    out.mkdir()
    for step in SMALL.steps:
        run("cpu", out, step, SMALL)
    replayed = out / "replay-c2" / "summary.json"
    assert (out / "predictions.json").stat().st_mtime_ns < replayed.stat().st_mtime_ns
    assert json.loads((out / "lossless.json").read_text())["differing"] == []
    assert ship(out, root, SMALL) == 0
    report = root / "docs" / "validation" / "cpu"
    assert {path.name for path in report.iterdir()} == {
        "README.md",
        "points.parquet",
        "predicted.png",
        "predictions.json",
    }
    assert (report / "points.parquet").stat().st_size < MOST_BYTES
    assert (root / "sim" / "profiles" / "cpu" / "tiny-target+tiny-draft.json").exists()
    text = (report / "README.md").read_text()
    for heading in ("Held-out points", "Several issuers", "predicted before they were run", "Lossless"):
        assert heading in text
    assert "| c2 | pd |" in text


def test_a_finished_campaign_tells_the_error_on_the_models_left_out(tmp_path: Path) -> None:
    profile = law()
    fitted = profile_of(measured(NOISE), profile.gpu, 1, profile.target, profile.draft)
    wide, own = of_another_model(tmp_path), tmp_path / "tiny.json"
    own.write_bytes(encode(fitted))
    lines = left_out([own, wide])
    assert [line.partition(",")[0] for line in lines] == ["constants of tiny on wide", "constants of wide on tiny"]
    assert "verify" in lines[0]
    assert "%" in lines[0]
