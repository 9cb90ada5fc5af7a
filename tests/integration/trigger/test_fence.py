# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fence in the event source, on a real control plane: before any playbook starts, and under the same rules."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import parcels
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from cluster import ACCOUNT
from cluster.objects import wait_until
from fence_storm import killed_amid
from fleet import TAINT, Fleet
from fleet_alerts import silence
from monitoring import running_alertmanager
from ports import free_port
from trigger import Rulebook, Source

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def fleet(cluster, tmp_path):
    with Fleet(tmp_path / "controller", cluster) as made:
        made.gpu_nodes("gpu-1", "gpu-2")
        made.set("act")
        nodes = {name: made.objects.node(name)["metadata"]["uid"] for name in ("gpu-1", "gpu-2")}
        made.ledger(write=True).keep_nodes({name: {"host": name, "uid": uid, "groups": {"fleet": 2}} for name, uid in nodes.items()})
        yield made


@pytest.fixture
def source(fleet, tmp_path):
    def make(**args):
        return Source(tmp_path, fleet.ledger_url, fence_in="source", kubeconfig=str(fleet.cluster.kubeconfig), window_seconds=0.1, **args)

    return make


def posted(source, *alerts):
    ids = []
    for alert in alerts:
        status, body = source.post(alert.read_bytes())
        assert status == 200, body
        ids += json.loads(body)["inbox_ids"]
    return ids


def test_fenced_before_any_run_and_lifted_by_the_node(fleet, source):
    """The row is handed on when the fence stands. An application's fault waits for others of its kind, and is never fenced."""
    lost, crash = fleet.alert("gpu-1", 0, 79), fleet.alert("gpu-2", 0, 13)
    with source(correlation_seconds=3).running() as running:
        ids = posted(running, crash, lost)
        assert running.handed_on(1) == ids[1:]
        assert (fleet.objects.taints("gpu-1"), fleet.objects.taints("gpu-2")) == ([TAINT], [])
        assert running.handed_on(1) == ids[:1]
        assert running.metric('gpuops_trigger_fences_total{outcome="fenced"}') == 1
    [incident] = fleet.incidents()
    assert (incident["node"], incident["state"], fleet.incidents_on("gpu-1")) == ("gpu-1", "running", [incident["id"]])
    run = fleet.remediate(inbox_ids=ids)
    assert run.ok, run.output
    assert fleet.ended()[("gpu-1", fleet.uuid("gpu-1", 0))] == "fence_lifted", run.output
    assert (fleet.objects.taints("gpu-1"), [entry.name for entry in fleet.writes("nodes")]) == ([], ["gpu-1", "gpu-1"])


def test_one_gpu_is_fenced_alone(fleet, source):
    """Where claims hand it out; the batch is one look at what is handed out, and no node is written."""
    for name in ("gpu-1", "gpu-2"):
        fleet.objects.api.patch("Node", name, {"status": {"capacity": {"nvidia.com/gpu": None}}}, subresource="status")
        fleet.objects.publish(name, {f"gpu-{gpu}": {"uuid": fleet.uuid(name, gpu)} for gpu in range(2)})
    with source().running() as running:
        ids = posted(running, fleet.together(fleet.alert("gpu-1", 1, 79), fleet.alert("gpu-2", 0, 79)))
        assert running.handed_on(1) == ids
        assert running.metric('gpuops_trigger_fences_total{outcome="fenced"}') == 2
    selected = {(rule["spec"]["deviceSelector"]["pool"], rule["spec"]["deviceSelector"]["device"]) for rule in fleet.objects.taint_rules()}
    assert selected == {("gpu-1", "gpu-1"), ("gpu-2", "gpu-0")}
    assert (fleet.writes("nodes"), len(fleet.cluster.audit(verb="list", resource="resourceslices", user=ACCOUNT, since=fleet.begun))) == (
        [],
        1,
    )


