"""The table of verbs, and their exit codes: 0 done, 1 an error that the user can fix, 2 our bug, 130 interrupted."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from io import TextIOWrapper

from cyclopts import App, CycloptsError

from segtailor.core.errors import Interrupted, UserError
from segtailor.core.shipped import VERSION
from segtailor.core.text import visible
from segtailor.verbs.output import note

VERBS: tuple[tuple[str, str], ...] = (
    ("tailor", "Make a network for your data, your device and your budget, from start to end."),
    (
        "list",
        "List names: architectures, trained weights, spaces, recipes, strategies, operators, datasets, tasks.",
    ),
    ("show", "Describe a network: layers, multiply-accumulates, parameters, receptive field, drawing."),
    ("bench", "Measure how long networks take on targets."),
    ("import", "Turn a published checkpoint into a bundle."),
    (
        "calibrate",
        "Time the operators of a search space on a device: the table that budgets are checked with.",
    ),
    ("search", "Search for networks for a dataset, a device and a budget."),
    ("train", "Train a network on a dataset."),
    ("eval", "Score a trained network on a split of a dataset."),
    ("report", "Write the report of a run as one HTML file, or compare several runs."),
    ("export", "Write a trained network as a file for a runtime, and check that it computes the same."),
    ("predict", "Label pictures, folders, videos or cameras with a trained network."),
    ("serve", "Show a trained network at work in a local page: pictures, camera, overlay, latency."),
    ("resume", "Continue an interrupted run."),
)
DATA_VERBS: tuple[tuple[str, str], ...] = (
    ("check", "Examine a dataset and say what is wrong with it, where, and how to fix it."),
    ("show", "Draw a contact sheet of images with their labels."),
    ("convert", "Write a dataset once as a folder of images and masks, e.g. from annotation files."),
    ("suggest", "Find labels that are probably wrong, and unlabelled pictures worth labelling."),
    ("curve", "Estimate how much more images would help."),
)
DATA_MODULES = {"suggest": "suggest", "curve": "curve"}  # of subcommands that are not in `verbs/data.py`
MODULES = {
    "tailor": "tailoring.tailor",
    "import": "verbs.import_",
}  # of verbs that are not in `verbs/NAME.py`
SPIN_COUNT = "10000"  # loops of a waiting thread before it sleeps: about 30 microseconds
NO_MEMORY = (
    "the memory is full. Choose a smaller batch, smaller images or fewer workers, or end other programs."
)
TORCH_NO_MEMORY = "can't allocate memory"  # part of torch's message on a CPU


def build() -> App:
    """Assemble the command line; a verb's module is imported only when it is called."""
    app = App(
        name="segtailor",
        help="Semantic segmentation networks made to measure: your data, your device, your budget.",
        version=VERSION,
        help_on_error=False,
        suppress_keyboard_interrupt=False,
    )
    for name, summary in VERBS:
        app.command(f"segtailor.{MODULES.get(name, f'verbs.{name}')}:{name}_", name=name, help=summary)
    data = App(name="data", help="Look at datasets.")
    for name, summary in DATA_VERBS:
        module = DATA_MODULES.get(name, "data")
        data.command(f"segtailor.verbs.{module}:{name}_", name=name, help=summary)
    app.command(data)
    return app


def main(argv: Sequence[str] | None = None) -> None:
    """Run a verb and exit with its code."""
    shorten_spinning()
    if isinstance(sys.stdout, TextIOWrapper):  # characters that this terminal lacks become escapes
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.formatwarning = _warning_line
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Run a verb and return its exit code."""
    try:
        outcome = build()(list(argv), exit_on_error=False, print_error=False, result_action="return_value")
        return outcome if isinstance(outcome, int) else 0
    except Interrupted as event:
        note(str(event))
        return 130
    except KeyboardInterrupt:
        note("interrupted.")
        return 130
    except BrokenPipeError:  # the reader of a pipe went away, e.g. `segtailor list | head`
        sys.stderr.close()
        return 0
    except Exception as problem:  # noqa: BLE001 - the last resort: a bug of ours is shown in full
        lines = _user_message(problem)
        return _bug() if lines is None else _fail(*lines)


def _user_message(problem: Exception) -> Sequence[str] | None:
    """Return the message of an error that the user can fix; None if it is a bug of ours."""
    if isinstance(problem, UserError):
        return problem.lines
    if isinstance(problem, CycloptsError):
        return [f"{problem} See 'segtailor --help' or 'segtailor VERB --help'."]
    if isinstance(problem, MemoryError) or TORCH_NO_MEMORY in str(problem):
        return [NO_MEMORY]
    if isinstance(problem, UnicodeEncodeError) and _is_undecodable_name(problem):
        return [
            f"'{problem.object}' holds bytes that are no UTF-8, which a library in use cannot handle; rename it."
        ]
    return None


def shorten_spinning() -> None:
    """Let OpenMP threads that wait for each other release their core soon; must run before torch is imported.

    By default they spin for about a millisecond, which slows everything down on a machine that other programs use. Not
    spinning at all is slower on a quiet machine (docs/results.md).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def _warning_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,  # noqa: ARG001
) -> str:
    """Return a warning of a library as one line; names in it may hold line breaks."""
    return visible(f"{filename}:{lineno}: {category.__name__}: {message}") + "\n"


def _is_undecodable_name(problem: UnicodeEncodeError) -> bool:
    """Tell whether a file name caused it: Python reads bytes that are no UTF-8 as surrogates."""
    return isinstance(problem.object, str) and "\ud800" <= problem.object[problem.start] <= "\udfff"


def _bug() -> int:
    note(*traceback.format_exc().splitlines())
    note("this is a bug in segtailor: please report it with the lines above.")
    return 2


def _fail(message: str, *more: str) -> int:
    note(f"error: {message}", *more)
    return 1
