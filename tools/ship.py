"""Ship a finished training: write `src/segtailor/weights/NAME`, then update tables and cards.

python -m tools.ship RUN NAME --row ROW [--also ROW ...] [--search NAME --system NAME]

RUN is the run directory of the final training on train+val. ROW (`STUDY/NAME`) names trainings of the same network in
`results/camvid/outcomes.jsonl` that were scored (drives left out, val with several seeds). The tables show the first
row; the card shows all rows and their differences from RUN. The network is stored for inference: main output only,
averaged weights and folded branches (`segtailor train` did both), in single precision if that is small enough.
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

from segtailor.core import shipped as home
from segtailor.core.atomic import new_folder
from segtailor.core.errors import UserError
from segtailor.core.plan import MAIN
from segtailor.core.space import fingerprint_of
from segtailor.nets.bundle import WEIGHTS, Model, Precision, load_bundle, save_bundle
from segtailor.nets.network import build
from segtailor.runs import Layout

MAX_BUNDLE_BYTES = 16_000_000
DESCRIPTION_BYTES = 100_000  # part of a bundle that is kept free for description and card
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--row", required=True, help="row of the scored trainings, STUDY/NAME")
    parser.add_argument("--also", nargs="+", help="more rows, with other settings or fewer seeds")
    parser.add_argument("--search", help="name of the search that found it, in results/camvid/searches.jsonl")
    parser.add_argument("--system", help="which of the five systems that search belongs to")
    options = parser.parse_args()
    origin = {
        key: getattr(options, key) for key in ("row", "also", "search", "system") if getattr(options, key)
    }
    ship(options.run, options.name, origin)
    write_results.main()


def ship(run: Path, name: str, origin: dict[str, Any]) -> Path:
    """Write the bundle of a finished run under a name, and return its folder; on failure nothing is written."""
    trained = load_bundle(Layout(run).weights)
    model = replace(
        trained,
        network=main_only(trained),
        provenance={**_provenance(run, trained), **origin},
        numbers={},
    )
    folder = home.SHIPPED / name
    home.SHIPPED.mkdir(exist_ok=True)
    with new_folder(folder, what="shipped network") as draft:
        for precision in PRECISIONS:
            save_bundle(draft, model, precision=precision)
            bytes_ = (draft / WEIGHTS).stat().st_size
            if bytes_ <= MAX_BUNDLE_BYTES - DESCRIPTION_BYTES:
                return folder
        raise UserError(
            f"{run}: the weights take {bytes_:,} bytes in half precision; at most {MAX_BUNDLE_BYTES:,} are shipped."
        )


def main_only(model: Model) -> Any:
    """Return the network without the outputs that only training needs."""
    network = build(model.architecture, model.task.outputs, outputs=(MAIN,))
    state = model.network.state_dict()
    network.load_state_dict({key: state[key] for key in network.state_dict()})
    return network.eval()


def _provenance(run: Path, model: Model) -> dict[str, Any]:
    """Return where the weights come from, without paths of the machine that trained them."""
    recipe = json.loads(Layout(run).recipe.read_text(encoding="utf-8"))
    result = json.loads(Layout(run).result.read_text(encoding="utf-8"))
    environment = json.loads(Layout(run).environment.read_text(encoding="utf-8"))
    settings = {key: value for key, value in recipe.items() if key not in ("architecture", "format")}
    settings["data"] = _without_path(recipe["data"])
    for key in ("teacher", "start"):
        if settings.get(key):
            settings[key] = _run_names(Path(settings[key]))
    return {
        **model.provenance,
        "data": settings["data"],
        "fingerprint": fingerprint_of(model.architecture),
        "image": list(IMAGE),
        "steps": result["steps"],
        "recipe": settings,
        "packages": {key: value for key, value in environment["packages"].items() if value},
    }


def _without_path(data: str) -> str:
    name, _, rest = data.partition(":")
    _, mark, options = rest.partition("?")
    return f"{name}:{home.DATA_PLACEHOLDER}{mark}{options}"


def _run_names(bundle: Path) -> str:
    """Return the name of the run of a bundle, or the names of several in a folder."""
    if (bundle / home.DESCRIPTION).exists() or not bundle.is_dir():
        return bundle.parent.name if bundle.name == Layout(bundle).weights.name else bundle.name
    return " + ".join(sorted(os.path.basename(entry) for entry in bundle.iterdir()))  # noqa: PTH119 - of links


if __name__ == "__main__":
    main()
