"""`segtailor calibrate`: make the latency table of a device."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from segtailor.cli.options import Classes, DryRun, Force, Json, Networks, Positive, Seed, Size
from segtailor.cli.output import emit, note
from segtailor.core.errors import UserError

if TYPE_CHECKING:
    from segtailor.core.job import Step
    from segtailor.recipes.calibrating import CalibrateRecipe


@dataclass(frozen=True, kw_only=True)
class What:
    """What to calibrate."""

    space: str | None = None
    """A search space: see `segtailor list spaces`."""
    target: str | None = None
    """device/runtime/precision, e.g. cpu/onnxruntime/fp32?threads=2."""
    image: Size | None = None
    """Size HEIGHTxWIDTH of the image."""
    classes: Classes = 19
    """Number of output channels."""
    minutes: Positive | None = None
    """Time for all of it. Operators are timed most used first; those left out are estimated."""
    networks: Networks = 30
    """Random networks to measure whole for the trust report."""
    seed: Seed = 0
    """Of the random networks."""
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=(), consume_multiple=True)] = ()
    """Settings of the space, e.g. --space decoder_cell --set encoder=efficientnet_lite0 channels=24 repeats=1."""

    def recipe(self) -> CalibrateRecipe:
        """Return the recipe; what is missing raises."""
        from segtailor.recipes.calibrating import CalibrateRecipe, space_settings

        if self.space is None or self.target is None or self.image is None:
            raise UserError(
                "calibrate needs --space, --target and --image, "
                "e.g. --space scalable_path --target cpu/onnxruntime/fp32 --image 360x480."
            )
        return CalibrateRecipe(
            settings=space_settings(self.space, self.set_),
            space=self.space,
            target=self.target,
            image=self.image,
            classes=self.classes,
            minutes=self.minutes,
            trust_networks=self.networks,
            seed=self.seed,
        )


def calibrate_(
    *,
    what: Annotated[What, Parameter(name="*")] = What(),
    out: Annotated[Path | None, Parameter(help="The pack file to write.")] = None,
    bundle: Annotated[
        Path | None, Parameter(help="Write a zip to time on a board that has numpy and onnxruntime only.")
    ] = None,
    import_: Annotated[
        Path | None, Parameter(name="--import", help="Make the pack from the results of such a zip.")
    ] = None,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Time every operator of a search space on a target, and check the sums on whole networks.

    The result is a device pack: one JSON file with the latency table, all conditions and how far to trust it.
    Interrupted, the same command goes on.
    """
    from segtailor.api import calibration
    from segtailor.runs import display_for

    if import_ is not None:
        pack = out or import_.with_suffix(".pack.json")
        calibration.check_out(pack, force=force)
        result = {"pack": str(pack)} if dry_run else calibration.import_results(import_, pack, force=force)
        emit(result, lambda printer: printer.say(*_summary(result)), json=json)
        return
    recipe = what.recipe()
    pack = out or Path(calibration.pack_name(recipe))
    if dry_run:
        recipe.search_space()
        calibration.check_out(pack, force=force)
        result = {"pack": str(pack), "run": str(calibration.run_folder(pack))}
    elif bundle is not None:
        result = calibration.bundle(recipe, bundle, progress=_progress, force=force)
    else:
        shown = display_for(sys.stderr, json=json)
        result = calibration.calibrate(recipe, pack, display=shown, force=force)
    emit(result, lambda printer: printer.say(*_summary(result)), json=json)


def _progress(step: Step) -> None:
    note(f"{step.phase}: {step.done} of {step.total}")


def _summary(result: dict[str, Any]) -> list[str]:
    if "bundle" in result:
        return [
            f"{result['entries']} operators in {result['bundle']}",
            "next: unzip it on the board, run `python board_runner.py` there, and bring results.json back for "
            "`segtailor calibrate --import results.json`",
        ]
    if result.get("pearson") is None:
        return [f"device pack {result['pack']}"]
    return [
        f"device pack {result['pack']}: {result['entries']} entries, {result['estimated']} of them estimated",
        f"against whole networks: Pearson {result['pearson']:.4f}, Spearman {result['spearman']:.4f}, "
        f"mean error {100 * result['mape']:.1f} %",
        f"plot {result['plot']}",
        *_warnings(result),
    ]


def _warnings(result: dict[str, Any]) -> list[str]:
    found = [f"warning: {text}" for text in result["warnings"]]
    if result["disturbed"]:
        found.append(
            f"warning: other programs disturbed {result['disturbed']} of {result['networks']} networks: "
            "stop them and calibrate again into another file"
        )
    return found
