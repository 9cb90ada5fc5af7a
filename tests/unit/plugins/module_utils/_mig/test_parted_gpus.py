# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Infeasible
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import GpuInstance, Layout, free_placements
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.parted import Entry, PartedInvalid, dump, load
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.parted_gpus import NodeGpu, entry_for, export, holds, want_of
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.planner import plan
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import MODELS, model_named
from gpu_evidence import ROOT
from mig import layout

H200, A30 = model_named("h200-141"), model_named("a30-24")
H200_ID, A30_ID = DeviceId(0x233510DE), DeviceId(0x20B710DE)


def published():
    """What nvidia-mig-parted ships as deployments/systemd/config-default.yaml (at its commit 1400787), a row for each entry."""
    configs = {}
    with open(ROOT / "tests/fixtures/mig/parted_defaults.csv", newline="") as stream:
        for row in csv.DictReader(stream):
            counts = dict(count.split("=") for count in row["counts"].split())
            entry = Entry(
                row["mig"] == "on",
                {name: int(count) for name, count in counts.items()},
                None,
                tuple(DeviceId(int(one, 16)) for one in row["device_filter"].split()),
            )
            configs[row["config"]] = (*configs.get(row["config"], ()), entry)
    return configs


PUBLISHED = published()
NAMED = {
    (model.name, name): entry_for(entries, 0, DeviceId(device << 16 | 0x10DE))
    for model in MODELS
    for device in model.pci_device_ids
    for name, entries in PUBLISHED.items()
}


def feasible():
    """The published entries for the models that have their profiles."""
    for (name, config), entry in NAMED.items():
        model = model_named(name)
        if entry and all(model.profile(profile) for profile in entry.counts):
            yield pytest.param(model, entry, id=f"{name} {config}")


def test_the_published_file_reads_back_the_same():
    assert load(dump(PUBLISHED)) == PUBLISHED


def test_every_model_of_it_has_a_balanced_layout():
    assert {name for (name, config), entry in NAMED.items() if config == "all-balanced" and entry} == {
        model.name for model in MODELS if model.name not in ("b300-269", "gb300-278")
    }


@pytest.mark.parametrize("model, entry", list(feasible()))
def test_each_published_entry_is_planned_from_an_empty_gpu_and_comes_back_by_export(model, entry):
    made = plan(model, Layout(False), want_of(model, entry), resetless=True).layout
    assert holds(model, made, entry)
    [back] = load(dump({"now": export([NodeGpu(0, H200_ID, made)])}))["now"]
    assert want_of(model, back) == want_of(model, Entry(entry.mig, dict(sorted(entry.counts.items()))))
    for changed in changes(model, made):
        assert not holds(model, changed, entry), changed


def changes(model, made):
    """Another mode; one instance less, each; one more, where there is room; and one that has lost its compute instance."""
    yield Layout(not made.mig)
    for one in made.instances:
        rest = tuple(other for other in made.instances if other is not one)
        yield Layout(True, rest)
        yield Layout(True, (*rest, replace(one, compute=())))
    for profile, placement in list(free_placements(model, made))[:1] if made.mig else ():
        yield Layout(True, (*made.instances, GpuInstance(profile, placement)))


def test_an_entry_of_profiles_that_a_model_lacks_is_refused():
    refused = Counter()
    for (name, _config), entry in NAMED.items():
        model = model_named(name)
        if entry and not all(model.profile(profile) for profile in entry.counts):
            with pytest.raises(Infeasible) as caught:
                want_of(model, entry)
            assert caught.value.details["reason"] == "profile"
            refused[name] += 1
    assert set(refused) == {model.name for model in MODELS}, "no model has the profiles of all others"


def test_the_last_entry_that_names_a_gpu_counts():
    entries = (Entry(False), Entry(True, {"1g.18gb": 7}, (1,)), Entry(True, {"1g.6gb": 4}, None, (A30_ID,)))
    assert [entry_for(entries, *gpu) for gpu in ((0, H200_ID), (1, H200_ID), (1, A30_ID))] == list(entries)
    assert entry_for(entries[1:], 0, H200_ID) is None


@pytest.mark.parametrize(
    "have, entry, so",
    [
        (layout(H200, "3g.71gb@0"), Entry(True, {"3g.71gb": 1, "1g.18gb": 0}), True),
        (layout(H200, "3g.71gb@4"), Entry(True, {"3g.71gb": 2}), False),
        (layout(H200, "3g.71gb@4 -"), Entry(True, {"3g.71gb": 1}), False),
        (layout(H200, "3g.71gb@4", "1g.18gb@0 -"), Entry(True, {"3g.71gb": 1}), False),
        (layout(H200), Entry(True), True),
        (layout(H200), Entry(False), False),
        (Layout(False), Entry(False), True),
        (Layout(False, pending=True), Entry(False), False),
    ],
)
def test_holds(have, entry, so):
    assert holds(H200, have, entry) is so


def test_an_entry_of_another_model_is_refused_rather_than_not_held():
    with pytest.raises(Infeasible):
        holds(H200, layout(H200), Entry(True, {"1g.5gb": 7}))


FULL, EMPTY = layout(H200, "7g.141gb@0"), layout(H200)


@pytest.mark.parametrize(
    "gpus, entries",
    [
        pytest.param([(0, H200_ID, FULL), (1, H200_ID, FULL)], [Entry(True, {"7g.141gb": 1})], id="all alike"),
        pytest.param(
            [(0, H200_ID, FULL), (1, H200_ID, EMPTY), (2, H200_ID, FULL)],
            [Entry(True, {"7g.141gb": 1}, (0, 2)), Entry(True, {}, (1,))],
            id="one model, by index",
        ),
        pytest.param(
            [(0, H200_ID, FULL), (1, A30_ID, layout(A30, "4g.24gb@0"))],
            [Entry(True, {"7g.141gb": 1}, None, (H200_ID,)), Entry(True, {"4g.24gb": 1}, None, (A30_ID,))],
            id="two models, by filter",
        ),
        pytest.param(
            [(0, H200_ID, FULL), (1, H200_ID, Layout(False)), (2, A30_ID, Layout(False))],
            [Entry(True, {"7g.141gb": 1}, (0,), (H200_ID,)), Entry(False, {}, (1, 2), (A30_ID, H200_ID))],
            id="both",
        ),
    ],
)
def test_export(gpus, entries):
    nodes = [NodeGpu(*gpu) for gpu in gpus]
    assert list(export(nodes)) == entries
    for gpu in nodes:
        assert holds(A30 if gpu.device_id == A30_ID else H200, gpu.layout, entry_for(entries, gpu.index, gpu.device_id))


def test_what_the_format_has_no_words_for_is_not_left_out():
    with pytest.raises(PartedInvalid, match=r"3g.71gb@4"):
        export([NodeGpu(0, H200_ID, layout(H200, "3g.71gb@4 -"))])
