# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fixtures that all integration tests may use."""

from __future__ import annotations

from cluster.fixtures import cluster, running_cluster

__all__ = ["cluster", "running_cluster"]
