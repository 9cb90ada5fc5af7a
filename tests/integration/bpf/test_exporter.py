# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The probes' counts on the exporter's page: the real kernel, a made-up libcuda, and a simulated NVML that knows the test's processes."""

from __future__ import annotations

import json
import random
import signal

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils import _names
from cluster.objects import wait_until
from gpusim import instances
from gpusim.node import Node
from gpusim.state import start_ticks
from node_exporter import running_node_exporter

KIB, MIB = 1024, 1 << 20
CONTEXT = 500 * MIB


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path / "nodes", "gpu-1")
    made.create(gpus=2)
    yield made
    made.destroy()


@pytest.fixture
def exporter(node, namespace, tmp_path):
    with running_node_exporter(tmp_path / "exporter", node, bpffs_dir=namespace.bpffs) as made:
        yield made


def enter(node, pid, memory_bytes, gpu=0, gi=None, ci=None):
    """A process into the simulated NVML."""
    with node.change() as state:
        state["processes"].append({
            "pid": pid, "start_ticks": start_ticks(pid), "supervisor": None, "supervisor_ticks": None, "name": "caller", "executable": "",
            "type": "compute", "gpus": [gpu], "memory_bytes": memory_bytes, "gi": gi, "ci": ci, "cgroup_path": "/", "ends": "normal", "pod": None,
        })  # fmt: skip
    (node.path / "proc" / str(pid)).symlink_to(f"/proc/{pid}")


def figures(page, metric, *labels):
    """By the values of these labels."""
    return {tuple(dict(found).get(label, "") for label in labels): value for (name, found), value in page.items() if name == metric}


def told(exporter):
    """The page, once it has what root's reader writes now."""
    exporter.read_state()
    spent = json.loads(exporter.state_file.read_text())["cost"]["cpu_seconds"]
    return wait_until(
        lambda: (page := exporter.page()) and figures(page, _names.METRIC_CPU, "part").get(("state",)) == spent and page, "the page"
    )


def test_the_page_has_the_exact_bytes_by_whom_where_and_how(node, exporter, namespace, built, caller, container_cgroup):
    identifier, folders = container_cgroup
    instances.set_mode(node, 1, True)
    gi = instances.create(node, 1, "3g.71gb", 4, ("3c",))
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as first, caller(built["push"]) as second:
        for folder in folders.values():
            (folder / "cgroup.procs").write_text(str(first.pid))
        freed = first.ok("cuMemAlloc_v2", None, MIB)
        first.ok("cuMemFree_v2", freed)
        first.ok("cuMemAlloc_v2", None, 3 * KIB)
        first.ok("cuMemAllocAsync", None, 5 * KIB, 0)
        first.ok("cuMemHostAlloc", None, 7 * KIB, 0)
        first.ok("cuMemCreate", None, 11 * KIB, [0] * 8 + [1] + [0] * 23, 0)
        assert first.call("cuMemAlloc_v2", None, 1 << 41) == [2, 0] and first.call("cuMemFree_v2", 4711) == [1]
        second.ok("cuMemAlloc_v2", None, 13 * KIB)
        enter(node, first.pid, CONTEXT + 19 * KIB)
        enter(node, second.pid, CONTEXT + MIB + 13 * KIB, 1, gi, 0)
        page = told(exporter)
        uuids = [gpu["uuid"] for gpu in node.state()["gpus"]]

        requested = figures(page, _names.METRIC_CONTAINER_REQUESTED, "gpu_uuid", "gpu_instance_id", "container_id", "kind")
        assert {key: value for key, value in requested.items() if value} == {
            (uuids[0], "", identifier, "device"): 3 * KIB, (uuids[0], "", identifier, "pool"): 5 * KIB,
            (uuids[0], "", identifier, "host"): 7 * KIB, (uuids[0], "", identifier, "handle"): 11 * KIB,
            (uuids[1], str(gi), "", "device"): 13 * KIB,
        }  # fmt: skip
        assert figures(page, _names.METRIC_CONTAINER_CONTEXT, "container_id") == {(identifier,): CONTEXT, ("",): CONTEXT + MIB}
        assert figures(page, _names.METRIC_PROCESS_REQUESTED, "pid", "gpu_instance_id") == {
            (str(first.pid), ""): 19 * KIB, (str(second.pid), str(gi)): 13 * KIB,
        }  # fmt: skip
        assert figures(page, _names.METRIC_PROCESS_CONTEXT, "pid")[(str(first.pid),)] == CONTEXT
        assert figures(page, _names.METRIC_ALLOCATIONS, "container_id")[(identifier,)] == 5
        assert figures(page, _names.METRIC_FREES, "container_id")[(identifier,)] == 1
        failures = figures(page, _names.METRIC_ALLOCATION_FAILURES, "container_id", "operation", "result")
        assert failures == {(identifier, "allocate", "2"): 1}, "a free that fails is no allocation that was refused"
        assert set(figures(page, _names.METRIC_PROBE_UNCOUNTED, "reason").values()) == {0}
        assert figures(page, _names.METRIC_PROBE_CALLS)[()] == 9
        assert figures(page, _names.METRIC_SOURCE_UP, "source")[("probes",)] == 1
        assert figures(page, _names.METRIC_PROBE_ATTACHED, "probe") == {("cuda_mem",): 1, ("gpu_xid",): 0}


