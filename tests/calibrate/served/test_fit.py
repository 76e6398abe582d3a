"""A server whose constants are known: they come back from its levels of load, and each level from the others."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from calibrate.cli.fit import source_command
from calibrate.served.fit import Form, fit_served, tellable
from calibrate.served.judge import LoadSetup, simulate_load
from calibrate.served.load import Accepted, ServedLoad, mean_load
from sim.cli.main import run
from sim.costs.engine_costs import load_engine, own_engine, with_engine, without_engine
from sim.costs.profile import Profile
from sim.costs.profile_files import encode, load, save_profile
from tests.properties import some

PAIR = "h100-sxm/llama-3.1-8b+eagle3"
RATES = (0.7, 0.45, 0.25)
RESULT = ("completed", "total_input_tokens", "total_output_tokens", "output_throughput", "mean_ttft_ms", "mean_tpot_ms")
"""Keys of a benchmark's result that say a level."""


def bare() -> Profile:
    profile = load(PAIR)
    return with_engine(profile, without_engine(profile))


def real() -> Profile:
    """A server with 1.5 ms per step, 40 us per row, and 12 ms before the engine."""
    host = msgspec.structs.replace(bare().host, step_s=1.5e-3, row_s=4e-5, frontend_s=12e-3)
    return msgspec.structs.replace(bare(), host=host)


def results_of(folder: Path, levels: tuple[int, ...], *, drafts: bool) -> list[str]:
    """What `vllm bench serve` would write of it at each level; their files."""
    flags = []
    for level in levels:
        accepted = Accepted(drafts=1.0, draft_tokens=3, rates=RATES) if drafts else None
        asked = mean_load("x", level, 200, 40, tpot_s=1.0, accepted=accepted)
        found: dict[str, Any] = simulate_load(asked, real(), LoadSetup(engine={}))
        result = {key: found[key] for key in RESULT} | {"max_concurrency": level}
        if drafts:
            result["spec_decode_per_position_acceptance_rates"] = list(RATES)
        path = folder / f"c{level}.json"
        path.write_text(json.dumps(result))
        flags.append(str(path))
    return flags


@pytest.mark.parametrize("drafts", [False, True])
def test_constants_of_a_server_come_back_from_its_benchmarks(tmp_path: Path, drafts: bool) -> None:
    profile, out = tmp_path / "bare.json", tmp_path / "mine.json"
    profile.write_bytes(encode(bare()))
    flags = results_of(tmp_path, (1, 4, 32), drafts=drafts)
    done = CliRunner().invoke(
        source_command, [*flags, "--profile", str(profile), "--out", str(out), "--json", str(tmp_path / "r.json")]
    )
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "r.json").read_text())
    found = {each["constant"]: each["value_s"] for each in result["constants"]}
    assert found == {
        "step_s": pytest.approx(1.5e-3, rel=0.02),
        "row_s": pytest.approx(4e-5, rel=0.02),
        "frontend_s": pytest.approx(12e-3, rel=0.02),
    }
    assert [each["is_told"] for each in result["constants"]] == [True, True, True]
    assert result["acceptance"] == ("vllm:0.7,0.45,0.25" if drafts else None)
    for level in result["levels"]:
        assert max(map(abs, level["errors_pct"].values())) < 1.0
        assert level["left_out_error_pct"] == level["left_out_errors_pct"]["tpot_ms"]
        assert max(map(abs, level["left_out_errors_pct"].values())) < 3.0
    mine = load(str(out))
    assert (mine.host.engine, mine.host.step_s) == (bare().host.engine, pytest.approx(1.5e-3, rel=0.02))
    assert mine.host.frontend_s == pytest.approx(12e-3, rel=0.02)
    assert "fitted by lanesim on 3 levels of a running server" in mine.host.source


def seen(concurrency: float, ttft_s: float = 0.0) -> ServedLoad:
    """The server at a load, its first tokens later by `ttft_s`."""
    asked = mean_load("x", concurrency, 200, 40, tpot_s=1.0)
    found: dict[str, Any] = simulate_load(asked, real(), LoadSetup(engine={}))
    ttft_ms = found["mean_ttft_ms"] + 1e3 * ttft_s
    return msgspec.structs.replace(asked, measured={"ttft_ms": ttft_ms, "tpot_ms": found["mean_tpot_ms"]})


def test_a_fit_simulates_nothing_twice_and_says_how_far_it_is() -> None:
    heard: list[int] = []
    fit_served(bare(), [seen(1), seen(4)], LoadSetup(engine={}), lambda stage, done, total: heard.append(done))
    assert heard == list(range(len(heard)))
    assert len(heard) > 2


