# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What deploy_node installs of the probes, under a real systemd: in the units' sandbox, started by the timer."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils import _names
from cluster.objects import wait_until
from controller_machine import running_controller
from node_exporter import parsed
from ports import free_port

PROBES = ["cuda_launch", "cuda_mem", "gpu_irq", "gpu_vm", "gpu_xid"]
BOOT, SERVICE, TIMER = "gpuops-probes-boot.service", "gpuops-probes.service", "gpuops-probes.timer"
LIBRARY = "/usr/lib/some-linux-gnu/libcuda.so.1"
PRIVATE = "/usr/local/nvidia/lib64"
SCRAPE = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:{}/metrics', timeout=10).read().decode())"
CONTAINER = f'mkdir -p {PRIVATE} && mount -t tmpfs tmpfs {PRIVATE} && cp {LIBRARY} {PRIVATE} && exec /usr/bin/python3 -c "$CALL"'
CALL = f"""
import ctypes, time
library = ctypes.CDLL("{PRIVATE}/libcuda.so.1")
while not time.sleep(0.5):
    library.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1024))
"""
pytestmark = pytest.mark.timeout(900)


class Machine:
    def __init__(self, controller):
        self.controller, self.systemd, self.port = controller, controller.systemd, free_port()

    def deploy(self, *options, **more):
        own = {"gpuops_probes_interval_seconds": 2, "gpuops_probes_max_allocations": 16384, "gpuops_proc_root": "/proc"}
        variables = json.dumps({"ansible_connection": "local", "gpuops_exporter_port": self.port, **own, **more})
        there = [
            "--inventory=/etc/gpuops/inventory.yml",
            "--vault-password-file=/etc/gpuops/vault",
            "-egpuops_nodes=gpu-1",
            f"-e{variables}",
        ]
        return self.controller.program("ansible-playbook", "gpuops.remediation.deploy_node", *there, *options)

    def links(self, probe="cuda_mem"):
        return self.systemd.run("ls", f"/sys/fs/bpf/gpuops/{probe}/links", check=False).stdout.split()

    def figures(self, **labels):
        """The exporter's, by name, of who has these labels."""
        page = parsed(self.systemd.run("/usr/bin/python3", "-c", SCRAPE.format(self.port)).stdout)
        return {metric: value for (metric, found), value in page.items() if labels.items() <= dict(found).items()}

    def result(self):
        done = self.systemd.run("cat", "/run/gpuops-probes/result.json", check=False, user="nobody")
        return json.loads(done.stdout) if done.returncode == 0 else None


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with running_controller(tmp_path_factory.mktemp("systemd") / "machine", ["gpu-1"]) as controller:
        mounted = controller.systemd.run("mount", "-t", "bpf", "-o", "mode=700", "bpf", "/sys/fs/bpf", check=False)
        if mounted.returncode:
            pytest.skip("no bpf filesystem can be mounted here")
        yield Machine(controller)


@pytest.fixture(scope="module")
def deployed(machine):
    untouched = machine.deploy()
    assert untouched.ok and not machine.links() and not (machine.systemd.root / "etc/systemd/system" / TIMER).exists(), untouched.output
    first = machine.deploy(gpuops_probes=PROBES)
    assert first.ok and machine.links("gpu_xid"), first.output
    again = machine.deploy(gpuops_probes=PROBES)
    assert again.ok and again.changed("gpu-1") == 0, again.output
    return machine


def files(deployed):
    return {name.rsplit("_", 1)[0] for name in deployed.links() if "kernel" not in name}


def test_the_timers_runs_attach_to_what_comes_through_the_sandbox(deployed, built):
    """A copy on the host, and one that another mount namespace alone has."""
    systemd = deployed.systemd
    first = wait_until(deployed.result, "a run of the timer", 60)
    target = systemd.root / LIBRARY[1:]
    target.parent.mkdir(parents=True)
    target.write_bytes(built["push"].read_bytes())
    wait_until(lambda: len(files(deployed)) == 1, "the host's copy with probes", 60)
    systemd.run("systemd-run", "--unit=container", f"--setenv=CALL={CALL}", "--property=PrivateMounts=yes", "sh", "-ec", CONTAINER)
    wait_until(lambda: len(files(deployed)) == 2, "the container's copy with probes", 60)
    accounts = "/sys/fs/bpf/gpuops/cuda_mem/maps/accounts"
    wait_until(lambda: json.loads(systemd.run("bpftool", "--json", "map", "dump", "pinned", accounts).stdout), "its memory counted", 60)
    whose = {
        "unit": "container.service"
    }  # by its cgroup; the kernel's numbers of processes mean nothing in this machine's own pid namespace
    wait_until(lambda: deployed.figures(**whose).get(_names.METRIC_ALLOCATIONS), "its allocations on the exporter's page", 120)
    assert deployed.figures(kind="device")[_names.METRIC_CONTAINER_REQUESTED] >= 1024
    assert deployed.figures(source="probes")[_names.METRIC_SOURCE_UP] == 1
    told = wait_until(lambda: (now := deployed.result()) and now["copies"] == 2 and now, "the copies told", 60)
    assert told["error"] is None and told["totals"]["runs"] > first["totals"]["runs"] and told["totals"]["failures"] == 0
    cost = wait_until(lambda: (now := deployed.result()) and now["launch_cost"], "the cost of the launch probes told", 60)
    assert cost["hit_ns"] > 0, "a hit can be measured in the sandbox"
    systemd.systemctl("stop", "container")
    wait_until(lambda: len(files(deployed)) == 1, "the links of a container that has ended gone", 60)


def test_s13_the_probes_units_come_without_a_reload(deployed):
    said = deployed.systemd.journal("--unit=init.scope", "_PID=1")
    assert "Started" in said and "Reloading" not in said
    assert deployed.systemd.show(TIMER, "ActiveState") == "active"


def test_after_a_reboot_the_boots_unit_attaches_before_gpu_clients(deployed):
    systemd = deployed.systemd
    systemd.systemctl("daemon-reload")  # a boot reads all units anew
    assert BOOT in systemd.show("multi-user.target", "Wants").split()
    assert "kubelet.service" in systemd.show(BOOT, "Before").split()
    systemd.systemctl("stop", TIMER, SERVICE)
    systemd.run("find", "/sys/fs/bpf/gpuops", "-type", "f", "-delete")
    assert not deployed.links("gpu_xid")
    systemd.systemctl("start", BOOT)
    assert deployed.links("gpu_xid") and files(deployed)
    assert systemd.show(BOOT, "Result") == "success" and systemd.show(BOOT, "ActiveState") == "active"
    systemd.systemctl("start", TIMER)


def test_absent_leaves_nothing(deployed):
    gone = deployed.deploy(gpuops_probes=[])
    systemd = deployed.systemd
    assert gone.ok and "gpuops" not in systemd.run("ls", "/sys/fs/bpf").stdout.split(), gone.output
    assert systemd.show(TIMER, "ActiveState") == "inactive" and deployed.result() is None
    assert not list((systemd.root / "etc/systemd/system").rglob("gpuops-probes*"))
