# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import IncidentEnded
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.devices import DeviceHolders, DeviceWriter
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import (
    ApiUnavailable,
    DeviceNotTaintable,
    Forbidden,
    HumanOverride,
    NodeGone,
    NodeRecreated,
    NotManaged,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.nodes import NodeWriter
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.permit import Incident, Permit
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.resources import ResourceApi
from kube_fakes import Clock, FakeApi, FakeLedger, claim, pod, resource_slice, serve_devices
from ledgers import by_hand

NODE = "/api/v1/nodes/gpu-1"
RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
SLICE = "/apis/resource.k8s.io/v1/resourceslices/gpu-1"
OURS = {"key": "gpu.unhealthy", "value": "true", "effect": "NoSchedule"}
EIGHT = {f"gpu-{number}": {"uuid": f"GPU-{number}"} for number in range(8)}


class World:
    """One node, its devices, and whoever writes rules."""

    def __init__(self, rules="v1beta2", devices=None):
        self.clock = Clock()
        self.api = FakeApi(self.clock)
        self.ledger = FakeLedger()
        self.put_node()
        serve_devices(self.api, rules)
        self.api.put(SLICE, resource_slice("gpu-1", devices or EIGHT))

    def put_node(self, uid="u1", labels=None, **status):
        self.api.put(NODE, {"metadata": {"name": "gpu-1", "uid": uid, "labels": labels or {}}, "spec": {}, "status": status})

    def parts(self, incident="a", uid=None, check_mode=False):
        permit = Permit("gpu-1", Incident(incident, self.ledger) if incident else None)
        node, resources = NodeWriter(self.api, permit, self.clock.deadline(), uid, check_mode), ResourceApi(self.api, self.clock.deadline())
        return DeviceWriter(node, resources), resources

    def writer(self, **options):
        return self.parts(**options)[0]

    def rules(self):
        return {path: thing for path, thing in self.api.objects.items() if "/devicetaintrules/" in path}

    def devices(self):
        return sorted(rule["spec"]["deviceSelector"]["device"] for rule in self.rules().values())

    def written(self):
        return [(method, path) for method, path, _body in self.api.writes()]

    def before_post(self, act):
        """Just before our rule arrives, once."""
        times = iter([1])

        def before(method, path, body):
            if method == "POST" and next(times, None):
                return act(path, body)
            return None

        self.api.before = before


def test_everything_is_asked_before_the_write_in_order():
    """S4, S8, S9: the node is read and never written."""
    world = World()
    outcome = world.writer(uid="u1").present(["GPU-3"], OURS)
    assert [step[0] for step in world.ledger.asked] == ["authorize", "take_slot", "intend", "applied"]
    assert (world.written(), world.devices()) == ([("POST", RULES)], ["gpu-3"])
    [name] = outcome.after
    row = world.ledger.rows[0]
    assert (row.target, row.before, row.wanted, row.status) == (f"node/gpu-1/device-taint/{name}", None, OURS, "applied")
    assert world.rules()[f"{RULES}/{name}"]["metadata"]["labels"] == {"gpuops.remediation/incident": "a"}


def test_all_parts_of_a_gpu():
    world = World(devices={"mig-0": {"parentUUID": "GPU-a"}, "mig-1": {"parentUUID": "GPU-a"}, "mig-2": {"parentUUID": "GPU-b"}})
    world.writer().present(["GPU-a"], OURS)
    assert world.devices() == ["mig-0", "mig-1"]
    world.writer().release()
    assert (world.devices(), {row.status for row in world.ledger.rows}) == ([], {"reverted"})


def test_again_writes_nothing():
    world = World()
    world.writer().present(["GPU-3"], OURS)
    asked = len(world.ledger.asked)
    assert not world.writer().present(["GPU-3"], OURS).steps
    assert (len(world.api.writes()), [step[0] for step in world.ledger.asked[asked:]]) == (1, [])


def test_a_release_deletes_exactly_our_own():
    """S7, S9: another incident's rule on the same device stays until its own release."""
    world = World()
    for incident in ("a", "b"):
        world.writer(incident=incident).present(["GPU-3"], OURS)
    theirs = {"metadata": {"name": "theirs"}, "spec": {"deviceSelector": {}, "taint": OURS}}
    world.api.put(f"{RULES}/theirs", theirs)
    assert [step.action for step in world.writer().release().steps] == ["delete"]
    assert [rule["metadata"]["labels"] for rule in world.rules().values() if rule["metadata"]["name"] != "theirs"] == [
        {"gpuops.remediation/incident": "b"}
    ]
    assert not world.writer().release().steps
    world.writer(incident="b").release()
    assert list(world.rules()) == [f"{RULES}/theirs"]


def test_nothing_of_ours_asks_the_api_for_nothing():
    world = World(rules=None)
    assert not world.writer().release().steps
    assert world.api.requests == []


@pytest.mark.parametrize("check", ["authorize", "take_slot", "intend"])
def test_a_refusal_writes_nothing(check):
    """S4, S8, S9, S19; in check mode too."""
    world = World()
    world.ledger.refuse[check] = RemediationError("no")
    for check_mode in (True, False):
        with pytest.raises(RemediationError, match="no"):
            world.writer(check_mode=check_mode).present(["GPU-3"], OURS)
    assert world.api.writes() == []


@pytest.mark.parametrize(
    "world, gpu, why",
    [
        (World(), "GPU-other", "no ResourceSlice has GPU-other on node gpu-1"),
        (World(rules=None), "GPU-3", "serves no DeviceTaintRule"),
    ],
)
def test_not_alone(world, gpu, why):
    with pytest.raises(DeviceNotTaintable, match=why):
        world.writer().present([gpu], OURS)
    assert (world.api.writes(), world.ledger.rows) == ([], [])


def test_a_healthy_gpu_at_the_address_of_the_lost_one_is_left_alone():
    """As after a reboot without it, where the buses are numbered anew: the node is to be tainted."""
    world = World(devices={"gpu-2": {"uuid": "GPU-4", "pciBusID": "0000:19:00.0"}})
    with pytest.raises(DeviceNotTaintable, match="no ResourceSlice has GPU-3 or 0000:19:00"):
        world.writer().present(["GPU-3", "0000:19:00.0"], OURS)
    assert world.api.writes() == []


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/pgpu"])
@pytest.mark.parametrize("first", ["plugin", "rule"])
@pytest.mark.parametrize("amount", ["8", pytest.param("0", id="a plugin that starts anew")])
def test_not_alone_beside_a_device_plugin(resource, amount, first):
    """Whichever came first; a rule that stands is kept until the release."""
    world = World()
    if first == "rule":
        world.writer().present(["GPU-3"], OURS)
    world.put_node(capacity={resource: amount, "cpu": "8"})
    with pytest.raises(DeviceNotTaintable, match=f"a device plugin hands out {resource}"):
        world.writer().present(["GPU-3"], OURS)
    assert world.devices() == (["gpu-3"] if first == "rule" else [])


def test_alone_beside_other_devices_of_the_vendor():
    world = World()
    world.put_node(capacity={"nvidia.com/hostdev": "8"})
    assert world.writer().present(["GPU-3"], OURS).steps


@pytest.mark.parametrize("what", ["resourceslices", "devicetaintrules"])
def test_not_alone_without_the_rights(what):
    """An account of an earlier version's manifest still taints nodes."""
    world = World()

    def refuse(method, path, body):
        if what in path:
            raise Forbidden(f"{method} {path}: 403", status=403)

    world.api.before = refuse
    with pytest.raises(DeviceNotTaintable, match="may not"):
        world.writer().present(["GPU-3"], OURS)


def test_a_rule_that_the_server_refused_leaves_nothing_to_undo():
    """The release would have to read what the account may not."""
    world = World()
    world.before_post(lambda path, body: (never for never in ()).throw(Forbidden("POST: 403", status=403)))
    with pytest.raises(DeviceNotTaintable, match="may not"):
        world.writer().present(["GPU-3"], OURS)
    assert [row.status for row in world.ledger.rows] == ["reverted"]


def test_rules_that_can_no_longer_be_read_are_named():
    world = World()
    [name] = world.writer().present(["GPU-3"], OURS).after
    world.api.objects.pop("/apis/resource.k8s.io/v1beta2")
    with pytest.raises(DeviceNotTaintable, match=f"serves no DeviceTaintRule.*; the rules {name} may stand on node gpu-1: give"):
        world.writer().release()
    serve_devices(world.api)
    assert world.writer().release().steps


def test_the_older_version():
    world = World(rules="v1alpha3")
    world.writer().present(["GPU-3"], OURS)
    [(_path, rule)] = world.rules().items()
    assert rule["apiVersion"] == "resource.k8s.io/v1alpha3"
    assert world.writer().release().steps


@pytest.mark.parametrize(
    "how, error",
    [
        (lambda world: world.put_node(uid="u2"), NodeRecreated),
        (lambda world: world.put_node(labels={"gpuops.remediation/managed": "false"}), NotManaged),
        (lambda world: world.api.objects.pop(NODE), NodeGone),
    ],
)
def test_the_node_is_not_the_one_or_not_ours(how, error):
    """S4, S6."""
    world = World()
    how(world)
    with pytest.raises(error):
        world.writer(uid="u1").present(["GPU-3"], OURS)
    assert world.api.writes() == []


def test_a_rule_of_a_node_that_is_gone_is_still_ours_to_delete():
    world = World()
    world.writer(uid="u1").present(["GPU-3"], OURS)
    world.put_node(uid="u2")
    assert world.writer(uid="u1").release().steps
    assert world.rules() == {}


def test_killed_between_write_and_commit():
    """S9: the resumed run finds its rule and makes no second one."""
    world = World()
    world.ledger.refuse["applied"] = RemediationError("killed")
    with pytest.raises(RemediationError, match="killed"):
        world.writer().present(["GPU-3"], OURS)
    world.ledger.refuse.clear()
    world.writer().present(["GPU-3"], OURS)
    assert (len(world.rules()), world.ledger.rows[0].status) == (1, "applied")


def test_killed_before_the_write():
    world = World()
    world.before_post(lambda path, body: (never for never in ()).throw(RemediationError("killed")))
    with pytest.raises(RemediationError, match="killed"):
        world.writer().present(["GPU-3"], OURS)
    assert (world.rules(), world.ledger.rows[0].status) == ({}, "intended")
    world.writer().present(["GPU-3"], OURS)
    assert (len(world.rules()), world.ledger.rows[0].status) == (1, "applied")


def test_a_write_whose_answer_was_lost_is_not_made_twice():
    world = World()

    def lose(path, body):
        world.api.put(f"{path}/{body['metadata']['name']}", body)
        raise ApiUnavailable("connection reset")

    world.before_post(lose)
    world.writer().present(["GPU-3"], OURS)
    assert (len(world.rules()), world.ledger.rows[0].status) == (1, "applied")


def test_a_release_that_comes_between_leaves_no_rule_behind(ledger):
    """S9."""
    world = World()
    world.ledger = ledger
    ledger.set_mode("act", "tests", "the test needs it")
    incident = ledger.open_incident(by_hand(node="gpu-1", uid="u1")).record["id"]

    def released(path, body):
        [change] = ledger.changes(incident)
        ledger.disown(incident, change.target)
        ledger.reverted(change.id)

    world.before_post(released)
    with pytest.raises(IncidentEnded):
        world.writer(incident=incident).present(["GPU-3"], OURS)
    assert world.rules() == {}


@pytest.mark.parametrize("how", ["deleted", {"value": "sent-back"}, {"effect": "None"}])
def test_a_human_wins(how):
    """S6, S7."""
    world = World()
    [name] = world.writer().present(["GPU-3"], OURS).after
    if how == "deleted":
        world.api.objects.pop(f"{RULES}/{name}")
    else:
        world.api.objects[f"{RULES}/{name}"]["spec"]["taint"].update(how)
    left = dict(world.rules())
    for act in (lambda: world.writer().present(["GPU-3"], OURS), world.writer().standing):
        with pytest.raises(HumanOverride):
            act()
    assert not world.writer().release().steps
    assert (world.rules(), world.ledger.rows[0].status) == (left, "reverted")


def test_the_other_parts_of_a_gpu_that_a_human_gave_back_are_named():
    """The incident ends, and nobody else would say that they are still out."""
    world = World(devices={f"mig-{part}": {"parentUUID": "GPU-a"} for part in range(3)})
    first, second, third = world.writer().present(["GPU-a"], OURS).after
    world.api.objects.pop(f"{RULES}/{second}")
    with pytest.raises(
        HumanOverride,
        match=f"undid {second} on .* In force still: {first}, {third} .kubectl delete devicetaintrules -l gpuops.remediation/incident=a",
    ):
        world.writer().present(["GPU-a"], OURS)


def test_a_name_that_is_taken_is_left_alone():
    world = World()
    [name] = world.writer(incident="").present(["GPU-3"], OURS).after
    world.api.objects[f"{RULES}/{name}"]["spec"]["deviceSelector"] = {}
    with pytest.raises(HumanOverride):
        world.writer(incident="").present(["GPU-3"], OURS)
    assert len(world.api.writes()) == 1


def test_a_gpu_that_its_driver_has_ceased_to_list_stays_tainted():
    """As after a restart of the driver that no longer sees the lost GPU."""
    world = World()
    world.writer().present(["GPU-3"], OURS)
    world.api.put(SLICE, resource_slice("gpu-1", {"gpu-0": {"uuid": "GPU-0"}}))
    assert not world.writer().present(["GPU-3"], OURS).steps
    assert world.devices() == ["gpu-3"]


@pytest.mark.parametrize("listed", [{"gpu-3": {"uuid": "GPU-4"}}, {"gpu-3": {"uuid": "GPU-4"}, "gpu-2": {"uuid": "GPU-3"}}, {"gpu-3": {}}])
def test_a_device_that_is_another_gpu_by_now_is_no_quarantine(listed):
    """Drivers may count their devices, and a reboot may count anew."""
    world = World()
    [name] = world.writer().present(["GPU-3"], OURS).after
    world.api.put(SLICE, resource_slice("gpu-1", listed))
    with pytest.raises(DeviceNotTaintable, match=f"gpu-3 that {name} taints on node gpu-1 is no longer listed as GPU-3"):
        world.writer().present(["GPU-3"], OURS)
    assert world.devices() == ["gpu-3"], "until the release"


def test_a_prediction_is_the_servers_and_writes_nothing():
    world = World()
    world.ledger.check_mode = True
    predicted = world.writer(check_mode=True).present(["GPU-3"], OURS)
    assert world.written() == [("POST", RULES)], "with dryRun"
    assert world.rules() == {}
    world.ledger.check_mode = False
    done = world.writer().present(["GPU-3"], OURS)
    assert (predicted.steps, list(predicted.after)) == (done.steps, list(done.after))


def test_a_preview_leaves_nothing():
    """Its rule has no effect, is on record while it stands, and goes even where the server says nothing."""
    world = World()
    said = {"conditions": [{"type": "EvictionInProgress", "message": "1 pod would be evicted"}]}

    def answer(method, path, body):
        if method == "POST":
            assert body["spec"]["taint"]["effect"] == "None"
            world.api.put(f"{path}/{body['metadata']['name']}", {**body, "status": said})
            return {}
        return None

    world.writer().present(["GPU-3"], OURS)
    world.api.before = answer
    assert world.writer().preview(["GPU-3"], OURS) == "1 pod would be evicted"
    said.clear()
    with pytest.raises(RemediationError, match="taken notice"):
        world.writer(incident="").preview(["GPU-3"], OURS)
    assert (world.devices(), [row.status for row in world.ledger.rows]) == (["gpu-3"], ["applied", "reverted"])


@pytest.mark.parametrize("version, heard", [("v1beta2", True), ("v1beta2", False), ("v1alpha3", False)])
def test_a_rule_that_nobody_acts_on_is_no_quarantine(version, heard):
    world = World(rules=version)
    writer = world.writer()
    rules = writer.present(["GPU-3"], OURS).after
    if heard:
        world.clock.on_sleep = lambda: [
            rule.update(status={"conditions": [{"type": "EvictionInProgress", "message": ""}]}) for rule in world.rules().values()
        ]
    if heard or version == "v1alpha3":
        writer.noticed(rules)
        assert world.clock.time <= 1
    else:
        with pytest.raises(DeviceNotTaintable, match="feature gate"):
            writer.noticed(rules)
        assert world.clock.time >= 10


@pytest.mark.parametrize("incident", ["a", ""])
def test_a_rule_that_a_human_deletes_before_it_is_noticed(incident):
    """S6: the node is not tainted for it."""
    world = World(devices={f"mig-{part}": {"parentUUID": "GPU-a"} for part in range(2)})
    writer = world.writer(incident=incident)
    first, second = writer.present(["GPU-a"], OURS).after
    world.clock.on_sleep = lambda: world.api.objects.pop(f"{RULES}/{first}", None)
    with pytest.raises(HumanOverride, match=f"undid {first} on .*" + (f"In force still: {second}" if incident else "")):
        writer.noticed([first, second])
    assert world.clock.time < 1


def test_a_rule_that_went_with_its_node_was_deleted_by_nobody():
    world = World()
    writer = world.writer(uid="u1")
    rules = writer.present(["GPU-3"], OURS).after

    def recreated():
        world.put_node(uid="u2")
        for path in world.rules():
            world.api.objects.pop(path)

    world.clock.on_sleep = recreated
    with pytest.raises(NodeRecreated):
        writer.noticed(rules)


def test_an_operators_own_use():
    world = World()
    world.writer(incident="").present(["GPU-3"], OURS)
    world.writer(incident="a").present(["GPU-3"], OURS)
    assert world.writer(incident="").absent(["GPU-3"]).steps
    assert len(world.rules()) == 1, "the incident's stays"


class TestHolders:
    CLAIMANTS = (pod("u1", claims={"gpu": "a"}), pod("u2", claims={"gpu": "b"}))

    def world(self):
        world = World()
        world.api.put("/apis/resource.k8s.io/v1/resourceclaims/a", claim("a", "gpu-1", "gpu-3", pods=["u1"]))
        world.api.put("/apis/resource.k8s.io/v1/resourceclaims/b", claim("b", "gpu-1", "gpu-4", pods=["u2"]))
        return world

    def uids(self, world, *gpu, pods=CLAIMANTS):
        writer, resources = world.parts()
        return DeviceHolders(writer, resources, gpu or ["GPU-3"]).uids("gpu-1", pods)

    def test_certain_by_the_claims(self):
        world = self.world()
        assert self.uids(world) == {"u1": True}
        assert [path for _method, path, _body in world.api.requests if path.endswith("resourceclaims")] == [
            "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
        ], "not those of the whole cluster"

    def test_claims_are_read_where_the_node_s_pods_have_some(self):
        world = self.world()
        by_count, elsewhere = pod("c"), pod("d")
        by_count["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "made"}
        for each, namespace in ((by_count, "batch"), (elsewhere, "kube-system")):
            each["metadata"]["namespace"] = namespace
        self.uids(world, pods=[*self.CLAIMANTS, by_count, elsewhere])
        read = [path.split("/")[-2] for _method, path, _body in world.api.requests if path.endswith("resourceclaims")]
        assert read == ["batch", "default"]

    def test_certain_without_rules_too(self):
        world = self.world()
        world.api.objects.pop("/apis/resource.k8s.io/v1beta2")
        assert self.uids(world) == {"u1": True}

    @pytest.mark.parametrize("how", ["not served", "forbidden"])
    def test_certain_where_our_rule_can_no_longer_be_read(self, how):
        world = self.world()
        world.writer().present(["GPU-3"], OURS)

        def refuse(method, path, body):
            if "devicetaintrules" in path:
                raise Forbidden(f"{method} {path}: 403", status=403)

        if how == "forbidden":
            world.api.before = refuse
        else:
            world.api.objects.pop("/apis/resource.k8s.io/v1beta2")
        assert self.uids(world) == {"u1": True}

    @pytest.mark.parametrize("also", [(), (pod("p", limits={"nvidia.com/gpu": "1"}),)])
    def test_a_human_who_gave_the_gpu_back_ends_the_eviction(self, also):
        """S6."""
        world = self.world()
        [name] = world.writer().present(["GPU-3"], OURS).after
        world.api.objects.pop(f"{RULES}/{name}")
        with pytest.raises(HumanOverride):
            self.uids(world, pods=[*self.CLAIMANTS, *also])

    def test_certain_by_our_rule_where_the_driver_lists_it_no_more(self):
        world = self.world()
        world.writer().present(["GPU-3"], OURS)
        world.api.objects.pop(SLICE)
        assert self.uids(world) == {"u1": False}

    @pytest.mark.parametrize("elsewhere, uids", [({}, None), ({"gpu-4": {"uuid": "GPU-3"}}, {"u2": True})])
    def test_whoever_holds_another_gpu_of_that_name_is_left_alone(self, elsewhere, uids):
        world = self.world()
        world.writer().present(["GPU-3"], OURS)
        world.api.put(SLICE, resource_slice("gpu-1", {"gpu-3": {"uuid": "GPU-4"}, **elsewhere}))
        assert self.uids(world) == uids

    def test_whoever_holds_the_gpu_at_its_address_by_now_is_left_alone(self):
        world = self.world()
        world.api.put(SLICE, resource_slice("gpu-1", {"gpu-3": {"uuid": "GPU-4", "pciBusID": "0000:19:00.0"}}))
        assert self.uids(world, "GPU-3", "0000:19:00.0") is None

    def test_nobody_can_tell(self):
        assert self.uids(self.world(), "GPU-other") is None

    @pytest.mark.parametrize(
        "limits, certain",
        [
            pytest.param({"nvidia.com/gpu": "1"}, False, id="a device plugin gave it one"),
            pytest.param({"nvidia.com/hostdev": "1"}, True, id="of something else"),
            pytest.param({"nvidia.com/gpu": "0"}, True, id="of none"),
        ],
    )
    @pytest.mark.parametrize("rule", [True, False])
    def test_certain_unless_a_pod_has_a_gpu_by_count(self, rule, limits, certain):
        """What the node's capacity says does not count: it is 0 long after a plugin was removed for good."""
        world = self.world()
        if rule:
            world.writer().present(["GPU-3"], OURS)
        world.put_node(capacity={"nvidia.com/gpu": "0"})
        assert self.uids(world, pods=[*self.CLAIMANTS, pod("p", limits=limits)]) == ({"u1": not rule} if certain else None)

    def test_certain_where_the_scheduler_made_a_claim_of_the_count(self):
        by_count, both = (pod(name, limits={"nvidia.com/gpu": "1"}) for name in "cd")
        both["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/mig-1g.18gb"] = "1"
        for each in (by_count, both):
            mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}
            each["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "made", "requestMappings": [mapping]}
        done = pod("e", limits={"nvidia.com/gpu": "1"}, phase="Succeeded")
        assert self.uids(self.world(), pods=[*self.CLAIMANTS, by_count, done]) == {"u1": True}
        assert self.uids(self.world(), pods=[*self.CLAIMANTS, both]) is None
