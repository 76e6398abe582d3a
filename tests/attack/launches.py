"""Hostile command lines, drawn: `python -m tests.attack.launches COUNT PROCESSES [SEED]`

Each is a command with options that are wrong, extreme, misspelt, contradictory or about files that are missing, broken,
binary, links or pipes. Most run in this process, a share in processes whose stdout is closed, full or unread, or that
are interrupted. A launch is fine where it ends with 0, 1, 2 or 130 within LIMIT_S, with one line on stderr beside notes
where it is refused, no traceback, and files as they were. Prints those that are not. Not here: damaged files by the
thousand (tests.attack.mutations).
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from sim.cli.flags import EVERYWHERE, Listed
from sim.cli.main import run
from tests.attack.mutations import at_most
from tests.sim.cli.test_consent import READ, commands

LIMIT_S, LIMIT_GB = 60.0, 2.0
INTERRUPTED_S = 0.5, 2.5
PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
WORDS = """
x 0 -1 nan inf -inf 1e999 9223372036854775807 1e-320 0x10 ½ 💥 null true [] {} 1,,2 , : = a=b=c iid:2 iid:
length:99@3 vllm:.1,.9 tape:missing tape:/dev/zero beta:0,0 markov:1 iid:nan cpu/tinny h100/llama ../../etc/passwd
/dev/zero /proc/self/mem ttft:-5 ttft:nan tpot:1e400 engine.max_num_seq=4 workload.sharing.num_turns=1e9 seed=-1
policy=pd workload=3 devices.count=99999999 fixed mooncake sglang-0.5 vllm-0.11 pd pvd continuous 3.5/gpu-h -1/gpu-h
1e99/replica-h
"""
TEXTS = ("", " ", "\u202eabc", "a\nb", "\x1b[2J", "a" * 5000, "é" * 50, "9" * 30, *WORDS.split())
DIGITS = "0 -1 1 2 3 500 1e9 1000000 2147483648 9223372036854775807 nan inf -inf 1.5 x"
NUMBERS = ("", *DIGITS.split())
SMALL = {"--num-prompts": "4", "--workers": "1", "--draws": "0", "--replications": "1"}
SHORT = ("--set", "workload.num_prompts=20")
FEW = ("compare", "tune", "replay")
NEEDED = {
    "compare": [f"--profile {PAIR} --policy pd --num-prompts 4", "--profile cpu/tiny --policy continuous"],
    "tune": [f"--profile {PAIR} --draws 1 --lengths 0,1 --concurrencies 1,2 --set workload.num_prompts=4"],
    "plan": [
        "llama-3.1-8b --gpu h200-sxm --gpus 1 --rate 2 --input-len 64 --output-len 8 --goodput ttft:500",
        f"--profile {PAIR} --set policy=pd --goodput ttft:500 --draws 0 --set workload.num_prompts=20",
    ],
    "calibrate derive": [f"--from {PAIR} --gpu h200-sxm --out new.json"],
    "calibrate fit": [f"FILE --profile {PAIR}"],
    "report": ["FILE --out new.html"],
    "calibrate import": ["FILE --gpu h200-sxm --target llama-3.1-8b --out new.json"],
    "calibrate measure": ["--device cuda --target tiny-target --out new.json"],
    "replay": ["--profile cpu/tiny --policy pd --device cuda --out new"],
    "validate": [
        f"cells FILE --profile {PAIR}",
        f"vllm FILE --profile {PAIR} --set engine.max_num_seqs=8 --set engine.max_num_batched_tokens=512",
        f"http://127.0.0.1:1 --fit-only --profile {PAIR} --set server.timeout_s=1",
        "http://127.0.0.1:1 --fit-only --profile cpu/tiny",
    ],
}
"""Beginnings of command lines of which an option more decides whether they are sound."""


def files(folder: Path) -> list[str]:
    """One file of each kind that nobody expects, by name; made in `folder`."""
    content: dict[str, bytes] = {
        "empty.yaml": b"",
        "empty.json": b"",
        "binary.json": bytes(range(256)) * 4,
        "list.yaml": b"- 1\n- 2\n",
        "deep.json": b"[" * 100_000,
        "wide.csv": b",".join(b"c%d" % place for place in range(5000)) + b"\n",
        "header.csv": b"arrival_time,input_len,output_len\n",
        "text.csv": b"arrival_time,input_len,output_len\nx,y,z\n",
        "huge.csv": b"arrival_time,input_len,output_len\n0,99999999999999999999,1\n",
        "bad.parquet": b"PAR1" + bytes(100) + b"PAR1",
        "cut.gz": b"\x1f\x8b\x08\x00",
        "tape.jsonl": b'{"yields": [9e99]}\n',
        "log.log": b"Avg prompt throughput: nan tokens/s\n" * 3,
        "metrics.txt": b"# HELP\nvllm:num_requests_running{} 1e400\n",
        "scenario.yaml": f"profile: {PAIR}\npolicy: pd\nworkload: {{num_prompts: 4}}\n".encode(),
        "cycle.yaml": b"profile: &a [*a]\n",
        "unknown.yaml": b"profil: x\npolicy: [pd, pd]\n",
        "grid.yaml": f"scenario: {{profile: {PAIR}, policy: pd}}\ngrid: {{seed: []}}\n".encode(),
        "config.json": b'{"architectures": ["X"], "hidden_size": -1}',
        "bench.json": b'{"completed": 1, "mean_ttft_ms": -5}',
        "latin.yaml": "profile: é\n".encode("latin-1"),
    }
    for name, each in content.items():
        (folder / name).write_bytes(each)
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "link.json").symlink_to(folder / "bench.json")
    os.mkfifo(folder / "pipe")
    return [*content, "folder", "loop", "link.json", "pipe", "missing.json", ".", "/dev/null", "a/b/c/missing.yaml"]


def launch(drawn: random.Random, names: Sequence[str], all_commands: Sequence[tuple[str, click.Command]]) -> list[str]:
    """One command line."""
    path, command = drawn.choice(all_commands)
    words = path.split()
    own = drawn.choice(NEEDED[path]).split() if path in NEEDED and drawn.random() < 0.8 else []
    words += [drawn.choice(names) if word == "FILE" else word for word in own]
    parameters = [each for each in [*command.params, *EVERYWHERE.values()] if isinstance(each, click.Option)]
    for argument in command.params:
        if isinstance(argument, click.Argument) and not own and drawn.random() < 0.8:
            words.append(drawn.choice([*names, *drawn.sample(TEXTS, 3)]))
    for _ in range(drawn.choice((0, 1, 1, 1, 2))):
        if not parameters:
            break
        option = drawn.choice(parameters)
        flag = drawn.choice([*option.opts, *option.secondary_opts])
        if drawn.random() < 0.08:
            flag = flag[:3] + flag[4:]
        words.append(flag)
        if not option.is_flag and drawn.random() < 0.95:
            is_number = isinstance(option.type, click.IntRange | click.FloatRange | Listed) or option.type in (
                click.INT,
                click.FLOAT,
            )
            # A pipe that nobody reads is waited for, as in a shell.
            known = names if option.name in READ else [name for name in names if name != "pipe"]
            words.append(drawn.choice(NUMBERS if is_number and drawn.random() < 0.85 else (*TEXTS, *known, *known)))
    for flag, value in SMALL.items():
        if any(flag in each.opts for each in parameters) and flag not in words and path in FEW:
            words += [flag, "1" if (path, flag) == ("tune", "--draws") else value]
    return words


def here(words: list[str]) -> tuple[int | str, str]:
    """Exit code, or what it died of, and stderr of a launch in this process."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with at_most(LIMIT_S, signal.ITIMER_REAL), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return run(words), err.getvalue()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1, err.getvalue()
    except BaseException:
        return traceback.format_exc(limit=-3), err.getvalue()


