"""The campaign: resumes over calls, skips what is there, goes on past what cannot be measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate import campaign
from calibrate.campaign import NOT_DONE, Job, main
from sim.costs import load
from sim.costs.profile import encode
from sim.models import model


def test_a_call_without_time_begins_nothing_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "out"), "--device", "cuda", "--limit", "5"]) == NOT_DONE
    assert "run the same command again" in capsys.readouterr().out
    assert not list((tmp_path / "out").iterdir())


def test_a_campaign_that_is_done_measures_nothing(tmp_path: Path) -> None:
    for job in campaign.CAMPAIGNS["cuda"]:
        (tmp_path / f"{job.name}.json").touch()
    assert main([str(tmp_path), "--limit", "0"]) == 0


def test_a_finished_campaign_tells_each_profiles_error_on_the_other_models(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / f"{name}.json").write_bytes(encode(load("cpu/tiny")))
    lines = campaign.left_out([tmp_path / "one.json", tmp_path / "other.json"])
    assert len(lines) == 2
    assert lines[0].startswith("constants of one on other, left out of their fit: ")
    assert "carries no points" in lines[0]


def test_every_cuda_job_fits_a_call_of_nine_minutes() -> None:
    assert all(job.budget_s < campaign.LIMIT_S - campaign.LEAST_S for job in campaign.CAMPAIGNS["cuda"])


def test_what_cannot_be_measured_is_one_line_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    jobs = (Job("llama-9", None, 10.0), Job("tiny-target", "llama-3.2-1b", 10.0, 1))
    monkeypatch.setitem(campaign.CAMPAIGNS, "cpu", jobs)
    assert main([str(tmp_path), "--device", "cpu"]) == 1
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 3
    assert "unknown model 'llama-9'" in lines[0]
    assert "must share vocabulary" in lines[1]
    assert "failed: llama-9, tiny-target+llama-3.2-1b" in lines[2]
    assert not list(tmp_path.glob("*.json"))


def test_the_pairs_share_their_vocabularies() -> None:
    for job in (job for jobs in campaign.CAMPAIGNS.values() for job in jobs if job.draft is not None):
        assert model(job.target).vocab == model(job.draft or "").vocab
