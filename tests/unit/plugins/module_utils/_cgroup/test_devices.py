# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import struct

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.devices import ANY, PSEUDO_DEVICES, BadDevice, Device, Policy
from hypothesis import given
from hypothesis import strategies as st

minors = st.one_of(st.none(), st.integers(0, 3))
devices = st.builds(Device, st.sampled_from("bc"), st.integers(1, 3), minors)
policies = st.builds(Policy.of, st.lists(devices), st.sets(st.integers(1, 3)), st.booleans())


def asked_of_the_map(entries, device):
    """As the program in the kernel does."""
    kind = {"b": 1, "c": 2}[device.kind]
    for key in ((kind, device.major, device.minor), (kind, device.major, ANY), (kind, ANY, ANY)):
        verdict = entries.get(struct.pack("=III", *key))
        if verdict is not None:
            return verdict != bytes(4)
    return True


@given(policies, devices.filter(lambda one: one.minor is not None))
def test_the_map_says_what_the_list_says_and_can_be_read_back(policy, device):
    entries = policy.entries()
    assert asked_of_the_map(entries, device) is policy.allows(device)
    assert Policy.from_entries(entries) == policy


def test_only_what_is_guarded_is_denied():
    policy = Policy.of([Device("c", 195, 0), Device("c", 195, 255)], [195, 241], False)
    told = {text: policy.allows(Device.parse(text)) for text in ("c 195:0", "c 195:1", "c 241:3", "c 1:3", "b 195:1", "b 259:0")}
    assert told == {"c 195:0": True, "c 195:1": False, "c 241:3": False, "c 1:3": True, "b 195:1": True, "b 259:0": True}


def test_with_all_others_denied_the_pseudo_devices_stay():
    policy = Policy.of([Device("b", 7, None)], [195], True)
    assert all(policy.allows(device) for device in PSEUDO_DEVICES)
    assert policy.allows(Device("c", 136, 5)) and policy.allows(Device("b", 7, 4))
    assert not any(policy.allows(Device.parse(text)) for text in ("c 195:0", "c 10:200", "b 8:0", "c 1:1", "c 7:4"))


@pytest.mark.parametrize(
    ("text", "device"), [("c 195:0", ("c", 195, 0)), ("b 7:*", ("b", 7, None)), ("c 4095:1048575", ("c", 4095, 1048575))]
)
def test_read_and_written(text, device):
    assert Device.parse(text) == device and str(Device(*device)) == text


@pytest.mark.parametrize("text", ["195:0", "c 195", "c *:*", "p 1:1", "c 1:3 rw", " c 1:3", "c 1:-1", ""])
def test_of_another_form(text):
    assert Device.parse(text) is None


@pytest.mark.parametrize("text", ["c 4096:0", "c 1:1048576"])
def test_numbers_that_no_device_has(text):
    """Or the key would be that of all devices."""
    with pytest.raises(BadDevice, match="no such numbers"):
        Device.parse(text)
