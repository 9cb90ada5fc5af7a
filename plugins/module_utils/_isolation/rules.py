# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What an audit of a node's isolation looks for. Data only: a rule's id is what people accept findings by, and is never used for another."""

from __future__ import annotations

from typing import NamedTuple

SEVERITIES = ("low", "medium", "high", "critical")


class Rule(NamedTuple):
    """`severity` where a finding does not say otherwise; `automatic` is the variable that asks for the fix that is safe, where there is one."""

    severity: str
    why: str
    fix: str
    automatic: str = ""


RULES = {
    "privileged": Rule(
        "high",
        "A privileged container reaches every device of the node, whatever it was given",
        "Take privileged away and give the container its GPU by the device plugin, by CDI or by --gpus",
    ),
    "capabilities": Rule(
        "medium",
        "With these capabilities a process can leave its container or look into others",
        "Drop the capabilities named",
    ),
    "host_pid": Rule(
        "high",
        "In the host's pid namespace a container sees the node's processes, and as root it may signal them",
        "Take hostPID (--pid=host) away",
    ),
    "visible_all": Rule(
        "high",
        "NVIDIA_VISIBLE_DEVICES=all gave the container every GPU, which many images ask for by themselves",
        "Name its GPUs, or set NVIDIA_VISIBLE_DEVICES=void where it should have none; and see toolkit_envvar",
    ),
    "visible_behind_plugin": Rule(
        "high",
        "The container's own NVIDIA_VISIBLE_DEVICES gave it GPUs that the kubelet did not",
        "Let it request nvidia.com/gpu and set no NVIDIA_VISIBLE_DEVICES; and see toolkit_envvar",
    ),
    "devices_beyond": Rule(
        "high",
        "The container has device files of GPUs or MIG instances that it was not given",
        "Take the mount of /dev or the devices away; start the container anew",
    ),
    "mig_config": Rule(
        "high",
        "Who can open the MIG configuration device can cut the node's GPUs anew",
        "Take nvidia-cap1 (mig/config) away; NVIDIA_MIG_CONFIG_DEVICES is for MIG managers only",
    ),
    "mps_reachable": Rule(
        "high",
        "MPS is no boundary: who reaches its pipe can become a client, and a client's fault ends its neighbours' work",
        "Take the mount of the pipe directory away, or name the container in gpuops_audit_mps_clients",
    ),
    "memory_unlimited": Rule(
        "medium",
        "Without memory.max one container can take the node's memory from all the others",
        "Set a memory limit where it is started: resources.limits.memory in the pod, --memory for docker, MemoryMax= in the unit",
        automatic="gpuops_audit_memory_max",
    ),
    "compute_mode": Rule(
        "medium",
        "The GPU's compute mode lets more, or others, onto it than is meant",
        "Set it with nvidia-smi -c while nobody is on the GPU",
    ),
    "shared_context": Rule(
        "medium",
        "Several have a context on the same GPU or GPU instance: its memory is not divided, and a reset is everybody's",
        "Give each its own GPU or MIG instance, or name the GPU in gpuops_audit_shared_gpus",
    ),
    "drift": Rule(
        "high",
        "NVML sees the pod on a GPU that the kubelet did not give it",
        "End the pod, and look for how it got the device: visible_behind_plugin, devices_beyond, privileged",
    ),
    "allocation_gone": Rule(
        "medium",
        "The kubelet has given the pod a device that NVML does not have: lost, or of an earlier MIG layout",
        "Start the pod anew once the device plugin has registered what is there",
    ),
    "engine_fault": Rule(
        "high",
        "This version is known not to keep containers apart",
        "Update it, and start the containers anew that it started",
    ),
    "toolkit_envvar": Rule(
        "medium",
        "Any unprivileged container gets the GPUs that its image asks for in NVIDIA_VISIBLE_DEVICES",
        "With the device plugin's strategy volume-mounts or a CDI one, set accept-nvidia-visible-devices-envvar-when-unprivileged = false"
        " and accept-nvidia-visible-devices-as-volume-mounts = true in the toolkit's config.toml",
        automatic="gpuops_audit_fix_toolkit",
    ),
    "toolkit_no_cgroups": Rule(
        "low",
        "The toolkit sets no device rules of cgroups, which only rootless containers need",
        "Set no-cgroups = false in the section nvidia-container-cli of the toolkit's config.toml",
    ),
    "toolkit_compat_libs": Rule(
        "medium",
        "Libraries of the container's are mounted by the toolkit, the way of CVE-2025-23359, which is off unless asked for",
        "Take allow-cuda-compat-libs-from-container out of the section features of the toolkit's config.toml",
    ),
    "unread": Rule(
        "medium",
        "What could not be read was not audited",
        "Run the audit as root, and see why in the evidence",
    ),
}
