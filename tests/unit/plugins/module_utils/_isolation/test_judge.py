# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.remediation.plugins.filter.isolation_findings import isolation_findings
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation import toolkit
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation.rules import RULES, SEVERITIES

GPU, OTHER = "GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3", "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
SLICE = "MIG-c01602c2-35f9-5a7c-8e44-c3d3024b9d45"
UID = "5f7dd6b1-31f5-4c0b-8d0c-0d5f64a9a0aa"
ID = "ab" * 32
FAULTS = yaml.safe_load((Path(__file__).resolve().parents[5] / "data/engine_faults.yml").read_text())


def gpu(minor=0, uuid=GPU, **more):
    mig = {"current": False, "pending": False, "instances": []}
    known = {"uuid": uuid, "pci_bus_id": f"0000:00:0{minor + 6}.0", "index": minor, "minor": minor, "device_path": f"/dev/nvidia{minor}"}
    return {**known, "mig": mig, "compute_mode": "default", "processes": [], **more}


def cut(**more):
    return gpu(
        mig={"current": True, "pending": True, "instances": [{"uuid": SLICE, "gi": 2, "ci": 0}, {"uuid": "MIG-2", "gi": 3, "ci": 0}]},
        **more,
    )


def device(minor=0, gi=None, ci=None):
    return {"kind": "gpu" if gi is None else "gpu_instance", "minor": minor, "gi": gi, "ci": ci}


def container(**more):
    known = {"cgroup": f"/system.slice/docker-{ID}.scope", "unit": f"docker-{ID}.scope", "runtime": "docker", "id": ID, "pod_uid": None}
    facts = {"processes": [], "memory_max": 1 << 30, "devices": [device()], "open": [], "uses": [], "host_pid": False, "capabilities": []}
    return {**known, **facts, "environment_read": True, "visible_devices": GPU, "mps_pipes": [], "mps_reached": [], **more}


def of_pod(**more):
    return container(pod_uid=UID, runtime="containerd", cgroup=f"/kubepods.slice/cri-containerd-{ID}.scope", **more)


def unit(name="train.service", **more):
    return {**container(id=None, runtime=None, unit=name, cgroup=f"/system.slice/{name}", devices=[], visible_devices=None), **more}


def use(uuid=GPU, gi=None, ci=None, kind="compute"):
    return {"gpu": uuid, "gi": gi, "ci": ci, "type": kind, "source": "nvml"}


def node(*containers, **more):
    known = {"gpus": [gpu(), gpu(1, OTHER)], "engines": [], "toolkit": None, "mps_daemons": [], "missing": []}
    return {**known, "containers": list(containers), **more}


def pod(name="train-0", privileged=False, requests=1, **spec):
    limits = {"nvidia.com/gpu": str(requests)} if requests else {}
    part = {"name": "main", "securityContext": {"privileged": privileged}, "resources": {"limits": limits}}
    status = {"containerStatuses": [{"name": "main", "containerID": f"containerd://{ID}"}]}
    return {"metadata": {"namespace": "team-a", "name": name, "uid": UID}, "spec": {"containers": [part], **spec}, "status": status}


def allocations(*devices, resource="nvidia.com/gpu", shared=(), claims=(), source="pod_resources"):
    who = {"pod_namespace": "team-a", "pod_name": "train-0", "container": "main"}
    given = [{**who, "resource": resource, "devices": list(devices), "count": len(devices)}] if devices else []
    return {"source": source, "allocations": given, "claims": list(claims), "shared": list(shared), "registered": {}}


def judged(*containers, facts=None, **options):
    return isolation_findings(node(*containers, **(facts or {})), "gpu-1", **options)


def on_kubernetes(one, *devices, pods=None, **options):
    return judged(one, pods=[pod()] if pods is None else pods, allocations=allocations(*devices), kubernetes=True, **options)


def rules(found):
    return {(one["rule"], one["severity"]) for one in found}


def toolkit_with(**settings):
    named = {
        "envvar": toolkit.ENVVAR,
        "no_cgroups": "nvidia-container-cli.no-cgroups",
        "compat": "features.allow-cuda-compat-libs-from-container",
    }
    changed = {named[name]: value for name, value in settings.items()}
    return {"path": "/etc/config.toml", "settings": {**toolkit.DEFAULTS, toolkit.ENVVAR: False, **changed}}


