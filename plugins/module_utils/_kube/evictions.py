# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which pods leave a node, and how far they are: the pure part of a drain. Pods are the API's own JSON; a pod is its UID, not its name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.resources import may_be_gpu
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.taints import Taint
from ansible_collections.gpuops.remediation.plugins.module_utils._names import ANNOTATION_EVICT

Pod = Mapping[str, Any]
MIRROR = "kubernetes.io/config.mirror"
STATIC_UID = "kubernetes.io/config.hash"  # of a mirror pod: the UID by which the kubelet knows the static pod
UNMANAGED = "no controller would make it again"
NOT_YET = "no successor yet"
GOING_SECONDS = 5  # from a pod's kill at the end of its grace period until the API server has it no more


@dataclass(frozen=True)
class Selection:
    """Which pods are meant (S11). Without `uids` a GPU's pods are those that request or claim one, but not those `elsewhere`."""

    scope: str  # gpu | node
    uids: Collection[str] | None = None
    elsewhere: Collection[str] | None = None  # the UIDs of pods that are certain to have other GPUs only; None where nobody could tell
    gpu_claims: Collection[str] = ()  # <namespace>/<name> of the ResourceClaims that hold a GPU
    own_uids: Collection[str] = ()  # the responder's own pods
    evict_unmanaged: bool = False

    def meant(self, pod: Pod) -> bool:
        """Whether it must be gone before the node is done."""
        if finished(pod) or MIRROR in _annotations(pod) or _controller(pod).get("kind") == "DaemonSet" or uid(pod) in self.own_uids:
            return False
        if self.scope == "node":
            return True
        if self.uids is not None:
            return uid(pod) in self.uids
        return uid(pod) not in (self.elsewhere or ()) and wants_gpu(pod, self.gpu_claims)

    def why_kept(self, pod: Pod) -> str | None:
        """Why one that is meant stays for a human to decide; None for the others. One that is ending already is only waited for."""
        if terminating(pod):
            return None
        if _annotations(pod).get(ANNOTATION_EVICT) == "never":
            return f"annotated {ANNOTATION_EVICT}: never"
        if not _controller(pod) and not self.evict_unmanaged:
            return UNMANAGED
        return None


def attribution(selection: Selection) -> str:
    """What says which pods are meant."""
    if selection.scope == "node":
        return "node"
    return "pods" if selection.uids is not None else "requests" if selection.elsewhere is None else "kubelet"


def uid(pod: Pod) -> str:
    return str(pod["metadata"]["uid"])


