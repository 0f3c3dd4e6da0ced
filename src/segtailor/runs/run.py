"""Run a job in a directory: start or resume it, stop it safely, finish it once.

A session restores the last checkpoint and repeats the steps after it. So a job whose steps depend only on its saved
state ends with the same bits as one that was never stopped.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

from segtailor.core.atomic import strict, sweep, write_json, writing
from segtailor.core.codec import Json, canonical
from segtailor.core.errors import Interrupted, RunProblem, UserError
from segtailor.core.job import Job, Step
from segtailor.core.lock import hold
from segtailor.core.text import command, path_argument, require_utf8
from segtailor.runs.checkpoint import Checkpoints
from segtailor.runs.display import Display, Quiet
from segtailor.runs.interrupt import Stop, stoppable
from segtailor.runs.journal import Journal, read_history
from segtailor.runs.layout import Layout, read_environment, read_recipe, read_result
from segtailor.runs.session import Policy, Session

MAX_CHANGES_SHOWN = 5  # changed fields that a message names
STOPPING = "stopping after this step, then saving; once more stops at once."

Environment: TypeAlias = dict[str, Json]
PACKAGES = (  # whose versions are recorded, because they can change a result
    "segtailor",
    "torch",
    "numpy",
    "pillow",
    "safetensors",
    "pydantic",
    "onnx",
    "onnxruntime",
    "openvino",
)


def execute(
    make: Callable[[], Job],
    folder: Path,
    recipe: Mapping[str, Json],
    *,
    display: Display | None = None,
    policy: Policy | None = None,
    leader: bool = True,
    agree: Callable[[bool], bool] = bool,
) -> dict[str, Json]:
    """Start or resume the run of `recipe` in `folder` and return its result; a finished run is only read.

    `make` builds the job, and is called only when there is work to do. Of several processes that train
    together one is the leader and writes; the others load the same checkpoint and write nothing. `agree`
    tells each process whether any of them was asked to stop, so that all stop after the same step.
    """
    layout = Layout(folder)
    require_utf8(folder, what="run directory")
    try:
        if not leader:
            return _follow(make, layout, recipe, agree=agree)
        _prepare(layout, recipe)
        with hold(layout.lock) as locked:
            new = not layout.recipe.exists()
            note = _write_or_compare(layout, recipe)
            done = read_result(folder)
            if done is not None:
                return done
            with _opened(display or Quiet(), f"run {folder}") as opened:
                if not locked:
                    opened.message(
                        f"{folder} is on a file system without locks: let no other process use it."
                    )
                if note:
                    opened.message(note)
                with _removed_if_failed(layout, new=new):
                    return _lead(make, layout, display=opened, policy=policy or Policy(), agree=agree)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped at once, at the last checkpoint; {_resume(folder)}") from None


def check_place(folder: Path) -> None:
    """Refuse a folder that no run can use, and change nothing; for callers that work for long before they run."""
    layout = Layout(folder)
    _refuse_foreign(layout)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    created: list[Path] = []
    try:
        with writing(folder, what="run directory"):
            for path in reversed(missing):
                path.mkdir()
                created.append(path)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise RunProblem(
                    f"{folder} cannot be written to. Choose another folder, or change its rights."
                )
    finally:
        for path in reversed(created):
            with suppress(OSError):
                path.rmdir()


def environment() -> Environment:
    """Describe interpreter, machine and packages: recorded once, compared on resume, as others may change results."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _prepare(layout: Layout, recipe: Mapping[str, Json]) -> None:
    """Make the directory; one that holds something else is refused before anything in it is changed."""
    _refuse_foreign(layout)
    layout.refuse_links()
    if layout.recipe.exists():
        _refuse_other_recipe(layout, recipe)
    with writing(layout.root, what="run directory"):
        layout.root.mkdir(parents=True, exist_ok=True)


def _refuse_foreign(layout: Layout) -> None:
    """Refuse a path that is no folder, and a folder with files that no run wrote."""
    if layout.root.exists() and not layout.root.is_dir():
        raise RunProblem(f"{layout.root} is a file, not a run directory. Choose a new or an empty folder.")
    foreign = [] if layout.recipe.exists() else layout.foreign()
    if foreign:
        raise RunProblem(
            f"{layout.root} is no run directory: it has no {layout.recipe.name}, but holds '{foreign[0]}', which a run "
            "might replace. Choose a new or an empty folder."
        )


def _write_or_compare(layout: Layout, recipe: Mapping[str, Json]) -> str | None:
    """Write recipe and environment, or compare them with those on disk; return a message for the user, if any."""
    sweep(layout.root)
    sweep(layout.checkpoints)
    now = environment()
    if not layout.environment.exists():
        write_json(layout.environment, now, what="environment")
    if not layout.recipe.exists():
        write_json(layout.recipe, recipe, what="recipe")
        return None
    _refuse_other_recipe(layout, recipe)
    changed = _environment_changes(read_environment(layout.root), now)
    if not changed:
        return None
    names = ", ".join(changed[:MAX_CHANGES_SHOWN])
    return f"this run began elsewhere ({names}): results may differ in the last digits."