def apart(words: list[str], how: str) -> tuple[int | str, str]:
    """The same of a process whose stdout is closed, full or read no further, or that is interrupted."""
    command = [sys.executable, "-m", "sim.cli.entry", *words]
    shell = {"closed": " >&-", "full": " >/dev/full", "unread": " | head -c 1 >/dev/null", "no input": " <&-"}
    try:
        if how == "interrupted":
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            # Before its first line runs, a signal is the interpreter's to answer.
            time.sleep(random.uniform(*INTERRUPTED_S))
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=LIMIT_S)
            return process.returncode, err
        text = f"{shlex.join(command)}{shell[how]}"
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=LIMIT_S)
        return done.returncode, done.stderr
    except subprocess.TimeoutExpired:
        return f"longer than {LIMIT_S:g} s", ""


def problem(code: int | str, err: str) -> str | None:
    """Fault of the end of a launch; None where there is none."""
    if isinstance(code, str):
        return code
    lines = [line for line in err.splitlines() if not line.startswith(("lanesim: note:", "WARNING", "Usage"))]
    if code not in (0, 1, 2, 130, -signal.SIGINT):
        return f"exit code {code}"
    if "Traceback" in err:
        return err
    if code in (1, 2) and len(lines) != 1 and not err.startswith("Usage"):
        return f"{len(lines)} lines on stderr: {err[:300]}"
    return None


def main(count: int, num_processes: int, seed: int = 41) -> int:
    drawn, wrong, known = random.Random(seed), 0, list(commands())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        names = files(folder)
        before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.is_symlink()}
        os.chdir(folder)
        for number in range(count):
            words = launch(drawn, names, known)
            how = drawn.choice(("closed", "full", "unread", "no input", "interrupted"))
            is_apart = number * num_processes // count != (number + 1) * num_processes // count
            said = problem(*(apart(words, how) if is_apart and "\0" not in "".join(words) else here(words)))
            now = {path: path.read_bytes() for path in before}
            changed = [path.name for path in before if now[path] != before[path] and "--overwrite" not in words]
            before = now
            if said is not None or changed:
                wrong += 1
                way = f" ({how})" if is_apart else ""
                print(f"--- {shlex.join(words)[:400]}{way}\n{said or ''} {changed or ''}", flush=True)
    top_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{count} launches: {wrong} wrong; at most {top_gb:.2f} GB")
    return int(wrong > 0 or top_gb > LIMIT_GB)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
