"""Write what is generated from the code: reference pages, the pinned command line, JSON schemas of architecture files.

python tools/write_reference.py

Tests check that the committed files are up to date.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cyclopts import App
from cyclopts.argument import Argument

import segtailor
from segtailor.core.space import architecture_schema, families
from segtailor.verbs.main import DATA_VERBS, VERBS, build

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
SPACES = SOURCE / "segtailor" / "spaces"
MAX_SIGNATURE_CHARACTERS = 100  # longer ones get a line for each parameter
COMMON = {"--json", "--dry-run"}
TERMS = {"--data": "DATASET", "--target": "TARGET", "--as": "NAME"}
CONTRACTS = (  # protocols that extensions implement
    ("segtailor.core.plan", "Operator"),
    ("segtailor.core.space", "SearchSpace"),
    ("segtailor.nets.supernet", "Relaxable"),
    ("segtailor.nets.supernet", "Supernet"),
    ("segtailor.core.cost", "Cost"),
    ("segtailor.core.cost", "AdditiveCost"),
    ("segtailor.core.cost", "Objective"),
    ("segtailor.core.strategy", "Strategy"),
    ("segtailor.core.strategy", "AskTell"),
    ("segtailor.core.job", "Job"),
    ("segtailor.data.dataset", "Dataset"),
    ("segtailor.data.dataset", "Sample"),
    ("segtailor.targets.runtime", "Runtime"),
)
VALUES = (  # types of arguments and results
    ("segtailor.runs", "Context"),
    ("segtailor.verbs.search", "SearchChoices"),
    ("segtailor.recipes.export", "ExportOptions"),
    ("segtailor.core.plan", "Count"),
    ("segtailor.predicting.labelling", "Predictor"),
)
KITS = "segtailor.testing"
CLI_HEAD = """\
# Command line

<!-- written by tools/write_reference.py: do not edit -->

`segtailor VERB --help` shows the same. Every verb has `--json` (one JSON document on stdout, everything else on
stderr); verbs that write files have `--dry-run` (print what would be done, and stop). Exit codes: 0 done, 1 an error
that the user can fix, 2 a bug in segtailor, 130 interrupted and resumable.

Terms: DATASET is `synthetic[:options]`, `folder:PATH`, `camvid:PATH`, `cityscapes:PATH`, `bdd100k:PATH`, `voc:PATH`
or a YAML file. TARGET is `device/runtime/precision` with options after `?`, e.g. `cpu/onnxruntime/fp32?threads=2`.
MODEL is a bundle, an ONNX file or the name of shipped weights. A budget is `12ms` or `60fps`.
"""
FRONT_HEAD = """\
# segtailor

> Semantic segmentation networks made to measure: from images with masks, a device and a latency budget to a trained,
> exported and verified network. Python package and command line `segtailor`.

Rules for scripts: every verb takes `--json` and then prints exactly one JSON document on stdout; progress, warnings and
errors go to stderr. Verbs that write files take `--dry-run`. Files of other programs are never overwritten without
`--force`. An error is one line: what was asked, why not, what to do.
Exit codes: {codes}.
[All verbs as JSON](reference/verbs.json): every flag with type, default and meaning, and the keys each verb prints.

Pages below are those of the built site; in the repository the same names end in `.md` instead of `.html`.
"""
EXIT_CODES = {
    0: "done",
    1: "an error that the user can fix",
    2: "a bug in segtailor",
    130: "interrupted and resumable",
}
OUTPUT_SCHEMA = ROOT / "tests" / "schemas" / "output.json"
PRINTED = {
    "tailor": ("tailor", "plan"),
    "export": ("export", "export within"),
}  # definitions of the schema that a verb prints, where not its own name
API_HEAD = """\
# Python

<!-- written by tools/write_reference.py: do not edit -->

Everything is available after `import segtailor`, which is fast: modules are loaded when they are first used.
"""
CONTRACTS_HEAD = """\
## What an extension implements

