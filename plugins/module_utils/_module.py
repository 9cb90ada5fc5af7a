# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""From options to a result: what the main() of every module of the controller does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError


def run_module(spec: Mapping[str, Any], run: Callable[[Mapping[str, Any], bool], dict[str, Any]]) -> None:
    """Runs `run(params, check_mode)` as a module; `spec` are AnsibleModule's arguments."""
    module = AnsibleModule(supports_check_mode=True, **spec)
    try:
        result = run(module.params, module.check_mode)
    except RemediationError as error:
        module.fail_json(**error.failure())
    module.exit_json(**result)
