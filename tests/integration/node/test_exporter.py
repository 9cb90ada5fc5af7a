# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The exporter's one file on simulated nodes, with the unmodified pynvml and a real Prometheus."""

from __future__ import annotations

import time

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils import _names
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from cluster.objects import wait_until
from gpusim import exporter as simulated
from gpusim import instances
from loop import REPOSITORY, children
from monitoring import job, running_prometheus
from node_exporter import parsed, running_node_exporter
from prometheus_client import CollectorRegistry, generate_latest

POD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12345678_9abc_def0_1234_56789abcdef0.slice"
GIB = 1 << 30
OWN = (_names.METRIC_CPU, _names.METRIC_RESIDENT, _names.METRIC_SOURCE_AGE, _names.METRIC_PAGE_AGE)  # no two have the same


@pytest.fixture
def exporter(node, tmp_path):
    with running_node_exporter(tmp_path / "exporter", node.sim) as made:
        yield made


def figures(page, metric, *labels):
    """By the values of these labels."""
    return {tuple(dict(found).get(label, "") for label in labels): value for (name, found), value in page.items() if name == metric}


def one(page, metric):
    [value] = figures(page, metric).values()
    return value


def simulated_page(node):
    registry = CollectorRegistry()
    registry.register(simulated.Exporter([node]))
    return parsed(generate_latest(registry).decode())


def busy(node):
    """Something of everything."""
    node.start([0], "train", 100 * GIB, cgroup=f"{POD}/cri-containerd-{'4f' * 32}.scope")
    node.start([0], "serve", GIB)
    instances.set_mode(node, 1, True)
    gi = instances.create(node, 1, "3g.71gb", 4, ("2c", "1c"))
    instances.create(node, 1, "1g.35gb", 0, ())
    for ci in (0, 1):
        node.start([1], "infer", 30 * GIB, gi=gi, ci=ci, cgroup=f"{POD}/cri-containerd-{'5a' * 32}.scope")
    for code in (79, 31, 31):
        node.xid(0, code)
    node.recovery_action(0, "gpu_reset")
    node.row_remap(2, pending=True)
    node.ecc(2, corrected=5, uncorrected=2)


def test_the_simulated_exporter_says_what_the_real_one_does(node, tmp_path):
    """Names, labels and values: what holds with the one in tests and in the demo holds on a node."""
    busy(node.sim)
    with running_node_exporter(tmp_path / "exporter", node.sim) as exporter:
        real = exporter.page()
    played = simulated_page(node.sim)
    assert set(real) == set(played)
    assert {key: value for key, value in real.items() if key[0] not in OWN} == {
        key: value for key, value in played.items() if key[0] not in OWN
    }
    assert {name for name, _labels in real} == {metric.name for metric in _names.EXPORTER_METRICS}


def test_nvml_that_hangs_is_a_figure_and_no_hanging_scrape(node, exporter):
    node.sim.xid(1, 119)
    node.sim.hang("all", None)
    exporter.read_state()
    silent = {("nvml",): 0, ("processes",): 0, ("state",): 1, ("kernel_log",): 1}
    page = wait_until(lambda: figures(page := exporter.page(), _names.METRIC_SOURCE_UP, "source") == silent and page, "NVML seen to hang")
    assert one(page, _names.METRIC_NVML_UP) == 0
    assert figures(page, _names.METRIC_XID_EVENTS, "xid") == {("119",): 1}
    assert not figures(page, _names.METRIC_RECOVERY_ACTION)
    begun = time.monotonic()
    ages = []
    while time.monotonic() - begun < 6:  # longer than a reading that hangs
        asked = time.monotonic()
        ages.append(one(exporter.page(), _names.METRIC_PAGE_AGE))
        assert time.monotonic() - asked < 2
    assert max(ages) < 10
    node.sim.clear()
    wait_until(lambda: one(exporter.page(), _names.METRIC_NVML_UP) == 1, "NVML seen to answer again")


def test_a_gpu_that_hangs_hides_no_other(node, exporter):
    node.sim.hang("nvmlDeviceGetRemappedRows", None, 1)
    page = wait_until(lambda: (page := exporter.page()) and one(page, _names.METRIC_NVML_UP) == 0 and page, "the GPU seen to hang")
    told = figures(page, _names.METRIC_MEMORY_USED, "gpu_uuid")
    assert set(told) == {(node.uuids[0],), (node.uuids[2],)}


def hanging(pid):
    """A process's children that do not end at once."""
    before, proc = children(pid), ProcFs("/proc")
    time.sleep(1)
    return [one for one in before if (found := proc.process(one)) and found.state != "Z"]


