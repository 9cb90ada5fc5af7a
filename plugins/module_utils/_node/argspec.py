# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Options of every module that runs on a node; documented by the fragment `node`."""

from __future__ import annotations

from typing import Any

STATE_DIR_OPTIONS: dict[str, Any] = {
    "state_dir": {"type": "path", "default": "/var/lib/gpuops"},
    "proc_root": {"type": "path", "default": "/proc"},
}

NODE_OPTIONS: dict[str, Any] = {
    **STATE_DIR_OPTIONS,
    "kmsg_path": {"type": "path", "default": "/dev/kmsg"},
    "dev_root": {"type": "path", "default": "/dev"},
    "cgroup_root": {"type": "path", "default": "/sys/fs/cgroup"},
    "nvml_library": {"type": "str", "default": "libnvidia-ml.so.1"},
    "lock_token": {"type": "int", "no_log": False},
    "lock_holder": {"type": "str"},
}

LOCK_TOGETHER = [("lock_token", "lock_holder")]
