# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """What the modules that change MIG layouts have in common."""

    DOCUMENTATION = r"""
options:
  busy:
    description:
      - What to do where something busy is in the way. An instance is busy while a process is in it, or has its device file open, or if it is O(given).
      - What is busy and not in the way is never touched.
    type: str
    default: fail
    choices:
      fail: Nothing is done on that GPU, and the holders are named.
      wait: The holders are waited for, up to O(busy_timeout_seconds). Check mode does not wait, and fails.
      drain: >-
        The holders of what is in the way, and no others, get SIGTERM, O(grace_seconds), and are then killed with their container or unit,
        by the rules and with the proof of M(gpuops.remediation.cgroup_state). Without proof nothing is done to any of them.
  busy_timeout_seconds:
    description: How long holders are waited for, or how long draining may take, one GPU after the other.
    type: float
    default: 60
  grace_seconds:
    description: How long holders may take to end after SIGTERM, with O(busy=drain).
    type: float
    default: 30
  protect:
    description: Units (by name) and containers (by cgroup) that are never drained, as patterns, beside those that never are anyway.
    type: list
    elements: str
    default: []
  given:
    description:
      - Instances and whole GPUs that are allocated to somebody though no process is in them, such as those of pods. They count as busy, and are
        not drained. Who has a GPU has all that is on it.
      - Instances are named by the UUID of the MIG device, or as C(3g.71gb@4) and C(3g.71gb@4/1c@0). Such a name means that instance on every GPU that the
        module works on. What is not there is in nobody's way.
      - GPUs are named by UUID or PCI address. Any other name, or one that no GPU of the node has, is a refusal.
    type: list
    elements: str
    default: []
  allow_reset:
    description:
      - On models whose mode changes only with a reset, reset the GPU, if nothing is on it. No other GPU is reset.
      - Without this the module stops before the reset, with RV(reset_required=true) and the mode pending.
    type: bool
    default: false
  timeout_seconds:
    description:
      - How long the change of all GPUs may take. What is not done by then is taken back.
      - GPUs whose mode changes are worked on one after the other, each with the time that is left.
      - Two minutes more for each GPU that is reset. Most resets take seconds, but none is begun that would have to be ended before it had a minute.
      - Another run on the node is waited for as long.
    type: float
    default: 120
  deadline_seconds:
    description:
      - How long all of it may take, with the wait for another run, what is read before, and O(busy_timeout_seconds); beside it a few seconds to read
        what came of it, and the time for resets. Half of what is left at most is spent on holders, so that as much is there for the change.
      - Left out, each of these has its own time.
    type: float
  nvidia_smi:
    description: The program that resets a GPU, for which NVML has no call.
    type: str
    default: nvidia-smi
  nvidia_modprobe:
    description: The program that makes the device files of instances, which the driver leaves to it.
    type: str
    default: nvidia-modprobe
  incident_id:
    description: The incident, for the node's journal.
    type: str
  why:
    description: The reason in plain words, for the node's journal.
    type: str
    default: asked for by an operator
notes:
  - Every step is written to C(journal.jsonl) in O(state_dir) before it is made, and to the system log.
  - One run changes layouts on a node at a time.
  - A MIG device that is made anew in the same place is expected to have the same UUID. An equal UUID is no proof that it was left alone.
"""
