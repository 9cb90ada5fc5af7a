# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The API server as plain JSON, for the test's own hands: apart from the client that the code under test uses."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

Json = dict[str, Any]
# Where the kinds that tests make live: prefix, plural, and whether in a namespace.
KINDS = {
    "Namespace": ("/api/v1", "namespaces", False),
    "Node": ("/api/v1", "nodes", False),
    "Pod": ("/api/v1", "pods", True),
    "ServiceAccount": ("/api/v1", "serviceaccounts", True),
    "DaemonSet": ("/apis/apps/v1", "daemonsets", True),
    "ReplicaSet": ("/apis/apps/v1", "replicasets", True),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets", True),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases", True),
    "DeviceClass": ("/apis/resource.k8s.io/v1", "deviceclasses", False),
    "ResourceSlice": ("/apis/resource.k8s.io/v1", "resourceslices", False),
    "ResourceClaim": ("/apis/resource.k8s.io/v1", "resourceclaims", True),
    "ResourceClaimTemplate": ("/apis/resource.k8s.io/v1", "resourceclaimtemplates", True),
    "DeviceTaintRule": ("/apis/resource.k8s.io/v1beta2", "devicetaintrules", False),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings", True),
    "ValidatingWebhookConfiguration": ("/apis/admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", False),
    "FlowSchema": ("/apis/flowcontrol.apiserver.k8s.io/v1", "flowschemas", False),
    "PriorityLevelConfiguration": ("/apis/flowcontrol.apiserver.k8s.io/v1", "prioritylevelconfigurations", False),
}


class ApiError(Exception):
    """An answer that is not 2xx."""

    def __init__(self, what: str, status: int, answer: str) -> None:
        super().__init__(f"{what}: {status}: {answer}")
        self.status = status


def path(kind: str, name: str = "", namespace: str = "default") -> str:
    """Of one object, or of all of its kind; in all namespaces if the namespace is empty."""
    prefix, plural, namespaced = KINDS[kind]
    return "/".join([prefix, *(["namespaces", namespace] if namespaced and namespace else []), plural, *([name] if name else [])])


class Api:
    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        self.server: str = config["clusters"][0]["cluster"]["server"]
        authority = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
        self.token = config["users"][0]["user"]["token"]
        self._tls = ssl.create_default_context(cadata=authority)

    def request(
        self, method: str, where: str, body: Any = None, *, content_type: str = "application/json", timeout_seconds: float = 30
    ) -> Any:
        request = urllib.request.Request(f"{self.server}{where}", method=method, data=None if body is None else json.dumps(body).encode())
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Content-Type", content_type)
        try:
            with urllib.request.urlopen(request, timeout=timeout_seconds, context=self._tls) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise ApiError(f"{method} {where}", error.code, error.read().decode(errors="replace")[:2000]) from None
        except urllib.error.URLError as error:
            raise error.reason if isinstance(error.reason, OSError) else error from None  # TimeoutError, ConnectionRefusedError
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def get(self, kind: str, name: str, namespace: str = "default") -> Json:
        return self.request("GET", path(kind, name, namespace))  # type: ignore[no-any-return]

    def list(self, kind: str, namespace: str = "", **query: str) -> list[Json]:
        """By `labelSelector=` and `fieldSelector=`, as the API calls them."""
        return self.request("GET", f"{path(kind, namespace=namespace)}?{urlencode(query)}")["items"]  # type: ignore[no-any-return]

    def create(self, kind: str, body: Json, namespace: str = "default") -> Json:
        return self.request("POST", path(kind, namespace=body["metadata"].get("namespace", namespace)), body)  # type: ignore[no-any-return]

    def patch(
        self, kind: str, name: str, body: Json, namespace: str = "default", subresource: str = "", timeout_seconds: float = 30
    ) -> Json:
        """A merge patch; a resourceVersion in it makes it a compare-and-swap."""
        where = path(kind, name, namespace) + (f"/{subresource}" if subresource else "")
        return self.request(  # type: ignore[no-any-return]
            "PATCH", where, body, content_type="application/merge-patch+json", timeout_seconds=timeout_seconds
        )

    def delete(self, kind: str, name: str, namespace: str = "default", **query: str) -> None:
        """One object that may be gone already; all of them if the name is empty."""
        try:
            self.request("DELETE", f"{path(kind, name, namespace)}?{urlencode(query)}")
        except ApiError as error:
            if error.status != 404:
                raise

    def apply_file(self, file: Path) -> None:
        """Makes every object of a manifest, a List; they must not exist yet."""
        for body in yaml.safe_load(file.read_text())["items"]:
            self.create(body["kind"], body)
