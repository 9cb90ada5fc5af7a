# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Real probes in this machine's kernel, on a made-up libcuda.

They are pinned in a mount namespace that a process of the test holds: however the test ends, the namespace goes with that process, and the probes with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.modules import ebpf_probe, ebpf_probe_info
from cluster.objects import wait_until
from run_module import run_module

HERE = Path(__file__).parent
BPFFS = "/sys/fs/bpf"  # as processes in the namespace see it


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The library in each entry shape, and the workload."""
    folder = tmp_path_factory.mktemp("fakecuda")
    made = {"workload": folder / "workload"}
    subprocess.run(["gcc", "-O2", "-o", made["workload"], HERE / "workload.c", "-ldl", "-lpthread"], check=True)
    for shape, options in {"thunk": ["-DTHUNK"], "push": []}.items():
        made[shape] = folder / shape / "libcuda.so.1"
        made[shape].parent.mkdir()
        sources = [HERE / "fakecuda.c", HERE / "entries.S"]
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-Wl,--build-id", *options, "-o", made[shape], *sources, "-lpthread"], check=True)
    return made


class Namespace:
    """A mount namespace with a bpf filesystem, and what is attached from it."""

    def __init__(self, holder, state_dir):
        self.pid = holder.pid
        self.root = f"/proc/{holder.pid}/root"
        self.bpffs = f"{self.root}{BPFFS}/gpuops"
        self.maps = Path(self.bpffs) / "cuda_mem/maps"
        self.links = Path(self.bpffs) / "cuda_mem/links"
        self._state_dir = state_dir

    def enter(self, *command):
        return ["nsenter", "--mount", "--target", str(self.pid), *map(str, command)]

    def probe(self, state="present", *, check_mode=False, refused=None, **options):
        """The result of ebpf_probe, which shall be refused as said, or not at all."""
        if "libraries" in options:
            options["libraries"] = [str(path) for path in options["libraries"]]
        places = {"probes": ["cuda_mem"], "bpffs_dir": self.bpffs, "state_dir": str(self._state_dir)}
        result = run_module(ebpf_probe.main, check_mode, state=state, **{"max_allocations": 16384, **places, **options})
        assert result.get("error_kind") == refused, result
        return result

    def info(self, refused=None, probe="cuda_mem"):
        result = run_module(ebpf_probe_info.main, bpffs_dir=self.bpffs, state_dir=str(self._state_dir), probes=[probe])
        assert result.get("error_kind") == refused, result
        return result if refused else result[probe]


@pytest.fixture
def namespace(tmp_path) -> Iterator[Namespace]:
    script = f"mount -t bpf bpf {BPFFS} && echo mounted && exec cat >/dev/null"
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        if holder.stdout.readline() != "mounted\n":
            holder.wait()
            pytest.skip("no bpf filesystem can be mounted here")
        yield Namespace(holder, tmp_path / "state")
        holder.stdin.close()


@pytest.fixture
def container_cgroup():
    """Folders like a container's, in the unified hierarchy and in the memory controller's where that is apart."""
    mounts = [line.split()[1:4] for line in Path("/proc/mounts").read_text().splitlines()]
    roots = {kind: where for where, kind, options in mounts if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(","))}
    identifier = "ab" * 32
    folders = {kind: Path(root, f"gpuops-test-{os.getpid()}", "docker", identifier) for kind, root in roots.items()}
    for folder in folders.values():
        folder.mkdir(parents=True)
    yield identifier, folders
    for folder in folders.values():
        wait_until(lambda folder=folder: not folder.exists() or not (folder / "cgroup.procs").read_text(), "the cgroup empty")
        for each in (folder, folder.parent, folder.parent.parent):
            with contextlib.suppress(FileNotFoundError):  # the test has
                each.rmdir()


class Caller:
    def __init__(self, process):
        self._process = process
        self.own_pid = int(process.stdout.readline())  # as it sees itself
        self.pid = process.pid

    def call(self, name, *arguments):
        """The result and what the function wrote; of a call that succeeds with one value, that value."""
        self._process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def ok(self, name, *arguments):
        result, *written = self.call(name, *arguments)
        assert result == 0
        return written[0] if written else None

    def end(self, how):
        how(self._process)
        self._process.wait()


@pytest.fixture
def caller():
    """Starts processes that call a library as told."""
    started = []

    @contextlib.contextmanager
    def start(library, wrap=()):
        command = [*wrap, sys.executable, str(HERE / "caller.py"), str(library)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            started.append(process)
            try:
                yield Caller(process)
            finally:
                process.kill()

    return start