def terminating(pod: Pod) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def describe(pod: Pod) -> dict[str, str]:
    """For people and results."""
    metadata = pod["metadata"]
    return {"namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}


def eviction(pod: Pod, seconds_left: float) -> dict[str, Any]:
    """The request to evict exactly this pod: its own grace period, cut only so that the pod is gone by the end of what is left."""
    options: dict[str, Any] = {"preconditions": {"uid": uid(pod)}}
    own = pod["spec"].get("terminationGracePeriodSeconds", 30)
    most = max(1, int(seconds_left - GOING_SECONDS))
    if own > most:
        options["gracePeriodSeconds"] = most
    names = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": names, "deleteOptions": options}


def tolerates(pod: Pod, taints: Iterable[Taint]) -> bool:
    """Whether the scheduler may put it (back) on a node with these taints."""
    return tolerated(pod["spec"].get("tolerations") or (), taints)


def tolerated(tolerations: Sequence[Mapping[str, Any]], taints: Iterable[Taint]) -> bool:
    """Whether these taints keep nobody away who has these tolerations, be it a pod's or a claim's."""
    return all(any(_matches(each, taint) for each in tolerations) for taint in taints if taint["effect"] in ("NoSchedule", "NoExecute"))


def why_left(pod: Pod, refusal: str | None, node_ready: bool = True) -> str:
    """Why a pod is still there."""
    metadata = pod["metadata"]
    if not terminating(pod):
        return refusal or "not evicted yet"
    told = f"terminating since {metadata['deletionTimestamp']}, grace period {metadata.get('deletionGracePeriodSeconds', 0)} s"
    if metadata.get("finalizers"):
        told += f", finalizers {', '.join(metadata['finalizers'])}"
    return told if node_ready else f"{told}; the node's kubelet does not answer"


def budgets_that_block(pods: Sequence[Pod], budgets: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The PodDisruptionBudgets that now allow fewer disruptions than these evictions need."""
    found = []
    for budget in budgets:
        metadata = budget["metadata"]
        under = [
            pod["metadata"]["name"]
            for pod in pods
            if pod["metadata"]["namespace"] == metadata["namespace"]
            and not terminating(pod)
            and _selects(budget["spec"].get("selector"), pod["metadata"].get("labels") or {})
        ]
        allowed = (budget.get("status") or {}).get("disruptionsAllowed", 0)
        if len(under) > allowed:
            found.append({"namespace": metadata["namespace"], "name": metadata["name"], "allowed": allowed, "pods": under})
    return found


def moves(evicted: Sequence[Pod], now: Iterable[Pod], known: Collection[str]) -> list[dict[str, Any]]:
    """Where the work of evicted pods went: to a pod of the same controller that was not there before (`known`)."""
    fresh = sorted(
        (pod for pod in now if uid(pod) not in known and _controller(pod)), key=lambda pod: str(pod["metadata"]["creationTimestamp"])
    )
    names = {pod["metadata"]["name"] for pod in evicted}

    def successor(pod: Pod) -> Pod | None:
        # A StatefulSet's pod comes back under its name; elsewhere one successor is as good as another.
        for each in fresh:
            same_name = each["metadata"]["name"] == pod["metadata"]["name"]
            if _controller(each)["uid"] == _controller(pod).get("uid") and (same_name or each["metadata"]["name"] not in names):
                fresh.remove(each)
                return each
        return None

    return [{"from": describe(pod), **(_place(successor(pod)) if _controller(pod) else _nowhere(UNMANAGED))} for pod in evicted]


def settled(moved: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the scheduler has had its say on all of them."""
    return all(move["to_node"] or move["pending"] not in (None, NOT_YET) for move in moved)


def _place(pod: Pod | None) -> dict[str, Any]:
    if pod is None:
        return _nowhere(NOT_YET)
    node = pod["spec"].get("nodeName")
    conditions = {each["type"]: each for each in (pod.get("status") or {}).get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    pending = None if node else scheduled.get("message") or scheduled.get("reason")
    return {"to": describe(pod), "to_node": node, "pending": pending}


def _nowhere(why: str) -> dict[str, Any]:
    return {"to": None, "to_node": None, "pending": why}


def finished(pod: Pod) -> bool:
    """Whether its containers have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _annotations(pod: Pod) -> Mapping[str, str]:
    return pod["metadata"].get("annotations") or {}


def _controller(pod: Pod) -> Mapping[str, Any]:
    return next((owner for owner in pod["metadata"].get("ownerReferences") or () if owner.get("controller")), {})


def wants_gpu(pod: Pod, gpu_claims: Collection[str] = ()) -> bool:
    """Whether it requests a GPU or a MIG device, or claims one."""
    return any(claim in gpu_claims for claim in claims(pod)) or bool(gpus_requested(pod))


def has_gpu_of_plugin(pod: Pod) -> bool:
    """Whether a device plugin gave it a GPU: it requests one by count, and the scheduler has made no claim for that."""
    mappings = ((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("requestMappings") or ()
    return not finished(pod) and bool(gpus_requested(pod).keys() - {each["resourceName"] for each in mappings})


def gpus_requested(pod: Pod) -> dict[str, float]:
    """How many devices the kubelet gives it, by resource: what an init container had goes to those after it, unless it stays with them."""
    spec = pod["spec"]
    begin = spec.get("initContainers") or ()
    stay = [*spec["containers"], *(one for one in begin if one.get("restartPolicy") == "Always")]
    most: dict[str, float] = {}
    for together in [stay, *([one] for one in begin)]:
        wanted: dict[str, float] = {}
        for container in together:
            resources = container.get("resources") or {}
            for name, amount in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}.items():
                if may_be_gpu(name) and str(amount) != "0":
                    wanted[name] = wanted.get(name, 0) + (int(amount) if str(amount).isdecimal() else float("inf"))
        most.update({name: max(count, most.get(name, 0)) for name, count in wanted.items()})
    return most


def holds_claims(pod: Pod) -> bool:
    """Also by a claim that the scheduler made for what it requests by count."""
    return bool(pod["spec"].get("resourceClaims") or (pod.get("status") or {}).get("extendedResourceClaimStatus"))


def claims(pod: Pod) -> list[str]:
    """The ResourceClaims of a pod, as <namespace>/<name>."""
    status = pod.get("status") or {}
    made = {each["name"]: each.get("resourceClaimName") for each in status.get("resourceClaimStatuses") or ()}
    names = [each.get("resourceClaimName") or made.get(each["name"]) for each in pod["spec"].get("resourceClaims") or ()]
    names.append((status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))  # for what it requests by count
    return [f"{pod['metadata']['namespace']}/{name}" for name in names if name]


def _matches(toleration: Mapping[str, Any], taint: Taint) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("operator") == "Exists":
        return not toleration.get("key") or toleration["key"] == taint["key"]
    return toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")


def _selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """A budget without a selector is for no pod, one with an empty selector for all of its namespace."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_meets(each, labels) for each in selector.get("matchExpressions") or ())


def _meets(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    return {
        "In": value is not None and value in values,
        "NotIn": value is None or value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]
