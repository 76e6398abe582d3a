"""What a campaign says: of disturbed steps, and of lanes beside continuous batching."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch")

from calibrate.fit.point_works import TimedPass
from calibrate.measure.campaign import runner as campaign
from calibrate.measure.campaign.evidence_command import campaign_of
from calibrate.measure.campaign.plan import CAMPAIGNS, done_file
from calibrate.measure.campaign.report import Change, Runs, change, changes, disturbed, findings
from realrun.validate.gates import of_profile, of_replay, verdict
from sim.costs.profile import KindError, Profile
from sim.costs.profile_files import load
from tests.calibrate.fit.test_points_file import point

CPU = CAMPAIGNS["cpu"]
CONTINUOUS = Runs([100.0, 101.0, 99.0], [100.0, 100.5, 99.5])


def profile(*, error_pct: float = 10.0, num_noisy: int = 0) -> Profile:
    """A profile with one error and ten points, so many of them noisy."""
    shipped = load("cpu/tiny")
    places = [TimedPass("decode", "target", rows, 1, 32, "eager") for rows in range(1, 11)]
    points = [point(place, is_noisy=place.rows <= num_noisy) for place in places]
    error = KindError(mean_error_pct=error_pct, max_error_pct=90.0, points=3, held_out="some")
    beyond = KindError(mean_error_pct=50.0, max_error_pct=90.0, points=3, held_out="pairs")
    return msgspec.structs.replace(shipped, points=tuple(points), errors={"verify": error, "overlap": beyond})


def test_errors_held_out_and_noisy_passes_are_gates() -> None:
    assert of_profile(profile(num_noisy=1)) == []
    assert of_profile(profile(error_pct=10.1)) == ["held-out verify 10.1 % off, at most 10"]
    assert of_profile(profile(num_noisy=2)) == ["2 of 10 passes noisy, at most a tenth"]
    assert verdict(of_profile(profile(num_noisy=10))).startswith("Do not use this profile: 10 of 10 passes noisy")
    assert verdict([]) == ""


def test_fixed_passes_beside_a_replay_are_a_gate() -> None:
    def runs(*machines: list[float] | None) -> dict[str, object]:
        return {"runs": [{"policy": f"p{number}", "machine": each} for number, each in enumerate(machines)]}

    assert of_replay(runs([0.9, 1.1], None)) == []
    assert of_replay(runs([1.0, 1.2], [1.0, 1.0], [0.8, 1.0])) == [
        "fixed passes beside p0, p2 took 0.80 to 1.20 times as long as with the profile, where 0.9 to 1.1 is normal"
    ]


def test_a_disturbed_step_is_named_with_what_does_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def runs(name: str, out: Path, step: str) -> bool:
        if step == "closed":
            judged = {
                "policy": "pd",
                "machine": [1.5, 1.5],
                "metrics": {"e2el": {"mean": {"real": 2.0, "simulated": 1.0}}},
            }
            (out / "closed.json").write_text(json.dumps({"runs": [judged]}))
        return True

    monkeypatch.setattr(campaign, "_do", runs)
    assert campaign.run_campaign("cpu", tmp_path) == 0
    said = capsys.readouterr().out
    assert "closed is disturbed: fixed passes beside pd took 1.50" in said
    assert "disturbed: closed. The page states no verdict. Repeat with --only closed" in said
    assert done_file(tmp_path, "closed").exists()
    assert disturbed(tmp_path, CPU, "closed")
    assert not disturbed(tmp_path, CPU, "open")


def test_the_pair_is_that_which_fits_the_memory() -> None:
    named = [campaign_of("cpu", 0.0), *(campaign_of("cuda", gb * 1e9) for gb in (16, 80))]
    assert named == ["cpu", "cuda-24gb", "cuda"]
    assert all(name in CAMPAIGNS for name in named)


def test_one_replication_shows_nothing_and_equal_ones_everything() -> None:
    assert str(change([50.0], [100.0])) == "-50.0, one run each"
    assert str(change([97.5], [100.0])) == "-2.5, equal, one run each"
    assert change([99.0, 99.0], [100.0, 100.0]) == Change(-1.0, 0.0)
    assert str(change([90.0, 91.0, 89.0], CONTINUOUS.real_ms)) == "-10.0 ± 2.3"


def test_one_sentence_says_what_the_runs_of_a_load_found() -> None:
    def run(policy: str, real_ms: float) -> dict[str, object]:
        return {"policy": policy, "metrics": {"e2el": {"mean": {"real": real_ms, "simulated": 90.0}}}}

    (line,) = findings({"closed": {"runs": [run("continuous", 100.0), run("pd", 90.0)]}, "open": {"runs": []}})
    assert line.startswith("closed: mean E2EL beside continuous in percent: pd -10.0, one run each (")


def test_a_load_without_continuous_batching_says_nothing() -> None:
    assert changes({"pd": CONTINUOUS, "autoregressive": CONTINUOUS}) == {}
    assert [*changes({"pd": CONTINUOUS, "continuous": CONTINUOUS})] == ["pd"]