def test_a_container_that_keeps_to_what_it_was_given_is_no_finding():
    assert judged(container(uses=[use()], open=[device()])) == []
    assert on_kubernetes(of_pod(uses=[use()]), GPU) == []


def test_a_node_without_containers_is_no_finding():
    assert judged() == []


@pytest.mark.parametrize(
    "one, options, rule, evidence",
    [
        (container(capabilities=["all"]), {}, "privileged", "it has all capabilities of the host"),
        (of_pod(), {"pods": [pod(privileged=True)], "allocations": allocations(GPU)}, "privileged", "privileged: true in main"),
        (container(capabilities=["sys_admin", "bpf"]), {}, "capabilities", "sys_admin, bpf"),
        (container(host_pid=True), {}, "host_pid", "its pid namespace is the host's"),
        (of_pod(), {"pods": [pod(hostPID=True)], "allocations": allocations(GPU)}, "host_pid", "hostPID"),
        (container(visible_devices="all"), {}, "visible_all", "sees nvidia0"),
        (of_pod(visible_devices="all"), {"pods": [pod()], "allocations": allocations(OTHER)}, "visible_all", "sees nvidia0"),
        (
            of_pod(visible_devices=GPU),
            {"pods": [pod()], "allocations": allocations(OTHER)},
            "visible_behind_plugin",
            f"NVIDIA_VISIBLE_DEVICES={GPU}; sees nvidia0",
        ),
        (of_pod(visible_devices="void"), {"pods": [pod()], "allocations": allocations(OTHER)}, "devices_beyond", "sees nvidia0"),
        (container(devices=[device(), device(1)]), {}, "devices_beyond", "sees nvidia1"),
        (container(open=[device(1)]), {}, "devices_beyond", "sees nvidia1"),
        (
            container(devices=[{**device(), "kind": "mig_config", "minor": None}]),
            {},
            "mig_config",
            "the device of mig/config is in its /dev",
        ),
        (container(mps_reached=["/tmp/nvidia-mps"]), {}, "mps_reachable", "/tmp/nvidia-mps of the node"),
        (container(memory_max="max"), {}, "memory_unlimited", "memory.max is max, and so above it"),
        (of_pod(uses=[use(OTHER)]), {"pods": [pod()], "allocations": allocations(GPU)}, "drift", "is on nvidia1; was given nvidia0"),
        (of_pod(devices=[]), {"pods": [pod()], "allocations": allocations("GPU-gone")}, "allocation_gone", "GPU-gone"),
        (container(host_pid=None, environment_read=False), {}, "unread", "its pid namespace, its environment"),
        (container(memory_max=None), {}, "unread", "its memory limit: the cgroup has none that can be read"),
    ],
)
def test_each_rule_of_a_container(one, options, rule, evidence):
    [found] = judged(one, **options)
    assert (found["rule"], found["evidence"], found["node"]) == (rule, evidence, "gpu-1")
    assert found["severity"] in (RULES[rule].severity, "low") and found["fix"].startswith(RULES[rule].fix)
    assert found["subject"] == ("team-a/train-0 main" if one["pod_uid"] else "docker abababababab")
    assert (found["pod"], found["container"]) == ("team-a/train-0" if one["pod_uid"] else None, ID)


@pytest.mark.parametrize(
    "facts, options, rule, severity",
    [
        ({"toolkit": toolkit_with(envvar=True)}, {"kubernetes": True}, "toolkit_envvar", "medium"),
        ({"toolkit": toolkit_with(envvar=True)}, {}, "toolkit_envvar", "low"),
        ({"toolkit": toolkit_with(no_cgroups=True)}, {}, "toolkit_no_cgroups", "low"),
        ({"toolkit": toolkit_with(compat=True)}, {}, "toolkit_compat_libs", "medium"),
        ({"missing": [{"source": "nvml", "why": "hangs"}]}, {}, "unread", "medium"),
        ({}, {"missing": [{"source": "the kubelet", "why": "no answer"}]}, "unread", "medium"),
        ({"gpus": [cut(compute_mode="exclusive_process")]}, {}, "compute_mode", "medium"),
        ({"gpus": [gpu()]}, {"compute_mode": "exclusive_process"}, "compute_mode", "medium"),
        ({"gpus": [gpu()], "mps_daemons": [{"pid": 1}]}, {}, "compute_mode", "low"),
    ],
)
def test_each_rule_of_a_node(facts, options, rule, severity):
    assert rules(judged(facts=facts, **options)) == {(rule, severity)}


