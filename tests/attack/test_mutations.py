"""A damaged file of any format, and a hostile value of any option: one line on stderr that names the file, exit code 0
or 2, no hang, the file's bytes unchanged."""

from __future__ import annotations

import contextlib
import io
import random
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from calibrate.server.endpoint import Endpoint, stream
from calibrate.server.network import Client, RequestFailed
from sim.cli.main import run
from tests.attack.hostile_server import DONE, Pieces, head, hostile
from tests.attack.mutations import TooLong, at_most, damaged
from tests.attack.samples import EVENTS, FORMATS, PAIR, SPECULATIVE_CONFIG, TINY_RUN, Sample, filled, samples
from tests.properties import examples
from tests.sim.cli.test_consent import commands

CHECK_CPU_S = 5.0
COMMAND_CPU_S = 5.0
"""A damaged scenario may be a sound one that takes long: then the command is left alone."""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sample]:
    return samples(tmp_path_factory.mktemp("attack"))


def told(args: list[str], cpu_s: float) -> tuple[int, list[str]]:
    """Exit code and lines on stderr, notes left out. TooLong where it takes too much processor time."""
    errors = io.StringIO()
    with (
        contextlib.redirect_stderr(errors),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
        at_most(cpu_s, signal.ITIMER_PROF),
    ):
        code = run(args)
    return code, [line for line in errors.getvalue().splitlines() if not line.startswith("lanesim: note: ")]


def attack(sample: Sample, content: bytes, number: int = 0) -> int:
    """The highest exit code of `check` and the commands; fails where the property does not hold."""
    with TemporaryDirectory() as place:
        folder = Path(place) / "attacked"
        folder.mkdir()
        path = sample.laid(folder, content)
        subject = folder if sample.is_folder else path
        named = folder.name if sample.is_folder else path.name
        highest = 0
        if sample.is_checked:
            highest, lines = told(["check", str(subject)], CHECK_CPU_S)
            assert_one_line(highest, lines, named)
        for command in sample.commands if number % sample.every == 0 else ():
            with contextlib.suppress(TooLong):
                code, lines = told(filled(command, path, folder), COMMAND_CPU_S)
                assert_one_line(code, lines, named)
                highest = max(highest, code)
        assert path.read_bytes() == content
        for name, other in sample.beside:
            assert name == "trace.json" or (folder / name).read_bytes() == other
    return highest


def assert_one_line(code: int, lines: list[str], named: str) -> None:
    assert code in (0, 2), lines
    assert len(lines) == (1 if code == 2 else 0), lines
    assert code == 0 or named in lines[0], lines
    assert all(line.isprintable() for line in lines), lines


@pytest.mark.parametrize("kind", FORMATS)
def test_the_sound_file_is_sound(kind: str, made: dict[str, Sample]) -> None:
    assert attack(made[kind], made[kind].content) == 0


@pytest.mark.parametrize("kind", FORMATS)
@examples(0.3, derandomize=True, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_a_damaged_file_is_one_line(kind: str, made: dict[str, Sample], rng: random.Random) -> None:
    sample = made[kind]
    attack(sample, damaged(sample.content, sample.name, rng), number=1)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", FORMATS)
def test_two_thousand_damaged_files_are_one_line_each(kind: str, made: dict[str, Sample]) -> None:
    sample = made[kind]
    for seed in range(2000):
        attack(sample, damaged(sample.content, sample.name, random.Random(seed)), seed)


COMMANDS = list(commands())
WORDS = """
x 0 -1 nan inf 1e999 9223372036854775807 1e-320 null [] {} 1,,2 iid:2 length:99@3 vllm:.1,.9 tape:/dev/zero beta:0,0
cpu/tinny ../../etc/passwd /dev/zero ttft:nan seed=-1 3.5/gpu-h -1/gpu-h engine.max_num_seq=4 workload=3 pvd vllm-0.11
devices.count=99999999 workload.sharing.num_turns=1e9
"""
HOSTILE = ("", " ", "a\nb", "\x1b[2J", "a" * 5000, "9" * 30, *WORDS.split())
BEGINNINGS = {
    "compare": f"--profile {PAIR} --policy pd --num-prompts 4 --workers 1",
    "tune": f"--profile {PAIR} --draws 1 --lengths 0,1 --concurrencies 1,2 --set workload.num_prompts=4 --workers 1",
    "plan": f"--profile {PAIR} --set policy=pd --goodput ttft:500 --draws 0 --set workload.num_prompts=20 --workers 1",
    "calibrate derive": f"--from {PAIR} --gpu h200-sxm --out new.json",
    "calibrate fit": f"missing.json --profile {PAIR}",
    "validate": f"http://127.0.0.1:1 --fit-only --profile {PAIR}",
}
"""Beginnings of command lines of which an option more decides whether they are sound."""


@examples(1.0, derandomize=True, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_a_hostile_value_of_any_option_is_one_line(rng: random.Random) -> None:
    path, command = rng.choice(COMMANDS)
    words = [*path.split(), *BEGINNINGS.get(path, "").split()]
    options = [each for each in command.params if isinstance(each, click.Option)]
    for option in rng.sample(options, min(len(options), rng.choice((1, 1, 2)))):
        words += [rng.choice(option.opts), *([] if option.is_flag else [rng.choice(HOSTILE)])]
    with TemporaryDirectory() as place, contextlib.chdir(place), contextlib.suppress(TooLong):
        code, lines = told(words, COMMAND_CPU_S)
        assert_one_line(code, [] if lines and lines[0].startswith("Usage") and code == 2 else lines, "")


def attack_config(text: str) -> None:
    with contextlib.suppress(TooLong):
        command = ["compare", "--profile", PAIR, *TINY_RUN, "--workers", "1", "--speculative-config", text]
        code, lines = told(command, COMMAND_CPU_S)
        assert_one_line(code, lines, "")


def damaged_config(rng: random.Random) -> str:
    return damaged(SPECULATIVE_CONFIG.encode(), "c.json", rng).decode("utf-8", "surrogateescape")


def damaged_events(rng: random.Random) -> bytes:
    lines = damaged(EVENTS.encode(), "e.jsonl", rng).splitlines()
    content = b"".join(b"data: " + line + b"\n\n" for line in lines) + DONE
    return damaged(content, "e.txt", rng) if rng.random() < 0.3 else content


def attack_probe(seeds: Iterator[int]) -> None:
    """Streams of damaged events: an answer that is timed, or RequestFailed in one line."""
    sent = [b""]

    def way(tokens: int) -> Pieces:
        yield head("200 OK", kind="text/event-stream") + sent[0]

    endpoint = Endpoint(model="m", is_chat=False)
    with hostile(endpoint.path, way) as server, Client(server.url, timeout_s=5.0) as client:
        for seed in seeds:
            sent[0] = damaged_events(random.Random(seed))
            said = ""
            try:
                timed = stream(client, endpoint, "river", 8)
                assert 0 < timed.output_tokens <= 10**9, seed
                assert timed.pieces_s == sorted(timed.pieces_s), seed
            except RequestFailed as failed:
                said = str(failed)
            assert said.isprintable(), seed
            assert not said or server.url in said, seed


def test_a_damaged_config_or_event_is_one_line() -> None:
    attack_config(SPECULATIVE_CONFIG)
    for seed in range(8):
        attack_config(damaged_config(random.Random(seed)))
    attack_probe(iter(range(40)))


@pytest.mark.nightly
def test_two_thousand_damaged_configs_and_events_are_one_line_each() -> None:
    attack_probe(iter(range(2000)))
    for seed in range(2000):
        attack_config(damaged_config(random.Random(seed)))
