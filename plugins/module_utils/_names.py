# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Names that several parts share; data only, so that rules, queries, exporters and modules cannot drift apart."""

from __future__ import annotations

from typing import NamedTuple

# Kubernetes
TAINT_KEY = "gpu.unhealthy"
TAINT_VALUE = "true"
TAINT_EFFECT = "NoSchedule"
ANNOTATION_INCIDENTS = "gpuops.remediation/incidents"  # a JSON list of incident ids
LABEL_INCIDENT = "gpuops.remediation/incident"  # on a DeviceTaintRule: whose it is
ANNOTATION_EVICT = "gpuops.remediation/evict"  # on a pod; "never" keeps it
LABEL_MANAGED = "gpuops.remediation/managed"  # on a node; "false" opts it out

# Alertmanager: the alert by which people are told
ALERT_NAME = "GpuopsIncident"

# Labels of the exporter's metrics; all but the node's and the GPU's are empty where they do not apply
LABELS_GPU = ("node", "gpu_uuid", "pci_bus_id", "gpu_instance_id")
LABELS_GROUP = ("hpc_job", "nvlink_domain", "rack")  # of an Xid: what its node has in common with others
LABEL_XID = "xid"
LABEL_ERROR = "error"  # corrected, uncorrected
LABELS_OWNER = ("container_id", "pod_uid", "unit")  # whose processes; a unit where there is no container
OTHER_OWNERS = "other"  # in place of a container's id: all that are beyond the limit on series
LABEL_SOURCE = "source"
LABEL_PROBE = "probe"  # cuda_mem, gpu_xid
LABEL_REASON = "reason"  # why something could not be counted, by the probes' own counters
LABEL_KIND = "kind"  # of memory, by the functions that allocate it
LABEL_PID = "pid"
LABEL_OPERATION = "operation"
LABEL_RESULT = "result"  # a CUresult, as its number
LABEL_PART = "part"  # of the exporter: `exporter` serves, `state` is root's reader

# Prometheus metrics of the exporter on a node, by which rules and queries know it
METRIC_XID_EVENTS = "gpuops_xid_events_total"
METRIC_XID_LAST = "gpuops_xid_last_timestamp_seconds"  # a counter alone hides what came before its first scrape
METRIC_RECOVERY_ACTION = "gpuops_gpu_recovery_action"
METRIC_ROW_REMAP_PENDING = "gpuops_gpu_row_remap_pending"
METRIC_ROW_REMAP_FAILED = "gpuops_gpu_row_remap_failed"
METRIC_ECC_ERRORS = "gpuops_gpu_ecc_errors_total"
METRIC_NVML_UP = "gpuops_nvml_up"
METRIC_PERSISTENCE = "gpuops_gpu_persistence_mode"
METRIC_MEMORY_USED = "gpuops_gpu_memory_used_bytes"
METRIC_MEMORY_TOTAL = "gpuops_gpu_memory_total_bytes"
METRIC_PRESSURE = "gpuops_gpu_memory_pressure"
METRIC_MIG_MEMORY_USED = "gpuops_mig_memory_used_bytes"
METRIC_MIG_MEMORY_TOTAL = "gpuops_mig_memory_total_bytes"
METRIC_MIG_PRESSURE = "gpuops_mig_memory_pressure"
METRIC_OOM_SCORE = "gpuops_gpu_oom_score"
METRIC_MIG_OOM_SCORE = "gpuops_mig_oom_score"
METRIC_CONTAINER_MEMORY = "gpuops_container_memory_used_bytes"
METRIC_CONTAINER_REQUESTED = "gpuops_container_memory_requested_bytes"
METRIC_CONTAINER_CONTEXT = "gpuops_container_memory_context_bytes"
METRIC_PROCESS_REQUESTED = "gpuops_process_memory_requested_bytes"
METRIC_PROCESS_CONTEXT = "gpuops_process_memory_context_bytes"
METRIC_ALLOCATIONS = "gpuops_memory_allocations_total"
METRIC_FREES = "gpuops_memory_frees_total"
METRIC_ALLOCATION_FAILURES = "gpuops_memory_allocation_failures_total"
METRIC_PROBE_ATTACHED = "gpuops_probe_attached"
METRIC_PROBE_CALLS = "gpuops_probe_calls_total"
METRIC_PROBE_UNCOUNTED = "gpuops_probe_uncounted_total"
METRIC_PROBE_UNTRACKED = "gpuops_probe_untracked_bytes_total"
METRIC_PROBE_XIDS = "gpuops_probe_xid_events_total"
METRIC_PROBE_XID_REPORTS = "gpuops_probe_xid_reports_total"
METRIC_SOURCE_UP = "gpuops_source_up"
METRIC_SOURCE_AGE = "gpuops_source_age_seconds"
METRIC_PAGE_AGE = "gpuops_exporter_page_age_seconds"
METRIC_ABANDONED = "gpuops_exporter_abandoned_readers"
METRIC_CPU = "gpuops_exporter_cpu_seconds_total"
METRIC_RESIDENT = "gpuops_exporter_resident_memory_bytes"