@pytest.mark.parametrize(
    "facts, options",
    [
        ({"toolkit": toolkit_with()}, {"kubernetes": True}),
        ({"gpus": [gpu(compute_mode="exclusive_process")], "mps_daemons": [{"pid": 1}]}, {}),
        ({"gpus": [cut()], "mps_daemons": [{"pid": 1}]}, {"compute_mode": "exclusive_process"}),
        ({"gpus": [gpu(compute_mode=None)]}, {"compute_mode": "exclusive_process"}),
        ({"gpus": [gpu(compute_mode="exclusive_process")]}, {"compute_mode": "exclusive_process"}),
    ],
)
def test_a_node_as_it_should_be(facts, options):
    assert judged(facts=facts, **options) == []


def test_the_toolkit_without_a_file_has_its_default():
    engine = {"engine": "nvidia-container-toolkit", "path": "/usr/bin/nvidia-ctk", "version": "1.19.0", "why": None}
    assert rules(judged(facts={"engines": [engine]}, kubernetes=True)) == {("toolkit_envvar", "medium")}


# --- who is meant to have what


@pytest.mark.parametrize(
    "one",
    [
        container(visible_devices="0"),
        container(visible_devices="nvidia.com/gpu=0"),
        container(visible_devices="void", devices=[device(), device(1)]),  # CDI gives devices by itself
        container(visible_devices=None, devices=[device(), device(1)]),  # --device
        container(visible_devices="all", devices=[]),  # an image's wish that nobody met
        container(visible_devices="GPU-of-another-node", devices=[device(1)]),
    ],
)
def test_without_a_kubelet_whoever_starts_a_container_says_what_it_gets(one):
    assert judged(one) == []


def test_none_means_none():
    assert rules(judged(container(visible_devices="none"))) == {("devices_beyond", "high")}


@pytest.mark.parametrize("name", [SLICE, "0:0"])
def test_a_mig_device_is_its_instance_and_the_way_to_it(name):
    own = [device(), device(0, 2), {"kind": "compute_instance", "minor": 0, "gi": 2, "ci": 0}]
    facts = {"gpus": [cut()]}
    assert judged(container(visible_devices=name, devices=own), facts=facts) == []
    [found] = judged(container(visible_devices=name, devices=[*own, device(0, 3)]), facts=facts)
    assert (found["rule"], found["evidence"]) == ("devices_beyond", "sees nvidia0 instance 3")


def test_the_neighbours_mig_device_is_drift():
    options = {"pods": [pod()], "allocations": allocations(SLICE, resource="nvidia.com/mig-3g.71gb"), "facts": {"gpus": [cut()]}}
    assert judged(of_pod(uses=[use(gi=2, ci=0)]), **options) == []
    [found] = judged(of_pod(uses=[use(gi=3, ci=0)]), **options)
    assert (found["rule"], found["evidence"]) == ("drift", "is on nvidia0 instance 3/0; was given nvidia0 instance 2/0")


@pytest.mark.parametrize(
    "told, pods",
    [
        (allocations(OTHER, claims=[{"pod_namespace": "team-a", "pod_name": "train-0", "driver": "gpu.nvidia.com"}]), [pod()]),
        (allocations(OTHER), [pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}])]),
        (allocations(OTHER), []),  # its name is not known
        (allocations("nvidia0"), [pod()]),  # a plugin with names of its own
        (allocations(OTHER, resource="nvidia.com/GH100_VGPU"), [pod()]),
        (None, [pod()]),
    ],
)
def test_where_nobody_can_tell_what_a_pod_was_given_nothing_is_said_of_it(told, pods):
    assert judged(of_pod(uses=[use()]), pods=pods, allocations=told, kubernetes=True) == []


def test_the_file_of_the_kubelet_knows_pods_by_their_uids():
    entry = {"pod_uid": UID, "container": "main", "resource": "nvidia.com/gpu", "devices": [OTHER], "count": 1}
    told = {**allocations(source="checkpoint"), "allocations": [entry]}
    assert rules(judged(of_pod(uses=[use()]), allocations=told)) == {("visible_behind_plugin", "high"), ("drift", "high")}


def test_what_another_container_of_the_pod_was_given_is_not_its_own():
    told = allocations(GPU)
    told["allocations"][0]["container"] = "side"
    assert ("drift", "high") in rules(judged(of_pod(uses=[use()]), pods=[pod()], allocations=told))


