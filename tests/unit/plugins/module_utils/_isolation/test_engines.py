# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation import engines, toolkit


@pytest.mark.parametrize(
    "version, fixed, has",
    [
        ("1.16.1", ["1.16.2"], True),
        ("v1.16.2", ["1.16.2"], False),
        ("1.17.0", ["1.16.2"], False),
        ("1.9.9", ["1.16.2"], True),
        ("1.2.7", ["1.2.8", "1.3.3"], True),
        ("1.2.9", ["1.2.8", "1.3.3"], False),
        ("1.3.2", ["1.2.8", "1.3.3"], True),
        ("1.1.15", ["1.2.8", "1.3.3"], True),
        ("1.4.0", ["1.2.8", "1.3.3"], False),
        ("1.4.0-rc.2", ["1.3.3", "1.4.0-rc.3"], True),
        ("1.4.0-rc.3", ["1.3.3", "1.4.0-rc.3"], False),
        ("1.4.0-rc.3", ["1.4.0"], True),
    ],
)
def test_each_branch_has_its_own_fix(version, fixed, has):
    assert engines.has_fault(engines.parse(version), fixed) is has


@pytest.mark.parametrize(
    "text, packaged", [("1.1.5+ds1", True), ("1.1.12-0ubuntu2~22.04.1", True), ("1.4.0-rc.3", False), ("1.1.12", False)]
)
def test_who_has_built_it(text, packaged):
    assert engines.parse(text).packaged is packaged


def test_what_is_no_version():
    assert engines.faults_of("runc", "main", []) is None
    assert engines.faults_of("crun", "1.0.0", [{"engine": "runc", "fixed": ["2.0.0"]}]) == []


CONFIG = """
#accept-nvidia-visible-devices-envvar-when-unprivileged = false
accept-nvidia-visible-devices-as-volume-mounts = true # as the plugin wants
disable-require = false
supported-driver-capabilities = "compat32,compute"

[features]
#allow-cuda-compat-libs-from-container = true

[nvidia-container-cli]
environment = []
no-cgroups = true
accept-nvidia-visible-devices-envvar-when-unprivileged = false

[nvidia-container-runtime]
mode = "cdi"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes.cdi]
mode = "other"
"""


def test_the_toolkits_settings():
    assert toolkit.parse(CONFIG) == {
        "accept-nvidia-visible-devices-envvar-when-unprivileged": True,  # a comment, and a section's
        "accept-nvidia-visible-devices-as-volume-mounts": True,
        "nvidia-container-cli.no-cgroups": True,
        "nvidia-container-runtime.mode": "cdi",
        "features.allow-cuda-compat-libs-from-container": False,
    }


def test_an_empty_file_is_all_defaults():
    assert toolkit.parse("") == dict(toolkit.DEFAULTS)
    assert toolkit.parse("[nvidia-container-runtime]\nmode = 'legacy'")["nvidia-container-runtime.mode"] == "legacy"