def test_whatever_a_first_token_waits_for_bends_no_step() -> None:
    levels = [seen(1), seen(4), seen(16, ttft_s=0.1)]
    found = fit_served(bare(), levels, LoadSetup(engine={}))
    assert found.fits[0].values_s == {
        "step_s": pytest.approx(1.5e-3, rel=0.02),
        "row_s": pytest.approx(4e-5, rel=0.02),
    }
    assert not found.fits[1].told["frontend_s"]


def test_intervals_are_no_narrower_than_rounds_of_one_level_repeat() -> None:
    level, names = seen(4), ["step_s", "frontend_s"]
    levels = [level], [msgspec.structs.replace(level, repeats_pct={"tpot_ms": 10.0, "ttft_ms": 20.0})]
    exact, wide = (fit_served(bare(), each, LoadSetup(engine={})).fits for each in levels)
    # 0.5 % and t of one degree of freedom without repeats.
    least = 12.706 * 0.005
    assert wide[0].values_s == exact[0].values_s
    ratios = [b.half_widths_s[name] / a.half_widths_s[name] for a, b, name in zip(exact, wide, names, strict=True)]
    assert ratios == [pytest.approx(1.96 * 0.1 / least, rel=1e-3), pytest.approx(1.96 * 0.2 / least, rel=1e-3)]


def test_a_wait_too_long_for_a_frontend_is_left_out_and_said() -> None:
    levels = [seen(1, ttft_s=2.0), seen(4, ttft_s=3.0)]
    found = fit_served(bare(), levels, LoadSetup(engine={}))
    assert [list(fit.values_s) for fit in found.fits] == [["step_s", "row_s"]]
    assert "requests waited for a place in the batch" in found.unfitted["frontend_s"]
    assert found.profile.host.frontend_s == 0.0


def forms_server(levels: tuple[int, ...], **host: Any) -> list[ServedLoad]:
    """A server on vLLM 0.24, which plans ahead, with these constants of the host in place of its own."""
    profile = with_engine(load(PAIR), load_engine("vllm-0.24", "h100-sxm"))
    profile = msgspec.structs.replace(profile, host=msgspec.structs.replace(profile.host, **host))
    found = []
    for level in levels:
        asked = mean_load(f"c{level}", level, 50, 20, tpot_s=1.0)
        tpot_ms = simulate_load(asked, profile, LoadSetup(engine={}))["mean_tpot_ms"]
        found.append(msgspec.structs.replace(asked, measured={"tpot_ms": tpot_ms}))
    return found


SYNCHRONOUS = {"is_async": False, "step_s": 5e-3}
FORMS: list[tuple[dict[str, Any], str, Form, dict[str, float]]] = [
    (SYNCHRONOUS | {"row_s": 0.0}, "vllm-0.12", Form(False, False), {"step_s": 5e-3}),
    (SYNCHRONOUS | {"row_s": 4e-4}, "vllm-0.24", Form(False, True), {"step_s": 5e-3, "row_s": 4e-4}),
    ({"gap_s": 5e-3}, "vllm-0.24", Form(True, False), {"gap_s": 5e-3}),
    ({"gap_s": 3e-3, "row_s": 3e-3}, "vllm-0.24", Form(True, True), {"gap_s": 3e-3, "row_s": 3e-3}),
]


@pytest.mark.parametrize(("host", "engine", "form", "constants"), FORMS, ids=[str(form) for _, _, form, _ in FORMS])
def test_the_form_of_a_servers_steps_is_chosen_by_the_largest_load(
    host: dict[str, Any], engine: str, form: Form, constants: dict[str, float], tmp_path: Path
) -> None:
    found = fit_served(load(PAIR), forms_server((1, 3, 6, 9), **host), LoadSetup(engine={"name": engine}))
    assert found.tried[0].form == form
    assert abs(found.tried[0].error_pct) < 1.0
    assert found.fits[0].values_s == {name: pytest.approx(value, rel=0.02) for name, value in constants.items()}
    own = some(own_engine(load(save_profile(found.profile, tmp_path / "mine.json"))))
    assert own.plans_ahead("none") is form.is_async


def benchmarks(folder: Path, tpot_ms: dict[int, float]) -> list[str]:
    """Files of results with these times per token."""
    flags = []
    for level, each_ms in tpot_ms.items():
        tokens = {"completed": level, "total_input_tokens": 50 * level, "total_output_tokens": 20 * level}
        times = {"mean_ttft_ms": 20.0, "mean_tpot_ms": each_ms, "output_throughput": 1e3 * level / each_ms}
        path = folder / f"c{level}.json"
        path.write_text(json.dumps({"max_concurrency": level, "duration": 1.0} | tokens | times))
        flags.append(str(path))
    return flags


SHIPPED = ["--profile", "h100-sxm/llama-3.1-8b"]


def told(flags: list[str]) -> list[str]:
    """Lines of stdout."""
    done = CliRunner().invoke(source_command, [*flags, *SHIPPED])
    assert done.exit_code == 0, done.output
    return [line for line in done.stdout.splitlines() if line.strip()]