def test_a_pod_that_calls_itself_a_static_one_is_not_taken_for_it():
    false = pod("false")
    false["metadata"].update(uid="other", annotations={"kubernetes.io/config.hash": UID})
    [found] = judged(of_pod(uses=[use(OTHER)]), pods=[pod(), false], allocations=allocations(GPU))
    assert found["pod"] == "team-a/train-0"
    static = pod("kept")
    static["metadata"].update(uid="of-the-mirror", annotations={"kubernetes.io/config.hash": UID})
    [found] = judged(of_pod(memory_max="max"), pods=[static])
    assert found["pod"] == "team-a/kept"


# --- few false alarms


def test_those_that_are_to_see_all_gpus_are_not_judged():
    lost = {"gpus": [gpu(), gpu(1, None)]}
    assert judged(of_pod(uses=[use(None)]), pods=[pod()], allocations=allocations(GPU), facts=lost) == [], (
        "where a GPU has no name, nobody can tell"
    )
    bad = of_pod(capabilities=["all"], host_pid=True, memory_max="max", uses=[use()])
    found = on_kubernetes(bad, pods=[pod(privileged=True)])
    assert {one["rule"] for one in found} == {"privileged", "host_pid", "memory_unlimited", "drift"}
    assert on_kubernetes(bad, pods=[pod(privileged=True)], system=["team-a/*"]) == []
    assert judged(container(capabilities=["all"], open=[device()]), system=[f"docker/{ID[:12]}*"]) == []
    assert judged(unit("dcgm.service", memory_max="max", uses=[use()]), system=["/system.slice/dcgm*.service"]) == []


def test_a_units_name_alone_is_anybodys():
    own = unit(
        "dcgm.service", memory_max="max", uses=[use()], cgroup="/user.slice/user-1000.slice/user@1000.service/app.slice/dcgm.service"
    )
    assert rules(judged(own, system=["/system.slice/dcgm*.service"])) == {("memory_unlimited", "low")}


def test_a_privileged_container_that_wants_no_gpu_is_said_softly():
    """As a network plugin is: it sees every device of the node."""
    plain = of_pod(capabilities=["all"], host_pid=True, memory_max="max", visible_devices=None, mps_reached=["/tmp/nvidia-mps"])
    assert rules(on_kubernetes(plain, pods=[pod(privileged=True, requests=0)])) == {("privileged", "low")}
    assert ("privileged", "high") in rules(on_kubernetes(plain, pods=[pod(privileged=True)]))


def test_who_may_reach_mps():
    one = of_pod(mps_reached=["/tmp/nvidia-mps"])
    assert rules(on_kubernetes(one, GPU)) == {("mps_reachable", "high")}
    assert on_kubernetes(one, GPU, mps_clients=["team-a/train-*"]) == []
    assert judged(one, pods=[pod()], allocations=allocations(GPU, shared=["nvidia.com/gpu"])) == [], "the device plugin's own"


def test_several_on_one_gpu():
    second = {**container(uses=[use()]), "id": "cd" * 32, "cgroup": f"/system.slice/docker-{'cd' * 32}.scope"}
    both = [container(uses=[use()]), second]
    [found] = judged(*both)
    assert (found["rule"], found["subject"], found["evidence"]) == (
        "shared_context",
        GPU,
        "on the GPU: docker abababababab, docker cdcdcdcdcdcd",
    )
    assert judged(*both, shared_gpus=["GPU-8a3f*"]) == []
    assert judged(*both, mps_clients=["docker/*"]) == []
    assert judged(*both, system=["docker/cd*"]) == []
    assert judged(container(uses=[use()]), {**second, "visible_devices": OTHER, "devices": [device(1)], "uses": [use(OTHER)]}) == []
    assert rules(judged(unit("a.service", uses=[use()]), unit("b.service", uses=[use()]))) == {("shared_context", "low")}


def test_two_compute_instances_share_the_memory_of_their_gpu_instance():
    first, second = unit("a.service", uses=[use(gi=2, ci=0)]), unit("b.service", uses=[use(gi=2, ci=1)])
    [found] = judged(first, second, facts={"gpus": [cut()]})
    assert found["evidence"] == "on GPU instance 2: a.service, b.service"
    assert judged(first, unit("b.service", uses=[use(gi=3, ci=0)]), facts={"gpus": [cut()]}) == []


