"""Write the tables of `docs/results-camvid.md` and the cards of the shipped networks from `results/camvid/`.

python -m tools.write_results

Tables stand between `<!-- begin: NAME -->` and `<!-- end -->`; what is around them is written by people. A figure that
no file holds is an empty cell. A test keeps the committed pages in step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.camvid_results import DRIVES, IMAGE, OFFICIAL, RESULTS, ROOT, Results, size
from tools.model_card import card, numbers

from segtailor.core import shipped as home

PAGE = ROOT / "docs" / "results-camvid.md"
LARGE = (720, 960)
GPU, CPU, CORES = "cuda/graph/fp16", "cpu/onnxruntime/fp32", 2
BLOCK = re.compile(r"(<!-- begin: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
MAIN = (
    "network", "parameters", "MACs", "drives left out, mean", "val", "test", "H200 ms", "H200 ms at 720x960", "CPU ms",
    "search, GPU minutes", "search in the paper",
)  # fmt: skip


def main() -> None:
    for path, text in pages(Results(folder=RESULTS)).items():
        path.write_text(text, encoding="utf-8")


def pages(results: Results, page: Path = PAGE) -> dict[Path, str]:
    """Return every generated file with its text."""
    made = {page: filled(page.read_text(encoding="utf-8"), results)}
    for name in home.shipped():
        file = home.SHIPPED / name / home.DESCRIPTION
        record = json.loads(file.read_text(encoding="utf-8"))
        record["numbers"] = numbers(name, record, results)
        made[file] = json.dumps(record, indent=2) + "\n"
        made[file.with_name(home.CARD)] = card(name, record, results)
    return made


def filled(text: str, results: Results) -> str:
    """Return a page with every table made anew; one that nobody knows raises `KeyError`."""
    return BLOCK.sub(lambda found: f"{found[1]}{TABLES[found[2]](results)}\n{found[4]}", text)


def main_table(results: Results) -> str:
    """All networks: shipped, of the five systems, baselines, literature."""
    rows = [_main_row(entry, results) for entry in [*_shipped_rows(), *results.rows["main"]]]
    rows += [_paper_row(entry) for entry in results.literature["networks"]]
    return table(MAIN, rows)


def ablation_table(results: Results, told: str = "ablation") -> str:
    """One row per change of the recipe: the drives that were left out, their mean, and the difference to the base.

    The base comes first, then what has a label, as labels are listed.
    """
    entry = results.rows[told]
    folder, base = entry["folder"], f"{entry['folder']}/{entry['base']}"
    rank = {entry["base"]: -1} | {name: place for place, name in enumerate(entry["labels"])}
    names = sorted(results.study(folder), key=lambda name: (rank.get(name, len(rank)), name))
    drives = [drive for drive in DRIVES if any(results.score(f"{folder}/{name}", drive) for name in names)]
    whole = len(drives) == len(DRIVES)  # a mean over some of them could not be compared
    rows = []
    for name in names:
        row = f"{folder}/{name}"
        mean = [_percent(results.left_out(row))] if whole else []
        gain = results.gain(row, base) if row != base else None
        label = entry["labels"].get(name, name)
        rows.append([label, *_drives(row, results, drives), *mean, _points(gain)])
    return table(["recipe", *drives, *(["mean"] if whole else []), "difference"], rows)


def third_table(results: Results) -> str:
    """The same at a third of the size, on a CPU."""
    return ablation_table(results, "third")


def networks_table(results: Results, told: str = "networks") -> str:
    """Every network that was trained alike: those of a study, and single rows of others; val where any has it."""
    entry = results.rows[told]
    names = [f"{entry['folder']}/{name}" for name in results.study(entry["folder"])] + entry.get("also", [])
    val = [OFFICIAL] if any(results.score(row, OFFICIAL) for row in names) else []
    rows = []
    for row in sorted(names, key=lambda row: _rank(row, results)):
        name, mean = row.rpartition("/")[2], _percent(results.left_out(row))
        cells = [*_size(results.network(row)), *_drives(row, results), mean, *_drives(row, results, val)]
        rows.append([entry["labels"].get(name, name), *cells])
    return table(["network", "parameters", "MACs", *DRIVES, "mean", *("val" for _ in val)], rows)


def candidates_table(results: Results) -> str:
    """Networks trained with everything that pays."""
    return networks_table(results, "candidates")


def searches_table(results: Results) -> str:
    """Every search: time, device, command."""
    rows = []
    for file in sorted((results.folder / "searches").glob("*.json")):
        record = results.search(file.stem) or {}
        minutes = f"{record['seconds'] / 60:.1f}"
        rows.append(
            [file.stem, minutes, str(record["device"]), str(record["seed"]), f"`{record['command']}`"]
        )
    return table(["search", "GPU minutes", "device", "seed", "command"], rows)


def expansion_table(results: Results, search: str = "lpsnet", device: str = "H200") -> str:
    """Step by step what LPS-Net's expansion did (its Figure 7)."""
    record = results.search(search) or {"result": {"family": []}}
    rows = []
    for member in record["result"]["family"]:
        moved = f"{member['direction']} x {member['k']}" if "direction" in member else "start"
        rows.append([str(member["step"]), moved, _percent(member["quality"]), _ms(member["cost"])])
    return table(["step", "direction", "mIoU of the judging half", f"{device} ms by the table"], rows)


