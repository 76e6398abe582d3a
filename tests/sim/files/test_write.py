"""Files and folders appear whole; destinations are checked, compared with inputs and locked."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sim.files.lock import destinations
from sim.files.write import new_folder, write_text


def content(folder: Path) -> dict[str, str]:
    """Every file below `folder`, hidden ones among them."""
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_file_is_replaced_whole_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    write_text(tmp_path / "new" / "a.json", "1")
    write_text(tmp_path / "new" / "a.json", "2")
    assert content(tmp_path) == {"new/a.json": "2"}


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    write_text(tmp_path / "a.json", "old")
    monkeypatch.setattr(os, "replace", interrupt)
    with suppress(KeyboardInterrupt):
        write_text(tmp_path / "a.json", "half")
    assert content(tmp_path) == {"a.json": "old"}


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "x"


@pytest.mark.parametrize("has_links", [True, False])
def test_a_folder_is_replaced_whole_and_keeps_what_it_is_told_to(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links on this file system")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    out = tmp_path / "out"
    with new_folder(out) as scratch:
        (scratch / "a").write_text("1")
        (scratch / "b").write_text("1")
    (out / "notes").mkdir()
    (out / "notes" / "mine").write_text("mine")
    with new_folder(out, keeps=lambda name: name != "b") as scratch:
        (scratch / "a").write_text("2")
        assert content(out) == {"a": "1", "b": "1", "notes/mine": "mine"}
    assert content(tmp_path) == {"out/a": "2", "out/notes/mine": "mine"}


def test_a_folder_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as scratch:
        (scratch / "a").write_text("1")
    with suppress(RuntimeError), new_folder(tmp_path / "out") as scratch:
        (scratch / "a").write_text("2")
        raise RuntimeError
    assert content(tmp_path) == {"out/a": "1"}


def killed(code: str, folder: Path) -> None:
    """What a process leaves that ends, without cleaning up, where `code` says."""
    start = "import os, sys\nfrom pathlib import Path\nfrom sim.files import write\nfolder = Path(sys.argv[1])\n"
    assert subprocess.run([sys.executable, "-c", start + code, str(folder)], check=False).returncode == 9


def killed_between_two_renames(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "a").write_text("1")
    killed(
        "def hook(event, args):\n"
        "    if event == 'os.rename' and str(args[1]) == str(folder / 'out'): os._exit(9)\n"
        "sys.addaudithook(hook)\n"
        "with write.new_folder(folder / 'out'): pass",
        folder,
    )
    assert not (folder / "out").exists()


def test_what_was_moved_away_is_kept_where_another_folder_has_taken_its_name(tmp_path: Path) -> None:
    killed_between_two_renames(tmp_path)
    (tmp_path / "out").mkdir()
    with (
        pytest.raises(ValueError, match="part-lanesim-old' is what a killed run moved away"),
        new_folder(tmp_path / "out"),
    ):
        pass
    assert [text for name, text in content(tmp_path).items() if name.endswith("-old/a")] == ["1"]


def assert_refused_to(problem: str, **wanted: Any) -> None:
    with pytest.raises(ValueError, match=problem), destinations(**wanted):
        pass


def test_an_output_that_is_an_input_is_refused_under_every_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    read = tmp_path / "x.yaml"
    read.write_text("a: 1")
    (tmp_path / "link").symlink_to(read)
    os.link(read, tmp_path / "hard")
    for name in ("x.yaml", "./x.yaml", str(read), "link", "hard", "missing/../x.yaml"):
        assert_refused_to(r"^--json .* is read, too", files={"--json": name}, inputs=["x.yaml"])
    write_text(tmp_path / "r" / "s.yaml", "")
    assert_refused_to("^--out .* holds 'r/s.yaml', which", folders={"--out": tmp_path / "r"}, inputs=["r/s.yaml"])


def test_two_outputs_in_one_place_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert_refused_to("Choose another", files={"--json": out, "--fitted": str(out)})
    assert_refused_to("Choose another", files={"--json": out}, folders={"--out": out})
    given = {"files": {"--json": out / "summary.json"}, "folders": {"--out": out}}
    assert_refused_to("Choose another", **given, own_names=("summary.json",))
    with destinations(files={"--json": out / "own.json"}, folders={"--out": out}, own_names=("summary.json",)):
        pass
    assert content(tmp_path) == {}


def test_places_that_cannot_be_written_are_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for files, folders, problem in (
        ({"--json": tmp_path}, {}, "is a directory. Give a file"),
        ({"--json": tmp_path / "file" / "x"}, {}, "cannot be written: "),
        ({"--json": "a\0b"}, {}, "cannot be written: "),
        ({"--json": "x" * 300}, {}, "cannot be written: File name too long"),
        ({}, {"--out": tmp_path / "file"}, "is a file. Give a directory"),
        ({}, {"--out": Path()}, "is the directory that this runs in"),
        ({}, {"--out": Path("/proc")}, "is a mount point"),
    ):
        assert_refused_to(problem, files=files, folders=folders)


def test_streams_and_stdout_are_written_as_they_are() -> None:
    with destinations(files={"--json": "/dev/null", "--more": "-", "--none": None}):
        write_text(Path("/dev/null"), "x")
