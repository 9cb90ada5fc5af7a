# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Expressions of the role `mig` that decide what is done and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from expressions import evaluated

ROLE = Path(__file__).resolve().parents[3] / "roles/mig"
VARS = yaml.safe_load((ROLE / "vars/main.yml").read_text())
TIMES = {"mig_settle_seconds": 30, "mig_plugin_seconds": 180, "mig_busy_timeout_seconds": 60, "mig_timeout_seconds": 120}


@pytest.mark.parametrize(
    "how, entries, seconds",
    [("layout", 1, 30 + 180 + 60 + 300), ("layout", 3, 30 + 180 + 60 + 900), ("instance", 0, 30 + 180 + 60 + 160)],
)
def test_s5_the_lock_lasts_as_long_as_the_stages_together(how, entries, seconds):
    """On Kubernetes no module on the node renews it."""
    given = {**TIMES, "mig_how": how, "mig_layouts": [{}] * entries, "mig_instance_seconds": 120}
    assert evaluated(VARS["mig_lease_seconds"], mig_margin_seconds=VARS["mig_margin_seconds"], **given) == seconds
