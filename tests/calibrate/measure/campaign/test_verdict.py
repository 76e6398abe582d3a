"""From which load on lanes pay: measured and simulated means over replications."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy")

from calibrate.measure.campaign.verdict import Change, Runs, change, changes, findings, runs_of, sentence

CONTINUOUS = Runs([100.0, 101.0, 99.0], [100.0, 100.5, 99.5])


def runs(real_ms: float, simulated_ms: float) -> Runs:
    return Runs([real_ms - 1.0, real_ms, real_ms + 1.0], [simulated_ms - 0.5, simulated_ms, simulated_ms + 0.5])


def test_a_lane_pays_from_the_load_on_where_it_shows() -> None:
    by_load = changes(
        {
            64: {"continuous": CONTINUOUS, "pd": runs(90.0, 95.0)},
            1: {"continuous": CONTINUOUS, "pd": runs(110.0, 104.0)},
            16: {"continuous": CONTINUOUS, "pd": runs(99.5, 95.0)},
        }
    )
    assert list(by_load) == ["pd"]
    assert sentence("pd", by_load["pd"]) == (
        "**pd**: measured, it pays from 64 at once on; simulated, it pays from 16 at once on."
    )


@pytest.mark.parametrize(
    ("real_ms", "said"),
    [
        ((90.0, 90.0), "pays at every load"),
        ((110.0, 110.0), "pays at no load"),
        ((110.0, 100.1), "pays at no load that these replications can tell"),
        ((90.0, 110.0), "pays at 1 at once"),
    ],
)
def test_where_a_lane_pays_is_said_in_words(real_ms: tuple[float, float], said: str) -> None:
    loads = {n: {"continuous": CONTINUOUS, "pdv": runs(ms, 90.0)} for n, ms in zip((1, 16), real_ms, strict=True)}
    assert sentence("pdv", changes(loads)["pdv"]) == f"**pdv**: measured, it {said}; simulated, it pays at every load."


def test_one_replication_shows_nothing_and_equal_ones_everything() -> None:
    assert change([50.0], [100.0]).pays is None
    assert str(change([50.0], [100.0])) == "-50.0, one run each"
    assert str(change([97.5], [100.0])) == "-2.5, equal, one run each"
    assert change([99.0, 99.0], [100.0, 100.0]) == Change(-1.0, 0.0)
    assert change([99.0, 99.0], [100.0, 100.0]).pays is True


def test_a_run_that_was_cut_says_nothing_and_one_sentence_says_what_the_others_found() -> None:
    def run(policy: str, real_ms: float) -> dict[str, object]:
        return {"policy": policy, "metrics": {"e2el": {"mean": {"real": real_ms, "simulated": 90.0}}}}

    times = [("continuous", 100.0), ("pd", 90.0), ("pd", 10.0)]
    about = [{"partial": policy == "pd" and ms < 50.0} for policy, ms in times]
    result = {"runs": [run(*each) for each in times], "replay": {"runs": about}}
    assert runs_of(result)["pd"].real_ms == [90.0]
    (line,) = findings({"closed": result, "open": {"runs": [], "replay": {"runs": []}}})
    assert line.startswith("closed: mean E2EL beside continuous: pd -10.0, one run each")


def test_a_load_without_continuous_batching_says_nothing() -> None:
    assert changes({4: {"pd": CONTINUOUS}, 8: {"autoregressive": CONTINUOUS}}) == {}
