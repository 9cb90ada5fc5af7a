# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kubelet's PodResources API of one node: gRPC's own server on a Unix socket, with the messages of `v1`.

It needs grpcio and protobuf, which nothing else here does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from .node import Node

SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"
SERVICE = "v1.PodResourcesLister"
HANG_SECONDS = 3600
_REPEATED = "*"
# The fields that are told, by message: number and type
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {"pod_resources": (1, "PodResources*")},
    "AllocatableResourcesRequest": {},
    "AllocatableResourcesResponse": {"devices": (1, "ContainerDevices*"), "cpu_ids": (2, "int64*")},
    "PodResources": {"name": (1, "string"), "namespace": (2, "string"), "containers": (3, "ContainerResources*")},
    "ContainerResources": {
        "name": (1, "string"),
        "devices": (2, "ContainerDevices*"),
        "cpu_ids": (3, "int64*"),
        "dynamic_resources": (5, "DynamicResource*"),
    },
    "ContainerDevices": {"resource_name": (1, "string"), "device_ids": (2, "string*"), "topology": (3, "TopologyInfo")},
    "TopologyInfo": {"nodes": (1, "NUMANode*")},
    "NUMANode": {"ID": (1, "int64")},
    "DynamicResource": {"claim_name": (2, "string"), "claim_namespace": (3, "string"), "claim_resources": (4, "ClaimResource*")},
    "ClaimResource": {"driver_name": (2, "string"), "pool_name": (3, "string"), "device_name": (4, "string")},
}
_SCALARS = {"string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING, "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64}


@cache
def messages() -> dict[str, Any]:
    """Protobuf's classes by name."""
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            added = described.field.add(name=field, number=number)
            many = kind.endswith(_REPEATED)
            added.label = added.LABEL_REPEATED if many else added.LABEL_OPTIONAL
            kind = kind.rstrip(_REPEATED)
            if kind in _SCALARS:
                added.type = _SCALARS[kind]
            else:
                added.type, added.type_name = added.TYPE_MESSAGE, f".v1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in MESSAGES}


def given(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What List tells, as protobuf's classes take it."""
    return [
        {
            "name": record["name"],
            "namespace": record["namespace"],
            "containers": [
                {
                    "name": record["container"],
                    "devices": _devices(record["devices"]),
                    "cpu_ids": [0, 1],
                    "dynamic_resources": record["claims"],
                }
            ],
        }
        for record in state["pods"].values()
    ]


def registered(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    return _devices((state["device_plugin"] or {"resources": {}})["resources"])


def _devices(by_resource: Mapping[str, Iterable[str]]) -> list[dict[str, Any]]:
    """One entry a device, as the kubelet tells those of several NUMA nodes."""
    topology = {"nodes": [{"ID": 0}]}
    return [
        {"resource_name": resource, "device_ids": [one], "topology": topology}
        for resource, devices in by_resource.items()
        for one in devices
    ]


class Server:
    """Serves until it is stopped; how it fails is in the node's state."""

    def __init__(self, node: Node) -> None:
        self._node, self._messages = node, messages()
        self._server: grpc.Server | None = None

    def sync(self) -> None:
        """There, or not, as the state has it."""
        wanted = self._node.state()["pod_resources"] != "absent"
        if wanted and self._server is None:
            self._start()
        elif not wanted:
            self.stop()

    def _start(self) -> None:
        path = self._node.path / SOCKET
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers = {
            "List": self._handler("ListPodResourcesRequest", lambda state: ("ListPodResourcesResponse", {"pod_resources": given(state)})),
            "GetAllocatableResources": self._handler(
                "AllocatableResourcesRequest", lambda state: ("AllocatableResourcesResponse", {"devices": registered(state)})
            ),
        }
        server = grpc.server(ThreadPoolExecutor(max_workers=2))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)  # a socket's address has room for 107 bytes only
        try:
            server.add_insecure_port(f"unix:/proc/self/fd/{folder}/{path.name}")
            server.start()
        finally:
            os.close(folder)
        self._server = server

    def _handler(self, request: str, answer: Callable[[Mapping[str, Any]], tuple[str, dict[str, Any]]]) -> Any:
        def serve(_request: Any, context: Any) -> Any:
            state = self._node.state()
            if state["pod_resources"] == "unimplemented":
                context.abort(grpc.StatusCode.UNIMPLEMENTED, f"unknown service {SERVICE}")
            if state["pod_resources"] == "hangs":
                self._hang(context)
            name, fields = answer(state)
            return self._messages[name](**fields)

        return grpc.unary_unary_rpc_method_handler(
            serve, request_deserializer=self._messages[request].FromString, response_serializer=lambda message: message.SerializeToString()
        )

    @staticmethod
    def _hang(context: Any) -> None:
        """Until the caller has gone."""
        gone = threading.Event()
        if context.add_callback(gone.set):
            gone.wait(HANG_SECONDS)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(None).wait(5)
            (self._node.path / SOCKET).unlink(missing_ok=True)
            self._server = None
