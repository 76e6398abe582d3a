"""What lanes do beside continuous batching: measured and predicted means over replications."""

from __future__ import annotations

from calibrate.measure.campaign.report import Change, Runs, change, changes, findings

CONTINUOUS = Runs([100.0, 101.0, 99.0], [100.0, 100.5, 99.5])


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
