# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.filter.mig_devices import mig_devices


def gpu(uuid, *instances, mig=True, **changes):
    return {"uuid": uuid, "supported": True, "lost": False, "mig": {"current": mig}, "instances": list(instances), **changes}


def instance(profile, *compute):
    return {"profile": profile, "compute": [{"slices": slices, "uuid": uuid} for slices, uuid in compute]}


def test_what_a_node_has():
    gpus = [
        gpu("GPU-1", instance("3g.71gb", (3, "MIG-1")), instance("2g.35gb", (1, "MIG-2"), (1, "MIG-3")), instance("1g.18gb")),
        gpu("GPU-2", mig=False),
        gpu("GPU-3", mig=None, supported=False),
        gpu("GPU-4", mig=None),
        gpu("GPU-5", mig=False, lost=True),
        gpu("GPU-6"),
        gpu("GPU-7", instance("1g.18gb"), instance("1g.18gb")),
    ]
    assert mig_devices(gpus) == {
        "gpus": 2,
        "mig_devices": {"3g.71gb": 1, "1c.2g.35gb": 2},
        "empty_gpus": ["GPU-6", "GPU-7"],
        "uuids": ["GPU-2", "GPU-3", "MIG-1", "MIG-2", "MIG-3"],
    }


def test_what_it_will_have():
    planned = [
        {"uuid": "GPU-1", "after": {"mig": True, "instances": [instance("1g.18gb", (1, None))]}},
        {"uuid": "GPU-2", "after": None},
        {"uuid": "GPU-4", "after": {"mig": True, "instances": []}},
        {"uuid": "GPU-3", "after": {"mig": False}, "error": {"once_free": {"mig": True, "instances": [instance("7g.141gb", (7, None))]}}},
    ]
    gpus = [gpu("GPU-1", mig=False), gpu("GPU-2", mig=False), gpu("GPU-3", mig=False), gpu("GPU-4", instance("1g.18gb", (1, "MIG-1")))]
    assert mig_devices(gpus, planned) == {
        "gpus": 1,
        "mig_devices": {"1g.18gb": 1, "7g.141gb": 1},
        "empty_gpus": ["GPU-4"],
        "uuids": ["GPU-2"],
    }
