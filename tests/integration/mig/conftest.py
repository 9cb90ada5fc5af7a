# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from loop import REPOSITORY, Controller
from mig_fleet import NAMESPACE, MigFleet


@pytest.fixture(scope="session")
def allowed(running_cluster):
    """The account may restart the device plugin."""
    running_cluster.objects.namespace(NAMESPACE)
    running_cluster.admin.apply_file(REPOSITORY / "roles/mig/files/kubernetes_rbac.yml")


@pytest.fixture
def fleet(cluster, allowed, tmp_path):
    with MigFleet(tmp_path / "controller", cluster) as made:
        made.variables.update(gpuops_mig_at_boot=False, gpuops_mig_unit_dir=str(tmp_path / "units"), gpuops_mig_plugin_seconds=90)
        (tmp_path / "units").mkdir()
        let_act(made)
        yield made


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        let_act(made)
        yield made


def let_act(controller):
    """A new ledger observes, and then no layout is changed."""
    controller.ledger(write=True).configure("act", None, False, "tests", "the test needs it")