class Metric(NamedTuple):
    """Its name without `_total` is its family's; `labels` has all, in their order."""

    name: str
    kind: str  # counter, gauge
    labels: tuple[str, ...]
    help: str


_WHOLE_GPU = LABELS_GPU[:-1]
EXPORTER_METRICS = (
    Metric(METRIC_NVML_UP, "gauge", ("node",), "1 where NVML answers, for every GPU and in time"),
    Metric(METRIC_RECOVERY_ACTION, "gauge", _WHOLE_GPU, "What the driver asks for, as NVML's number; 0 is nothing"),
    Metric(METRIC_ROW_REMAP_PENDING, "gauge", _WHOLE_GPU, "1 where a spare memory row waits for a reset"),
    Metric(METRIC_ROW_REMAP_FAILED, "gauge", _WHOLE_GPU, "1 where a broken memory row could not be replaced"),
    Metric(METRIC_ECC_ERRORS, "counter", (*_WHOLE_GPU, LABEL_ERROR), "ECC errors since the driver was loaded"),
    Metric(METRIC_PERSISTENCE, "gauge", _WHOLE_GPU, "1 where the driver keeps the GPU initialised while nobody has it open"),
    Metric(METRIC_MEMORY_USED, "gauge", _WHOLE_GPU, "Memory of the GPU that is in use"),
    Metric(METRIC_MEMORY_TOTAL, "gauge", _WHOLE_GPU, "Memory of the GPU"),
    Metric(METRIC_PRESSURE, "gauge", _WHOLE_GPU, "Memory in use over all: 0 below 60 %, 1 below 80 %, 2 below 95 %, 3 from there on"),
    Metric(METRIC_OOM_SCORE, "gauge", _WHOLE_GPU, "Percent of the memory in use, and 10 more above 1000 allocations in the last minute"),
    Metric(METRIC_MIG_MEMORY_USED, "gauge", LABELS_GPU, "Memory of the MIG instance that is in use"),
    Metric(METRIC_MIG_MEMORY_TOTAL, "gauge", LABELS_GPU, "Memory that the MIG instance may use"),
    Metric(METRIC_MIG_PRESSURE, "gauge", LABELS_GPU, "The same of a MIG instance"),
    Metric(METRIC_MIG_OOM_SCORE, "gauge", LABELS_GPU, "The same of a MIG instance"),
    Metric(METRIC_CONTAINER_MEMORY, "gauge", (*LABELS_GPU, *LABELS_OWNER), "Memory that the processes of a container or unit use"),
    Metric(METRIC_XID_EVENTS, "counter", (*LABELS_GPU, LABEL_XID), "Xids since the boot"),
    Metric(METRIC_XID_LAST, "gauge", (*LABELS_GPU, LABEL_XID), "When the last of these Xids came"),
    Metric(METRIC_PROBE_ATTACHED, "gauge", ("node", LABEL_PROBE), "1 where this set of eBPF probes is attached"),
    Metric(METRIC_SOURCE_UP, "gauge", ("node", LABEL_SOURCE), "1 where the source told everything when it was last read, within 60 s"),
    Metric(METRIC_SOURCE_AGE, "gauge", ("node", LABEL_SOURCE), "Since the source last told everything"),
    Metric(METRIC_PAGE_AGE, "gauge", ("node",), "Since this page was put together"),
    Metric(METRIC_ABANDONED, "gauge", ("node",), "Readers that hang and cannot be killed"),
    Metric(METRIC_CPU, "counter", ("node", LABEL_PART), "Processor time of the exporter itself, its readers included"),
    Metric(METRIC_RESIDENT, "gauge", ("node", LABEL_PART), "Memory of the exporter itself"),
)

