# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The API group of Dynamic Resource Allocation, in the versions that the server has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ansible_collections.gpuops.remediation.plugins.module_utils._kube.client import KubeApi
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.device_taints import (
    Device,
    DeviceId,
    Rule,
    holders,
    manifest,
    parse_devices,
    parse_rule,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import ApiUnavailable, DeviceNotTaintable, Forbidden, NotFound
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.taints import Taint

GROUP = "/apis/resource.k8s.io"
RULES, SLICES, CLAIMS = "devicetaintrules", "resourceslices", "resourceclaims"
# The newest first. Slices and claims of older versions look different; a cluster that has only those is not asked.
VERSIONS = {RULES: ("v1beta2", "v1alpha3"), SLICES: ("v1", "v1beta2"), CLAIMS: ("v1", "v1beta2")}


class ResourceApi:
    """Asked once which versions are served."""

    def __init__(self, api: KubeApi, deadline: Deadline) -> None:
        self._api, self._deadline = api, deadline
        self._served: dict[str, frozenset[str]] = {}

    def within(self, deadline: Deadline) -> ResourceApi:
        """The same server, which is not asked anew what it serves."""
        other = ResourceApi(self._api, deadline)
        other._served = self._served
        return other

    def version(self, resource: str) -> str | None:
        """The version in which it is served, if it is."""
        return next((version for version in VERSIONS[resource] if resource in self._resources(version)), None)

    def _resources(self, version: str) -> frozenset[str]:
        if version not in self._served:
            try:
                listed = self._read(f"{GROUP}/{version}").get("resources") or ()
            except NotFound:
                listed = ()
            self._served[version] = frozenset(each["name"] for each in listed)
        return self._served[version]

    def rules_version(self) -> str:
        version = self.version(RULES)
        if version is None:
            raise DeviceNotTaintable("the API server serves no DeviceTaintRule, as resource.k8s.io/" + " or /".join(VERSIONS[RULES]))
        return version

    def devices(self, node: str | None = None) -> list[Device]:
        """What drivers hand out, on one node or on all. What is handed out on a node by a slice of many nodes is found only among all."""
        version = self.version(SLICES)
        if version is None:
            return []
        query = {"fieldSelector": f"spec.nodeName={node}"} if node else {"resourceVersion": "0"}
        return parse_devices(self._read(f"{GROUP}/{version}/{SLICES}", **query)["items"])

    def holders(self, devices: Mapping[DeviceId, Sequence[Taint]], namespaces: Iterable[str]) -> dict[str, bool]:
        """The UIDs of the pods there to which one of the devices is allocated, and whether each tolerates how they are tainted.

        A cluster may have many claims, and a drain asks again and again: not for all of them.
        """
        paths = [f"{GROUP}/{self.version(CLAIMS)}/namespaces/{quote(each, safe='')}/{CLAIMS}" for each in sorted(namespaces)]
        return holders((claim for path in paths for claim in self._read(path)["items"]), devices)

    def rule(self, name: str) -> Rule | None:
        raw = self.raw_rule(name)
        return parse_rule(raw) if raw else None

    def raw_rule(self, name: str) -> Mapping[str, Any] | None:
        try:
            return self._read(self._rule_path(name))
        except NotFound:
            return None

    def create_rule(self, rule: Rule, node: str, node_uid: str, *, dry_run: bool = False) -> Mapping[str, Any]:
        version = self.rules_version()
        body = manifest(rule, version, node, node_uid)
        return self._write("POST", f"{GROUP}/{version}/{RULES}", body, dry_run)

    def delete_rule(self, rule: Rule, *, dry_run: bool = False) -> None:
        """Exactly this one, as it was read: with another writer's change in it, it is refused (409)."""
        body: dict[str, Any] = {"kind": "DeleteOptions", "preconditions": {"uid": rule.uid, "resourceVersion": rule.resource_version}}
        if dry_run:
            body["dryRun"] = ["All"]  # where a deletion has a body, the server does not read the address's
        with contextlib.suppress(NotFound):
            self._write("DELETE", self._rule_path(rule.name), body, dry_run)

    def _rule_path(self, name: str) -> str:
        return f"{GROUP}/{self.rules_version()}/{RULES}/{quote(name, safe='')}"

    def _read(self, path: str, **query: str) -> dict[str, Any]:
        with _rights():
            return self._api.get(path, self._deadline, **query)

    def _write(self, method: str, path: str, body: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        """Names and preconditions keep a write whose answer was lost from happening twice."""
        query = {"dryRun": "All"} if dry_run else {}
        with _rights():
            return self._deadline.attempt(lambda: self._api.request(method, path, self._deadline, body, query), ApiUnavailable)


@contextlib.contextmanager
def _rights() -> Iterator[None]:
    """An account that was made before these rights were asked for still has those on nodes."""
    try:
        yield
    except Forbidden as error:
        raise DeviceNotTaintable(f"the account may not: {error}") from error
