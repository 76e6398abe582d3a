"""The campaign: what it does in which order, that it goes on after kills, and what a red smoke step stops."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


from calibrate.cli.check_files import check_file
from calibrate.measure.campaign import report as report_module
from calibrate.measure.campaign import runner as campaign
from calibrate.measure.campaign import smoke
from calibrate.measure.campaign.plan import (
    CAMPAIGNS,
    LIMITS_S,
    MEASURE,
    PREDICTION,
    SMOKE,
    STEPS,
    Campaign,
    Loop,
    MeasuredPair,
    Step,
    done_file,
)
from calibrate.measure.campaign.report import report, runs_of
from calibrate.measure.campaign.smoke import CHECKS
from realrun.replay.machine_speed import PROBED_TOKENS, probe
from sim.cli.main import run as lanesim
from sim.costs.profile_files import decode, encode, load

ROOT = Path(__file__).parents[4]
SMALL = Campaign(
    job=MeasuredPair("tiny-target", "tiny-draft", 9.0, 4, 256),
    loads=(Loop("closed", 2, 3, ("continuous", "pd"), 2), Loop("open", None, 3, ("continuous",))),
    input_tokens=24,
    output_tokens=8,
)
DEADLINE_S = 300.0


def test_a_campaign_fits_the_ten_minutes_of_a_lent_gpu_and_begins_with_what_is_worth_most() -> None:
    assert STEPS == ("smoke", "measure", "closed", "open", "many")
    assert sum(map(CAMPAIGNS["cuda"].limit_s, STEPS)) <= 600.0
    for plan in CAMPAIGNS.values():
        assert [load.name for load in plan.loads] == list(STEPS[2:5])
        assert all("continuous" in load.policies for load in plan.loads)
        assert plan.job.budget_s < plan.limit_s(MEASURE)
    closed, open_loop, many = CAMPAIGNS["cuda"].loads
    assert (closed.concurrency, closed.policies, closed.replications) == (16, ("continuous", "pd", "pdv"), 3)
    assert (open_loop.concurrency, open_loop.policies) == (None, ("continuous", "pd"))
    assert (many.concurrency, len(many.policies)) == (64, 5)


Begun = list[str]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Begun:
    """Steps that are begun, all of which succeed."""
    found: Begun = []
    monkeypatch.setattr(campaign, "_do", lambda name, out, step: found.append(step) is None)
    monkeypatch.setattr(campaign, "report", lambda *_: found.append("report"))
    return found


def test_steps_that_are_over_are_not_begun_again(
    tmp_path: Path, begun: Begun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert campaign.run_campaign("cpu", tmp_path) == 0
    assert begun == [*STEPS]
    assert capsys.readouterr().out.startswith("next: smoke (300 s), measure (1900 s), closed")
    assert campaign.run_campaign("cpu", tmp_path) == 0
    assert begun[len(STEPS) :] == ["smoke"]
    assert not capsys.readouterr().out.startswith("next:")


def test_a_call_ends_behind_a_step_and_the_same_command_goes_on_from_there(
    tmp_path: Path, begun: Begun, capsys: pytest.CaptureFixture[str]
) -> None:
    CAMPAIGNS["cpu"].job.profile_path(tmp_path).write_bytes(encode(load("cpu/tiny")))
    (tmp_path / "smoke.json").touch()
    (tmp_path / PREDICTION).touch()
    assert campaign.run_campaign("cpu", tmp_path, until="measure") == 0
    assert begun == ["smoke", "measure", "report"]
    first, *_, found, after = capsys.readouterr().out.splitlines()
    assert first == "next: smoke (300 s), measure (1900 s). They take at most 2200 s"
    assert found.endswith(f" now: {tmp_path / PREDICTION}")
    assert after.startswith("next: closed (1100 s), open")
    assert after.endswith(f"lanesim evidence --device cpu --out {tmp_path}")
    begun.clear()
    assert campaign.run_campaign("cpu", tmp_path) == 0
    assert begun == ["smoke", *STEPS[2:], "report"]


def test_one_step_alone_is_made_again(tmp_path: Path, begun: Begun) -> None:
    assert campaign.run_campaign("cpu", tmp_path) == 0
    begun.clear()
    assert campaign.run_campaign("cpu", tmp_path, only="open") == 0
    assert begun == ["smoke", "open"]
    assert done_file(tmp_path, "open").exists()
    points = CAMPAIGNS["cpu"].job.points_path(tmp_path)
    points.touch()
    CAMPAIGNS["cpu"].job.profile_path(tmp_path).write_bytes(encode(load("cpu/tiny")))
    assert campaign.run_campaign("cpu", tmp_path, only="measure") == 0
    assert not points.exists()
    assert not CAMPAIGNS["cpu"].job.profile_path(tmp_path).exists()


@pytest.mark.parametrize(("failing", "last"), [(SMOKE, SMOKE), ("open", STEPS[-1])])
def test_a_red_smoke_step_alone_keeps_the_others_from_being_run(
    failing: str, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(campaign, "_do", lambda name, out, step: begun.append(step) or step != failing)
    assert campaign.run_campaign("cpu", tmp_path) == 1
    assert begun == [*STEPS[: STEPS.index(last) + 1]]
    assert not done_file(tmp_path, failing).exists()


def test_a_step_at_its_limit_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(LIMITS_S, SMOKE, 0.01)
    assert campaign.run_campaign("cpu", tmp_path) == 1
    said = capsys.readouterr()
    assert "campaign: smoke\n" in said.out
    assert "at its limit" in said.out
    assert "failed: smoke" in said.err


def test_what_cannot_be_done_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"smoke.json' is missing. Its step failed"):
        report(tmp_path, SMALL)


@pytest.fixture(autouse=True, scope="module")
def a_quiet_machine() -> Iterator[None]:
    """Nothing disturbs a measurement here, however busy this machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_module, "disturbed", lambda *_: [])
        yield


