# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node in a virtual machine, as it was after its first boot, and our modules in it."""

from __future__ import annotations

import compileall
import contextlib
import io
import json
import py_compile
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ansible
import gpusim
import pynvml
from gpusim.build import default_cache, nvml_library
from ports import free_port

from vm.image import STATE, image
from vm.qemu import Qemu, VmError
from vm.ssh import Ssh

_PLUGINS = Path(__file__).resolve().parents[3] / "plugins"
INSIDE = "/opt/gpuops"


class Machine:
    def __init__(self, qemu: Qemu, ssh: Ssh) -> None:
        self.port = qemu.port
        self.ssh = ssh
        self._server: subprocess.Popen[str] | None = None

    def run(self, script: str, check: bool = True, timeout_seconds: float = 300) -> str:
        return self.ssh.run(script, check=check, timeout_seconds=timeout_seconds)

    def module(self, name: str, check_mode: bool = False, **params: Any) -> dict[str, Any]:
        """What a playbook would get."""
        server = self.serve()
        assert server.stdin and server.stdout
        server.stdin.write(json.dumps([name, {"check_mode": check_mode, **params}]) + "\n")
        server.stdin.flush()
        answer: dict[str, Any] = json.loads(server.stdout.readline())
        return answer

    def host_variables(self) -> dict[str, Any]:
        """For an inventory."""
        return {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": "root",
            "ansible_ssh_args": " ".join(self.ssh.arguments),
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_pipelining": True,
        }

    def close(self) -> None:
        if self._server:
            self._server.kill()
            self._server.communicate()

    def serve(self) -> subprocess.Popen[str]:
        if self._server is None:
            self.ssh.run(f"mkdir -p {INSIDE}/ansible && cd {INSIDE} && : >ansible/__init__.py && tar -xzf -", stdin=_sources())
            command = self.ssh.command(f"cd {INSIDE} && exec python3 serve.py")
            self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
        return self._server


def _sources() -> bytes:
    """What Ansible would send along with a module, for all of them, and compiled: it is slow work without a CPU of one's own."""
    own = Path(__file__).resolve()
    packages = {
        Path(ansible.__file__).parent / "module_utils": "ansible/module_utils",
        _PLUGINS / "modules": "ansible_collections/gpuops/remediation/plugins/modules",
        _PLUGINS / "module_utils": "ansible_collections/gpuops/remediation/plugins/module_utils",
        Path(gpusim.__file__).parent: "gpusim",
    }
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        for source, target in packages.items():
            shutil.copytree(source, Path(folder, target), ignore=shutil.ignore_patterns("__pycache__", "powershell", "csharp"))
        for file in (own.with_name("serve.py"), own.parents[1] / "run_module.py", Path(pynvml.__file__), nvml_library(default_cache())):
            shutil.copy2(file, folder)
        compileall.compile_dir(folder, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        tar.add(folder, ".")
    return packed.getvalue()


@contextlib.contextmanager
def running_machine() -> Iterator[Machine]:
    """A clone of the booted image. What is done in it is gone with it."""
    folder = image()
    with tempfile.TemporaryDirectory(prefix="gpuops-vm-") as own:
        qemu = Qemu(folder, Path(own), free_port(), ["-incoming", f"exec:zstd -dcq '{folder / STATE}'"])
        ssh = Ssh(folder, Path(own), qemu.port)
        machine = Machine(qemu, ssh)
        try:
            ssh.connect(qemu.alive, 600)
            ssh.run(f"date -s @{time.time():.0f}")  # its clock stood still
            yield machine
        except VmError as error:
            raise VmError(f"{error}\n{qemu.last_words()}") from error
        finally:
            machine.close()
            ssh.close()
            qemu.kill()
