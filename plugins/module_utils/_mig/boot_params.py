# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""The wanted layouts with everything that mig_layout has a default for, checked while there is an Ansible that can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.change import LAYOUT_SPEC

_COMMON = (
    *("kmsg_path", "dev_root", "cgroup_root", "nvml_library", "state_dir", "proc_root"),
    *("layouts", "given", "may_move", "allow_reset", "timeout_seconds", "nvidia_smi", "nvidia_modprobe"),
)
# Nobody is there to be asked, so nothing is waited for and nobody's process is ended.
_AT_BOOT = {"busy": "fail", "lock_holder": "the node's boot", "lock_token": None, "why": "the layout that is wanted after a boot"}


class LayoutInvalid(RemediationError):
    kind = "layout_invalid"


def boot_params(params: Mapping[str, Any]) -> dict[str, Any]:
    rules = {name: rule for name, rule in LAYOUT_SPEC.items() if name != "argument_spec"}
    checked = ArgumentSpecValidator(LAYOUT_SPEC["argument_spec"], **rules).validate({name: params[name] for name in _COMMON})
    if checked.error_messages:
        raise LayoutInvalid("; ".join(checked.error_messages))
    return {**checked.validated_parameters, **_AT_BOOT}
