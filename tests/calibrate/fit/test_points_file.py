"""The points file: appended line by line, read back whole, and every defect named by its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from calibrate.fit import points_file
from calibrate.fit.point_works import Corun, TimedPass
from sim.costs.profile import MeasuredPoint
from tests.properties import assert_refused

MACHINE = {"device": "cpu", "torch": "2.13.0", "clock_sm_mhz": "not readable"}
OPTIONS = {"target": "tiny-target", "rows": 4}
PLACES = [TimedPass("decode", "target", 1, 1, 32, "eager"), TimedPass("verify", "target", 1, 5, 32, "eager")]

SIDES = [
    {"share": 0.25, "alone_s": 1.0, "together_s": 2.0, "rates": [0.4, 0.9, 0.5, 0.5]},
    {"share": 0.75, "alone_s": 2.0, "together_s": 3.0, "rates": [0.6, 0.6, 0.6, 0.6]},
]
PAIR = {"corun": [[list(PLACES[1]), list(PLACES[0])], 20], "sides": SIDES}


def point(timed: TimedPass = PLACES[0], **changes: Any) -> MeasuredPoint:
    fields = {**timed._asdict(), "device_s": 1e-3, "host_s": 1e-3, "half_width_pct": 1.0, "repetitions": 7}
    return msgspec.convert({**fields, "is_noisy": False, "is_held_out": False, **changes}, MeasuredPoint)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "p.points.jsonl"
    points_file.create(file, MACHINE, OPTIONS)
    points_file.append(file, "plan", {"visits": 3, "passes": PLACES})
    points_file.append(file, "point", point())
    return file


def test_what_was_appended_is_read_back(path: Path) -> None:
    points_file.append(path, "host", {"step_s": 1e-5})
    points_file.append(path, "rates", PAIR)
    points_file.append(path, "mixed", {"of a former version": 1})
    points_file.append(path, "clocks", {"sm_mhz": None})
    found = points_file.read(path)
    assert found.fingerprint == MACHINE
    assert found.passes == PLACES
    assert found.points == [point()]
    assert found.host == {"step_s": 1e-5}
    (ran,) = found.rates
    assert ran.corun == Corun((PLACES[1], PLACES[0]), 20)
    assert (ran.alone_s, ran.rates) == ((1.0, 2.0), (0.5, 0.6))
    assert found.left == [PLACES[1], *PLACES, *PLACES]


def test_a_point_is_the_middle_of_its_visits_and_as_uncertain_as_they_differ(path: Path) -> None:
    for device_s in (1.3e-3, 1.1e-3):
        points_file.append(path, "point", point(device_s=device_s, host_s=2.0 * device_s, repetitions=5))
    found = points_file.read(path)
    wide = {"half_width_pct": pytest.approx(100.0 * 0.15 / 1.1, abs=0.01), "is_noisy": True}
    (merged,) = found.points
    assert msgspec.structs.asdict(merged) == {
        **msgspec.structs.asdict(point(device_s=1.1e-3, host_s=2.2e-3, repetitions=17)),
        **wide,
    }
    assert found.left == [PLACES[1]] * 3


def test_a_point_from_before_l2_states_were_told_is_unknown(path: Path) -> None:
    raw = msgspec.to_builtins(point(PLACES[1]))
    del raw["l2"]
    points_file.append(path, "point", raw)
    assert points_file.read(path).points[-1].l2 == "unknown"


def test_a_line_that_a_kill_cut_off_is_forgotten(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"point": {"kind": "ver')
    assert points_file.read(path).points == [point()]
    points_file.mend(path)
    assert path.read_bytes() == whole


NO_POINTS = [
    ("point", {**msgspec.to_builtins(point(PLACES[1])), "device_s": -1.0}, "device_s=-1.0 must be above 0"),
    ("point", point(PLACES[0]._replace(rows=999)), "target decode 999x1 after 32 eager is not in the plan"),
    ("rates", {**PAIR, "sides": SIDES[:1]}, "must have 2 sides with as many rates each"),
    ("rates", {**PAIR, "sides": [SIDES[0], {**SIDES[1], "alone_s": 5e4}]}, "expected `float` <= 1000.0"),
    ("rates", {**PAIR, "sides": [SIDES[0], {**SIDES[1], "rates": [-1.0]}]}, "expected `float` > 0.0"),
    ("pair", {}, "unknown kind of line 'pair'"),
]


@pytest.mark.parametrize(("kind", "content", "named"), NO_POINTS)
def test_a_line_that_cannot_be_is_named(path: Path, kind: str, content: Any, named: str) -> None:
    points_file.append(path, kind, content)
    assert_refused(lambda: points_file.read(path), "line 4", named)


def test_a_host_line_that_lacks_something_is_named(path: Path) -> None:
    points_file.check_host(path, points_file.read(path))
    points_file.append(path, "host", {"step_s": 1e-5})
    assert_refused(lambda: points_file.check_host(path, points_file.read(path)), "its host line lacks 'is_cpu'")


def test_a_file_that_is_none_of_ours_is_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"\xff\x00" * 40)
    points_file.mend(path)
    assert path.read_bytes() == b"\xff\x00" * 40
    assert_refused(lambda: points_file.read(path), "line 1: not UTF-8 text")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"schema": 9}\n', "newer than what this version reads"),
        ('{"schema": 1}\n', "must be 2"),
        ('{"schema": 2}\n', "no valid header"),
        ('{"schema": 2, "finger', "cut off in its first line"),
        ("", "is empty"),
    ],
)
def test_other_schemas_and_other_files_are_refused(text: str, named: str, path: Path) -> None:
    path.write_text(text)
    assert_refused(lambda: points_file.read(path), named)


def test_two_machines_never_merge(path: Path) -> None:
    found = points_file.read(path)
    points_file.check_same(path, found, {**MACHINE, "clock_sm_mhz": "1410"}, OPTIONS)
    for machine, options, named in (
        ({**MACHINE, "torch": "2.14.0"}, OPTIONS, "of another machine: torch was '2.13.0', is now '2.14.0'"),
        (MACHINE, {**OPTIONS, "rows": 8}, "of other options: rows was 4, is now 8"),
    ):
        assert_refused(lambda m=machine, o=options: points_file.check_same(path, found, m, o), named)


def test_two_measurements_do_not_write_into_one_file(path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    path.parent.mkdir(exist_ok=True)
    with path.with_name(f".{path.name}.lanesim.lock").open("a") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(ValueError, match="is being written by another process"), points_file.alone(path):
            pass
    with points_file.alone(path):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_line_that_a_file_has_no_room_for_names_the_file() -> None:
    assert_refused(
        lambda: points_file.append(Path("/dev/full"), "clocks", {}), "'/dev/full' cannot be written: No space left"
    )