def test_prometheus_that_is_configured_has_to_confirm(fleet, source):
    """Down, its evidence is missing, and the row goes on to the node; the record says so once the run has asked too."""
    nobody = f"http://127.0.0.1:{free_port()}"
    with source(prometheus_url=nobody).running() as running:
        ids = posted(running, fleet.alert("gpu-1", 0, 79))
        assert running.handed_on(1) == ids
        assert running.metric('gpuops_trigger_fences_total{outcome="not_confirmed"}') == 1
    assert fleet.writes("nodes") == []
    run = fleet.remediate(inbox_ids=ids, prometheus_url=nobody)
    assert run.ok and fleet.writes("nodes") == [], run.output
    [incident] = fleet.incidents()
    detect = incident["timeline"][0]
    assert (detect["stage"], detect["data"]["witness"], incident["state"]) == ("detect", "missing", "no_action")
    assert "Prometheus" in detect["reason"]


def test_an_api_that_hangs_holds_no_row(fleet, source):
    api = fleet.cluster["kube-apiserver"]
    alert = fleet.alert("gpu-1", 0, 79)
    with source().running() as running:
        api.pause()
        try:
            ids = posted(running, alert)
            assert running.handed_on(1, seconds=60) == ids
        finally:
            api.resume()
        assert running.metric('gpuops_trigger_fences_total{outcome="failed"}') == 1


@pytest.mark.parametrize("asked", ["it is silenced", "nobody answers", "nothing is silenced"])
def test_what_was_left_is_fenced_only_where_it_is_not_silenced(fleet, source, tmp_path, asked):
    """S6: between the message and the source's next start a human may have silenced the alert. What just came in is not asked about."""
    left, fresh = fleet.alert("gpu-1", 0, 79), fleet.alert("gpu-2", 0, 79)
    ids = [row.inbox_id for row in earlier(fleet.ledger_url).keep([(parcel, "a test") for parcel in parcels(left.read_bytes())])]
    with running_alertmanager(tmp_path / "alertmanager", "http://127.0.0.1:9/", "t0ken") as alertmanager:
        if asked == "it is silenced":
            silence(alertmanager.url, {"node": "gpu-1"})
        if asked == "nobody answers":
            alertmanager.component.end()
        with source(alertmanager_urls=[alertmanager.url]).running() as running:
            assert running.handed_on(1) == ids
            ids += posted(running, fresh)
            assert running.handed_on(1) == ids[1:]
    fenced = {"gpu-1": asked == "nothing is silenced", "gpu-2": True}
    assert {name: fleet.objects.taints(name) == [TAINT] for name in fenced} == fenced
    assert [one["node"] for one in fleet.incidents()] == [name for name, is_fenced in fenced.items() if is_fenced]


def earlier(url):
    """The ledger of a minute ago."""
    return Ledger.open(url, clock=lambda: datetime.now(timezone.utc) - timedelta(seconds=60))


def test_through_the_rulebook(fleet):
    """The run finds the fence, the node confirms it, and the taint was written once."""
    fleet.nodes["gpu-1"].xid(0, 79)
    fleet.nodes["gpu-1"].lost(0)
    with Rulebook(fleet, gpuops_fence_in="source", gpuops_kubeconfig=str(fleet.cluster.kubeconfig)).running() as rulebook:
        rulebook.post(fleet.alert("gpu-1", 0, 79))
        wait_until(lambda: fleet.writes("nodes"), "the fence", 30)
        assert "PLAY" not in rulebook.log.read_text()
        wait_until(lambda: set(fleet.ended().values()) == {"contained"}, "the incident's end", 200)
    [incident] = fleet.incidents()
    assert [stage["stage"] for stage in incident["timeline"]][:2] == ["detect", "diagnose"]
    assert (len(fleet.writes("nodes")), fleet.objects.taints("gpu-1")) == (1, [TAINT])


def test_killed_amid_a_storm(cluster, tmp_path):
    """S8, S9: SIGKILL when a third of the nodes or more are fenced, back at once, new alerts meanwhile; nothing lost, and nothing twice."""
    nodes, url = 60, f"sqlite:///{tmp_path}/ledger.db"
    source = Source(tmp_path, url, fence_in="source", kubeconfig=str(cluster.kubeconfig))
    assert 0 < killed_amid(cluster, source, url, nodes, more=10) <= nodes // 2