def here(module: str, words: Sequence[str], limit_s: float) -> bool:
    """Run a step's command in this process."""
    try:
        return (lanesim(words) if module == "lanesim" else smoke.main(words)) == 0
    except SystemExit:
        return False


def run(out: Path, step: Step) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(campaign, "_run", here)
        patch.setitem(CAMPAIGNS, "cpu", SMALL)
        return campaign._do("cpu", out, step)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole small campaign, its steps in this process."""
    out = tmp_path_factory.mktemp("campaign")
    assert all(run(out, step) for step in STEPS[:-1])
    report(out, SMALL)
    return out


@pytest.mark.slow
def test_what_is_sent_lies_as_in_the_repository_and_is_sound(finished: Path) -> None:
    told = finished / "send" / "docs" / "validation" / "cpu"
    pair = "tiny-target+tiny-draft"
    names = {"README.md", "smoke.json", PREDICTION, "closed.json", "open.json", f"{pair}.points.jsonl"}
    assert {path.name for path in told.iterdir()} == names
    profile = finished / "send" / "sim" / "profiles" / "cpu" / "tiny-target+tiny-draft-measured.json"
    assert check_file(profile) == ("profile", "cpu/tiny-target+tiny-draft-measured")
    assert check_file(told / "tiny-target+tiny-draft.points.jsonl")[0] == "points"
    text = (told / "README.md").read_text()
    assert "- Two plain streams: " in text
    for heading in ("Do lanes pay here?", "Machine", "Smoke step", "Passes", "Replays"):
        assert f"## {heading}" in text
    assert "| closed | pd |" in text


@pytest.mark.slow
def test_a_profile_completed_in_service_is_a_profile_and_says_what_it_rests_on(finished: Path) -> None:
    completed = load(SMALL.job.profile_path(finished))
    assert decode(encode(completed), "completed") == completed
    assert completed.host.is_synchronous
    assert not completed.overlap.has_priorities
    assert completed.host.result_s > 0.0
    assert len(completed.host.probed_s) == len(PROBED_TOKENS)
    assert "threaded host" in completed.host.source
    assert completed.overlap.takes_turns
    assert completed.overlap.measured
    assert set(completed.host.served) == {"prefill", "draft_prefill", "draft", "verify", "decode"}
    assert completed.overlap.tau_s > 0.0


@pytest.mark.slow
def test_every_check_is_green_on_a_cpu_or_says_that_it_does_not_apply(finished: Path) -> None:
    checks = json.loads((finished / "smoke.json").read_text())["checks"]
    assert [check["name"] for check in checks if not check["is_ok"]] == []
    assert [c["name"] for c in checks if c["said"] == "does not apply to a cpu"] == ["streams", "kernels", "capture"]
    assert len(checks) == len(CHECKS)
    assert checks[0]["said"].startswith("torch ")


@pytest.mark.slow
def test_a_machine_that_passed_is_not_checked_again_and_another_is_refused(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "smoke.json").write_bytes((finished / "smoke.json").read_bytes())
    before = (tmp_path / "smoke.json").stat().st_mtime_ns
    assert run(tmp_path, SMOKE)
    assert (tmp_path / "smoke.json").stat().st_mtime_ns == before
    held = json.loads((tmp_path / "smoke.json").read_text())
    held["fingerprint"]["cpu"] = "another one"
    (tmp_path / "smoke.json").write_text(json.dumps(held))
    assert not run(tmp_path, SMOKE)
    assert "of another machine: cpu was 'another one'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_report_tells_what_there_is_and_which_replay_lacks(finished: Path, tmp_path: Path) -> None:
    _copy(finished, tmp_path)
    (tmp_path / "open.json").unlink()
    report(tmp_path, SMALL)
    assert "| closed | pd |" in _page(tmp_path)
    assert "Lacking: open." in _page(tmp_path)


@pytest.mark.slow
def test_a_disturbed_page_says_why_and_states_no_verdict(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _copy(finished, tmp_path)
    monkeypatch.setattr(report_module, "disturbed", lambda out, campaign, step: ["noise"] * (step == "closed"))
    report(tmp_path, SMALL)
    head, *rest = _page(tmp_path).splitlines()
    assert head == "# cpu: *disturbed*"
    assert "- closed: noise" in rest
    assert not any("beside continuous" in line or "plain streams" in line for line in rest)


def _copy(finished: Path, to: Path) -> None:
    """The files of a campaign, without those to send."""
    for path in (path for path in finished.iterdir() if path.is_file()):
        (to / path.name).write_bytes(path.read_bytes())


def _page(out: Path) -> str:
    return next((out / "send" / "docs").rglob("README.md")).read_text()


def _is_anyone_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an archive is made of a checkout")
def test_a_killed_campaign_takes_its_step_along_and_knows_what_is_over(tmp_path: Path) -> None:
    """From `git archive`, nothing installed: killed inside the first measurement, after a green smoke step."""
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(tmp_path, filter="data")
    out, deadline_s = tmp_path / "out", time.monotonic() + DEADLINE_S
    command = [sys.executable, "-m", "lanesim", "evidence", "--device", "cpu", "--out", "out"]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(command, cwd=tmp_path, env=clean, stdout=subprocess.DEVNULL, start_new_session=True)
    while not (out / "smoke.json").exists():
        assert process.poll() is None, "the campaign ended before it could be killed"
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while _is_anyone_left(process.pid):
        assert time.monotonic() < deadline_s, "a step outlived the campaign that began it"
        time.sleep(0.02)
    assert json.loads((out / "smoke.json").read_text())["is_green"]
    assert not (out / "done").exists()


@pytest.mark.slow
def test_what_is_predicted_before_is_what_a_replay_is_judged_by(finished: Path) -> None:
    """The same requests, seeds and profile: nothing of the replay goes into its prediction."""
    predicted = json.loads((finished / PREDICTION).read_text())
    for name, runs in predicted["loads"].items():
        judged = json.loads((finished / f"{name}.json").read_text())["runs"]
        assert [(run["policy"], run["seed"]) for run in runs] == [(run["policy"], run["seed"]) for run in judged]
        for one, other in zip(runs, judged, strict=True):
            assert one["mean_e2el_ms"] == pytest.approx(other["metrics"]["e2el"]["mean"]["simulated"])
            assert one["p99_ttft_ms"] == pytest.approx(other["metrics"]["ttft"]["p99"]["simulated"])
    served = [run["request_throughput"] for run in predicted["loads"]["closed"] if run["policy"] == "continuous"]
    assert predicted["open_rate_per_s"] == pytest.approx(0.6 * sum(served) / len(served), abs=1e-3)
    assert json.loads((finished / "open.yaml").read_text())["workload"]["request_rate"] == predicted["open_rate_per_s"]


@pytest.mark.slow
def test_a_replay_at_its_limit_keeps_the_runs_that_are_whole(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _copy(finished, tmp_path)
    probed: list[int] = []

    def interrupted(*args: Any) -> tuple[float, ...]:
        probed.append(1)
        if len(probed) == 5:
            raise KeyboardInterrupt
        return probe(*args)

    monkeypatch.setattr("realrun.replay.replays.probe", interrupted)
    assert run(tmp_path, "closed")
    result = json.loads((tmp_path / "closed.json").read_text())
    assert {policy: len(each.real_ms) for policy, each in runs_of(result).items()} == {"continuous": 1, "pd": 1}
    assert not (tmp_path / "closed.partial").exists()


@pytest.mark.slow
def test_a_measurement_at_its_limit_gives_a_profile_of_what_it_has(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("calibrate.measure.session.measure_pair", interrupted)
    header, *points = SMALL.job.points_path(finished).read_text().splitlines(keepends=True)
    SMALL.job.points_path(tmp_path).write_text(header)
    with pytest.raises(ValueError, match="too little was measured"):
        run(tmp_path, MEASURE)
    rest = [each for each in points if not each.startswith('{"serving"')]
    SMALL.job.points_path(tmp_path).write_text("".join([header, *rest]))
    assert run(tmp_path, MEASURE)
    profile = load(SMALL.job.profile_path(tmp_path))
    assert profile.points == load(SMALL.job.profile_path(finished)).points
    assert (tmp_path / PREDICTION).exists()


def test_a_step_hears_its_limit_where_a_shell_began_the_campaign_in_the_background(tmp_path: Path) -> None:
    """Interrupts are ignored there, and by what is started from there."""
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(300)\n")
    code = "from calibrate.measure.campaign.runner import _run; print(_run('slow', [], 2.0))"
    begun_s = time.monotonic()
    done = subprocess.run(
        ["sh", "-c", f'trap "" INT; exec {sys.executable} -c "{code}"'], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.endswith("False\n"), done.stderr
    assert time.monotonic() - begun_s < campaign.GRACE_S
