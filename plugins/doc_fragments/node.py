# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Where things are on a node. Simulated nodes, of which many share one machine, set these in the inventory."""

    DOCUMENTATION = r"""
options:
  kmsg_path:
    description: The kernel log, a device or a file in the grammar of C(/dev/kmsg).
    type: path
    default: /dev/kmsg
  dev_root:
    description: The folder with the GPUs' device files.
    type: path
    default: /dev
  cgroup_root:
    description:
      - Where cgroups are mounted. The paths of C(/proc/PID/cgroup) are joined to it.
      - A cgroup2 mount, or the folder in which the cgroup v1 hierarchies are mounted by name.
    type: path
    default: /sys/fs/cgroup
  nvml_library:
    description: The NVML library, by name or path. Python's C(pynvml) then uses this one.
    type: str
    default: libnvidia-ml.so.1
  lock_token:
    description:
      - The token of the node's lock, as M(gpuops.remediation.node_lock) gave it.
      - The module then checks that the lock is still held with it, and renews it, before it reads and before every write.
    type: int
  lock_holder:
    description: Who holds the lock. Required together with O(lock_token).
    type: str
requirements:
  - nvidia-ml-py (which provides the module C(pynvml)) on the node
"""

    STATE_DIR = r"""
options:
  state_dir:
    description: The collection's own folder on the node. It holds the lock, the journal and what was seen before.
    type: path
    default: /var/lib/gpuops
  proc_root:
    description: Where proc is mounted.
    type: path
    default: /proc
"""