def _refuse_other_recipe(layout: Layout, recipe: Mapping[str, Json]) -> None:
    """Refuse a recipe other than the one in the directory, naming the changed fields."""
    before, now = _dotted(read_recipe(layout.root)), _dotted(strict(recipe))
    changed = [name for name in sorted(before | now) if before.get(name) != now.get(name)]
    if not changed:
        return
    lines = [
        f"{name}: {before.get(name, 'absent')} there, {now.get(name, 'absent')} asked"
        for name in changed[:MAX_CHANGES_SHOWN]
    ]
    more = f"; and {len(changed) - MAX_CHANGES_SHOWN} more" if len(changed) > MAX_CHANGES_SHOWN else ""
    raise RunProblem(
        f"{layout.root} holds a run of another recipe ({'; '.join(lines)}{more}). "
        "Choose another folder, or ask for the recipe that is there."
    )


def _dotted(data: Json, name: str = "") -> dict[str, str]:
    """Return the fields of nested objects by dotted name, each value as canonical JSON."""
    if not isinstance(data, dict) or not data:
        return {name or "recipe": canonical(data)}
    fields: dict[str, str] = {}
    for key, value in data.items():
        fields |= _dotted(value, f"{name}.{key}" if name else key)
    return fields


def _environment_changes(before: Environment, now: Environment) -> list[str]:
    """Name what differs, as `torch 2.11 -> 2.13`."""
    old, new = _flat_facts(before), _flat_facts(now)
    names = [name for name in new if name in old and old[name] != new[name]]
    return [f"{name} {old[name]} -> {new[name]}" for name in names]


def _flat_facts(facts: Environment) -> dict[str, Json]:
    packages = facts.get("packages")
    return {
        **{name: value for name, value in facts.items() if name != "packages"},
        **(packages if isinstance(packages, dict) else {}),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@contextmanager
def _opened(display: Display, title: str) -> Iterator[Display]:
    display.open(title)
    try:
        yield display
    finally:
        display.close()


@contextmanager
def _removed_if_failed(layout: Layout, *, new: bool) -> Iterator[None]:
    """Remove a new run that fails before the end of its first step, so that a corrected one can use the folder."""
    try:
        yield
    except UserError:
        if new and not read_history(layout.root, damaged=_ignore).steps:
            layout.remove_failed_start()
        raise


def _lead(
    make: Callable[[], Job],
    layout: Layout,
    *,
    display: Display,
    policy: Policy,
    agree: Callable[[bool], bool],
) -> dict[str, Json]:
    history = read_history(layout.root, damaged=display.message)
    with Journal(layout.journal) as journal, _journaled(journal):
        session = Session(make(), layout, journal=journal, display=display, policy=policy)
        try:
            session.begin(history)
            with stoppable(lambda: display.message(STOPPING)) as stop:
                if _drive(session.job, stop, record=session.record, agree=agree):
                    raise Interrupted(f"stopped at {session.progress} and saved; {_resume(layout.root)}")
                return session.finish()
        finally:
            session.close()


@contextmanager
def _journaled(journal: Journal) -> Iterator[None]:
    """Journal how a session ended if it was interrupted or failed."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stop:
        with suppress(RunProblem):
            journal.append("interrupt", message=str(stop))
        raise
    except Exception as problem:
        with suppress(RunProblem):  # report the first problem; a full disk may refuse this line too
            journal.append("error", error=type(problem).__name__, message=str(problem))
        raise


def _follow(
    make: Callable[[], Job], layout: Layout, recipe: Mapping[str, Json], *, agree: Callable[[bool], bool]
) -> dict[str, Json]:
    """Do the same work as the leader without writing; the first exchange waits for the slower process."""
    if layout.recipe.exists():
        _refuse_other_recipe(layout, recipe)
    done = read_result(layout.root)
    if done is not None:
        return done
    job = make()
    history = read_history(layout.root, damaged=_ignore)
    Checkpoints(folder=layout.checkpoints).load(job, warn=_ignore, expected=history.saved)
    with stoppable(_ignore) as stop:
        if _drive(job, stop, record=_ignore, agree=agree):
            raise Interrupted(f"stopped; {_resume(layout.root)}")
        return dict(strict(job.result()))


def _drive(
    job: Job, stop: Stop, *, record: Callable[[Step, bool], None], agree: Callable[[bool], bool]
) -> bool:
    """Work until the end and return False, or until a stop is requested and return True."""
    steps = job.steps()
    try:
        for step in steps:
            stopping = agree(stop.requested)
            record(step, stopping)
            if stopping:
                return True
        return False
    finally:
        if isinstance(steps, Generator):
            steps.close()  # frees what the job holds now, not when the traceback is collected


def _resume(folder: Path) -> str:
    return f"go on with: {command('segtailor', 'resume', path_argument(folder))}"


def _ignore(*_: object) -> None:
    """Do nothing: only the leader reports."""
