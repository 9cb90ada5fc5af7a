# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Has a node's device plugin look at the GPUs again, which it does only when it starts, and waits until the node advertises what it found."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Outcome, Step, converge
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._kube import advertised
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.client import node_path
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import ApiUnavailable, Conflict, NotFound
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.evictions import Pod, describe, tolerates, uid
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.nodes import NodeWriter
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.taints import Taint, parse_node, spot_of

LOOK_SECONDS = 1.0
RENEW_SECONDS = 5.0


class PluginMissing(RemediationError):
    kind = "plugin_missing"


class PluginUnfit(RemediationError):
    """A restart would not help, or would take the plugin away."""

    kind = "plugin_unfit"


class PluginNotBack(RemediationError):
    kind = "plugin_not_back"


class NotAdvertised(RemediationError):
    kind = "not_advertised"


@dataclass(frozen=True)
class Want:
    """What is on the node. `strategy` None takes the plugin's word; `taints` are those that the node is going to have.

    `restart`: the devices are others than the plugin saw, even where there are as many. `empty` GPUs have MIG on and no MIG device.
    """

    gpus: int
    mig_devices: Mapping[str, int]
    strategy: str | None
    labels: Sequence[str]
    taints: Sequence[Taint]
    restart: bool = False
    empty: Sequence[str] = ()


@dataclass(frozen=True)
class Seen:
    """`resources` can be allocated. `capacity` has those too that the plugin holds for unhealthy, and for some minutes those that it had before."""

    resources: Mapping[str, int]
    capacity: Mapping[str, int]
    wanted: Mapping[str, int]
    pods: Sequence[Pod]
    taints: Sequence[Taint]

    @property
    def pod(self) -> Pod | None:
        """The plugin's; None where there is none, or nobody can tell which of several it is."""
        return self.pods[0] if len(self.pods) == 1 else None

    @property
    def unhealthy(self) -> dict[str, int]:
        """How many of what there is the plugin has taken out."""
        missing = {name: count - self.resources.get(name, 0) for name, count in self.wanted.items() if self.capacity.get(name) == count}
        return {name: count for name, count in missing.items() if count > 0}

    @property
    def known(self) -> bool:
        """Whether the plugin knows what is there. One that is not there, or not yet, holds nothing for unhealthy."""
        told = {name: self.resources.get(name, 0) + self.unhealthy.get(name, 0) for name in {*self.resources, *self.unhealthy}}
        return told == self.wanted and (not self.unhealthy or (self.pod is not None and advertised.ready(self.pod)))

    def show(self) -> dict[str, Any]:
        return {"resources": dict(self.resources), "unhealthy": self.unhealthy, "pod": describe(self.pod) if self.pod else None}


