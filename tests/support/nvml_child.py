# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ask a simulated node's NVML library through the unmodified nvidia-ml-py, in a process of its own (a process has one NVML)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PRELUDE = """
import ctypes, json, os, sys, time
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
import pynvml as n

def plain(value):
    if isinstance(value, ctypes.Structure):
        return {field[0]: plain(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, ctypes.Array):
        return [plain(item) for item in value]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode()
    return vars(value) if isinstance(value, n.nvmlFriendlyObject) else value

def ask(function, *args):
    try:
        return plain(function(*args))
    except n.NVMLError as error:
        return {"error": "%s: %s" % (type(error).__name__, error)}

def gpu(index=0):
    return n.nvmlDeviceGetHandleByIndex(index)

n.nvmlInit()
"""

MIG = """
def profile(name, device=None):
    for query in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = ask(n.nvmlDeviceGetGpuInstanceProfileInfo, device or gpu(), query)
        if info.get("name") == "MIG " + name:
            return info
    raise AssertionError(name)

def placements(function, *args):
    count = ctypes.c_uint()
    function(*args, None, ctypes.byref(count))
    found = (n.c_nvmlGpuInstancePlacement_t * count.value)()
    function(*args, found, ctypes.byref(count))
    return [[one.start, one.size] for one in found]

def create(name, start=None, device=None):
    info = profile(name, device)
    if start is None:
        return n.nvmlDeviceCreateGpuInstance(device or gpu(), info["id"])
    size = placements(n.nvmlDeviceGetGpuInstancePossiblePlacements, device or gpu(), info["id"])[0][1]
    return n.nvmlDeviceCreateGpuInstanceWithPlacement(device or gpu(), info["id"], ctypes.byref(n.c_nvmlGpuInstancePlacement_t(start, size)))

def divide(gi, profile_id, start=None, size=1):
    if start is None:
        return n.nvmlGpuInstanceCreateComputeInstance(gi, profile_id)
    return n.nvmlGpuInstanceCreateComputeInstanceWithPlacement(gi, profile_id, ctypes.byref(n.c_nvmlComputeInstancePlacement_t(start, size)))

def where(one):
    info = n.nvmlGpuInstanceGetInfo(one) if isinstance(one, n.c_nvmlGpuInstance_t) else n.nvmlComputeInstanceGetInfo(one)
    return [info.id, info.placement.start, info.placement.size]

def devices(device=None):
    found = []
    for index in range(n.nvmlDeviceGetMaxMigDeviceCount(device or gpu())):
        try:
            found.append(n.nvmlDeviceGetMigDeviceHandleByIndex(device or gpu(), index))
        except n.NVMLError_NotFound:
            pass
    return found

def outcome(function, *args):
    try:
        function(*args)
        return "ok"
    except n.NVMLError as error:
        return type(error).__name__.replace("NVMLError_", "")
"""


def start(library: Path | str, body: str, python: str = sys.executable) -> subprocess.Popen[str]:
    """`body` leaves what it found in `result`; between its lines it may print for who reads along."""
    command = [python, "-c", PRELUDE + body + "\nprint(json.dumps(plain(result)))", str(library)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")


def ask(library: Path | str, body: str, seconds: float = 30, python: str = sys.executable) -> Any:
    child = start(library, body, python)
    try:
        output, _errors = child.communicate(timeout=seconds)
    finally:
        child.kill()
    assert child.returncode == 0, f"the child ended with {child.returncode}"
    return json.loads(output.splitlines()[-1])
