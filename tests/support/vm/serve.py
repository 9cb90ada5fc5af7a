# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""In the virtual machine: runs modules, each in a child of its own, for whoever asks by lines of JSON. Starting Python anew takes seconds there."""

from __future__ import annotations

import importlib
import json
import os
import sys

from run_module import run_module

for line in sys.stdin:
    module, params = json.loads(line)
    main = importlib.import_module(f"ansible_collections.gpuops.remediation.plugins.modules.{module}").main
    child = os.fork()
    if child == 0:
        print(json.dumps(run_module(main, **params)), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
