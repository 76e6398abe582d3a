"""NVIDIA's kernel tables: inside an installed package, or in a wheel that is not installed, which is
unpacked into the user's cache folder once.

Not here: what tables hold (calibrate.importers.aiconfigurator), models by name (published_models).
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from sim.files.read import Unreadable, opened
from sim.names import install_line

VARIABLE = "LANESIM_TABLES"
"""Environment variable that names a wheel."""
PACKAGES = {"aisimulate_core": "aisimulate", "aiconfigurator_core": "aiconfigurator-core"}
"""Module with tables -> its distribution; the successor first."""
LICENCE = "NVIDIA, Apache-2.0, 82 MB"
SYSTEMS = "systems"
MEMBER = re.compile(rf"\w+_core/{SYSTEMS}/(\w+\.yaml|data/.+\.parquet)")
"""A wheel's files to unpack."""
MAX_BYTES = 2 << 30
"""Most bytes of these files, sixteen times those of 2026: a wheel of a few KB can unfold to more than a disk holds."""


def published_tables() -> tuple[Path, str]:
    """The folder and revision of tables: of the wheel that LANESIM_TABLES names, else of the first of PACKAGES
    installed. Raises ValueError without tables, with the command that installs them."""
    known = _known()
    if known is None:
        raise ValueError(
            f"no kernel tables: {install_line('tables')} ({LICENCE}), or name a wheel in {VARIABLE} or as PATH"
        )
    return known


def tables_of_wheel(path: Path) -> tuple[Path, str]:
    """Folder and revision of a wheel's tables, unpacked once under a checksum. Raises ValueError where it has none."""
    try:
        with opened(path, "wheel") as file, ZipFile(file) as wheel:
            checksums = str([(each.filename, each.CRC) for each in wheel.infolist()])
            folder = cache_folder("tables") / f"{path.stem}-{sha256(checksums.encode()).hexdigest()[:8]}"
            if not folder.is_dir():
                _unpack(wheel, folder)
    except (OSError, Unreadable, BadZipFile) as error:
        raise ValueError(f"{path} must be a wheel of {' or '.join(PACKAGES.values())}: {error}") from error
    return next(folder.glob(f"*/{SYSTEMS}")), " ".join(path.stem.split("-")[:2])


def cache_folder(kind: str) -> Path:
    """The user's folder for what can be made again: below XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lanesim" / kind


def _known() -> tuple[Path, str] | None:
    if wheel := os.environ.get(VARIABLE):
        return tables_of_wheel(Path(wheel))
    for module, distribution in PACKAGES.items():
        spec = find_spec(module)
        if spec is not None and spec.origin is not None:
            return Path(spec.origin).parent / SYSTEMS, f"{distribution} {version(distribution)}"
    return None


def _unpack(wheel: ZipFile, folder: Path) -> None:
    members = [name for name in wheel.namelist() if MEMBER.fullmatch(name)]
    if not members:
        raise BadZipFile("it holds no kernel tables")
    if (num_bytes := sum(wheel.getinfo(name).file_size for name in members)) > MAX_BYTES:
        raise BadZipFile(f"its tables take {num_bytes:,} bytes, over {MAX_BYTES:,}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as part:
        wheel.extractall(Path(part) / folder.name, members)
        (Path(part) / folder.name).rename(folder)
