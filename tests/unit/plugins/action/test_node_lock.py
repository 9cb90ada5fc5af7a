# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ansible_collections.gpuops.remediation.plugins.action.node_lock import ActionModule

SECRETS = {
    "ledger_url": "postgresql://gpuops:secret@db/gpuops",
    "kubeconfig": "/etc/gpuops/kubeconfig",
    "context": "fleet",
    "api_timeout_seconds": 5,
}
MEANT = {"lock_holder": "run-1", "state_dir": "/var/lib/gpuops"}


@pytest.mark.parametrize("named", [{}, {"backend": "file"}])
def test_a_node_learns_nothing_of_ledger_and_cluster(named):
    """The defaults of all groups arrive here, and the file's lock alone goes to the node."""
    task = SimpleNamespace(args={**SECRETS, **MEANT, **named})
    action = ActionModule(task, *[None] * 5)
    sent = []
    action._execute_module = lambda module_args, task_vars: sent.append(module_args) or {"changed": True}
    assert action.run(None, {}) == {"changed": True}
    assert sent == [{**MEANT, **named}]
