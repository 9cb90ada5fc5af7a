# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""pytest fixtures; a conftest imports those that it offers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.control_plane import Cluster


@pytest.fixture(scope="session")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The one cluster of a test session; its logs stay in pytest's directory."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    """The running cluster, mended, and emptied of nodes and work, after each test."""
    yield running_cluster
    running_cluster.mend()
    running_cluster.objects.delete_all()
