# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One QEMU process, without KVM: it runs where the tests do, which may be a virtual machine itself."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PROGRAM = "qemu-system-x86_64"
MEMORY_MIB = 512
# A saved state is one of exactly this machine. Nehalem: newer CPU models cost more to imitate, and systemd fails on some of them.
_MACHINE = ["-M", "q35", "-accel", "tcg,thread=multi,tb-size=128", "-cpu", "Nehalem", "-smp", "1", "-m", str(MEMORY_MIB)]
_KERNEL = "console=ttyS0 quiet panic=10 mitigations=off net.ifnames=0"
_DEVICES = ["-device", "virtio-blk-pci,drive=disk", "-device", "virtio-net-pci,netdev=net", "-device", "virtio-rng-pci"]


class VmError(Exception):
    """What went wrong with a virtual machine, with the end of what it said."""


def version() -> str:
    """Of the machine's own."""
    return subprocess.run([_PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def _program(image: Path) -> list[str]:
    """The image's own QEMU, if it has one."""
    own = image / "qemu" / "usr"
    folders = [word for name in ("qemu", "seabios") for word in ("-L", str(own / "share" / name))]
    return [str(own / "bin" / _PROGRAM), *folders] if own.exists() else [_PROGRAM]


class Qemu:
    """`image` is a folder that image.sh filled; nothing is written there unless `writes`. It ends with the process that started it."""

    def __init__(self, image: Path, folder: Path, port: int, options: Sequence[str] = (), writes: bool = False) -> None:
        self.port = port
        self.console = folder / "console.log"
        self._errors = folder / "qemu.log"
        disk = ["-drive", f"if=none,id=disk,format=raw,file={image / 'disk.img'}", *([] if writes else ["-snapshot"])]
        net = ["-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22"]
        boot = ["-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd"), "-append", _KERNEL]
        talk = ["-nodefaults", "-display", "none", "-serial", f"file:{self.console}", "-qmp", "stdio"]
        command = ["setpriv", "--pdeathsig=KILL", *_program(image), *_MACHINE, *talk, *boot, *disk, *net, *_DEVICES, *options]
        with self._errors.open("w") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def alive(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        texts = [path.read_text(errors="replace") for path in (self._errors, self.console) if path.exists()]
        return "\n".join("\n".join(texts).splitlines()[-20:])

    def save(self, state: Path) -> None:
        """The machine's memory and devices, compressed; it stands still from then on."""
        self._ask("qmp_capabilities")
        self._ask("migrate-set-parameters", **{"max-bandwidth": 1 << 33})
        self._ask("migrate", uri=f"exec:zstd -q -3 -o '{state}'")
        while (told := self._ask("query-migrate")["status"]) != "completed":
            if told in ("failed", "cancelled"):
                raise VmError(f"the machine's state could not be saved: {self.last_words()}")
            time.sleep(0.1)
        self._ask("quit")
        self._process.wait(30)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()

    def _ask(self, command: str, **arguments: Any) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            answer = json.loads(line)
            if "error" in answer:
                raise VmError(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
        raise VmError(f"QEMU ended: {self.last_words()}")
