# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A ledger, and the modules as a playbook runs them, for the tests on a real control plane."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import Place, from_operator
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.client import connect
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.lease import NodeLease
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.modules import device_taint, node_drain, node_taint
from cluster import ACCOUNT, NAMESPACE, audit
from run_module import run_beside, run_module

TAINT = "gpu.unhealthy=true:NoSchedule"


class Responder:
    """The collection at work on one cluster."""

    def __init__(self, cluster, directory, url=""):
        self.cluster = cluster
        self.url = url or f"sqlite:///{directory}/ledger.db"
        self.ledger = Ledger.open(self.url)
        self.ledger.set_mode("act", "test", "test")
        self._begun = audit.now()  # the last line of the log may be of a request that came long before
        self._options = {"kubeconfig": str(cluster.kubeconfig), "api_timeout_seconds": 2, "ledger_url": self.url}
        self.taint_nodes = partial(run_module, node_taint.main, **self._options)
        self.taint_device = partial(run_module, device_taint.main, **self._options)
        self.drain = partial(run_module, node_drain.main, **self._options)

    def drain_beside(self, **params):
        """A drain in a process of its own, while others run."""
        return run_beside(node_drain, **self._options, **params)

    def lease(self, node="gpu-1"):
        """The node's lock, taken by hand."""
        return NodeLease(connect(str(self.cluster.kubeconfig), None, 2), NAMESPACE, node, Deadline(20))

    def incident(self, node, uid="u", gpu=None):
        opening = self.ledger.open_incident(from_operator(Place(node, uid), gpu, self.ledger.now()))
        return opening.record["id"]

    def taint(self, node="gpu-1", **options):
        """One node; the module's result, and the node's."""
        entry = {"name": node, "uid": options.pop("uid", None)}
        result = self.taint_nodes(nodes=[entry], **options)
        return {**result, **result["nodes"][0]}

    def writes(self, resource="nodes"):
        """What the collection's account wrote since the test began, by code."""
        found = audit.read(self.cluster.audit_log, verb=audit.WRITES, resource=resource, user=ACCOUNT)
        return [entry for entry in found if entry.time > self._begun]

    def incidents_on(self, node):
        return self.cluster.objects.node(node)["metadata"].get("annotations", {}).get("gpuops.remediation/incidents")


@pytest.fixture
def responder(cluster, tmp_path):
    return Responder(cluster, tmp_path)


@contextmanager
def meanwhile(*calls):
    """Runs calls in threads beside the test's own; the list gets their answers, and their errors are raised at the end."""
    answers = []
    with ThreadPoolExecutor(max_workers=max(1, len(calls))) as pool:
        running = [pool.submit(call) for call in calls]
        yield answers
        answers.extend(each.result() for each in running)


def after(seconds, call):
    return lambda: threading.Event().wait(seconds) or call()
