# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""S7 and least privilege: the account that the collection ships has the rights in this table and no others."""

from __future__ import annotations

import pytest
from cluster import NAMESPACE
from cluster.api import Api, ApiError, path

EVERYWHERE = {
    ("nodes", "get"),
    ("nodes", "list"),
    ("nodes", "patch"),
    ("pods", "get"),
    ("pods", "list"),
    ("pods/eviction", "create"),
    ("poddisruptionbudgets", "list"),
    ("resourceclaims", "get"),
    ("resourceclaims", "list"),
    ("resourceslices", "list"),
    ("devicetaintrules", "get"),
    ("devicetaintrules", "create"),
    ("devicetaintrules", "delete"),
}
LOCKS = {("leases", verb) for verb in ("get", "create", "update")}
# What Kubernetes gives to every account: questions about itself.
EVERYBODY = {(f"self{kind}", "create") for kind in ("subjectaccessreviews", "subjectrulesreviews", "subjectreviews")}


@pytest.mark.parametrize("namespace, rights", [("default", EVERYWHERE), ("kube-system", EVERYWHERE), (NAMESPACE, EVERYWHERE | LOCKS)])
def test_rights(cluster, namespace, rights):
    asked = {"spec": {"namespace": namespace}}
    answer = Api(cluster.kubeconfig).request("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", asked)
    assert not answer["status"]["incomplete"]
    rules = answer["status"]["resourceRules"]
    assert {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]} - EVERYBODY == rights
    assert not any(rule.get("resourceNames") for rule in rules)


@pytest.mark.parametrize(
    "method, where",
    [
        pytest.param("DELETE", path("Pod", "infer"), id="delete a pod: past the budget"),
        pytest.param("DELETE", path("Node", "gpu-0"), id="delete a node"),
        pytest.param("PUT", path("Node", "gpu-0"), id="replace a node"),
        pytest.param("PATCH", path("Node", "gpu-0") + "/status", id="write a node's status"),
        pytest.param("PATCH", path("Pod", "infer"), id="write a pod"),
        pytest.param("POST", path("Pod"), id="make a pod"),
        pytest.param("PATCH", path("DeviceTaintRule", "theirs"), id="change a rule"),
        pytest.param("PATCH", path("ResourceClaim", "theirs"), id="write a claim"),
        pytest.param("DELETE", path("ResourceSlice", "gpu-0-gpu.nvidia.com"), id="take a driver's devices away"),
        pytest.param("GET", "/api/v1/namespaces/default/secrets", id="read secrets"),
        pytest.param("POST", path("Lease"), id="a lease outside its namespace"),
        pytest.param("DELETE", path("Lease", "gpuops-gpu-0", NAMESPACE), id="delete a lock"),
    ],
)
def test_refused(cluster, method, where):
    body = None if method in ("GET", "DELETE") else {"metadata": {"name": where.rpartition("/")[2]}}
    content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
    with pytest.raises(ApiError) as refused:
        Api(cluster.kubeconfig).request(method, where, body, content_type=content_type)
    assert refused.value.status == 403


def test_the_shipped_manifest_can_be_taken_as_it_is(cluster):
    """A lock is taken with the account's own rights."""
    me = Api(cluster.kubeconfig)
    lease = me.create("Lease", {"metadata": {"name": "gpuops-gpu-0"}, "spec": {"holderIdentity": "run-1"}}, NAMESPACE)
    lease["spec"]["holderIdentity"] = "run-2"
    me.request("PUT", path("Lease", "gpuops-gpu-0", NAMESPACE), lease)
    assert me.get("Lease", "gpuops-gpu-0", NAMESPACE)["spec"]["holderIdentity"] == "run-2"
