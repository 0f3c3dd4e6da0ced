"""The table of verbs, and how they end: 0 done, 1 the user can fix it, 2 our bug, 130 interrupted and resumable."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError

import segtailor
from segtailor.core.errors import Interrupted, UserError

VERBS: tuple[tuple[str, str], ...] = (
    ("tailor", "Make a network for your data, your device and your budget: the whole way."),
    (
        "list",
        "Name what there is: architectures, trained weights, spaces, recipes, strategies, operators, datasets, tasks.",
    ),
    ("show", "Describe a network: layers, multiply-accumulates, parameters, receptive field, drawing."),
    ("bench", "Measure how long networks take on targets."),
    ("import", "Turn a published checkpoint into a bundle."),
    ("calibrate", "Time the operators of a search space on a device: the table that budgets are kept with."),
    ("search", "Search networks for a dataset, a device and a budget."),
    ("train", "Train a network on a dataset."),
    ("eval", "Score a trained network on a split of a dataset."),
    ("report", "Write the report of a run as one HTML file, or compare several runs."),
    ("export", "Write a trained network as a file for a runtime, and prove that it computes the same."),
    ("predict", "Label pictures, folders, videos or cameras with a trained network."),
    ("serve", "Show a trained network at work in a local page: pictures, camera, overlay, latency."),
    ("resume", "Go on with a run that was interrupted."),
)
DATA_VERBS: tuple[tuple[str, str], ...] = (
    ("check", "Examine a dataset and say what is wrong with it, where, and how to fix it."),
    ("show", "Draw a contact sheet of images with their labels."),
)


def build() -> App:
    """Assemble the command line; a verb's module is imported only when it is called."""
    app = App(
        name="segtailor",
        help="Semantic segmentation networks made to measure: your data, your device, your budget.",
        version=segtailor.__version__,
        help_on_error=False,
        suppress_keyboard_interrupt=False,
    )
    for name, summary in VERBS:
        app.command(f"segtailor.cli.{name}_verb:{name}_", name=name, help=summary)
    data = App(name="data", help="Look at datasets.")
    for name, summary in DATA_VERBS:
        data.command(f"segtailor.cli.data_verb:{name}_", name=name, help=summary)
    app.command(data)
    return app


def main(argv: Sequence[str] | None = None) -> None:
    """Run a verb and exit with its code."""
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Run a verb and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names from odd file systems must not end a command
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        outcome = build()(list(argv), exit_on_error=False, print_error=False, result_action="return_value")
        return outcome if isinstance(outcome, int) else 0
    except CycloptsError as problem:
        return _fail(f"{problem} See 'segtailor --help' or 'segtailor VERB --help'.")
    except UserError as problem:
        return _fail(str(problem))
    except Interrupted as event:
        print(event, file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe went away, e.g. `segtailor list | head`
        sys.stderr.close()
        return 0
    except Exception:  # noqa: BLE001 - the last resort: a bug of ours, shown in full
        traceback.print_exc()
        print("this is a bug in segtailor: please report it with the lines above.", file=sys.stderr)
        return 2


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1
