"""Run a job in a directory: start or resume it, stop it safely, finish it once.

A session restores the last checkpoint and repeats the steps after it, so that a job whose steps depend only
on its saved state ends with the same bits as one never stopped. What was journaled after it is void then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from segtailor.core.atomic import strict, sweep, write_json, writing
from segtailor.core.codec import Json, canonical
from segtailor.core.errors import Interrupted, RunProblem, UserError
from segtailor.core.job import Job, Step
from segtailor.core.text import command, path_argument, require_utf8
from segtailor.runs.checkpoint import Checkpoints
from segtailor.runs.display import Display, Quiet
from segtailor.runs.environment import changes, environment
from segtailor.runs.interrupt import Stop, stoppable
from segtailor.runs.journal import Journal
from segtailor.runs.layout import Layout
from segtailor.runs.lock import hold
from segtailor.runs.reading import read_environment, read_history, read_recipe, read_result
from segtailor.runs.session import Policy, Session

SHOWN = 5  # changed fields named in an error
STOPPING = "stopping after this step, then saving; once more stops at once."


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
    """Start, resume or (when it is finished) just read the run of `recipe` in `folder`; return its result.

    `make` builds the job, and is called only when there is work to do. Of several processes that train
    together one is the leader and writes; the others load the same checkpoint and write nothing. `agree`
    tells each of them whether any was asked to stop, so that all stop after the same step.
    """
    layout = Layout(folder)
    require_utf8(folder, what="run directory")
    try:
        if not leader:
            return _follow(make, layout, recipe, agree=agree)
        _prepare(layout, recipe)
        with hold(layout.lock) as locked:
            new = not layout.recipe.exists()
            note = _settle(layout, recipe)
            done = read_result(folder)
            if done is not None:
                return done
            with _opened(display or Quiet(), f"run {folder}") as shown:
                if not locked:
                    shown.message(f"{folder} is on a file system without locks: let no other process use it.")
                if note:
                    shown.message(note)
                with _claimed(layout, new=new):
                    return _lead(make, layout, display=shown, policy=policy or Policy(), agree=agree)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped at once, at the last checkpoint; {_resume(folder)}") from None


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
def _claimed(layout: Layout, *, new: bool) -> Iterator[None]:
    """Take a new run back that fails before its first step ends, so that a corrected one may use the folder."""
    try:
        yield
    except UserError:
        if new and not read_history(layout.root, damaged=_ignore).steps:
            layout.take_back()
        raise


def _follow(
    make: Callable[[], Job], layout: Layout, recipe: Mapping[str, Json], *, agree: Callable[[bool], bool]
) -> dict[str, Json]:
    """Do the same work as the leader without writing; their first exchange waits for the slower one."""
    if layout.recipe.exists():
        _compare(layout, recipe)
    done = read_result(layout.root)
    if done is not None:
        return done
    job = make()
    history = read_history(layout.root, damaged=_ignore)
    Checkpoints(folder=layout.checkpoints).load(job, warn=_ignore, promised=history.saved)
    with stoppable(_ignore) as stop:
        if _drive(job, stop, record=_ignore, agree=agree):
            raise Interrupted(f"stopped; {_resume(layout.root)}")
        return dict(strict(job.result()))


def _drive(
    job: Job, stop: Stop, *, record: Callable[[Step, bool], None], agree: Callable[[bool], bool]
) -> bool:
    """Work until the end and return False, or until a stop is asked for and return True."""
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
            steps.close()  # frees what the job holds now, not when the traceback is forgotten


def check_place(folder: Path) -> None:
    """Refuse a folder that no run can use, and leave everything as it was: for what works long before it runs."""
    layout = Layout(folder)
    _refuse_foreign(layout)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    made: list[Path] = []
    try:
        with writing(folder, what="run directory"):
            for path in reversed(missing):
                path.mkdir()
                made.append(path)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise RunProblem(
                    f"{folder} cannot be written to. Choose another folder, or change its rights."
                )
    finally:
        for path in reversed(made):
            with suppress(OSError):
                path.rmdir()


def _prepare(layout: Layout, recipe: Mapping[str, Json]) -> None:
    """Make the directory, or refuse one that holds something else before anything in it is touched."""
    _refuse_foreign(layout)
    layout.refuse_links()
    if layout.recipe.exists():
        _compare(layout, recipe)
    with writing(layout.root, what="run directory"):
        layout.root.mkdir(parents=True, exist_ok=True)


def _refuse_foreign(layout: Layout) -> None:
    """Refuse a folder that is none, or that holds what no run has written."""
    if layout.root.exists() and not layout.root.is_dir():
        raise RunProblem(f"{layout.root} is a file, not a run directory. Choose a new or an empty folder.")
    foreign = [] if layout.recipe.exists() else layout.foreign()
    if foreign:
        raise RunProblem(
            f"{layout.root} is no run directory: it has no {layout.recipe.name}, but holds '{foreign[0]}', which a run "
            "might replace. Choose a new or an empty folder."
        )


def _settle(layout: Layout, recipe: Mapping[str, Json]) -> str | None:
    """Write recipe and environment, or compare them with those that are there; return what to tell."""
    sweep(layout.root)
    sweep(layout.checkpoints)
    now = environment()
    if not layout.environment.exists():
        write_json(layout.environment, now, what="environment")
    if not layout.recipe.exists():
        write_json(layout.recipe, recipe, what="recipe")
        return None
    _compare(layout, recipe)
    changed = changes(read_environment(layout.root), now)
    if not changed:
        return None
    return f"this run began elsewhere ({', '.join(changed[:SHOWN])}): results may differ in the last digits."


def _compare(layout: Layout, recipe: Mapping[str, Json]) -> None:
    """Refuse a recipe other than the one in the directory, naming the changed fields."""
    before, now = _flat(read_recipe(layout.root)), _flat(strict(recipe))
    changed = [name for name in sorted(before | now) if before.get(name) != now.get(name)]
    if not changed:
        return
    lines = [
        f"{name}: {before.get(name, 'absent')} there, {now.get(name, 'absent')} asked"
        for name in changed[:SHOWN]
    ]
    more = f"; and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    raise RunProblem(
        f"{layout.root} holds a run of another recipe ({'; '.join(lines)}{more}). "
        "Choose another folder, or ask for the recipe that is there."
    )


def _flat(data: Json, name: str = "") -> dict[str, str]:
    """Return the fields of nested objects by dotted name, each value as canonical JSON."""
    if not isinstance(data, dict) or not data:
        return {name or "recipe": canonical(data)}
    fields: dict[str, str] = {}
    for key, value in data.items():
        fields |= _flat(value, f"{name}.{key}" if name else key)
    return fields


@contextmanager
def _opened(display: Display, title: str) -> Iterator[Display]:
    display.open(title)
    try:
        yield display
    finally:
        display.close()


@contextmanager
def _journaled(journal: Journal) -> Iterator[None]:
    """Journal how a session ended, where it did not end well."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stop:
        with suppress(RunProblem):
            journal.append("interrupt", message=str(stop))
        raise
    except Exception as problem:
        with suppress(RunProblem):  # the first problem counts; a full disk may refuse this line too
            journal.append("error", error=type(problem).__name__, message=str(problem))
        raise


def _resume(folder: Path) -> str:
    return f"go on with: {command('segtailor', 'resume', path_argument(folder))}"


def _ignore(*_: object) -> None:
    """Followers have nobody to tell."""