class DevicePlugin:
    """The plugin's pod on one node."""

    def __init__(self, writer: NodeWriter, want: Want) -> None:
        self._writer = writer
        self._api = writer.api
        self._deadline = writer.deadline
        self._want = want
        self._strategy = want.strategy
        self._old: str | None = None  # the pod that was there first

    def advertise(self) -> Outcome[Seen]:
        """The node advertises what is there; the pod is restarted where it does not."""
        outcome = converge(self._see, self._plan, self._predict, self._restart, check_mode=self._writer.check_mode)
        if self._writer.check_mode and outcome.steps:
            self._may_restart(outcome.before)
            self._writer.permit.check("node")
            self._delete(outcome.before, dry_run=True)  # what would forbid it forbids its prediction
        return outcome

    def _see(self) -> Seen:
        self._writer.read()  # the node that is meant, and ours to touch
        raw = self._api.get(node_path(self._writer.name), self._deadline)
        if advertised.shared(raw):
            shared = ", ".join(advertised.shared(raw))
            raise PluginUnfit(f"the device plugin shares GPUs among pods ({shared}), so that what it should advertise cannot be told")
        pods = advertised.plugin_pods(self._pods(), self._want.labels)
        pod = pods[0] if len(pods) == 1 else None
        self._old = self._old or (uid(pod) if pod else None)
        self._strategy = self._strategy or advertised.strategy_of(pod, raw)  # kept while there is no pod that could tell it
        if self._strategy is None:
            raise advertised.StrategyUnfit(
                f"neither the device plugin's pod nor the label {advertised.LABEL_STRATEGY} of node {self._writer.name} tells the MIG strategy"
            )
        wanted = advertised.resources(self._want.gpus, self._want.mig_devices, self._strategy, self._want.empty)
        return Seen(advertised.advertised(raw), advertised.advertised(raw, "capacity"), wanted, pods, parse_node(raw).taints)

    def _pods(self) -> list[Pod]:
        return list(self._api.get("/api/v1/pods", self._deadline, fieldSelector=f"spec.nodeName={self._writer.name}")["items"])

    def _plan(self, seen: Seen) -> list[Step]:
        stale = self._want.restart and (seen.pod is None or uid(seen.pod) == self._old)
        if seen.known and not stale:  # a restart would put back what was taken out for a reason
            return []
        if not seen.pods:
            raise PluginMissing(
                f"node {self._writer.name} advertises {_told(seen.resources)}, which is not what is there, and has no pod of the device plugin "
                f"(a label of {', '.join(self._want.labels)}; by NVIDIA's own labels also a container {' or '.join(advertised.PLUGIN_CONTAINERS)} "
                "or such a command)"
            )
        name = "pod/{namespace}/{name}".format(**describe(self._pod(seen)))
        return [Step("restart", name, dict(seen.resources), dict(seen.wanted))]

    @staticmethod
    def _predict(seen: Seen, steps: Sequence[Step]) -> Seen:
        return replace(seen, resources=seen.wanted) if steps else seen

    def _pod(self, seen: Seen) -> Pod:
        if len(seen.pods) > 1:
            names = ", ".join("{namespace}/{name}".format(**describe(pod)) for pod in seen.pods)
            raise PluginUnfit(f"node {self._writer.name} has more than one pod of the device plugin: {names}")
        if seen.pod is None:
            raise PluginMissing(f"the device plugin's pod on node {self._writer.name} went away meanwhile")
        return seen.pod

    def _may_restart(self, seen: Seen) -> None:
        """A DaemonSet makes no pod for a node whose taints it does not tolerate."""
        pod = self._pod(seen)
        coming = {spot_of(taint) for taint in self._want.taints}
        taints = [*(taint for taint in seen.taints if spot_of(taint) not in coming), *self._want.taints]
        against = [spot_of(taint) for taint in taints if not tolerates(pod, [taint])]
        if against:
            raise PluginUnfit(
                "the device plugin's pod {namespace}/{name} would not come back: its DaemonSet does not tolerate {taints}".format(
                    **describe(pod), taints=", ".join(against)
                )
            )

    def _delete(self, seen: Seen, *, dry_run: bool = False) -> None:
        """Exactly this pod, not another one of its name."""
        pod = self._pod(seen)
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{quote(metadata['namespace'], safe='')}/pods/{quote(metadata['name'], safe='')}"
        options = {"preconditions": {"uid": uid(pod)}, **({"dryRun": ["All"]} if dry_run else {})}
        with contextlib.suppress(NotFound, Conflict):  # it is gone already, perhaps by an earlier try whose answer was lost
            self._deadline.attempt(lambda: self._api.request("DELETE", path, self._deadline, options), ApiUnavailable)

    def _restart(self, step: Step) -> None:
        seen = self._see()
        self._may_restart(seen)
        self._writer.permit.check("node")
        self._delete(seen)
        self._old, renewed = uid(self._pod(seen)), self._deadline.clock()
        while True:
            if self._deadline.clock() - renewed > RENEW_SECONDS:
                self._writer.permit.check("node")
                renewed = self._deadline.clock()
            now = self._see()
            began = all(name in now.resources for name in now.wanted)  # it holds nothing for unhealthy from the start
            if now.pod and uid(now.pod) != self._old and advertised.ready(now.pod) and now.known and began:
                return
            if not self._deadline.left():
                raise self._why(now)
            self._deadline.pause(LOOK_SECONDS)

    def _why(self, now: Seen) -> RemediationError:
        node, what = self._writer.name, f"node advertises {_told(now.resources)}, not {_told(now.wanted)}"
        if now.pod is None or uid(now.pod) == self._old:
            return PluginNotBack(f"no new pod of the device plugin came to node {node}, so the {what}")
        name = "{namespace}/{name}".format(**describe(now.pod))
        if not advertised.ready(now.pod):
            phase = (now.pod.get("status") or {}).get("phase", "unknown")
            return PluginNotBack(f"the device plugin's new pod {name} on node {node} is not ready ({phase}), so the {what}")
        return NotAdvertised(f"the device plugin's new pod {name} is ready on node {node}, but the {what}")


def _told(resources: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(resources.items())) or "no GPU"
