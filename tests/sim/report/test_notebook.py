"""A comparison shows its tables once, whoever asks: print, a notebook, IPython in a terminal."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import pytest

import lanesim


class ZMQInteractiveShell:
    """What rich takes for a notebook, by its name."""


def comparison() -> lanesim.Comparison:
    return lanesim.compare(profile="cpu/tiny", policy=("baseline", "pd"), num_prompts=4, request_rate=5)


def test_in_a_notebook_a_comparison_shows_its_tables_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing displays itself by the way, which would need IPython."""
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    found = comparison()
    assert found._repr_html_().count("p99 ms") == str(found).count("p99 ms") > 0


def test_ipython_shows_the_tables_in_place_of_every_field() -> None:
    class Printer:
        shown = ""

        def text(self, part: str) -> None:
            self.shown += part

    found, printer = comparison(), Printer()
    show: Callable[[Any, bool], None] = found._repr_pretty_
    show(printer, False)
    assert printer.shown == str(found)
