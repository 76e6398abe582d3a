"""vLLM's speculative_config, verbatim."""

from __future__ import annotations

import pytest

from sim.cli.main import run
from sim.run.vllm_config import speculation_of
from tests.properties import assert_refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"method": "eagle4", "num_speculative_tokens": 1}', "Did you mean 'eagle'"),
        ('{"num_speculative_token": 1}', "Did you mean 'num_speculative_tokens'"),
        ('{"method": "mtp"}', "num_speculative_tokens is missing"),
    ],
)
def test_what_cannot_be_is_one_line(text: str, message: str) -> None:
    assert_refused(lambda: speculation_of(text), message)


def test_the_command_line_takes_it_and_other_flags_win(capsys: pytest.CaptureFixture[str]) -> None:
    config = '{"model": "some/draft", "num_speculative_tokens": 2}'
    flags = ["compare", "--verbose", "--profile", "cpu/tiny", "--policy", "continuous", "--num-prompts", "5"]
    flags += ["--request-rate", "9"]
    assert run([*flags, "--speculative-config", config]) == 0
    assert "k=2" in capsys.readouterr().out
    assert run([*flags, "--speculative-config", config, "--num-speculative-tokens", "3"]) == 0
    assert "k=3" in capsys.readouterr().out


def test_a_key_that_changes_no_time_is_left_out_with_a_warning() -> None:
    text = '{"method": "eagle3", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}'
    with pytest.warns(UserWarning, match="draft_tensor_parallel_size does not change"):
        assert speculation_of(text) == {"method": "eagle3", "num_speculative_tokens": 3}
