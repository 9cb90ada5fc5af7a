# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A whole Kubernetes control plane on loopback, for the demo, pytest and molecule: the real programs, with kwok in place of kubelets."""

from __future__ import annotations

from cluster.control_plane import ACCOUNT, COMPONENTS, NAMESPACE, Cluster
from cluster.errors import ClusterError

__all__ = ["ACCOUNT", "COMPONENTS", "NAMESPACE", "Cluster", "ClusterError"]