def expansion_cpu_table(results: Results) -> str:
    """The same where a CPU's latency counts."""
    return expansion_table(results, "lpsnet-cpu", "CPU")


def papers_table(results: Results) -> str:
    """Where the figures of others come from."""
    rows = [[entry["name"], entry["paper"]] for entry in results.literature["networks"]]
    rows += [[f"search of {name}", entry["source"]] for name, entry in results.literature["searches"].items()]
    return table(["what", "source"], rows)


TABLES: dict[str, Callable[[Results], str]] = {
    "main": main_table,
    "ablation": ablation_table,
    "third": third_table,
    "networks": networks_table,
    "candidates": candidates_table,
    "searches": searches_table,
    "expansion": expansion_table,
    "expansion-cpu": expansion_cpu_table,
    "papers": papers_table,
}


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [list(columns), ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _shipped_rows() -> list[dict[str, str]]:
    found = []
    for name in home.shipped():
        record = json.loads((home.SHIPPED / name / home.DESCRIPTION).read_text(encoding="utf-8"))
        origin = {
            key: record["provenance"][key]
            for key in ("row", "search", "system")
            if key in record["provenance"]
        }
        found.append({"label": f"**{name}**", "network": name, **origin})
    return found


def _main_row(entry: dict[str, str], results: Results) -> list[str]:
    row = entry["row"]
    network = results.found(entry["network"]) if "network" in entry else results.network(row)
    names = results.names(row, network or row, entry.get("network", row))
    val = results.score(row, OFFICIAL)
    searched = results.search(entry["search"]) if "search" in entry else None
    paper = results.literature["searches"].get(entry.get("system", ""), {})
    return [
        entry["label"],
        *_size(network),
        _percent(results.left_out(row)),
        val.told() if val else "",
        "",
        _ms(results.milliseconds(names, GPU, IMAGE)),
        _ms(results.milliseconds(names, GPU, LARGE)),
        _ms(results.milliseconds(names, CPU, IMAGE, threads=CORES)),
        f"{searched['seconds'] / 60:.1f}" if searched else "",
        paper.get("told", ""),
    ]


def _paper_row(entry: dict[str, Any]) -> list[str]:
    params = f"{entry['params'] / 1e6:.2f} M" if "params" in entry else ""
    return [entry["name"], params, "", "", "", _percent(entry["test_miou"]), *[""] * (len(MAIN) - 6)]


def _size(network: str | None) -> list[str]:
    if network is None:
        return ["", ""]
    counted = size(network)
    return [f"{counted.params / 1e6:.2f} M", f"{counted.macs / 1e9:.2f} G"]


def _drives(row: str, results: Results, drives: Sequence[str] = DRIVES) -> list[str]:
    figures = [results.score(row, drive) for drive in drives]
    return [figure.told() if figure else "" for figure in figures]


def _rank(row: str, results: Results) -> float:
    return -(results.left_out(row) or 0.0)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _points(gain: float | None) -> str:
    return "" if gain is None else f"{round(100 * gain, 1) + 0.0:+.1f}"  # no minus before a zero


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    main()
