"""A server whose constants are known: they come back from its levels of load, and each level from the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from calibrate.cli.production import production_command
from calibrate.production.exports import NEEDED
from calibrate.production.fit import tellable
from calibrate.production.served import Accepted, Served, cell_of
from realrun.validate.cells.compare import Setup, simulate_cell
from sim.costs.engine import with_engine, without_engine
from sim.costs.profile import Profile
from sim.costs.profile_files import encode, load

PAIR = "h100-sxm/llama-3.1-8b+eagle3"
RATES = (0.7, 0.45, 0.25)


def bare() -> Profile:
    profile = load(PAIR)
    return with_engine(profile, without_engine(profile))


def real() -> Profile:
    """A server with 1.5 ms per step and 40 us per row."""
    host = msgspec.structs.replace(bare().host, step_s=1.5e-3, row_s=4e-5)
    return msgspec.structs.replace(bare(), host=host)


def results_of(folder: Path, levels: tuple[int, ...], *, drafts: bool) -> list[str]:
    """What `vllm bench serve` would write of it at each level; `--bench-json` flags."""
    flags = []
    for level in levels:
        accepted = Accepted(drafts=1.0, draft_tokens=3, rates=RATES) if drafts else None
        asked = Served(
            source="x", concurrency=level, prompt_tokens=200, output_tokens=40, tpot_s=1.0, accepted=accepted
        )
        found: dict[str, Any] = simulate_cell(cell_of(asked, 1), real(), Setup(engine={}))
        result = {key: found[key] for key in NEEDED} | {"max_concurrency": level}
        if drafts:
            result["spec_decode_per_position_acceptance_rates"] = list(RATES)
        path = folder / f"c{level}.json"
        path.write_text(json.dumps(result))
        flags += ["--bench-json", str(path)]
    return flags


@pytest.mark.parametrize("drafts", [False, True])
def test_constants_of_a_server_come_back_from_its_benchmarks(tmp_path: Path, drafts: bool) -> None:
    profile, out = tmp_path / "bare.json", tmp_path / "mine.json"
    profile.write_bytes(encode(bare()))
    flags = results_of(tmp_path, (1, 8, 32), drafts=drafts)
    done = CliRunner().invoke(
        production_command, [*flags, "--profile", str(profile), "--out", str(out), "--json", str(tmp_path / "r.json")]
    )
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "r.json").read_text())
    found = {each["constant"]: each["value_s"] for each in result["constants"]}
    assert found == {"step_s": pytest.approx(1.5e-3, rel=0.02), "row_s": pytest.approx(4e-5, rel=0.02)}
    assert result["acceptance"] == ("vllm:0.7,0.45,0.25" if drafts else None)
    for level in result["levels"]:
        assert abs(level["errors_pct"]["tpot_ms"]) < 1.0
        assert abs(level["left_out_error_pct"]) < 3.0
    mine = load(str(out))
    assert (mine.host.engine, mine.host.step_s) == (bare().host.engine, pytest.approx(1.5e-3, rel=0.02))
    assert "fitted by lanesim on 3 levels of a running server" in mine.host.source


def level(concurrency: float, *, drafts: bool) -> Served:
    accepted = Accepted(drafts=1.0, draft_tokens=3, rates=RATES) if drafts else None
    return Served(
        source="x", concurrency=concurrency, prompt_tokens=10, output_tokens=10, tpot_s=0.01, accepted=accepted
    )


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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "nothing to read"),
        (["--metrics-before", "a.txt"], "belong together"),
        (["--log", "server.log"], "add --input-len and --output-len"),
    ],
)
def test_what_is_missing_is_said(flags: list[str], message: str) -> None:
    done = CliRunner().invoke(production_command, [*flags, "--profile", PAIR])
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)
