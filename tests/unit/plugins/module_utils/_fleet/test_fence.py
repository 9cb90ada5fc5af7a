# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import timedelta

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.fence import fence
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.prometheus import PrometheusUnavailable, Sample
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import load_policy
from kube_fakes import Clock, FakeApi, notice, resource_slice, serve_devices
from ledgers import GPU, NOON, alert, wanted
from loop import REPOSITORY

POLICY = load_policy(str(REPOSITORY / "data" / "xid_policy.yml"))


class Witness:
    def __init__(self, *samples, error=None):
        self.samples, self.error, self.asked = samples, error, []

    def instant(self, query):
        self.asked.append(query)
        if self.error:
            raise self.error
        return [*self.samples, *map(read_now, self.samples)]


def counted(node="gpu-1", age=10):
    labels = {"__name__": "gpuops_xid_events_total", "node": node, "gpu_uuid": GPU, "xid": "79"}
    return Sample(labels, 1.0, NOON - timedelta(seconds=age))


def read_now(sample):
    """The node's kernel log, at the same scrape."""
    return Sample({"__name__": "gpuops_source_age_seconds", "node": sample.labels["node"], "source": "kernel_log"}, 5.0, sample.time)


@pytest.fixture
def api():
    made = FakeApi(Clock())
    for number in (1, 2):
        made.put(f"/api/v1/nodes/gpu-{number}", {"metadata": {"name": f"gpu-{number}", "uid": f"uid-{number}"}, "spec": {}})
    return made


@pytest.fixture
def fenced(ledger, api):
    ledger.set_mode("fence", "tests", "the test needs it")

    def run(*alerts, prometheus=None):
        openings = [ledger.open_incident(wanted(one, uid="uid-" + one.node[-1])) for one in alerts]
        records = [opening.record for opening in openings]
        return fence(ledger, api, POLICY, records, prometheus, Clock().deadline())

    return run


def lost(node="gpu-1", xid=79, **more):
    return alert(node=node, fingerprint="a" * 15 + node[-1], xid=xid, gpu_uuid=GPU, **more)


def test_what_is_certain_alone_is_fenced_and_nothing_else(fenced, api, ledger):
    """Application, nvlink and fabric faults never are, nor what only the node can tell."""
    answers = fenced(lost(), lost("gpu-2", xid=74))
    assert [(one["node"], one["fenced"], one["witness"]) for one in answers] == [("gpu-1", True, None)]
    assert [path for _method, path, _body in api.writes()] == ["/api/v1/nodes/gpu-1"]
    stage = ledger.incident(answers[0]["incident_id"])["stages"]["detect"]
    assert (stage["outcome"], stage["data"]["fenced"]) == ("ok", True)
    assert "No Prometheus is configured." in stage["reason"]


def test_a_gpu_that_is_handed_out_by_itself_is_fenced_alone(fenced, api, ledger):
    """Its node is not; that of a GPU which a device plugin hands out is. Each has its own result."""
    serve_devices(api)
    api.before = notice
    api.put("/apis/resource.k8s.io/v1/resourceslices/gpu-2", resource_slice("gpu-2", {"gpu-0": {"uuid": GPU}}))
    answers = fenced(lost(), lost("gpu-2"))
    assert [(one["node"], one["fenced"]) for one in answers] == [("gpu-1", True), ("gpu-2", True)]
    assert sorted(path.rpartition("/")[2] for _method, path, _body in api.writes()) == ["devicetaintrules", "gpu-1"]
    assert ["rules" in one["diff"]["after"] for one in answers] == [False, True]


@pytest.mark.parametrize(
    "witness, says, why",
    [
        (Witness(counted()), "confirmed", "from the node's own exporter"),
        (Witness(), "missing", "no sample"),
        (Witness(counted(age=61)), "missing", "younger than 60 s"),
        (Witness(counted(), error=PrometheusUnavailable("Prometheus gives no answer")), "missing", "gives no answer"),
    ],
)
def test_prometheus_has_to_confirm_where_it_is_configured(fenced, api, ledger, witness, says, why):
    """Down or without an answer, its evidence is missing, the record says so, and the node decides."""
    [answer] = fenced(lost(), prometheus=witness)
    assert (answer["witness"], answer["fenced"], len(api.writes())) == (says, says == "confirmed", int(says == "confirmed"))
    assert why in ledger.incident(answer["incident_id"])["stages"]["detect"]["reason"]


def test_a_hint_fences_nothing(fenced, api):
    """S3: what is over is no evidence, whoever confirms that it once was."""
    assert fenced(lost(hint=True), prometheus=Witness(counted())) == []
    assert api.writes() == []


def test_one_query_for_a_batch(fenced):
    witness = Witness(counted("gpu-1"), counted("gpu-2"))
    assert [one["fenced"] for one in fenced(lost("gpu-1"), lost("gpu-2"), prometheus=witness)] == [True, True]
    assert len(witness.asked) == 1


def test_weighed_once(fenced, api):
    """The source has fenced, and the run that comes after it leaves it at that."""
    fenced(lost())
    assert fenced(lost()) == []
    assert len(api.writes()) == 1


def test_observe_weighs_nothing(fenced, api, ledger):
    """S4."""
    ledger.set_mode("observe", "tests", "the test needs it")
    assert (fenced(lost()), api.requests) == ([], [])


def test_why_a_fence_failed_is_told(fenced, api, ledger):
    del api.objects["/api/v1/nodes/gpu-1"]
    [answer] = fenced(lost())
    assert (answer["fenced"], answer["error_kind"]) == (False, "node_gone")
    assert "Not fenced: node gpu-1 does not exist" in ledger.incident(answer["incident_id"])["stages"]["detect"]["reason"]


def test_a_new_round_is_not_fenced_on_the_old_alert(ledger, api):
    """S3, S8: what the breaker held is diagnosed anew, never replayed."""
    ledger.set_mode("fence", "tests", "the test needs it")
    incident = ledger.open_incident(wanted(lost(), uid="uid-1")).record
    ledger.close_incident(incident["id"], "held_for_human", "the breaker")
    record = ledger.reopen(incident["id"], anew=True).record
    assert (record["round"], fence(ledger, api, POLICY, [record], None, Clock().deadline()), api.writes()) == (2, [], [])


def test_who_is_not_the_last_to_try_settles_only_what_is_clear(ledger, api):
    """A Prometheus or an API that gives the source no answer may give the run one."""
    ledger.set_mode("fence", "tests", "the test needs it")
    incident = ledger.open_incident(wanted(lost(), uid="uid-1")).record

    def tried(witness, **options):
        return fence(ledger, api, POLICY, [ledger.incident(incident["id"])], witness, Clock().deadline(), **options)

    assert [one["witness"] for one in tried(Witness(error=PrometheusUnavailable("no answer")), last=False)] == ["missing"]
    assert [one["fenced"] for one in tried(Witness(counted()), last=True)] == [True]
    assert tried(Witness(counted()), last=True) == []