def test_a_thousand_allocations_in_a_minute_add_to_the_score(node, exporter, namespace, built, caller):
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as process:
        process.ok("cuMemAlloc_v2", None, KIB)
        enter(node, process.pid, CONTEXT)
        before = told(exporter)
        for _one in range(1001):
            process.ok("cuMemFree_v2", process.ok("cuMemAlloc_v2", None, KIB))
        after = told(exporter)
    uuid = node.state()["gpus"][0]["uuid"]
    scores = [figures(page, _names.METRIC_OOM_SCORE, "gpu_uuid")[(uuid,)] for page in (before, after)]
    assert scores[1] - scores[0] == pytest.approx(10)


def test_deaths_of_everybody_lose_no_count(node, exporter, namespace, built, caller, container_cgroup):
    """Of the processes, the exporter, its reader's file, and the probes."""
    identifier, folders = container_cgroup
    namespace.probe(libraries=[built["push"]])

    def work(allocations):
        with caller(built["push"]) as process:
            for folder in folders.values():
                (folder / "cgroup.procs").write_text(str(process.pid))
            for _one in range(allocations):
                process.ok("cuMemAlloc_v2", None, KIB)
            process.end(lambda one: one.send_signal(signal.SIGKILL))

    def counted():
        return figures(told(exporter), _names.METRIC_ALLOCATIONS, "container_id")[(identifier,)]

    work(3)
    exporter.kill()
    exporter.read_state()
    exporter.read_state()
    exporter.start()
    assert counted() == 3
    exporter.state_file.unlink()
    assert counted() == 3
    work(4)
    assert counted() == 7
    namespace.probe("restarted", libraries=[built["push"]])
    work(5)
    assert counted() == 12
    page = told(exporter)
    assert not figures(page, _names.METRIC_CONTAINER_REQUESTED) and not figures(page, _names.METRIC_PROCESS_REQUESTED)


def test_xids_of_the_probes_stand_beside_the_kernel_logs(node, exporter, namespace):
    namespace.probe(probes=["gpu_xid"])
    pci = f"fade:{random.randrange(256):02x}:{random.randrange(256):02x}"
    with open("/dev/kmsg", "w") as log:
        log.write(f"<6>NVRM: Xid (PCI:{pci}): 79, first")
    with open("/dev/kmsg", "w") as log:
        log.write(f"<6>NVRM: Xid (PCI:{pci}): 79, and within a second")
    page = told(exporter)
    assert figures(page, _names.METRIC_PROBE_XIDS, "pci_bus_id", "xid")[(f"{pci}.0", "79")] == 1
    reports = figures(page, _names.METRIC_PROBE_XID_REPORTS, "pci_bus_id", "source")
    assert (reports[(f"{pci}.0", "kernel_log")], reports[(f"{pci}.0", "tracepoint")]) == (2, 0)


def test_a_node_without_probes_is_not_told_silent(exporter):
    page = told(exporter)
    assert ("probes",) not in figures(page, _names.METRIC_SOURCE_UP, "source")
    assert figures(page, _names.METRIC_PROBE_ATTACHED, "probe") == {("cuda_mem",): 0, ("gpu_xid",): 0}
    assert not {metric.name for metric in _names.PROBE_METRICS} & {name for name, _labels in page}
