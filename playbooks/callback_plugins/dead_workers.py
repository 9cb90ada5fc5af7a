# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible loads the callbacks beside a playbook without being told; those of a collection it has to be told of."""

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.callback.dead_workers import CallbackModule

__all__ = ("CallbackModule",)
