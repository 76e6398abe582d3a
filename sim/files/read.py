"""The only module that opens a user's file to read it: what may be opened, how much of it, and its lines.

Refused before a byte is parsed: what is no regular file (a device or a pipe may never end), what is larger than such a
file can sensibly be, what is not UTF-8, and lines without end. Every refusal is a ValueError of one line that begins
with the file. Nothing that is read is ever executed.
Not here: JSON (sim.files.json_values), YAML (sim.files.yaml_values), CSV and Parquet (sim.files.arrow_tables), writing.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

MIB = 1 << 20
MAX_CONFIG_BYTES = MIB
"""A scenario or a grid: hand-written, a few KB; YAML is slow to read."""
MAX_BYTES = 256 * MIB
"""A JSON file that is read at once: profiles and summaries are KBs, measured tables a few MB."""
MAX_TABLE_BYTES = 4096 * MIB
"""A table that is read row by row."""
MAX_LINES = 10_000_000
"""Lines of such a table: as many requests as a run may have."""
MAX_UNPACKED, FREE_UNPACKED_BYTES = 50, 16 * MIB
"""Times its size that an archive of more than so many bytes may unpack to: tables of text pack to a tenth, an archive
that is made to fill a memory to a thousandth."""
MAX_LINE_BYTES = 16 * MIB
"""One line of such a table."""
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that a terminal obeys or no file can hold; tab and line ends are none of them."""


class Unreadable(ValueError):
    """A file that is not there or may not be opened, as opposed to one whose content is wrong."""


def opened(path: str | Path, what: str, *, max_bytes: int = MAX_BYTES) -> BinaryIO:
    """A regular file of at most `max_bytes`, open to read; `what` it is begins every message: `profile`, `trace`."""
    where = f"{what} {str(path)!r}"
    try:
        # Opening a pipe that nobody writes to would wait for ever.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise Unreadable(f"{where} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise Unreadable(f"{where} cannot be read: no path holds a null character") from None
    about = os.fstat(handle)
    problem = None
    if stat.S_ISDIR(about.st_mode):
        problem = "is a directory. Give a file"
    elif not stat.S_ISREG(about.st_mode):
        problem = "is a device or a pipe, which may never end. Give a regular file"
    elif about.st_size > max_bytes:
        problem = f"has {about.st_size / MIB:.0f} MiB, and at most {max_bytes // MIB} are read"
    if problem is not None:
        os.close(handle)
        raise Unreadable(f"{where} {problem}")
    return os.fdopen(handle, "rb")


def read_bytes(path: str | Path, what: str, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The whole file. Raises Unreadable."""
    with opened(path, what, max_bytes=max_bytes) as file:
        try:
            content = file.read(max_bytes + 1)
        except OSError as error:
            raise Unreadable(f"{what} {str(path)!r} cannot be read: {error.strerror or error}") from None
    if len(content) > max_bytes:
        raise Unreadable(f"{what} {str(path)!r} has more than the {max_bytes // MIB} MiB that are read")
    return content


def read_text(path: str | Path, what: str, *, max_bytes: int = MAX_BYTES) -> str:
    """The whole file as text, a byte-order mark taken off. Raises ValueError naming the line that is not UTF-8."""
    content = read_bytes(path, what, max_bytes=max_bytes)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{what} {str(path)!r} line {line}: not UTF-8 text") from None


def lines_of(path: str | Path, what: str) -> Iterator[tuple[int, str]]:
    """Lines with their ends, from 1; unpacked where the name ends in .gz. Raises ValueError naming the line."""
    with ExitStack() as stack:
        file, most = stack.enter_context(opened(path, what, max_bytes=MAX_TABLE_BYTES)), MAX_TABLE_BYTES
        if str(path).endswith(".gz"):
            most = min(most, max(FREE_UNPACKED_BYTES, MAX_UNPACKED * os.fstat(file.fileno()).st_size))
            file = cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=file)))
        number = num_bytes = 0
        while True:
            try:
                line = file.readline(MAX_LINE_BYTES + 1)
            except OSError as error:
                raise Unreadable(f"{what} {str(path)!r} cannot be read: {error.strerror or error}") from None
            except (EOFError, zlib.error) as error:
                raise ValueError(f"{what} {str(path)!r} line {number + 1}: damaged archive: {error}") from None
            if not line:
                return
            number += 1
            num_bytes += len(line)
            if num_bytes > most:
                raise ValueError(f"{what} {str(path)!r} has more than the {most // MIB} MiB that are read")
            if number > MAX_LINES:
                raise ValueError(f"{what} {str(path)!r} has more than the {MAX_LINES:,} lines that are read")
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(
                    f"{what} {str(path)!r} line {number}: longer than {MAX_LINE_BYTES // MIB} MiB. Give a text file"
                )
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise ValueError(f"{what} {str(path)!r} line {number}: not UTF-8 text") from None


def printable(text: str) -> str:
    """`text` with everything that a terminal would obey written out, for one line of a message."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)
