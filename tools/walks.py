"""Measure how far it is from a command to its work, and how the package is cut into files: one table as Markdown.

    python tools/walks.py                     # this tree
    python tools/walks.py --tree OTHER        # another checkout, with the same Python

A walk runs a tiny command and notes every module of the package in which a function is called until the work begins
(the loss of a training, the first training of a trial, ...). Doors are the different modules, those on the stack the
ones between the command and the work at that moment; returns are how often the walk comes back to the command's own
floor after it has left it. SHOW_WALK=1 lists the doors of `--walk NAME`.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

PACKAGE = "segtailor"
DATA = "synthetic:size=64x128,train=8,val=4,seed=0"
TINY_SEARCH = ["--set", "training.fit.steps=2", "training.fit.batch=2"]
TINY_GRADIENT = ["--set", "strategy.settings.fit.steps=2", "strategy.settings.pretraining.fit.steps=1"]
WALKS: dict[str, dict[str, Any]] = {
    "`train` to the loss": {
        "argv": ["train", "lpsnet-step0", "--data", DATA, "--epochs", "1", "--batch", "4", "--out", "{out}/train"],
        "until": ["tasks.segmentation.loss:forward", "tasks.segmentation.loss:__call__"],
    },
    "`search lpsnet` to the training of a trial": {
        "argv": ["search", "lpsnet", "--data", DATA, "--steps", "1", *TINY_SEARCH, "--out", "{out}/lpsnet"],
        "until": ["training.fit:__post_init__", "training.fit:__init__"],
    },
    "`search fasterseg` to the loss of a step": {
        "argv": ["search", "fasterseg", "--data", DATA, *TINY_GRADIENT, "--out", "{out}/fasterseg"],
        "until": ["tasks.segmentation.loss:forward", "tasks.segmentation.loss:__call__"],
    },
    "`calibrate`: operators to their table": {
        "argv": [
            "calibrate", "--space", "scalable_path", "--target", "cpu/eager/fp32", "--image", "32x64",
            "--minutes", "0.05", "--networks", "2", "--out", "{out}/pack.json",
        ],
        "until": ["costs.timers:time", "costs.pack:write"],
    },
    "`predict`: a picture to labels": {
        "argv": ["predict", "camvid-fast", "{out}/picture.png", "--out", "{out}/labels"],
        "until": ["nets.bundle:predict"],
    },
}  # fmt: skip
FLOORS = {"cli": "command", "api": "command", "verbs": "command"}


def walked(walk: dict[str, Any], folder: Path) -> dict[str, int]:
    """Run one command and count the modules on the way; called in a process of its own."""
    from PIL import Image

    Image.new("RGB", (64, 32)).save(folder / "picture.png")
    doors: dict[str, None] = {}
    state = {"returns": 0, "outside": 0, "importing": 0, "stack": -1}

    class Arrived(BaseException):
        """The work begins."""

    def watch(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_name == "<module>" and event in ("call", "return"):
            state["importing"] += 1 if event == "call" else -1
        module = str(frame.f_globals.get("__name__", ""))
        is_function = bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")
        if event != "call" or state["importing"] or not is_function or not module.startswith(PACKAGE + "."):
            return
        inside = module.removeprefix(PACKAGE + ".")
        doors.setdefault(inside)
        command = FLOORS.get(inside.partition(".")[0]) == "command"
        if command and state["outside"]:
            state["returns"] += 1
        state["outside"] = int(not command)
        if f"{inside}:{code.co_name}" in walk["until"]:
            sys.setprofile(None)
            state["stack"] = len(stack_modules(frame))
            raise Arrived

    try:
        main = __import__(f"{PACKAGE}.verbs.main", fromlist=["run"])
    except ImportError:
        main = __import__(f"{PACKAGE}.cli.main", fromlist=["run"])
    argv = [text.format(out=folder) for text in walk["argv"]]
    reached = False
    sys.setprofile(watch)
    try:
        main.run(argv)
    except Arrived:
        reached = True
    finally:
        sys.setprofile(None)
    loaded = sum(name.partition(".")[0] == PACKAGE for name in sys.modules)
    if os.environ.get("SHOW_WALK"):
        print("\n".join(doors), file=sys.stderr)
    return {
        "stack": state["stack"],
        "doors": len(doors) if reached else -1,
        "returns": state["returns"],
        "loaded": loaded,
    }


def stack_modules(frame: Any) -> list[str]:
    """Name the modules of the package on the call stack, each once, from the command down to the work."""
    names: dict[str, None] = {}
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(PACKAGE + "."):
            names.setdefault(module)
        frame = frame.f_back
    return list(reversed(names))


def sizes(tree: Path) -> dict[str, Any]:  # noqa: C901 - one pass over all files
    """Count files, lines, functions and imports of the package."""
    root = tree / "src" / PACKAGE
    files = sorted(root.rglob("*.py"))
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    modules = {_module(root, file) for file in files}
    lines = {file: text.count("\n") for file, text in texts.items()}
    functions, import_lines, own, readers, classes = [], 0, 0, defaultdict(set), defaultdict(list)
    for file, text in texts.items():
        imported = set()
        tree_ = ast.parse(text)
        for node in ast.walk(tree_):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append((node.end_lineno or 0) - node.lineno + 1)
            if isinstance(node, ast.Import | ast.ImportFrom):
                import_lines += (node.end_lineno or 0) - node.lineno + 1
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    imported.add(full if full in modules else str(node.module))
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names if alias.name.partition(".")[0] == PACKAGE}
        for node in tree_.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(file)
        own += len(imported)
        for name in imported:
            readers[name].add(file)
    total = sum(lines.values())
    return {
        "files": len(files),
        "lines": total,
        "file median": statistics.median(lines.values()),
        "function median": statistics.median(functions),
        "import lines": f"{100 * import_lines / total:.1f} %",
        "own imports per file": round(own / len(files), 1),
        "modules with one reader": sum(len(readers[name]) == 1 for name in modules),
        "class names used twice": sum(len(places) > 1 for places in classes.values()),
    }


def _module(root: Path, file: Path) -> str:
    parts = (PACKAGE, *file.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="a checkout")
    parser.add_argument("--walk", help=argparse.SUPPRESS)  # in a process of its own
    flags = parser.parse_args()
    if flags.walk is not None:
        with tempfile.TemporaryDirectory() as folder:
            print("\n" + json.dumps(walked(WALKS[flags.walk], Path(folder))))
        return
    print("| measure | value |\n|---|---|")
    for name, value in sizes(flags.tree).items():
        print(f"| {name} | {value} |")
    search = str((flags.tree / "src").resolve())
    for name in WALKS:
        command = [sys.executable, str(Path(__file__).resolve()), "--walk", name]
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "PYTHONPATH": search, "SEGTAILOR_CACHE": cache}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"| {name} | failed: {done.stderr.strip().splitlines()[-1]} |")
            continue
        row = json.loads(done.stdout.strip().splitlines()[-1])
        print(
            f"| {name} | {row['stack']} on the stack, {row['doors']} doors, {row['returns']} returns, "
            f"{row['loaded']} modules loaded |"
        )


if __name__ == "__main__":
    main()
