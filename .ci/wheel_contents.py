"""Compare the installed wheel with the checkout: every file is there, byte for byte, and nothing else is.

Then every module is imported, from the wheel. What the tests prove of the checkout holds of the wheel's code
after that, as it is the same code.

Usage: python wheel_contents.py CHECKOUT, from a directory that holds no packages.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pkgutil
import sys
import tomllib
from pathlib import Path

checkout = Path(sys.argv[1])
build = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
wheel = build["targets"]["wheel"]


def files_below(path: Path) -> list[Path]:
    """Return the files of a folder but what Python and tools keep beside modules; of a file, itself."""
    if path.is_file():
        return [path]
    files = [Path(folder) / name for folder, _, names in os.walk(path, followlinks=True) for name in names]
    return [
        file
        for file in files
        if not any(part == "__pycache__" or part.startswith(".") for part in file.relative_to(path).parts)
    ]


sources = {name: name for name in wheel["packages"]} | wheel["force-include"]
expected = {
    str(Path(inside) / file.relative_to(checkout / outside)): file
    for outside, inside in sources.items()
    for file in files_below(checkout / outside)
}
installed = {
    str(file): Path(str(file.locate()))
    for file in importlib.metadata.files("generative-retrieval") or ()
    if file.parts[0] in wheel["packages"] and "__pycache__" not in file.parts
}
if missing := sorted(expected.keys() - installed.keys()):
    sys.exit(f"not in the wheel: {', '.join(missing)}")
if more := sorted(installed.keys() - expected.keys()):
    sys.exit(f"in the wheel and not in the checkout: {', '.join(more)}")
if others := [name for name, file in expected.items() if file.read_bytes() != installed[name].read_bytes()]:
    sys.exit(f"the wheel has another text: {', '.join(others)}")

# Modules that only another program loads, by its name, and that so need it: here it is not installed.
LOADED_BY = {
    "genret.retrieval.engines.sglang_processor": "sglang",
    "genret.retrieval.engines.vllm_processors": "vllm",
}

imported = 0
for package in map(importlib.import_module, wheel["packages"]):
    place = Path(str(package.__file__)).parent
    if place.parent != installed["genret/__init__.py"].parents[1]:
        sys.exit(f"{place} is imported, which is not the wheel")
    for module in pkgutil.walk_packages([str(place)], f"{package.__name__}."):
        if module.name.endswith(".__main__"):
            continue
        try:
            importlib.import_module(module.name)
            imported += 1
        except ModuleNotFoundError as error:
            if error.name != LOADED_BY.get(module.name):
                raise
print(f"the wheel has the {len(expected)} files of the checkout; {imported} modules were imported from it")
