"""The real vLLM's page, without vLLM: which cores a server and its client have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from validation.replays import real_vllm


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no processor affinity here")
def test_every_server_has_the_first_core_and_its_client_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not the first server alone: what the client may run on is no more what the next server may."""
    before = os.sched_getaffinity(0)
    servers: list[set[int]] = []

    class Server:
        def __init__(self, *_: Any, **__: Any) -> None:
            servers.append(os.sched_getaffinity(0))

        def terminate(self) -> None: ...

        def wait(self) -> None: ...

    monkeypatch.setattr(real_vllm.subprocess, "Popen", Server)
    monkeypatch.setattr(real_vllm, "_answers", lambda: True)
    clients = []
    for _ in range(2):
        with real_vllm.serving(tmp_path / "models", real_vllm.SERVERS["off"]):
            clients.append(os.sched_getaffinity(0))
    first = {min(before)}
    assert servers == [first] * 2
    assert clients == [before - first or before] * 2
    assert os.sched_getaffinity(0) == before
