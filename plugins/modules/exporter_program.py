#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: exporter_program
short_description: Put the exporter's program on a node
description:
  - The program is one file, a zip of Python sources, made on the controller of this collection's code and of the packages C(prometheus-client) and
    C(nvidia-ml-py) that are installed there. The node needs nothing but an interpreter.
  - Made of the same sources it is the same bytes, so that nothing is changed where nothing is new.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: partial
    details:
      - It says that the file differs; it is not text.
  idempotent:
    support: full
options:
  dest:
    description: Where the program goes; it is root's, and everybody may run it. The folder has to be there.
    type: path
    required: true
  python:
    description: The node's interpreter that runs it, Python 3.9 or later.
    type: path
    default: /usr/bin/python3
"""

EXAMPLES = r"""
- name: Install the exporter's program
  gpuops.remediation.exporter_program:
    dest: /usr/local/lib/gpuops/gpuops-exporter
"""

RETURN = r"""
checksum:
  description: SHA-1 of the program.
  returned: success
  type: str
error_kind:
  description: V(missing_library), the controller lacks one of the packages.
  returned: failure
  type: str
"""
