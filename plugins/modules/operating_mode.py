#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: operating_mode
short_description: Read and set what the collection may do by itself
description:
  - The mode is kept in the ledger with who set it and why, and read before every write. A new ledger observes.
  - Without O(mode), O(breaker), O(breaker_reset) and O(adopt_ledger) the module only reads.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.breaker
  - gpuops.remediation.ledger
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  mode:
    description: The mode to set.
    type: str
    choices:
      observe: Diagnose and tell people; write to nothing else.
      fence: Also write and revert taints. Processes, pods and device files are left alone.
      act: Everything.
  breaker_reset:
    description: Let writes through again after the breaker tripped. What was held meanwhile is diagnosed anew.
    type: bool
    default: false
  adopt_ledger:
    description:
      - This controller takes the place of the one that the ledger, an SQLite file, belongs to; for instance after a new installation.
    type: bool
    default: false
  who:
    description: Who asks for it; required to set anything.
    type: str
  why:
    description: Why; required to set anything.
    type: str
"""

EXAMPLES = r"""
- name: Let it act
  gpuops.remediation.operating_mode:
    mode: act
    who: jane
    why: the trial week is over

- name: Let writes through again
  gpuops.remediation.operating_mode:
    breaker_reset: true
    who: jane
    why: it was the switch of rack 12, which is replaced
"""

RETURN = r"""
mode:
  description: The mode now.
  returned: success
  type: str
breaker:
  description: The breaker's numbers and whether it has C(tripped).
  returned: success
  type: dict
history:
  description: Who had set what, newest first.
  returned: success
  type: list
  elements: dict
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.modes import MODES
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import BREAKER_SPEC, LEDGER_SPEC, open_ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module

SPEC = {
    "argument_spec": {
        **BREAKER_SPEC,
        **LEDGER_SPEC,
        "mode": {"choices": list(MODES)},
        "breaker_reset": {"type": "bool", "default": False},
        "adopt_ledger": {"type": "bool", "default": False},
        "who": {},
        "why": {},
    },
    "required_by": {"mode": ["who", "why"], "breaker": ["who", "why"]},
    "required_if": [("breaker_reset", True, ["who", "why"]), ("adopt_ledger", True, ["who", "why"])],
}


def run(params, check_mode):
    sets = any(params[name] for name in ("mode", "breaker", "breaker_reset", "adopt_ledger"))
    adopt = "%s: %s" % (params["who"], params["why"]) if params["adopt_ledger"] else ""
    # Reading alone makes no ledger.
    ledger = open_ledger(params["ledger_url"], check_mode or not sets, adopt)
    before = {"mode": ledger.mode(), "breaker": ledger.breaker()}
    after = ledger.configure(params["mode"], params["breaker"], params["breaker_reset"], params["who"], params["why"])
    return {**after, "changed": before != after, "history": ledger.settings_history(), "diff": {"before": before, "after": after}}


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()
