"""Ship a finished training: write `src/segtailor/weights/NAME`, then tables and cards anew.

python -m tools.ship RUN NAME --row ROW [--also ROW ...] [--search NAME --system NAME]

RUN is the run directory of the final training on train+val; ROW names the trainings in `results/camvid/outcomes` of the
same network that were scored (drives left out, val with several seeds). The first is for tables, the card has all, and
what sets each apart from RUN. The network is kept as it is used: its main output alone, averaged weights, branches
folded (`segtailor train` did both), in single precision where that fits.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools import write_results
from tools.camvid_results import IMAGE

import segtailor.spaces  # noqa: F401 - registers the families that a bundle may name
from segtailor.core import shipped as home
from segtailor.core.atomic import new_folder
from segtailor.core.errors import UserError
from segtailor.core.plan import MAIN
from segtailor.core.space import fingerprint_of
from segtailor.nets.bundle import WEIGHTS, Model, Precision, load_bundle, save_bundle
from segtailor.nets.network import build
from segtailor.runs import Layout

LIMIT = 16_000_000  # bytes of a shipped bundle
ROOM = 100_000  # of these, for description and card
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--row", required=True, help="name of the trainings that were scored")
    parser.add_argument("--also", nargs="+", help="more of them, with other settings or fewer seeds")
    parser.add_argument("--search", help="name of the search that found it, in results/camvid/searches")
    parser.add_argument("--system", help="which of the five systems that search belongs to")
    options = parser.parse_args()
    told = {
        key: getattr(options, key) for key in ("row", "also", "search", "system") if getattr(options, key)
    }
    ship(options.run, options.name, told)
    write_results.main()


def ship(run: Path, name: str, told: dict[str, Any]) -> Path:
    """Write the bundle of a finished run under a name, and return its folder; nothing is left where it fails."""
    trained = load_bundle(Layout(run).weights)
    model = replace(
        trained,
        network=main_only(trained),
        provenance={**_provenance(run, trained), **told},
        numbers={},
    )
    folder = home.SHIPPED / name
    home.SHIPPED.mkdir(exist_ok=True)
    with new_folder(folder, what="shipped network") as draft:
        for precision in PRECISIONS:
            save_bundle(draft, model, precision=precision)
            bytes_ = (draft / WEIGHTS).stat().st_size
            if bytes_ <= LIMIT - ROOM:
                return folder
        raise UserError(
            f"{run}: the weights take {bytes_:,} bytes in half precision; at most {LIMIT:,} are shipped."
        )


def main_only(model: Model) -> Any:
    """Return the network without outputs that only training needs."""
    network = build(model.architecture, model.task.outputs, outputs=(MAIN,))
    state = model.network.state_dict()
    network.load_state_dict({key: state[key] for key in network.state_dict()})
    return network.eval()


def _provenance(run: Path, model: Model) -> dict[str, Any]:
    """Say where the weights come from; no path of the machine that trained them stays."""
    recipe = json.loads(Layout(run).recipe.read_text(encoding="utf-8"))
    result = json.loads(Layout(run).result.read_text(encoding="utf-8"))
    environment = json.loads(Layout(run).environment.read_text(encoding="utf-8"))
    settings = {key: value for key, value in recipe.items() if key not in ("architecture", "format")}
    settings["data"] = _anywhere(recipe["data"])
    for key in ("teacher", "start"):
        if settings.get(key):
            settings[key] = _named(Path(settings[key]))
    return {
        **model.provenance,
        "data": settings["data"],
        "fingerprint": fingerprint_of(model.architecture),
        "image": list(IMAGE),
        "steps": result["steps"],
        "recipe": settings,
        "packages": {key: value for key, value in environment["packages"].items() if value},
    }


def _anywhere(data: str) -> str:
    name, _, rest = data.partition(":")
    _, mark, options = rest.partition("?")
    return f"{name}:{home.DATA_PLACEHOLDER}{mark}{options}"


def _named(bundle: Path) -> str:
    """Return the names of the runs behind a bundle, or behind a folder of several."""
    if (bundle / home.DESCRIPTION).exists() or not bundle.is_dir():
        return bundle.parent.name if bundle.name == Layout(bundle).weights.name else bundle.name
    return " + ".join(sorted(os.path.basename(entry) for entry in bundle.iterdir()))  # noqa: PTH119 - of links


if __name__ == "__main__":
    main()