_OWNED = (*LABELS_GPU, *LABELS_OWNER)
_OWNER = ("node", *LABELS_OWNER)
PROBE_METRICS = (  # where probes are attached
    Metric(
        METRIC_CONTAINER_REQUESTED, "gauge", (*_OWNED, LABEL_KIND), "Memory that a container or unit has asked the driver for and not freed"
    ),
    Metric(METRIC_CONTAINER_CONTEXT, "gauge", _OWNED, "What NVML says that these processes use, less what they asked for"),
    Metric(
        METRIC_PROCESS_REQUESTED, "gauge", (*_OWNED, LABEL_PID), "Memory of the GPU that a process has asked the driver for and not freed"
    ),
    Metric(METRIC_PROCESS_CONTEXT, "gauge", (*_OWNED, LABEL_PID), "What NVML says that the process uses, less what it asked for"),
    Metric(METRIC_ALLOCATIONS, "counter", _OWNER, "Allocations, those of processes that have ended included"),
    Metric(METRIC_FREES, "counter", _OWNER, "Allocations that were freed by a call"),
    Metric(
        METRIC_ALLOCATION_FAILURES,
        "counter",
        (*_OWNER, LABEL_OPERATION, LABEL_RESULT),
        "Allocations that the driver refused, by CUresult; 2 is out of memory",
    ),
    Metric(METRIC_PROBE_CALLS, "counter", ("node",), "Calls of the driver's memory functions, as long as the probes are attached"),
    Metric(METRIC_PROBE_UNCOUNTED, "counter", ("node", LABEL_REASON), "What the probes saw and could not count, by their own counters"),
    Metric(METRIC_PROBE_UNTRACKED, "counter", ("node",), "Bytes of allocations that could not be counted"),
    Metric(METRIC_PROBE_XIDS, "counter", (*_WHOLE_GPU, LABEL_XID), "Xids that the probes saw; what comes within a second is one"),
    Metric(METRIC_PROBE_XID_REPORTS, "counter", (*_WHOLE_GPU, LABEL_XID, LABEL_SOURCE), "How often each source of the probes told of them"),
)

# The cgroups of the exporter's units, whose readers have a GPU open for a moment, or for as long as the driver hangs
EXPORTER_CGROUPS = ("/system.slice/gpuops-exporter.service", "/system.slice/gpuops-node-state.service")

# and of the event source, about what is in the ledger
METRIC_INCIDENTS_OVERDUE = "gpuops_incidents_overdue"
METRIC_WAITING_OLDEST = "gpuops_waiting_oldest_seconds"

# The scrape jobs by which the alert rules know the exporters and the event source
JOB_EXPORTER = "gpuops_exporter"
JOB_RESPONDER = "gpuops_responder"

# Alerts that the event source is to have carry this label; Alertmanager routes by it
LABEL_REMEDIATION = "remediation"
REMEDIATION = "gpuops"