These are protocols: a class needs the members, but no base class. See [Extending segtailor](../extending.md).
"""


def main() -> None:
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def pages() -> dict[Path, str]:
    """Return every generated file with its text."""
    return {
        ROOT / "docs/reference/cli.md": cli_page(),
        ROOT / "docs/reference/api.md": api_page(),
        ROOT / "docs/reference/verbs.json": json.dumps(verbs_document(), indent=1, ensure_ascii=False) + "\n",
        ROOT / "docs/llms.txt": front_page(),
        ROOT / "tests/golden/cli.json": json.dumps(surface(), indent=1) + "\n",
        **schemas(),
    }


def schemas() -> dict[Path, str]:
    """Return the schema file of every family that comes with the package."""
    return {
        SPACES / family / "schema.json": json.dumps(architecture_schema(family), indent=1, ensure_ascii=False)
        + "\n"
        for family in families()
        if (SPACES / family).is_dir()
    }


def verbs(app: App | None = None, before: tuple[str, ...] = ()) -> Iterator[tuple[str, App]]:
    """Yield every verb with its application; the name of a verb in a group has two words."""
    parent = build() if app is None else app
    for name in parent:
        if name.startswith("-"):
            continue
        words = (*before, name)
        children = list(verbs(parent[name], words))
        yield from children or [(" ".join(words), parent[name])]


def arguments(app: App) -> list[Argument]:
    """Return the arguments and flags of a verb, in the order of its help."""
    return [item for item in app.assemble_argument_collection(parse_docstring=True) if item.show]


def surface() -> dict[str, dict[str, str]]:
    """Return the command line as plain data: for every verb its arguments and flags with their types."""
    return {
        name: {" ".join(item.names): " ".join(_accepts(item)) for item in arguments(app)}
        for name, app in verbs()
    }


def _accepts(item: Argument) -> Iterator[str]:
    yield _kind(item)
    if item.required:
        yield "(required)"
    elif _value(item.field_info.default):
        yield f"(default {_value(item.field_info.default)})"


def _value(value: object) -> str:
    """Return a default as a user would type it; empty for None, False and no default."""
    if value is None or value is False or value is inspect.Parameter.empty:
        return ""
    if value is True:
        return "on"
    if isinstance(value, tuple):
        return ("x" if all(isinstance(part, int) for part in value) else " ").join(map(str, value))
    return str(value)


def _kind(item: Argument) -> str:
    """Name what a flag accepts: choices, a number, a path, a size."""
    hint, several = item.hint, ""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is tuple and item.parameter.n_tokens == 1:
        return "HEIGHTxWIDTH"
    if typing.get_origin(hint) is tuple:
        hint, several = typing.get_args(hint)[0], "..."
    if typing.get_origin(hint) is typing.Literal:
        return "|".join(typing.get_args(hint)) + several
    names = {bool: "switch", int: "number", float: "number", str: "text", Path: "path"}
    return names[hint] + several


def cli_page() -> str:
    """Return the page of all verbs."""
    lines = [CLI_HEAD]
    for name, app in verbs():
        lines += _verb(name, app)
    return "\n".join(lines).rstrip("\n") + "\n"


def _verb(name: str, app: App) -> list[str]:
    taken = arguments(app)
    command = app.default_command
    about = inspect.getdoc(command) or ""
    prose = about.split("\nParameters\n----------")[0].strip()
    positional = [_positional(item) for item in taken if item.index is not None]
    required = [f"{item.name} {_meta(item)}" for item in taken if item.index is None and item.required]
    usage = " ".join(["segtailor", name, *positional, *required, "[flags]"])
    rows = [_row(item) for item in taken if item.name not in COMMON]
    common = [f"`{item.name}`" for item in taken if item.name in COMMON]
    table = ["| argument or flag | takes | meaning |", "|---|---|---|", *rows, ""] if rows else []
    return [f"## {name}", "", "```", usage, "```", "", prose, "", *table, f"Also {', '.join(common)}.", ""]


def _positional(item: Argument) -> str:
    name = item.name.lstrip("-").upper()
    return f"{name}..." if typing.get_origin(item.hint) is tuple else name


def _meta(item: Argument) -> str:
    return TERMS.get(item.name, _kind(item).upper())


def _row(item: Argument) -> str:
    takes, *rest = _accepts(item)
    cell = " ".join([takes, *rest]).replace("|", ", ")
    text = re.sub(r"\s+", " ", item.parameter.help or "").strip().replace("|", "\\|")
    names = " ".join(f"`{name}`" for name in item.names)
    return f"| {names} | {cell} | {text} |"


# For scripts and agents.


def verbs_document() -> dict[str, Any]:
    """Return the command line as one JSON document: verbs with their flags, and the keys that they print."""
    schema = json.loads(OUTPUT_SCHEMA.read_text(encoding="utf-8"))["$defs"]
    return {
        "program": "segtailor",
        "exit_codes": {str(code): meaning for code, meaning in EXIT_CODES.items()},
        "verbs": [_described(name, app, schema) for name, app in verbs()],
    }


def _described(name: str, app: App, schema: dict[str, Any]) -> dict[str, Any]:
    taken = arguments(app)
    about = (inspect.getdoc(app.default_command) or "").split("\nParameters\n----------")[0]
    printed = [
        {"document": form, **_keys(schema, form)} for form in PRINTED.get(name, (name,)) if form in schema
    ]
    return {
        "name": name,
        "summary": summaries()[name],
        "about": re.sub(r"\s+", " ", about).strip(),
        "arguments": [_argument(item) for item in taken if item.index is not None],
        "flags": [_argument(item) for item in taken if item.index is None],
        "prints": printed,
    }


def _argument(item: Argument) -> dict[str, Any]:
    kind, default = _kind(item), item.field_info.default
    several = kind.endswith("...")
    kind = kind.removesuffix("...")
    choices = kind.split("|") if "|" in kind else None
    plain = None if default is inspect.Parameter.empty else default
    return {
        "names": list(item.names),
        "type": "choice" if choices else kind,
        **({"choices": choices} if choices else {}),
        "several": several,
        "required": item.required,
        "default": plain if isinstance(plain, bool | int | float) else _value(plain) or None,
        "help": re.sub(r"\s+", " ", item.parameter.help or "").strip(),
    }


def _keys(schema: dict[str, Any], form: str) -> dict[str, Any]:
    """Return what is known of a printed document: the keys that it always holds, and those that it may hold."""
    definition = schema[form]
    if "anyOf" in definition:
        return {"one_of": [_keys_of(part, schema) for part in definition["anyOf"]]}
    return _keys_of(definition, schema)


def _keys_of(definition: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in definition:
        definition = schema[definition["$ref"].removeprefix("#/$defs/")]
    if definition.get("type") == "array":
        return {"type": "array"}
    always = definition.get("required", [])
    return {
        "type": "object",
        "keys": always,
        "optional_keys": [key for key in definition.get("properties", {}) if key not in always],
    }


def summaries() -> dict[str, str]:
    """Return the line that `segtailor --help` shows for every verb."""
    return {**dict(VERBS), **{f"data {name}": summary for name, summary in DATA_VERBS}}


def front_page() -> str:
    """Return the front page for agents: what this is, the rules for scripts, every verb, every page."""
    codes = ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    lines = [FRONT_HEAD.format(codes=codes), "## Verbs", ""]
    for name, summary in summaries().items():
        lines.append(f"- [segtailor {name}](reference/cli.html#{name.replace(' ', '-')}): {summary}")
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    lines += ["", "## Pages", ""]
    decisions = []
    for title, page in _entries(site["nav"]):
        heading = _first_heading(page)
        line = f"- [{title}]({page.removesuffix('.md')}.html)" + (f": {heading}" if heading != title else "")
        (decisions if page.startswith("decisions/") else lines).append(line)
    return "\n".join([*lines, "", "## Optional", "", *decisions]) + "\n"


def _entries(nav: Any) -> Iterator[tuple[str, str]]:
    """Yield title and file of every page of the navigation."""
    for entry in nav:
        if isinstance(entry, str):
            yield _first_heading(entry), entry
            continue
        for title, below in entry.items():
            if isinstance(below, str):
                yield title, below
            else:
                yield from _entries(below)


def _first_heading(page: str) -> str:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return heading[1].strip() if heading else page


def api_page() -> str:
    """Return the page of the Python interface; the sources are read, not imported."""
    lines = [API_HEAD]
    for name in segtailor.__all__:
        lines += _section(name, *find(f"segtailor.{segtailor._HOMES[name]}", name))
    lines += ["## Types of arguments and results", ""]
    for module, name in VALUES:
        lines += _shown(module, name)
    lines.append(CONTRACTS_HEAD)
    for module, name in CONTRACTS:
        lines += _shown(module, name)
    lines += [
        "## Conformance kits",
        "",
        "The functions of `segtailor.testing` raise if an extension violates its protocol.",
        "",
    ]
    kits = ast.parse(_text(KITS))
    names = [alias.name for node in kits.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    for name in sorted(set(names) - {"annotations"}):
        lines += _section(name, *find(KITS, name), package="segtailor.testing", level=3)
    return "\n".join(lines).rstrip("\n") + "\n"


def find(module: str, name: str) -> tuple[ast.AST, str]:
    """Return the definition of a public name, following imports, and the text of its file."""
    text = _text(module)
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node, text
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return find(str(node.module), name)
    raise LookupError(f"{module} does not define {name}")


def _text(module: str) -> str:
    path = SOURCE / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text(encoding="utf-8")


def _section(name: str, node: Any, text: str, *, package: str = "segtailor", level: int = 2) -> list[str]:
    about = ast.get_docstring(node) or ""
    return [f"{'#' * level} {name}", "", "```python", *_signature(node, text, package), "```", "", about, ""]


def _signature(node: ast.FunctionDef, text: str, package: str) -> list[str]:
    """Return the signature as written: on one line if it fits, otherwise one line for each parameter."""
    signature = node.args
    parts = []
    placed = [*signature.posonlyargs, *signature.args]
    defaults = [None] * (len(placed) - len(signature.defaults)) + list(signature.defaults)
    parts += [_parameter(item, default, text) for item, default in zip(placed, defaults, strict=True)]
    if signature.vararg:
        parts.append("*" + _parameter(signature.vararg, None, text))
    elif signature.kwonlyargs:
        parts.append("*")
    parts += [
        _parameter(*pair, text) for pair in zip(signature.kwonlyargs, signature.kw_defaults, strict=True)
    ]
    if signature.kwarg:
        parts.append("**" + _parameter(signature.kwarg, None, text))
    returns = f" -> {ast.get_source_segment(text, node.returns)}" if node.returns else ""
    line = f"{package}.{node.name}({', '.join(parts)}){returns}"
    if len(line) <= MAX_SIGNATURE_CHARACTERS:
        return [line]
    return [f"{package}.{node.name}(", *[f"    {part}," for part in parts], f"){returns}"]


def _parameter(item: ast.arg, default: ast.expr | None, text: str) -> str:
    written = str(ast.get_source_segment(text, item))
    return written if default is None else f"{written} = {ast.get_source_segment(text, default)}"


def _shown(module: str, name: str) -> list[str]:
    node, text = find(module, name)
    code = str(ast.get_source_segment(text, node))
    return [f"### {name}", "", f"`{module}.{name}`", "", "```python", code, "```", ""]


if __name__ == "__main__":
    main()
