# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from collections import Counter

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.names import parse_name
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import MODELS, model_named, model_of
from gpu_evidence import ROOT
from mig import layouts

RECORDED = json.loads((ROOT / "tests/fixtures/nvml/h200-580.159.04.json").read_text())["gi_profiles"]
NO_DOUBLE = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


def test_the_h200_table_is_what_a_real_one_answers():
    answers = {int(query): answer for query, answer in RECORDED.items() if isinstance(answer, dict) and "name" in answer}
    profiles = {profile.query: profile for profile in model_named("h200-141").profiles}
    assert profiles.keys() == answers.keys()
    for query, answer in answers.items():
        profile = profiles[query]
        assert f"MIG {profile.name}" == answer["name"]
        assert (profile.profile_id, profile.limit, profile.compute_slices) == (answer["id"], answer["instanceCount"], answer["sliceCount"])
        assert (profile.memory_mib, profile.multiprocessors) == (answer["memorySizeMB"], answer["multiprocessorCount"])
        assert [[start, profile.memory_slices] for start in profile.starts] == answer["placements"][2]


@pytest.mark.parametrize(
    "name, profiles, sets, maximal, multisets, maximal_multisets",
    [
        pytest.param("a100-40", NO_DOUBLE, 297, 19, 37, 12, id="the published 19 of an A100"),
        pytest.param("a100-40", (*NO_DOUBLE, "1g.10gb"), 722, 78, 77, 28, id="and 1g with twice the memory"),
        pytest.param("a30-24", ("1g.6gb", "2g.12gb", "4g.24gb"), 25, 5, 9, 4, id="A30"),
    ],
)
def test_as_many_layouts_as_there_are(name, profiles, sets, maximal, multisets, maximal_multisets):
    model = model_named(name)
    model = Model(name, (), model.memory_slices, tuple(profile for profile in model.profiles if profile.name in profiles), "listed")
    found = [frozenset(one) for one in layouts(model) if one]
    counts = {frozenset(Counter(profile for profile, _start, _slots in one).items()) for one in found}
    plain = [Counter(dict(one)) for one in counts]
    assert len(found) == sets
    assert sum(not any(one < other for other in found) for one in found) == maximal
    assert len(counts) == multisets
    assert sum(not any(one < other for other in plain) for one in plain) == maximal_multisets


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_each_model_agrees_with_itself(model):
    names = [name for profile in model.profiles for name in (profile.name, *profile.aliases)]
    assert len(set(names)) == len(names)
    assert (
        len({profile.profile_id for profile in model.profiles}) == len({profile.query for profile in model.profiles}) == len(model.profiles)
    )
    for profile in model.profiles:
        assert parse_name(profile.name).slices == profile.compute_slices
        assert all(start % profile.memory_slices == 0 and start + profile.memory_slices <= model.memory_slices for start in profile.starts)
        assert profile.limit <= len(profile.starts)
        assert (profile.memory_mib is None) == (model.evidence == "unverified")
        assert dict(profile.compute_starts)[profile.compute_slices] == (0,)


def test_each_device_is_one_model():
    ids = [device for model in MODELS for device in model.pci_device_ids]
    assert len(set(ids)) == len(ids)
    assert all(device in model_of(device).pci_device_ids for device in ids)
    assert model_of(0x1234) is None
