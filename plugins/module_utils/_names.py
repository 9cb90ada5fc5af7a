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
METRIC_CONTAINER_MEMORY = "gpuops_container_memory_used_bytes"
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
    Metric(METRIC_MIG_MEMORY_USED, "gauge", LABELS_GPU, "Memory of the MIG instance that is in use"),
    Metric(METRIC_MIG_MEMORY_TOTAL, "gauge", LABELS_GPU, "Memory that the MIG instance may use"),
    Metric(METRIC_MIG_PRESSURE, "gauge", LABELS_GPU, "The same of a MIG instance"),
    Metric(METRIC_CONTAINER_MEMORY, "gauge", (*LABELS_GPU, *LABELS_OWNER), "Memory that the processes of a container or unit use"),
    Metric(METRIC_XID_EVENTS, "counter", (*LABELS_GPU, LABEL_XID), "Xids since the boot"),
    Metric(METRIC_XID_LAST, "gauge", (*LABELS_GPU, LABEL_XID), "When the last of these Xids came"),
    Metric(METRIC_SOURCE_UP, "gauge", ("node", LABEL_SOURCE), "1 where the source told everything when it was last read, within 60 s"),
    Metric(METRIC_SOURCE_AGE, "gauge", ("node", LABEL_SOURCE), "Since the source last told everything"),
    Metric(METRIC_PAGE_AGE, "gauge", ("node",), "Since this page was put together"),
    Metric(METRIC_ABANDONED, "gauge", ("node",), "Readers that hang and cannot be killed"),
    Metric(METRIC_CPU, "counter", ("node", LABEL_PART), "Processor time of the exporter itself, its readers included"),
    Metric(METRIC_RESIDENT, "gauge", ("node", LABEL_PART), "Memory of the exporter itself"),
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
