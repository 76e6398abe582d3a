"""Two processes beside each other, on this CPU: what is kept of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from validation.replays import two_processes


@pytest.mark.slow
def test_both_processes_are_rated_alone_and_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, sizes in (("CHUNKS", (16,)), ("ROWS", (1,))):
        monkeypatch.setattr(two_processes, name, {"cpu": sizes})
    out = tmp_path / "two.json"
    two_processes.main(out, "cpu", window_s=0.1)
    (cell,) = json.loads(out.read_text())["cells"]
    assert (cell["chunk_tokens"], cell["rows"]) == (16, 1)
    assert all(each > 0.0 for each in cell["alone_s"])
    assert [len(side) for side in cell["rates"]] == [two_processes.ROUNDS] * 2
    assert all(rate > 0.0 for side in cell["rates"] for rate in side)
