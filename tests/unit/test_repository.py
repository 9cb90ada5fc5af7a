# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What every file of this repository keeps to."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
LISTED = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
FILES = [name for name in LISTED if name and (ROOT / name).is_file()]
# A folder of somebody's machine, or a paper that readers of this repository do not have. (Written so that this file does not match.)
PRIVATE = re.compile(r"(?<![\w.])/work[/]|/root[/]\.|\.\./shared[/]|\bissue #?\d+\b", re.IGNORECASE)


def files(*endings: str, under: str = "") -> Iterator[tuple[str, str]]:
    for name in FILES:
        if name.endswith(endings) and name.startswith(under):
            yield name, (ROOT / name).read_bytes().decode(errors="replace")


def test_mentions_nothing_private() -> None:
    found = [f"{name}:{n}: {line}" for name, text in files("") for n, line in enumerate(text.splitlines(), 1) if PRIVATE.search(line)]
    assert found == []


def test_every_file_that_can_states_its_license() -> None:
    """JSON, CSV and recordings cannot, and antsibull-changelog writes its own; REUSE.toml speaks for those."""
    able = files(".cfg", ".h", ".c", ".j2", ".md", ".py", ".sh", ".toml", ".yml")
    stated = "SPDX-License-Identifier: GPL-3.0-or-later"
    assert [name for name, text in able if stated not in text[:500] and not name.startswith("changelogs/")] == []


def test_yaml_files_end_in_yml() -> None:
    assert [name for name, _text in files(".yaml")] == ["changelogs/changelog.yaml", "changelogs/config.yaml"]


def test_module_utils_say_that_they_are_private() -> None:
    assert [name for name, text in files(".py", under="plugins/module_utils/") if "**PRIVATE**" not in text] == []


def test_links_between_pages_lead_somewhere() -> None:
    links = [(name, link) for name, text in files(".md") for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    assert [(name, link) for name, link in links if not (ROOT / name).parent.joinpath(link).exists()] == []


RULES = re.split(r"^\*\*S(\d+)\. ", (ROOT / "docs/safety.md").read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("number, text", list(zip(RULES[1::2], RULES[2::2])))
def test_each_safety_rule_has_guards_that_exist(number: str, text: str) -> None:
    guards = [guard.split("::") for guard in re.findall(r"`(\S+::\w+)`", text)]
    assert guards
    for name, test in guards:
        path = ROOT / "tests" / re.sub(r"^unit/(?=_)", "unit/plugins/module_utils/", name)
        assert f"\ndef {test}(" in path.read_text(), f"{name} has no {test}"


def test_all_twenty_safety_rules_are_there() -> None:
    assert RULES[1::2] == [str(number) for number in range(1, 21)]


GROUPS = {group: set(modules) for group, modules in yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["action_groups"].items()}
FRAGMENT_OF = {
    **{group: group for group in ("alertmanager", "kubernetes", "ledger", "node", "prometheus")},
    "node_files": "node.state_dir",
    "under_lock": "ledger.lock",
}


@pytest.mark.parametrize("group", GROUPS)
def test_action_groups_and_documentation_agree(group: str) -> None:
    """module_defaults of a group reach exactly the modules whose documentation has its options."""
    documented = set()
    for path in (ROOT / "plugins/modules").glob("*.py"):
        strings = {
            node.targets[0].id: node.value.value
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant)
        }
        if f"gpuops.remediation.{FRAGMENT_OF[group]}" in yaml.safe_load(str(strings["DOCUMENTATION"]))["extends_documentation_fragment"]:
            documented.add(path.stem)
    assert GROUPS[group] == documented
