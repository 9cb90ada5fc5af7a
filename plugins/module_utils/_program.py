# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""A part of the collection as one file that Python runs by itself: the sources that are running here, wherever they were loaded from."""

from __future__ import annotations

import ast
import functools
import importlib.util
import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

_OURS = "ansible_collections.gpuops.remediation.plugins.module_utils"


def build(module: str, interpreter: str, libraries: Sequence[str] = ()) -> bytes:
    """A zip application (PEP 441) that ends with what `main` of the module answers, given the command line's words. The same bytes each time.

    `libraries` are others' modules and packages, pure Python, that are installed here and that it takes along.
    """
    sources = _closure(module)
    files = {name.replace(".", "/") + ".py": source for name, source in sources.items()}
    files.update({f"{parent}/__init__.py": "" for name in list(files) for parent in _parents(name)})
    for library in libraries:
        files.update(_library(library))
    files["__main__.py"] = f"import sys\n\nfrom {module} import main\n\nsys.exit(main(*sys.argv[1:]))\n"
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name in sorted(files):
            file.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
    return f"#!{interpreter}\n".encode() + archive.getvalue()


def _library(name: str) -> dict[str, str]:
    """Its files, and their texts."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"there is no {name} here", name=name)
    origin = Path(spec.origin)
    if spec.submodule_search_locations is None:
        return {origin.name: origin.read_text(encoding="utf-8")}
    return {str(path.relative_to(origin.parents[1])): path.read_text(encoding="utf-8") for path in origin.parent.rglob("*.py")}


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _closure(first: str) -> dict[str, str]:
    """Sources by the module's name: what it imports of ours, and what that does."""
    sources: dict[str, str] = {}
    waiting = [first]
    while waiting:
        name = waiting.pop()
        if name not in sources:
            source = _source(name)
            if source is None:
                raise ImportError(f"there is no source of {name}")
            sources[name] = source
            waiting += _imports(source)
    return sources


def _imports(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(_OURS):
            for alias in node.names:  # a module of a package, or a thing in a module
                inner = f"{node.module}.{alias.name}"
                yield inner if _source(inner) is not None else node.module


@functools.cache
def _source(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # what is above it is no package
        return None
    if spec is None or spec.submodule_search_locations is not None:
        return None
    source: str | None = spec.loader.get_source(name)  # type: ignore[union-attr]
    return source
