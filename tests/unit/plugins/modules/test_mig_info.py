# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import watched
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from ansible_collections.gpuops.remediation.plugins.modules import mig_info
from mig import layout
from run_module import run_module

H200 = model_named("h200-141")
NAMES = [(f"GPU-{number}", f"0000:0{number}:00.0") for number in range(3)]


@pytest.fixture
def node(tmp_path, monkeypatch):
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot-1\n")
    (tmp_path / "dev").mkdir()
    monkeypatch.setattr(nvml, "IMPORT_ERROR", None)
    names = {"proc_root": "proc", "dev_root": "dev", "state_dir": "state", "kmsg_path": "kmsg", "cgroup_root": "cgroup"}
    return {option: str(tmp_path / name) for option, name in names.items()}


@pytest.fixture
def gpus(monkeypatch):
    """GPUs that have these layouts; None is one whose layout could not be read."""

    def have(*layouts):
        def listed(library, wanted, describe, emit, only_processes):
            for index, (uuid, address) in enumerate(NAMES[: len(layouts)]):
                emit({"gpu": index, "fields": {"uuid": uuid, "pci_bus_id": address, "minor": index, "processes_source": "nvml"}})

        def read(library, wanted, emit):
            emit({"driver_version": "580"})
            for index, (one, (uuid, address)) in enumerate(zip(layouts, NAMES)):
                reading = Reading(index, uuid, address, index, "NVIDIA H200", DeviceId(0x233510DE), True, H200, one)
                told = {"reading": reading.data()} if one else {}
                emit({"gpu": index, "answer": {"uuid": uuid, "pci_bus_id": address, **told}})

        monkeypatch.setattr(nvml, "collect", listed)
        monkeypatch.setattr(watched, "collect", read)

    return have


def test_the_answer(node, gpus):
    gpus(layout(H200, "7g.141gb@0"), Layout(False))
    told = run_module(mig_info.main, **node)
    assert (told["changed"], told["missing"], told["driver_version"]) == (False, [], "580")
    assert [(gpu["uuid"], [one["name"] for one in gpu["instances"]]) for gpu in told["gpus"]] == [("GPU-0", ["7g.141gb@0"]), ("GPU-1", [])]


@pytest.mark.parametrize(
    "layouts, why",
    [
        ([layout(H200, "7g.141gb@0"), Layout(False)], None),
        ([layout(H200, "7g.141gb@0"), None], "the layout could not be read: GPU-1"),
        ([], "the layout could not be read: no GPU was found"),
        ([layout(H200, "3g.71gb@4 -")], "3g.71gb@4"),
    ],
)
def test_a_file_of_mig_parted_or_why_there_is_none(node, gpus, layouts, why):
    gpus(*layouts)
    told = run_module(mig_info.main, **node, mig_parted="now")
    assert (told["mig_parted"] is None) is (why is not None)
    assert why is None or why in told["mig_parted_why"]


CONFIGS = {
    "version": "v1",
    "mig-configs": {
        "both": [{"devices": "all", "mig-enabled": True, "mig-devices": {"3g.71gb": 2}}],
        "first": [{"devices": [0], "mig-enabled": True, "mig-devices": {"3g.71gb": 2}}],
        "off": [{"devices": [1], "mig-enabled": False, "mig-devices": {}}],
        "other": [{"devices": [0], "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}],
        "beyond": [{"devices": [7], "mig-enabled": True, "mig-devices": {"3g.71gb": 2}}],
    },
}
HALVES = layout(H200, "3g.71gb@0", "3g.71gb@4")


@pytest.mark.parametrize(
    "config, have, expected",
    [
        ("both", [HALVES, HALVES], (True, [True, True])),
        ("both", [HALVES, layout(H200, "3g.71gb@0", "3g.71gb@4 -")], (False, [True, False])),
        ("both", [HALVES, None], (False, [True, None])),
        ("first", [HALVES, Layout(False)], (True, [True, None])),
        ("off", [HALVES, Layout(False)], (True, [None, True])),
        ("other", [HALVES], (False, [False])),
        ("beyond", [HALVES], (False, [None])),
    ],
)
def test_whether_the_gpus_are_as_a_configuration_wants_them(node, gpus, config, have, expected):
    """GPU by GPU; one that it leaves alone is no difference, one that nobody could read is."""
    gpus(*have)
    told = run_module(mig_info.main, **node, assert_mig_parted=CONFIGS, mig_parted_config=config)["asserted"]
    assert (told["holds"], [one["holds"] for one in told["gpus"]]) == expected
    assert all((one["why"] is None) is (one["holds"] is True) for one in told["gpus"])


def test_only_the_gpus_that_are_asked_for_count(node, gpus):
    gpus(HALVES, Layout(False))
    told = run_module(mig_info.main, **node, gpus=["GPU-0"], assert_mig_parted=CONFIGS, mig_parted_config="both")["asserted"]
    assert told == {"holds": True, "gpus": [{"uuid": "GPU-0", "pci_bus_id": "0000:00:00.0", "holds": True, "why": None}]}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"assert_mig_parted": CONFIGS}, "parameters are required together: assert_mig_parted, mig_parted_config"),
        ({"assert_mig_parted": CONFIGS, "mig_parted_config": "none"}, "there is no configuration none; there are both, first"),
        ({"lock_token": 1}, "parameters are required together: lock_token, lock_holder"),
        ({"lock_token": 1, "lock_holder": "run-1"}, "run-1 lost the node's lock"),
        ({"proc_root": "/nowhere"}, "cannot read /nowhere"),
    ],
)
def test_failures(node, gpus, options, text):
    gpus()
    failed = run_module(mig_info.main, **{**node, **options})
    assert failed["failed"] and text in failed["msg"]


def test_the_library_is_missing(node, monkeypatch):
    monkeypatch.setattr(nvml, "IMPORT_ERROR", "Traceback: no pynvml")
    assert "nvidia-ml-py" in run_module(mig_info.main, **node)["msg"]
