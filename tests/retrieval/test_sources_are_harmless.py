"""No module of the packages unpickles, evaluates text as code or runs a shell; read from syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("retrieval", "decoding", "index_builder", "service")
MODULES = {
    "pickle", "_pickle", "dill", "cloudpickle", "jsonpickle", "joblib", "shelve", "marshal", "yaml",
}  # fmt: skip
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "torch.load", "torch.jit.load", "torch.hub.load", "torch.package", "os.system", "os.popen",
    "pandas.read_pickle", "builtins.eval", "builtins.exec", "yaml.load", "yaml.load_all", "yaml.full_load",
    "yaml.full_load_all", "yaml.unsafe_load", "yaml.unsafe_load_all",
}  # fmt: skip
# Who may import what all the same, and for what; the calls above are refused there too.
ALLOWED = {
    "service/ray_serve/deployment.py": {"yaml"},  # writes a file for `serve deploy`
    # What a server's two processes say to each other, over a socket pair that nobody else can open.
    "service/serving/engine_link.py": {"pickle"},
}
# Keyword arguments that make a harmless call one that runs what it reads.
ARGUMENTS = {"allow_pickle": True, "shell": True, "weights_only": False, "use_safetensors": False}


def findings(source: str, allowed: Set[str] = frozenset()) -> list[str]:
    """Name what is dangerous in a module, by line; `allowed` are modules it may import."""
    tree = ast.parse(source)
    aliases, modules = dict(_aliases(tree)), MODULES - allowed
    dangers = (danger for node in ast.walk(tree) for danger in _dangers(node, aliases, modules))
    return [f"line {line}: {what}" for line, what in dangers]


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.asname, name.name) for name in node.names if name.asname)
        elif isinstance(node, ast.ImportFrom):
            yield from ((name.asname or name.name, f"{node.module}.{name.name}") for name in node.names)


def _dangers(node: ast.AST, aliases: dict[str, str], modules: Set[str]) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        yield from ((node.lineno, f"import {n.name}") for n in node.names if _top(n.name) in modules)
    elif isinstance(node, ast.ImportFrom) and _top(node.module or "") in modules:
        yield node.lineno, f"from {node.module} import"
    elif isinstance(node, ast.Call):
        called = _dotted(node.func, aliases)
        if called in BUILTINS or called in CALLS:
            yield node.lineno, f"{called}()"
        for keyword in node.keywords:
            value = keyword.value
            dangerous = keyword.arg in ARGUMENTS and isinstance(value, ast.Constant)
            if dangerous and value.value is ARGUMENTS[keyword.arg]:
                yield node.lineno, f"{keyword.arg}={value.value}"


def _top(module: str) -> str:
    return module.partition(".")[0]


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, aliases)}.{node.attr}"
    return ""


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_runs_what_it_reads(package: str) -> None:
    paths = [path for path in sources() if path.relative_to(ROOT).parts[0] == package]
    assert len(paths) > 10
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
    found = {name: findings(text, ALLOWED.get(name, frozenset())) for name, text in texts.items()}
    assert {path: what for path, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, pickle as p",
        "from pickle import loads",
        "import joblib.memory",
        "eval('1')",
        "import torch as t\nt.load(path)",
        "from torch import load as harmless\nharmless(path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "model.from_pretrained(path, use_safetensors=False)",
    ],
)
def test_what_is_dangerous_is_found(source: str) -> None:
    assert findings(source)


def test_what_is_allowed_is_no_more_than_that() -> None:
    assert findings("from yaml import full_load as f\nf(t)", {"yaml"})
    assert findings("model.eval()\nimport json\njson.load(file)\nnp.load(p, allow_pickle=False)") == []


def test_who_is_allowed_needs_it() -> None:
    assert all(findings((ROOT / name).read_text("utf-8")) for name in ALLOWED)
