"""`lanesim validate`: one command, whose form is chosen by what it is given. No torch."""

from __future__ import annotations

import pytest

from sim.cli.main import run


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("validate", "Write `lanesim validate DIRECTORY`"),
        ("validate cells", "Write `lanesim validate FILE [REQUESTS.csv|PROMPTS.jsonl]`"),
        ("validate ./cells", "cells"),
        ("validate r s", "Write `lanesim validate DIRECTORY`"),
        ("validate vllm --profile cpu/tiny", "Write `lanesim validate FILE [REQUESTS.csv|PROMPTS.jsonl]`"),
        ("validate cells t.csv", "Missing option '--profile'"),
        ("validate http://localhost:1 --profile cpu/tiny --request-rate inf", "Give --request-rate"),
        ("validate r --profil p.json", "No such option"),
        ("validate nofile.json", "'nofile.json' is no file or directory"),
    ],
)
def test_a_line_that_fits_no_form_is_refused(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert says in message
