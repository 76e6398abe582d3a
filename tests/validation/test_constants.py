"""Constants: each has a row of the table, each row was computed with the values as they are, and each constant helps
where models judge it that gave none of its engine's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import fmean

import pytest

import validation.constants as program
from calibrate.importers.aiconfigurator import lookups
from calibrate.served.load import ServedLoad
from sim.costs.engine_costs import ENGINES, load_engine
from tests.properties import some
from validation.tables import csv_rows, grouped

ASSUMED = {
    "STREAM_SHARE", "UNPACK_SHARE", "STATE_ROWS", "MAX_SCALES_SHARE", "MODULE_LAUNCH_BOUND_S", "LAUNCH_BOUND_S",
    "DENTS_UP_TO", "OUTLIER", "LAUNCH_S",
}  # fmt: skip
"""Numbers of the importer that nothing was fitted for."""
GAIN_LOST = 0.2
"""Half of a constant may do better by that part of what the whole gains."""
FAULTS = {
    "a gap between steps of SGLang": ("sglang-0.5", "gap_s", 0.95e-3),
    "a frontend of 0.2 s": ("vllm-0.19", "frontend_s", 0.2),
    "a step of 3.9 ms": ("vllm-0.12", "step_s", 3.9e-3),
    "long all-reduces and GEMMs": (program.IMPORTER, "REDUCE_RATIO", 1.7),
}
AGAIN = "python -m validation constants judge DATA"
LINES = csv_rows(program.TABLE)


def spec_of(line: dict[str, str]) -> program.Constant:
    return next(
        each
        for each in program.read_specs().constants
        if each.name == line["constant"] and line["where"] == ", ".join(each.where)
    )


def constant_at(scope: str, name: str) -> program.Constant:
    return some(program.owner(scope, name))


def nobodys() -> list[tuple[str, str]]:
    """Constants that no row names."""
    return [key for key in program.values() if program.owner(*key) is None and key[1] not in ASSUMED]


def stale() -> list[str]:
    """Constants whose rows were computed with other values."""
    return [line["constant"] for line in LINES if line["digest"] != program.digest(spec_of(line), line["engine"])]


def plant(folder: Path, monkeypatch: pytest.MonkeyPatch, engine: str, name: str, value: float) -> None:
    if engine == program.IMPORTER:
        monkeypatch.setattr(lookups, name, value)
        return
    shutil.copytree(ENGINES, folder / "engines")
    path = folder / "engines" / f"{engine}.json"
    held = json.loads(path.read_text())
    held["constants"][0][name] = value
    path.write_text(json.dumps(held))
    monkeypatch.setattr(program, "ENGINES", folder / "engines")


def test_every_constant_has_a_row_and_every_row_a_judge_or_a_reason() -> None:
    assert nobodys() == [], "add them to validation/constants.yaml"
    assert all(bool(each.judges) != bool(each.why) for each in program.read_specs().constants)
    wanted = {(each.name, ", ".join(each.where)) for each in program.read_specs().constants}
    assert {(line["constant"], line["where"]) for line in LINES} == wanted, AGAIN


def test_the_table_was_computed_with_the_constants_as_they_are() -> None:
    assert stale() == [], AGAIN


@pytest.mark.parametrize("fault", FAULTS)
def test_a_changed_constant_makes_the_rows_of_its_engine_stale(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, name, value = FAULTS[fault]
    plant(tmp_path, monkeypatch, engine, name, value)
    assert name in " ".join(stale())


def test_a_constant_that_no_row_names_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, monkeypatch, "vllm-0.12", "gap_s", 0.95e-3)
    assert nobodys() == [("vllm-0.12 h100-sxm", "gap_s")]


def test_every_constant_helps_where_it_is_judged() -> None:
    """Over its judges: better than without it, and hardly worse than half of it."""
    judged = [line for line in LINES if int(line["cells"])]
    for (name, where), of in grouped(judged, lambda line: (line["constant"], line["where"])).items():
        whole, half, none = (
            fmean(int(line["cells"]) * float(line[part]) for line in of)
            for part in ("with it", "half of it", "without it")
        )
        assert whole < none, f"{name} of {where} helps nobody who judges it"
        assert whole - half <= GAIN_LOST * (none - whole), f"{name} of {where}: half of it does better"


def test_no_model_judges_an_engine_that_it_gave_a_constant() -> None:
    for line in LINES:
        if program.SERVED_CELLS in spec_of(line).judges:
            assert not program.givers(line["engine"]) & set(line["judged by"].split()), line


def test_a_pooled_constant_is_the_mean_of_its_sources() -> None:
    for key, value_s in program.values().items():
        constant = program.owner(*key)
        if constant is not None and constant.pooled:
            assert value_s == pytest.approx(fmean(constant.sources_s(program.values(), key[1]).values()), rel=2e-3), key


def test_cells_of_givers_and_those_that_wait_for_admission_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "model_of", lambda target: (target, False))
    judges = program.Judges.__new__(program.Judges)
    judges.is_fitted = False
    of_engine = {"engine": "vllm", "engine_version": "0.19", "label": "vllm dense fp8"}
    judges.cells = [
        (ServedLoad(id=name, target=target, gpu=gpu, **of_engine), is_late)
        for name, target, gpu, is_late in (
            ("1", "gpt-oss-120b", "h200-sxm", False), ("2", "b", "h200-sxm", False), ("3", "b", "l40s", False),
            ("4", "b", "h200-sxm", True), ("5", "qwen3-32b", "h200-sxm", False),
        )
    ]  # fmt: skip
    frontend = constant_at("vllm-0.19 h200-sxm", "frontend_s")
    assert [cell.id for cell in judges.served(frontend, "ttft_ms")] == ["2"]
    judges.is_fitted = True
    assert [cell.id for cell in judges.served(frontend, "ttft_ms")] == ["1"]


def test_a_part_of_a_constant_is_tried_where_it_stands_and_nowhere_else() -> None:
    gap, ratio = constant_at("sglang-0.5 h200-sxm", "gap_s"), constant_at(program.IMPORTER, "SUSTAINED_RATIO")
    before, other = load_engine("sglang-0.5", "h200-sxm"), load_engine("vllm-0.19", "rtx-pro-6000-server")
    with program.changed(program.part_of(gap, 0.5)):
        half = load_engine("sglang-0.5", "h200-sxm")
        assert (half.gap_s, half.step_s) == (before.gap_s / 2, before.step_s)
        assert load_engine("vllm-0.19", "rtx-pro-6000-server").gap_s == other.gap_s
    whole = lookups.SUSTAINED_RATIO
    with program.changed(program.part_of(ratio, 0.5)):
        part = lookups.SUSTAINED_RATIO - 1.0
    assert (part, lookups.SUSTAINED_RATIO) == (pytest.approx((whole - 1.0) / 2), whole)


def test_a_source_judges_the_mean_of_the_others() -> None:
    """vLLM 0.12's own step is left out, so that SpecDecode-Bench's stands on that engine, too."""
    step = constant_at("vllm-0.24 h100-sxm", "step_s")
    with program.changed(program.part_of(step, 1.0, "vLLM 0.12")):
        assert load_engine("vllm-0.12", "h100-sxm", 2).step_s == 1.207e-3


def test_a_fit_finds_values_and_how_well_the_cells_know_them() -> None:
    """Eight cells off by 1 % to either side: the standard error of a mean is 1 % / sqrt(7)."""
    noise = [0.01, -0.01] * 4
    (found, free), (error, _) = program.fit(
        {"a": 1.0, "b": 5.0}, lambda of: [*(of["a"] - 2.0 + each for each in noise), of["b"] - 4.0]
    )
    assert (found, free) == (pytest.approx(2.0, abs=1e-3), pytest.approx(4.0, abs=1e-3))
    assert error == pytest.approx(0.01 / 7**0.5, rel=0.01)


class Law:
    """Cells of two sources. The first wants a REDUCE_RATIO of 2, the second a product of 3 with SUSTAINED_RATIO."""

    def errors(self, judge: str, metric: str, constant: object, known: object) -> list[tuple[str, str, float]]:
        share = lookups.REDUCE_RATIO * (lookups.SUSTAINED_RATIO / 3.0 if judge == "second" else 0.5)
        return [("vllm", judge, 100.0 * share - 100.0)] * 2


def test_a_constant_is_fitted_beside_the_new_values_of_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"where": [program.IMPORTER], "given_by": ["m"]}
    fits = {"first": "REDUCE_RATIO", "second": "SUSTAINED_RATIO"}
    constants = [program.Constant(names=[each], fitted_on={source: ""}, **given) for source, each in fits.items()]
    monkeypatch.setattr(program, "read_specs", lambda: program._File(judges={}, constants=constants))
    monkeypatch.setattr(program, "Judges", lambda data, is_fitted: Law())
    assert [found.new for found in program.refits(Path())] == pytest.approx([2.0, 1.5], rel=1e-3)
