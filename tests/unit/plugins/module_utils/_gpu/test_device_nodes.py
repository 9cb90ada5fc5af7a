# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.devices import BadDevice, Device
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.device_nodes import DeviceNodes, NoDevice
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import NodeUnreadable, ProcFs
from gpusim import capabilities

UUIDS = ("GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3", "GPU-????????-????-????-????-????????????")
DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
238 nvidia-uvm
239 nvidia-nvswitch
240 nvidia-nvlink
241 nvidia-caps
242 nvidia-caps-imex-channels
226 drm

Block devices:
  8 sd
195 nvidia-block
"""
LAYOUT = {"minor": 1, "mig": {"instances": [{"id": 1, "compute": [{"id": 0}, {"id": 2}]}, {"id": 2, "compute": [{"id": 0}]}]}}


@pytest.fixture
def node(tmp_path):
    """The files of a driver with a whole GPU and one in MIG mode."""
    capabilities.install(str(tmp_path))
    capabilities.update(str(tmp_path), LAYOUT)
    for minor, (address, uuid) in enumerate(zip(("0000:00:06.0", "0001:17:00.0"), UUIDS)):
        folder = tmp_path / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
        )
    (tmp_path / "proc/devices").write_text(DEVICES)
    return tmp_path


def wanted(node, **options):
    params = {"gpus": None, "mig_instances": None, "devices": None, "modeset": False, **options}
    return {str(device) for device in DeviceNodes.read(ProcFs(str(node / "proc"))).wanted(params)}


CONTROL = {"c 195:255", "c 238:0", "c 238:1"}


@pytest.mark.parametrize("name", [UUIDS[0], "0000:00:06.0", "00000000:00:06.0", "0000:00:06", "0"])
def test_a_gpu_by_each_of_its_names_with_the_control_nodes(node, name):
    assert wanted(node, gpus=[name]) == {"c 195:0", *CONTROL}


def test_modeset_comes_only_when_asked_for(node):
    assert wanted(node, gpus=["0001:17:00.0"], modeset=True) == {"c 195:1", "c 195:254", *CONTROL}


def test_a_mig_instance_has_its_gpu_and_its_own_capabilities(node):
    first = capabilities.minor(1, 1)
    own = {f"c 241:{number}" for number in (first, capabilities.minor(1, 1, 2))}
    assert wanted(node, mig_instances=[{"gpu": "1", "gi": 1, "ci": 2}]) == {"c 195:1", *CONTROL, *own}
    whole = wanted(node, mig_instances=[{"gpu": "1", "gi": 1, "ci": None}])
    assert whole - {"c 195:1", *CONTROL} == {f"c 241:{capabilities.minor(1, 1, ci)}" for ci in (None, 0, 2)}


def test_without_a_gpu_there_is_nothing_to_control(node):
    assert wanted(node, gpus=[], mig_instances=[]) == set()


def test_other_devices_by_file_or_number(node):
    assert wanted(node, devices=["/dev/null", "c 242:*", "b 7:0"]) == {"c 1:3", "c 242:*", "b 7:0"}


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (
            {"gpus": ["GPU-1"]},
            NoDevice,
            f"no GPU GPU-1 here; it has {UUIDS[0]} at 0000:00:06.0, GPU without a UUID before its first use at 0001",
        ),
        ({"gpus": ["2"]}, NoDevice, "no GPU 2 here"),
        ({"gpus": [UUIDS[1]]}, NoDevice, "no GPU GPU-"),
        ({"mig_instances": [{"gpu": "1", "gi": 3, "ci": None}]}, NoDevice, "there is no gpu1/gi3 in"),
        ({"mig_instances": [{"gpu": "1", "gi": 2, "ci": 1}]}, NoDevice, "there is no gpu1/gi2/ci1 in"),
        ({"mig_instances": [{"gpu": "1", "gi": 99, "ci": None}]}, NoDevice, "there is no gpu1/gi99 in"),
        ({"devices": ["nvidia0"]}, BadDevice, "neither the file of a device nor"),
        ({"devices": ["/etc/passwd"]}, BadDevice, "neither the file of a device nor"),
        ({"devices": ["/dev/nowhere"]}, BadDevice, "cannot find /dev/nowhere"),
    ],
)
def test_what_is_not_there_is_refused(node, options, error, says):
    with pytest.raises(error) as raised:
        wanted(node, **options)
    assert says in str(raised.value)


def test_a_part_of_the_driver_that_is_not_loaded_has_no_number(node):
    (node / "proc/devices").write_text(DEVICES.replace("238 nvidia-uvm\n", ""))
    with pytest.raises(NoDevice, match="has no nvidia-uvm: that part of the driver is not loaded"):
        wanted(node, gpus=["0"])


def test_without_mig_minors_nothing_is_guessed(node):
    (node / "proc/driver/nvidia-caps/mig-minors").unlink()
    with pytest.raises(NodeUnreadable, match="mig-minors"):
        wanted(node, mig_instances=[{"gpu": "1", "gi": 1, "ci": None}])


def test_all_of_the_driver_is_guarded_and_nothing_else(node):
    assert DeviceNodes.read(ProcFs(str(node / "proc"))).guarded == {195, 238, 239, 240, 241, 242}
    (node / "proc/devices").write_text("Character devices:\n  1 mem\n")
    assert DeviceNodes.read(ProcFs(str(node / "proc"))).guarded == {195}, "the driver may be loaded later"


def test_paths(node):
    nodes = DeviceNodes.read(ProcFs(str(node / "proc")))
    told = {
        text: nodes.path(Device.parse(text))
        for text in ("c 195:3", "c 195:254", "c 195:255", "c 238:1", "c 238:2", "c 241:7", "c 239:0", "b 195:0", "c 195:*")
    }
    assert told == {
        "c 195:3": "/dev/nvidia3",
        "c 195:254": "/dev/nvidia-modeset",
        "c 195:255": "/dev/nvidiactl",
        "c 238:1": "/dev/nvidia-uvm-tools",
        "c 241:7": "/dev/nvidia-caps/nvidia-cap7",
        **dict.fromkeys(("c 238:2", "c 239:0", "b 195:0", "c 195:*")),
    }


def test_without_its_devices_a_node_cannot_be_read(tmp_path):
    os.makedirs(tmp_path / "proc")
    with pytest.raises(NodeUnreadable, match="devices"):
        DeviceNodes.read(ProcFs(str(tmp_path / "proc")))
