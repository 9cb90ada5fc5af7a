# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What goes wrong with a Kubernetes API, each by the server's own means. `Cluster[name]` pauses, kills and restarts its programs."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cluster.api import Api, Json
from cluster.control_plane import ACCOUNT, Cluster
from cluster.objects import wait_until

REVIEWS = "selfsubjectaccessreviews"  # which every account may make, and the collection never does


@dataclass
class Admission:
    """What a webhook does when it is asked about a request, the first `times`; then all pass.

    The server asks once more within one request when its cached object was a moment old: count what clients saw in the audit log.
    """

    status: int = 200  # 500: the API server answers 500 to its client
    delay_seconds: float = 0
    before: Callable[[Json], object] = lambda request: None  # runs while the request waits, as a concurrent writer would
    times: float = float("inf")
    seen: list[Json] = field(default_factory=list)  # the requests it was asked about
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: Json) -> int:
        with self._lock:
            self.seen.append(request)
            if len(self.seen) > self.times:
                return 200
        time.sleep(self.delay_seconds)
        self.before(request)
        return self.status


@contextmanager
def admission(
    cluster: Cluster, resource: str, fault: Admission, *, operations: Sequence[str] = ("*",), user: str = ACCOUNT
) -> Iterator[Admission]:
    """A validating webhook on `resource` ("nodes", "pods/eviction") for the requests of one user; in force on return, and gone on exit."""
    probed = threading.Event()
    name = f"fault-{uuid.uuid4().hex[:8]}"
    with _server(cluster, fault, probed) as url:
        webhook = {
            "name": f"{name}.test.gpuops.io",
            "clientConfig": {"url": url, "caBundle": base64.b64encode(cluster.certificate.read_bytes()).decode()},
            "rules": [
                {"apiGroups": ["*"], "apiVersions": ["*"], "resources": [resource], "operations": list(operations)},
                {"apiGroups": ["*"], "apiVersions": ["*"], "resources": [REVIEWS], "operations": ["CREATE"]},
            ],
            "matchConditions": [
                {"name": "who", "expression": f"request.userInfo.username == '{user}' || request.resource.resource == '{REVIEWS}'"}
            ],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail",
            "timeoutSeconds": 30,
        }

        def in_force() -> bool:
            probed.clear()
            _review(cluster.admin)
            return probed.is_set()

        cluster.admin.create("ValidatingWebhookConfiguration", {"metadata": {"name": name}, "webhooks": [webhook]})
        try:
            wait_until(in_force, "the webhook in force")
            yield fault
        finally:
            cluster.admin.delete("ValidatingWebhookConfiguration", name)
            wait_until(lambda: not in_force(), "the webhook gone")


@contextmanager
def too_many_requests(cluster: Cluster, *, verbs: Sequence[str] = ("*",), resources: Sequence[str] = ("*",)) -> Iterator[None]:
    """429 with Retry-After to the collection's account, for up to 25 s.

    Priority and fairness gives these requests a single seat and no queue, and a review that hangs in a webhook sits on it.
    """
    name = f"fault-{uuid.uuid4().hex[:8]}"
    namespace, account = ACCOUNT.split(":")[2:]
    limited = {"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"}}
    limits = [{"verbs": list(verbs), "resources": list(resources)}, {"verbs": ["create"], "resources": [REVIEWS]}]
    rule = {
        "subjects": [{"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": account}}],
        "resourceRules": [{**limit, "apiGroups": ["*"], "clusterScope": True, "namespaces": ["*"]} for limit in limits],
    }
    flow = {"priorityLevelConfiguration": {"name": name}, "matchingPrecedence": 2, "rules": [rule]}
    made = {"PriorityLevelConfiguration": {"type": "Limited", "limited": limited}, "FlowSchema": flow}
    over = threading.Event()
    with admission(cluster, REVIEWS, Admission(before=lambda request: over.wait(25))) as fault:
        for kind, spec in made.items():
            cluster.admin.create(kind, {"metadata": {"name": name}, "spec": spec})
        try:
            wait_until(lambda: _in_force(cluster.admin, name), "the limit in force")
            sitter = threading.Thread(target=_review, args=[Api(cluster.kubeconfig)])
            sitter.start()
            wait_until(lambda: fault.seen, "the seat taken")
            yield
        finally:
            over.set()
            for kind in made:
                cluster.admin.delete(kind, name)
            sitter.join()


def _in_force(admin: Api, name: str) -> bool:
    conditions = admin.get("FlowSchema", name).get("status", {}).get("conditions", [])
    return any(each["type"] == "Dangling" and each["status"] == "False" for each in conditions)


def _review(api: Api) -> None:
    api.request("POST", f"/apis/authorization.k8s.io/v1/{REVIEWS}", {"spec": {"resourceAttributes": {"verb": "get", "resource": "nodes"}}})


@contextmanager
def _server(cluster: Cluster, fault: Admission, probed: threading.Event) -> Iterator[str]:
    """The webhook itself: a few threads of the test. The admin's reviews only ask whether it is there."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            probe = review["request"]["userInfo"]["username"] == "admin" and review["request"]["resource"]["resource"] == REVIEWS
            if probe:
                probed.set()
            status = 200 if probe else fault.answer(review["request"])
            answer = {**review, "response": {"uid": review["request"]["uid"], "allowed": True}}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cluster.certificate, cluster.key)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"https://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
