# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._names import EXPORTER_METRICS, PROBE_METRICS

PAGE = Path(__file__).parents[4] / "docs/exporter.md"


def test_the_page_says_what_the_table_says():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `gpuops_")]
    assert rows == [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
        for metric in (*EXPORTER_METRICS, *PROBE_METRICS)
    ]


def test_a_counter_and_nothing_else_is_called_total():
    assert all(metric.name.endswith("_total") is (metric.kind == "counter") for metric in (*EXPORTER_METRICS, *PROBE_METRICS))
