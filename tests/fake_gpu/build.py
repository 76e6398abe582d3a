"""Builds the fake CUDA libraries that a torch needs: python -m tests.fake_gpu.build TORCH_FOLDER HEADERS OUT

What runtime.cpp and blas.cpp do not define is a stub that returns 0, under the version that torch asks for.
For Linux on x86-64, with g++, readelf and nm; of a CUDA toolkit the headers alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
RUNTIME, BLAS, DRIVER = "libcudart.so", "libcublas", "libcuda.so.1"
SOURCES = {RUNTIME: "runtime.cpp", BLAS: "blas.cpp"}
UNVERSIONED = ("cusparseLt", "nccl", "cuFile", "nvshmem", "cudnn", "cupti", "curand", "cu")
"""Beginnings of the names of functions that ask for no version, the most telling first."""
OWN = ("fake_launch", "fake_stats", "fake_slower")


def wanted(libraries: Iterable[Path]) -> tuple[dict[str, set[tuple[str, str]]], set[str]]:
    """By the name of a library that CUDA has, what these ask of it: function and version; and other functions."""
    versioned: dict[str, set[tuple[str, str]]] = {}
    others: set[str] = set()
    for path in libraries:
        for line in _lines("readelf", "-W", "-d", str(path)):
            needed = re.search(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl)\S*)\]", line)
            if needed:
                versioned.setdefault(needed[1], set())
        for line in _lines("readelf", "-W", "--dyn-syms", str(path)):
            parts = line.split()
            if len(parts) < 8 or parts[6] != "UND":
                continue
            name, _, version = parts[7].partition("@")
            version = version.lstrip("@")
            if version.startswith(("lib", "NVSHMEM")):
                library = "libnvshmem_host.so.3" if version == "NVSHMEM" else version
                versioned.setdefault(library, set()).add((name, version))
            elif not version and re.match(rf"({'|'.join(UNVERSIONED)})[A-Z_a-z]", name):
                others.add(name)
    return versioned, others


def build(torch_folder: Path, headers: Path, out: Path) -> list[str]:
    """The libraries' names. Raises CalledProcessError where a tool fails."""
    out.mkdir(parents=True, exist_ok=True)
    versioned, others = wanted(sorted((torch_folder / "lib").glob("*.so")))
    runtime = next(name for name in versioned if name.startswith(RUNTIME))
    drivers = {each for each in others if re.match("cu(?!File)[A-Z]", each)}
    for name in sorted(versioned, key=lambda name: name != runtime):
        source = next((SOURCES[start] for start in SOURCES if name.startswith(start)), None)
        objects, defined = [], set()
        if source is not None:
            made = out / f"{name}.o"
            flags = ["-O1", "-fPIC", "-std=c++17", "-w", f"-I{headers}"]
            subprocess.run(["g++", *flags, "-c", str(HERE / source), "-o", str(made)], check=True)
            objects.append(str(made))
            defined = {line.split()[-1] for line in _lines("nm", "--defined-only", str(made))}
        is_mine = {DRIVER: lambda each: each in drivers, runtime: lambda each: each not in drivers}.get(name)
        asked = versioned[name] | {(each, "") for each in others if is_mine is not None and is_mine(each)}
        _link(out, name, asked, objects, defined, [] if name == runtime else [str(out / runtime)])
    return sorted(versioned)


def _link(
    out: Path, name: str, asked: set[tuple[str, str]], objects: list[str], defined: set[str], beside: list[str]
) -> None:
    stubs, versions = out / "stubs.s", out / "versions.map"
    code = [".text"]
    for each in sorted({each for each, _ in asked} - defined):
        code += [f".globl {each}", f".type {each},@function", f"{each}: xorl %eax,%eax", " ret"]
    stubs.write_text("\n".join([*code, '.section .note.GNU-stack,"",@progbits', ""]))
    by_version: dict[str, list[str]] = {}
    for each, version in sorted(asked):
        if version:
            by_version.setdefault(version, []).append(each)
    if name.startswith(RUNTIME):
        by_version["FAKE"] = list(OWN)
    versions.write_text("".join(f"{key} {{ global: {'; '.join(of)}; }};\n" for key, of in by_version.items()))
    script = [f"-Wl,--version-script={versions}"] if by_version else []
    command = ["g++", "-shared", "-o", str(out / name), *objects, str(stubs), f"-Wl,-soname,{name}", *script, *beside]
    subprocess.run(command, check=True)


def _lines(*command: str) -> list[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    print(" ".join(build(*map(Path, sys.argv[1:]))))
