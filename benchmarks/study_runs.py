"""Shared by the studies of published systems: their command line, the recipe for a dataset, the table at the end.

A study is a function that turns the recipe of a system, fitted to a dataset, into its own recipe. It runs like any
other search. Called again with the same command, a stopped study continues; `segtailor resume` does not know its
strategy. `segtailor report RUN` works as usual.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks import search_strategies
from segtailor.core.errors import Interrupted, UserError
from segtailor.core.ranges import parse_size
from segtailor.core.text import command, path_argument
from segtailor.recipes.recipe import recipe_document, with_settings
from segtailor.recipes.search import SearchRecipe
from segtailor.runs import Context
from segtailor.strategies import Processes
from segtailor.systems.system import Scale
from segtailor.verbs.output import Printer, emit, with_display
from segtailor.verbs.search import SearchChoices, search, search_recipe

StudyOf: TypeAlias = Callable[[SearchRecipe, Scale], SearchRecipe]
INTERRUPTED_STATUS = 130


@dataclass(frozen=True, kw_only=True)
class SystemStudies:
    """The studies of one published system by name."""

    system: str
    studies: Mapping[str, StudyOf]

    def recipe(
        self,
        study: str,
        data: str,
        choices: SearchChoices | None = None,
        *,
        image: tuple[int, int] | None = None,
        changes: Iterable[str] = (),
        context: Context | None = None,
    ) -> SearchRecipe:
        """Return the recipe of a study for a dataset; `choices` may name scale, cost, budget, workers and seed."""
        search_strategies.register()
        chosen = choices or SearchChoices()
        # Workers say where trials run; here they do not change the batch of a controller.
        base = search_recipe(self.system, data, replace(chosen, workers=None), image=image, context=context)
        recipe = self.studies[study](base, chosen.scale)
        if chosen.workers is not None and chosen.workers > 1:
            recipe = replace(recipe, executor=Processes(workers=chosen.workers))
        if chosen.seed is not None:
            recipe = replace(recipe, seed=chosen.seed)
        return with_settings(recipe, changes)

    def main(self, description: str | None, argv: Sequence[str] | None = None) -> None:
        """Run a study from the command line."""
        options = self._parse(description, argv)
        try:
            self._run(options)
        except UserError as problem:
            sys.exit(f"error: {problem}")
        except Interrupted:
            print(f"{options.out}: stopped; the same command continues it.", file=sys.stderr)
            sys.exit(INTERRUPTED_STATUS)

    def _run(self, options: argparse.Namespace) -> None:
        context = with_display(Context(cache=options.cache, device=options.device), json=options.json)
        names = ("scale", "target", "pack", "force", "budget", "workers", "seed", "start")
        choices = SearchChoices(**{name: getattr(options, name) for name in names})
        recipe = self.recipe(
            options.study, options.data, choices, image=options.image, changes=options.set, context=context
        )
        if options.dry_run:
            document = recipe_document(recipe)
            emit(document, lambda printer: printer.document(document), json=options.json)
            return
        outcome: dict[str, Any] = search(recipe, options.out, context=context)
        result = {"run": str(options.out), **outcome, "trials": len(outcome["trials"])}
        emit(result, lambda printer: print_result(printer, result, options.data), json=options.json)

    def _parse(self, description: str | None, argv: Sequence[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("study", choices=list(self.studies))
        parser.add_argument("--data", required=True, help="a dataset, e.g. synthetic, camvid:PATH")
        parser.add_argument(
            "--out", type=Path, required=True, help="run directory; the charts are in `report`"
        )
        parser.add_argument("--scale", choices=("small", "paper"), default="small")
        parser.add_argument("--image", type=parse_size, help="size HEIGHTxWIDTH that networks are priced at")
        parser.add_argument("--target", help="measure latency on device/runtime/precision")
        parser.add_argument("--pack", type=Path, help="take latency from a device pack")
        parser.add_argument("--force", action="store_true", help="use the pack of another machine or size")
        parser.add_argument("--budget", help="no network may cost more, e.g. 12ms or 300MMACs")
        parser.add_argument("--workers", type=int, help="trials at a time, in processes")
        parser.add_argument("--seed", type=int)
        parser.add_argument(
            "--start", default="auto", help="where weights come from, as in `segtailor search`"
        )
        parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="FIELD=VALUE")
        parser.add_argument("--device")
        parser.add_argument("--cache", type=Path)
        parser.add_argument("--dry-run", action="store_true", help="print the recipe, and stop")
        parser.add_argument("--json", action="store_true", help="print one JSON document")
        return parser.parse_args(argv)


def print_result(printer: Printer, result: Mapping[str, Any], data: str) -> None:
    """Print the table of a study, or the front of a search."""
    unit, measure = result["unit"], f">{result['measure']} %"
    rows = [
        [row.get("entrant", f"trial {row['trial']}"), *_figures(row)]
        for row in result.get("study", result["front"])
    ]
    printer.table(None, ["entrant", measure, f">cost in {unit}"], rows)
    for pair, correlation in result.get("ranks", {}).items():
        printer.say(f"rank correlation of {pair}: {'-' if correlation is None else f'{correlation:.2f}'}")
    count = result.get("failed", 0)
    failed = f", {count} of them failed" if count else ""
    best = f"{100 * result['quality']:.1f} % at {result['cost']:.4g} {unit}, {result['architecture']}"
    architecture, out = path_argument(result["architecture"]), path_argument(result["run"] + "-trained")
    printer.say(
        "",
        f"{result['trials']} trials{failed}; best: {best}",
        f"plot {result['report']}",
        f"next: {command('segtailor', 'train', architecture, '--data', data, '--out', out)}",
    )
    for warning in result.get("warnings", ()):
        printer.say(f"note: {warning}")


def _figures(row: Mapping[str, Any]) -> list[str]:
    quality = "failed" if row["quality"] is None else f"{100 * row['quality']:.1f}"
    return [quality, f"{row['cost']:.4g}"]
