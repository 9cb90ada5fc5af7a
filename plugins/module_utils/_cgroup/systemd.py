# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""systemd's cgroup properties over D-Bus. It is never asked to reload (S13): properties of a running unit are set without."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limit_files import device_numbers
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limits import IO_KEYS, MAX, BadLimit, Value
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.state import CgroupError

_BUS = "org.freedesktop.systemd1"
_RUNNING = "/run/systemd/system"
_PERSISTENT = "/etc/systemd/system.control"
_TRANSIENT = "/run/systemd/transient"
_CGROUPS = "/sys/fs/cgroup"
_INFINITY = (1 << 64) - 1
_USEC = 1_000_000
_NUMBERS = {
    "memory_max": "MemoryMax",
    "memory_high": "MemoryHigh",
    "memory_low": "MemoryLow",
    "memory_swap_max": "MemorySwapMax",
    "cpu_weight": "CPUWeight",
    "pids_max": "TasksMax",
}
_IO = dict(zip(IO_KEYS, ("IOReadBandwidthMax", "IOWriteBandwidthMax", "IOReadIOPSMax", "IOWriteIOPSMax")))
_QUOTA, _PERIOD = "CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec"
_ALL = (*_NUMBERS.values(), _QUOTA, _PERIOD, *_IO.values())
_DEFAULT_PERIOD_USEC = 100_000
_PAGE_BYTES = 4096


class SystemdError(CgroupError):
    kind = "systemd"


@dataclass(frozen=True)
class Unit:
    """`cgroup` is empty where it does not run; `limits` are as the kernel would have them."""

    name: str
    cgroup: str
    delegates: bool
    limits: Mapping[str, Value]
    transient: bool = False  # made by a program: there is nothing of it after a boot


class Systemd:
    """The system's manager. `Systemd.running(cgroup_root)` is None where there is none, or where the cgroups are not its."""

    def __init__(self, busctl: str, timeout_seconds: float = 20) -> None:
        self._busctl = busctl
        self._timeout_seconds = timeout_seconds

    @classmethod
    def running(cls, cgroup_root: str) -> Systemd | None:
        if not os.path.isdir(_RUNNING) or os.path.realpath(cgroup_root) != _CGROUPS:
            return None
        busctl = shutil.which("busctl", path="/usr/bin:/bin")
        if busctl is None:
            raise SystemdError("systemd runs here, and busctl, by which it is asked, is not installed")
        return cls(busctl)

    def read(self, name: str) -> Unit:
        """Also of one that there is not, which has no cgroup. Asking for a unit's object loads it, which changes nothing."""
        path = "/org/freedesktop/systemd1/unit/" + "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):02x}" for c in name)
        interface = f"{_BUS}.{name.rsplit('.', 1)[1].capitalize()}"
        lines = self._run("get-property", _BUS, path, interface, "ControlGroup", "Delegate", *_ALL).splitlines()
        cgroup, delegates, *told = (json.loads(line)["data"] for line in lines)
        if cgroup:
            name = unit_name(cgroup)  # it may have been asked for by an alias
        return Unit(name, cgroup, delegates, from_properties(dict(zip(_ALL, told))), Path(_TRANSIENT, name).exists())

    def persistent(self, unit: str) -> set[str]:
        """The names of the limits that outlive a boot by a file of systemd's own."""
        folder = Path(_PERSISTENT, f"{unit}.d")
        files = {name: [f"50-{prop}.conf"] for name, prop in _NUMBERS.items()}
        files["cpu_max"] = ["50-CPUQuota.conf"]
        found = {name for name, wanted in files.items() if all((folder / file).exists() for file in wanted)}
        return found | ({"io_max"} if any((folder / f"50-{prop}.conf").exists() for prop in _IO.values()) else set())

    def set(self, unit: str, values: Mapping[str, Value], persistent: bool) -> None:
        properties = to_properties(values)
        arguments = [unit, str(not persistent).lower(), str(len(properties))]
        for name, signature, words in properties:
            arguments += [name, signature, *words]
        self._call("SetUnitProperties", "sba(sv)", *arguments)

    def start(self, unit: str) -> None:
        self._call("StartUnit", "ss", unit, "replace")

    def stop(self, unit: str) -> None:
        self._call("StopUnit", "ss", unit, "replace")

    def _call(self, method: str, signature: str, *arguments: str) -> None:
        self._run("call", _BUS, "/org/freedesktop/systemd1", f"{_BUS}.Manager", method, signature, *arguments)

    def _run(self, *arguments: str) -> str:
        command = [self._busctl, "--system", "--json=short", f"--timeout={self._timeout_seconds:.0f}", *arguments]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self._timeout_seconds + 5,
                check=False,
                env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SystemdError(f"systemd cannot be asked ({' '.join(arguments)}): {error}") from error
        if done.returncode:
            raise SystemdError(f"systemd refused {' '.join(arguments[3:])}: {done.stderr.strip()}")
        return done.stdout


def unit_name(path: str) -> str:
    """Of the unit that has this cgroup: a name that would be like one of the kernel's files has an underscore in front."""
    name = path.rsplit("/", 1)[1]
    return name[1:] if name.startswith("_") else name


def from_properties(told: Mapping[str, Any]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, prop in _NUMBERS.items():
        number = int(told[prop])
        if name == "cpu_weight":
            values[name] = 100 if number == _INFINITY else number
        else:
            values[name] = MAX if number == _INFINITY else number // _PAGE_BYTES * _PAGE_BYTES if name.startswith("memory") else number
    period = _DEFAULT_PERIOD_USEC if told[_PERIOD] == _INFINITY else int(told[_PERIOD])
    values["cpu_max"] = f"{MAX if told[_QUOTA] == _INFINITY else int(told[_QUOTA]) * period // _USEC} {period}"
    devices: dict[str, dict[str, int | str]] = {}
    for key, prop in _IO.items():
        for device, number in told[prop]:
            if number != _INFINITY:
                with contextlib.suppress(BadLimit):  # a unit's file may name what is not here, or no disk
                    devices.setdefault(device_numbers(device), dict.fromkeys(IO_KEYS, MAX))[key] = int(number)
    values["io_max"] = devices
    return values


def to_properties(values: Mapping[str, Value]) -> list[tuple[str, str, list[str]]]:
    """Name, D-Bus signature and words of each property."""
    found = [(_NUMBERS[name], "t", [_number(value)]) for name, value in values.items() if name in _NUMBERS]
    if "cpu_max" in values:
        quota, period = str(values["cpu_max"]).split()
        per_second = _INFINITY if quota == MAX else int(quota) * _USEC // int(period)
        if quota != MAX and (int(quota) * 100 % int(period) or per_second == 0):
            raise BadLimit(f"cpu_max: {values['cpu_max']} is no whole percentage of a CPU, and systemd keeps nothing finer")
        found += [(_QUOTA, "t", [str(per_second)]), (_PERIOD, "t", [period])]
    given = values.get("io_max")
    devices = given if isinstance(given, dict) else {}
    for key, prop in _IO.items():
        wanted = [(device, keys[key]) for device, keys in devices.items() if key in keys]
        if wanted:
            words = [word for device, value in wanted for word in (f"/dev/block/{device}", _number(value))]
            found.append((prop, "a(st)", [str(len(wanted)), *words]))
    return found


def _number(value: Value | int | str) -> str:
    return str(_INFINITY) if value == MAX else str(value)
