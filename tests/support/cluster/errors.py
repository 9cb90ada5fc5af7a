# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What can go wrong with the test cluster itself."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster or one of its programs could not be built, started, awaited or stopped."""
