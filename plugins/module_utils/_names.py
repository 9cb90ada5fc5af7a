# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Names that several parts share; data only, so that rules, queries, exporters and modules cannot drift apart."""

from __future__ import annotations

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

# Prometheus metrics of the exporter on a node
METRIC_XID_EVENTS = "gpuops_xid_events_total"  # since the boot, by LABEL_XID
METRIC_XID_LAST = "gpuops_xid_last_timestamp_seconds"  # of the last of these; a counter alone hides what came before its first scrape
METRIC_RECOVERY_ACTION = "gpuops_gpu_recovery_action"  # NVML's number, 0 for none
METRIC_ROW_REMAP_PENDING = "gpuops_gpu_row_remap_pending"
METRIC_ROW_REMAP_FAILED = "gpuops_gpu_row_remap_failed"
METRIC_ECC_ERRORS = "gpuops_gpu_ecc_errors_total"  # since the driver was loaded, by LABEL_ERROR
METRIC_NVML_UP = "gpuops_nvml_up"  # of the node; the figures above but the Xids end where it is 0

# and their labels; all but the node's and the GPU's where they apply
LABELS_GPU = ("node", "gpu_uuid", "pci_bus_id", "gpu_instance_id")
LABELS_GROUP = ("hpc_job", "nvlink_domain", "rack")  # of an Xid: what its node has in common with others
LABEL_XID = "xid"
LABEL_ERROR = "error"  # corrected, uncorrected

# and of the event source, about what is in the ledger
METRIC_INCIDENTS_OVERDUE = "gpuops_incidents_overdue"
METRIC_WAITING_OLDEST = "gpuops_waiting_oldest_seconds"

# The scrape jobs by which the alert rules know the exporters and the event source
JOB_EXPORTER = "gpuops_exporter"
JOB_RESPONDER = "gpuops_responder"

# Alerts that the event source is to have carry this label; Alertmanager routes by it
LABEL_REMEDIATION = "remediation"
REMEDIATION = "gpuops"