def result_of(flags: list[str]) -> dict[str, Any]:
    return dict(json.loads("".join(told([*flags, "--json", "-"]))))


def test_a_server_of_no_form_is_said_first(tmp_path: Path) -> None:
    lines = told(benchmarks(tmp_path, {1: 10.0, 2: 40.0, 4: 12.0}))
    assert lines[0].startswith("The simulator does not fit this server: ")
    assert typed(lines) == ["lanesim", "profiles", "show", "h100-sxm/llama-3.1-8b"]


def typed(lines: list[str]) -> list[str]:
    """Words of the command that comes next, which the line on more ends."""
    place = next(place for place, line in enumerate(lines) if line.startswith("next "))
    return shlex.split(" ".join(line[11:].removesuffix("\\") for line in lines[place:-1]))


def test_the_command_that_a_fit_ends_with_simulates_the_server(tmp_path: Path) -> None:
    flags = benchmarks(tmp_path, {rows: 20.0 + 0.5 * rows for rows in (1, 4, 8)})
    lines = told([*flags, "--out", str(tmp_path / "mine.json")])
    assert lines[0].startswith("This server is ")
    assert lines[1].endswith(" is 0 % off.")
    assert run([*typed(lines)[1:], "--num-prompts", "32", "--json", str(tmp_path / "r.json")]) == 0
    (simulated,) = json.loads((tmp_path / "r.json").read_text())["runs"]
    assert simulated["mean_tpot_ms"] == pytest.approx(24.0, rel=0.05)


def test_one_load_is_said_to_prove_nothing_and_two_far_apart_are_not(tmp_path: Path) -> None:
    for loads, is_said in (({1: 10.0}, True), ({4: 10.0, 5: 10.1}, True), ({1: 10.0, 4: 10.5}, False)):
        flags = benchmarks(tmp_path, loads)
        assert (result_of(flags)["caution"] is not None) is is_said
        assert ("One load" in told(flags)[1]) is is_said


def test_a_servers_own_limits_are_those_of_its_fit(tmp_path: Path) -> None:
    """Where 2 of 8 are served at once the others wait for them, so that first tokens come later."""
    flags = benchmarks(tmp_path, {8: 10.0})
    errors = [
        result_of([*flags, *more])["levels"][0]["errors_pct"]["ttft_ms"]
        for more in ([], ["--set", "engine.max_num_seqs=2"])
    ]
    assert errors[1] > errors[0] + 100.0


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--set", "devices.count=2"], "--set devices must be a key of engine"),
        *(
            (
                ["--set", f"num_speculative_tokens={k}"],
                f"its drafts have 3 tokens, not speculation.num_speculative_tokens={k}",
            )
            for k in "24"
        ),
    ],
)
def test_flags_that_contradict_the_source_are_refused(more: list[str], named: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(source_command, [*results_of(tmp_path, (1,), drafts=True), "--profile", PAIR, *more])
    assert named in str(done.exception)


def test_a_fit_that_writes_nothing_ends_with_its_command_that_does(tmp_path: Path) -> None:
    flags = benchmarks(tmp_path, {1: 10.0})
    assert typed(told(flags)) == ["lanesim", "calibrate", "fit", *flags, *SHIPPED, "--out", "mine.json"]


def test_json_on_stdout_is_alone_there_where_a_profile_is_written(tmp_path: Path) -> None:
    flags = [*benchmarks(tmp_path, {1: 10.0}), "--out", str(tmp_path / "mine.json")]
    assert result_of(flags)["next"].startswith(str(tmp_path / "mine.json"))


def level(concurrency: float, *, drafts: bool, ttft_s: float | None = None) -> ServedLoad:
    accepted = Accepted(drafts=1.0, draft_tokens=3, rates=RATES) if drafts else None
    return mean_load("x", concurrency, 10, 10, ttft_s=ttft_s, tpot_s=0.01, accepted=accepted)


@pytest.mark.parametrize(
    ("levels", "constants"),
    [
        ([(8, False)], ["step_s"]),
        ([(8, False), (9, False)], ["step_s"]),
        ([(1, True), (8, True)], ["step_s", "row_s"]),
        ([(1, False), (8, False), (8, True)], ["step_s", "row_s", "draft_pass_s"]),
    ],
)
def test_only_constants_that_the_levels_can_tell_are_fitted(
    levels: list[tuple[float, bool]], constants: list[str]
) -> None:
    assert tellable([level(concurrency, drafts=drafts) for concurrency, drafts in levels]) == constants
    timed = [level(concurrency, drafts=drafts, ttft_s=0.1) for concurrency, drafts in levels]
    assert tellable(timed) == [*constants, "frontend_s"]