def test_s20_a_reader_that_cannot_be_killed_is_counted_and_left(node, exporter, cgroup_v1):
    """SIGKILL does not act in a frozen cgroup of version 1."""
    freezer = cgroup_v1.folder / "freezer.state"
    node.sim.hang("all", None)
    freezer.write_text("FROZEN")
    [reader] = wait_until(lambda: hanging(exporter.process.pid), "a reading that hangs")
    (cgroup_v1.folder / "cgroup.procs").write_text(str(reader))
    page = wait_until(lambda: (page := exporter.page()) and one(page, _names.METRIC_ABANDONED) == 1 and page, "a reader left")
    assert one(page, _names.METRIC_PAGE_AGE) < 10 and one(page, _names.METRIC_NVML_UP) == 0
    node.sim.clear()
    time.sleep(2)  # some readings
    assert one(exporter.page(), _names.METRIC_NVML_UP) == 0, "while it lives no second one is started"
    freezer.write_text("THAWED")
    wait_until(lambda: one(exporter.page(), _names.METRIC_NVML_UP) == 1, "NVML read again")
    wait_until(lambda: reader not in children(exporter.process.pid), "nothing left of the reader")
    assert one(exporter.page(), _names.METRIC_ABANDONED) == 0


def test_no_driver(node, exporter):
    """Who holds the GPUs is then read from open files; what they use nobody can tell."""
    node.sim.start([0], "train", GIB)
    node.sim.driver_not_loaded()
    exporter.read_state()
    page = wait_until(lambda: (page := exporter.page()) and one(page, _names.METRIC_NVML_UP) == 0 and page, "the driver missed")
    assert not figures(page, _names.METRIC_CONTAINER_MEMORY) and not figures(page, _names.METRIC_MEMORY_USED)


def test_death_and_restart_lose_nothing(node, exporter):
    """Not of Xids that the kernel has overwritten meanwhile, and none counts twice."""
    node.sim.xid(0, 79)
    exporter.read_state()
    kmsg = node.sim.kmsg
    kmsg.write_text("".join(kmsg.read_text().splitlines(keepends=True)[-1:]))  # all but the last line
    node.sim.xid(0, 79)
    exporter.kill()
    exporter.read_state()
    exporter.read_state()
    kmsg.write_text("")
    exporter.read_state()
    exporter.start()
    assert figures(exporter.page(), _names.METRIC_XID_EVENTS, "gpu_uuid", "xid") == {(node.uuids[0], "79"): 2}
    node.sim.reboot()
    wait_until(lambda: not figures(exporter.page(), _names.METRIC_XID_EVENTS), "the end of the boot's counts")
    exporter.read_state()
    wait_until(lambda: figures(exporter.page(), _names.METRIC_SOURCE_UP, "source").get(("state",)) == 1, "the new boot's state")
    assert not figures(exporter.page(), _names.METRIC_XID_EVENTS)


def test_a_damaged_state_is_begun_anew(node, exporter):
    node.sim.xid(0, 79)
    exporter.read_state()
    exporter.state_file.write_text('{"boot_id": ')
    wait_until(lambda: figures(exporter.page(), _names.METRIC_SOURCE_UP, "source").get(("state",)) == 0, "the damage seen")
    exporter.read_state()
    wait_until(lambda: figures(exporter.page(), _names.METRIC_XID_EVENTS, "xid") == {("79",): 1}, "the log read again")


def test_a_lost_gpu_keeps_its_name(node, exporter):
    node.sim.xid(2, 79)
    node.sim.lost(2)
    exporter.read_state()
    wait_until(lambda: figures(exporter.page(), _names.METRIC_XID_EVENTS, "gpu_uuid") == {(node.uuids[2],): 1}, "the Xid")
    wait_until(lambda: (node.uuids[2],) not in figures(exporter.page(), _names.METRIC_MEMORY_USED, "gpu_uuid"), "the GPU lost")


def test_prometheus_raises_the_alert(node, exporter, tmp_path):
    rules = sorted((REPOSITORY / "roles/monitoring/files").glob("gpu_*.yml"))
    with running_prometheus(tmp_path / "prometheus", [job(_names.JOB_EXPORTER, exporter.port)], rules) as prometheus:
        wait_until(lambda: prometheus.query("gpuops_nvml_up == 1"), "the node scraped")
        assert prometheus.firing() == []
        node.sim.xid(0, 79)
        exporter.read_state()
        [alert] = wait_until(lambda: prometheus.firing("GpuXidFatal"), "the alert")
        assert {name: alert["labels"][name] for name in ("node", "gpu_uuid", "xid", "remediation")} == {
            "node": "gpu-1", "gpu_uuid": node.uuids[0], "xid": "79", "remediation": "gpuops",
        }  # fmt: skip