def test_what_somebody_has_accepted_is_told_with_the_reason():
    accepted = [{"rule": "memory_*", "subject": "docker ab*", "why": "one tenant"}]
    [found] = judged(container(memory_max="max"), accepted=accepted)
    assert (found["rule"], found["accepted"]) == ("memory_unlimited", "one tenant")
    assert judged(container(memory_max="max"), accepted=[{**accepted[0], "node": "gpu-2"}])[0]["accepted"] is None


# --- engines


def of_runc(version):
    return judged(facts={"engines": [{"engine": "runc", "path": "/usr/bin/runc", "version": version, "why": None}]}, engine_faults=FAULTS)


def test_a_version_with_a_known_fault():
    found = of_runc("1.1.11")
    assert [one["detail"] for one in found] == ["CVE-2024-21626", "CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"]
    assert {(one["rule"], one["severity"]) for one in found} == {("engine_fault", "high")}
    assert found[0]["evidence"].startswith("CVE-2024-21626: runc 1.1.11 (/usr/bin/runc); fixed in 1.1.12.")
    assert of_runc("1.3.3") == []


def test_a_distributions_build_may_have_the_fix():
    assert {one["severity"] for one in of_runc("1.1.5+ds1")} == {"medium"}
    assert "distribution" in of_runc("1.1.5+ds1")[0]["evidence"]


@pytest.mark.parametrize("version, why", [(None, "says no version: nothing"), ("main", None)])
def test_a_version_that_is_not_understood_was_not_audited(version, why):
    engine = {"engine": "runc", "path": "/usr/bin/runc", "version": version, "why": why}
    assert rules(judged(facts={"engines": [engine]})) == {("unread", "low")}


# --- fixes and words


def test_a_memory_limit_is_put_right_by_itself_only_where_no_kubelet_keeps_it_and_somebody_says_which():
    def automatic(one, **options):
        return [found["automatic"] for found in judged(one, **options)]

    plain = container(memory_max="max")
    assert judged(plain)[0]["fix"].endswith("; or --tags fix with gpuops_audit_memory_max")
    assert "--tags" not in judged(of_pod(memory_max="max"))[0]["fix"]
    assert automatic(plain, memory_max="64G") == [{"cgroup": plain["cgroup"], "memory_max": "64G"}]
    assert automatic(plain) == automatic(of_pod(memory_max="max"), memory_max="64G") == [None]
    assert automatic(unit(memory_max="max", uses=[use()]), memory_max="64G") == [None]


def test_the_toolkit_is_put_right_only_where_somebody_says_so():
    facts = {"toolkit": toolkit_with(envvar=True)}
    assert [judged(facts=facts, fix_toolkit=so)[0]["automatic"] for so in (True, False)] == [{"toolkit": "/etc/config.toml"}, None]


def test_what_a_container_chose_never_steers_a_terminal():
    [found] = judged(of_pod(visible_devices="\x1b[2J" + "x" * 600 + "," + GPU), pods=[pod()], allocations=allocations(OTHER))
    assert found["evidence"].isprintable() and "?[2J" in found["evidence"] and len(found["evidence"]) == 500


def test_the_worst_comes_first():
    found = judged(container(host_pid=True, memory_max="max"), facts={"toolkit": toolkit_with(no_cgroups=True)})
    assert [one["severity"] for one in found] == ["high", "medium", "low"]


def test_every_rule_says_why_and_what_to_do():
    assert all(rule.severity in SEVERITIES and rule.why and rule.fix for rule in RULES.values())


def test_the_role_documents_every_rule():
    spec = yaml.safe_load((Path(__file__).resolve().parents[5] / "roles/isolation_audit/meta/argument_specs.yml").read_text())
    told = " ".join(spec["argument_specs"]["main"]["description"])
    assert [rule for rule in RULES if f"C({rule})" not in told] == []


def test_each_known_fault_has_a_source_and_is_gone_in_its_fix():
    for fault in FAULTS:
        assert fault["source"].startswith("https://") and fault["severity"] in SEVERITIES and fault["fixed"] and fault["what"]
        for fixed in fault["fixed"]:
            engine = {"engine": fault["engine"], "path": "/", "version": fixed, "why": None}
            found = judged(facts={"engines": [engine], "toolkit": toolkit_with()}, engine_faults=[fault])
            assert found == [], fault["id"]
