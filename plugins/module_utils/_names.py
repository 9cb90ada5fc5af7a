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
ANNOTATION_EVICT = "gpuops.remediation/evict"  # on a pod; "never" keeps it
LABEL_MANAGED = "gpuops.remediation/managed"  # on a node; "false" opts it out
GPU_RESOURCE_PREFIX = "nvidia.com/"  # nvidia.com/gpu, nvidia.com/mig-3g.71gb

# Alertmanager: the alert by which people are told
ALERT_NAME = "GpuopsIncident"

# Prometheus metrics; labels node, gpu_uuid, pci_bus_id, and xid, gpu_instance_id where they apply
METRIC_XID_EVENTS = "gpuops_xid_events_total"
METRIC_RECOVERY_ACTION = "gpuops_gpu_recovery_action"
METRIC_ROW_REMAP_PENDING = "gpuops_gpu_row_remap_pending"
METRIC_ROW_REMAP_FAILED = "gpuops_gpu_row_remap_failed"
METRIC_ECC_ERRORS = "gpuops_gpu_ecc_errors_total"
METRIC_NVML_UP = "gpuops_nvml_up"
