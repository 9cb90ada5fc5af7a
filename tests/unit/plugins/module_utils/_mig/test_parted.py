# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.parted import (
    Entry,
    PartedInvalid,
    document_of,
    dump,
    load,
    read,
)
from hypothesis import given
from hypothesis import strategies as st

TEXT = """
version: v1
mig-configs:
  balanced:
    # comments stay out of it
    - device-filter: ["0x20B010DE", '0x20F110DE:0x145F10DE']
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.5gb": 2
        1c.3g.20gb: 3
    - device-filter: '0x20B710DE'
      devices: [0, 3]
      mig-enabled: yes
      mig-devices: {}
  disabled:
    - devices: all
      mig-enabled: false
"""
CONFIGS = {
    "balanced": (
        Entry(True, {"1g.5gb": 2, "1c.3g.20gb": 3}, None, (DeviceId(0x20B010DE), DeviceId(0x20F110DE, 0x145F10DE))),
        Entry(True, {}, (0, 3), (DeviceId(0x20B710DE),)),
    ),
    "disabled": (Entry(False),),
}


def test_what_the_format_can_say_is_read_and_written():
    assert load(TEXT) == CONFIGS
    assert load(dump(CONFIGS)) == CONFIGS


ENTRY = {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"mig-device": {}}, "unknown fields: mig-device"),
        ({"devices": None}, "neither all nor a list"),
        ({"devices": "0"}, "neither all nor a list"),
        ({"devices": [True]}, "neither all nor a list"),
        ({"devices": [-1]}, "neither all nor a list"),
        ({"devices": ...}, "has no devices"),
        ({"mig-enabled": ...}, "has no mig-enabled"),
        ({"mig-enabled": "true"}, "neither true nor false"),
        ({"mig-enabled": False}, "does not enable MIG"),
        ({"mig-devices": ...}, "has no mig-devices"),
        ({"mig-devices": None}, "has no mig-devices"),
        ({"mig-devices": ["1g.5gb"]}, "no mapping"),
        ({"mig-devices": {"1g.5gb": 0}}, "all counts are 0"),
        ({"mig-devices": {"1g.5gb": -1}}, "the count -1"),
        ({"mig-devices": {"1g.5gb": True}}, "the count True"),
        ({"mig-devices": {"1g.5gb": "7"}}, "the count '7'"),
        ({"mig-devices": {"1g.5gb.me": 1}}, "no profile"),
        ({"device-filter": ["20B0"]}, "no PCI id: 20B0"),
        ({"device-filter": 0x20B010DE}, "neither a text nor a list"),
        ({"device-filter": "0x120B010DE"}, "no PCI id"),
    ],
)
def test_an_entry_that_mig_parted_would_not_read(change, words):
    entry = {name: value for name, value in {**ENTRY, **change}.items() if value is not ...}
    with pytest.raises(PartedInvalid, match=words) as caught:
        read({"version": "v1", "mig-configs": {"one": [ENTRY, entry]}})
    assert "one[1]" in str(caught.value)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"version": "v1"},
        {"version": "v2", "mig-configs": {"one": [ENTRY]}},
        {"version": "v1", "mig-configs": {}},
        {"version": "v1", "mig-configs": {"one": []}},
        {"version": "v1", "mig-configs": {1: [ENTRY]}},
        {"version": "v1", "mig-configs": {"one": [None]}},
        {"version": "v1", "mig-configs": {"one": [ENTRY]}, "hooks": {}},
    ],
)
def test_a_document_that_mig_parted_would_not_read(document):
    with pytest.raises(PartedInvalid):
        read(document)


@pytest.mark.parametrize(
    "text, words",
    [
        ("version: [", "no YAML"),
        (
            "version: v1\nmig-configs: {a: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 1, 1g.5gb: 2}}]}",
            "line 2 repeats the key 1g.5gb",
        ),
        ("a: &a [*a]", "version"),
    ],
)
def test_a_text_that_is_no_file_of_its(text, words):
    with pytest.raises(PartedInvalid, match=words):
        load(text)


numbers = st.integers(0, 2**32 - 1)
entries = st.builds(
    Entry,
    st.just(True),
    st.dictionaries(st.sampled_from(["1g.5gb", "1c.3g.20gb", "1g.24gb-me"]), st.integers(1, 7), max_size=2),
    st.none() | st.lists(st.integers(0, 15), max_size=2).map(tuple),
    st.lists(st.builds(DeviceId, numbers, st.none() | numbers), max_size=2).map(tuple),
)


@given(st.lists(st.just(Entry(False)) | entries, min_size=1, max_size=2).map(tuple))
def test_whatever_is_written_reads_back_the_same(config):
    assert read(document_of({"one": config})) == {"one": config}
