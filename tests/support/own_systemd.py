# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A systemd as process 1, over this machine's own files, of which it writes none."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from cluster.objects import wait_until
from loop import children
from own_cgroup import OwnCgroup, mount_of

# The cgroup is entered as process 1 of its own, before it becomes the root of what is seen: systemd wants to be alone there.
_ENTER = 'echo 0 >"$1/cgroup.procs" && exec unshare --cgroup sh -euc "$2" "$0" "$@"'
_BOOT = r"""
base=$3
shift 3
mount --make-rprivate /
mount -t tmpfs -o mode=755 machine "$base"
mkdir "$base/upper" "$base/work" "$base/root"
mount -t overlay -o "lowerdir=/,upperdir=$base/upper,workdir=$base/work" machine "$base/root"
cd "$base/root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for folder in dev run tmp; do
    mount -t tmpfs -o mode=755 machine $folder
done
chmod 1777 tmp
for device in null zero full random urandom tty; do
    touch dev/$device
    mount --bind /dev/$device dev/$device
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 machine dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
while [ $# -gt 0 ]; do
    mkdir -p ".$2"
    mount --bind "$1" ".$2"
    mount -o remount,bind,ro ".$2"
    shift 2
done
# A bare start: nothing of what this machine starts, and nothing that would set up the kernel, which is everybody's.
mount -t tmpfs -o mode=755 machine lib/systemd/system-generators
rm -rf etc/systemd/system
mkdir etc/systemd/system
for unit in $(ls lib/systemd/system/sysinit.target.wants); do
    [ $unit = systemd-journald.service ] || ln -s /dev/null etc/systemd/system/$unit
done
systemd-id128 new >etc/machine-id
pivot_root . .
umount -l .
mount --make-rshared / # systemd mounts a unit's credentials from a namespace of its own
exec env -i container=other PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    setpriv --bounding-set -sys_boot,-sys_module,-sys_rawio,-sys_time /lib/systemd/systemd --system --unit=basic.target
"""
_NAMESPACES = ["--pid", "--mount", "--uts", "--ipc"]


class OwnSystemd:
    """`root` is its root folder as this process sees it; links in it that are absolute lead elsewhere from here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.root = Path(f"/proc/{pid}/root")

    def run(
        self,
        *command: str,
        user: str = "root",
        environment: Mapping[str, str] | None = None,
        check: bool = True,
        timeout_seconds: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """As a unit of its own, for which processes in other cgroups are somebody else's."""
        settings = [f"--setenv={name}={value}" for name, value in (environment or {}).items()]
        unit = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--service-type=exec", f"--uid={user}", *settings, "--"]
        return self._inside(*unit, *command, check=check, timeout_seconds=timeout_seconds)

    def systemctl(self, *arguments: str, check: bool = True, timeout_seconds: float = 120) -> str:
        return self._inside("systemctl", *arguments, check=check, timeout_seconds=timeout_seconds).stdout.strip()

    def show(self, unit: str, what: str) -> str:
        return self.systemctl("show", "--value", f"--property={what}", unit)

    def journal(self, *arguments: str) -> str:
        return self._inside("journalctl", "--output=cat", *arguments).stdout

    def members(self, unit: str) -> list[int]:
        """The processes in a unit's cgroup and below, as they are numbered inside."""
        below = ["find", f"/sys/fs/cgroup/system.slice/{unit}", "-name", "cgroup.procs", "-exec", "cat", "{}", "+"]
        return [int(pid) for pid in self._inside(*below, check=False).stdout.split()]

    def _inside(self, *command: str, check: bool = True, timeout_seconds: float = 120) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["nsenter", f"--target={self.pid}", *_NAMESPACES, "--cgroup", "--", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done


@contextlib.contextmanager
def running_systemd(folder: Path, read_only: Mapping[Path, str]) -> Iterator[OwnSystemd]:
    """`folder` is empty and stays so; `read_only` are folders of this machine, and where they are inside."""
    hierarchy = mount_of("cgroup2")
    assert hierarchy, "cgroup v2 is not mounted"
    cgroup = OwnCgroup(hierarchy, hierarchy)
    binds = [str(end) for source, target in read_only.items() for end in (source.resolve(), target)]
    script = ["sh", "-euc", _ENTER, "machine", str(cgroup.folder), _BOOT, str(folder), *binds]
    # The first word ends it with this process, the second with the first.
    command = ["setpriv", "--pdeathsig=KILL", "unshare", *_NAMESPACES, "--fork", "--kill-child", *script]
    with (folder.parent / "systemd.log").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield _booted(process, Path(log.name))
    finally:
        process.kill()
        process.wait()
        cgroup.remove()


def _booted(process: subprocess.Popen[bytes], log: Path) -> OwnSystemd:
    def first() -> int:
        assert process.poll() is None, log.read_text()
        for pid in children(process.pid):
            with contextlib.suppress(OSError):  # one of the script's, and gone
                if Path(f"/proc/{pid}/comm").read_text() == "systemd\n" and Path(f"/proc/{pid}/root/run/systemd/private").exists():
                    return pid
        return 0

    machine = OwnSystemd(wait_until(first, "systemd as process 1", 60))
    state = machine.systemctl("is-system-running", "--wait", check=False)
    assert state == "running", state + machine.systemctl("list-units", "--failed") + machine.journal()
    return machine
