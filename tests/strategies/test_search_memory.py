"""A search that runs out of memory goes on with fewer images at a time, as if it had started so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from segtailor.core.errors import UserError
from segtailor.strategies.gradient import GradientSearch
from tests.strategies.gradient_toys import problem, settings
from tests.strategies.hungry import BATCH, HungryOps


def search(most: int, **changes: Any) -> GradientSearch:
    how = settings(steps=12, **changes)
    return GradientSearch(how, problem(HungryOps(blocks=1, most=most)))


def test_it_goes_on_with_fewer_images_and_says_so_once() -> None:
    job = search(most=2)
    messages = [step.message for step in job.steps() if step.message]
    assert sum("at a time do not fit in memory: the search goes on with 2" in text for text in messages) == 1
    warnings: Any = job.result()["warnings"]
    assert any("goes on with 2" in text for text in warnings)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"updates": "alternating"}, {"per_image": True}])
def test_nothing_of_the_failed_step_is_left(changes: dict[str, Any]) -> None:
    hungry, known = search(most=2, **changes), search(most=BATCH, **changes)
    known._engine.most = 2
    for job in (hungry, known):
        for _ in job.steps():
            pass
    assert hungry.trajectory == known.trajectory
    for name, value in known._engine.module.state_dict().items():
        same = torch.equal(value, hungry._engine.module.state_dict()[name])
        assert same or name.endswith("num_batches_tracked"), name  # counted, and read by nothing


def test_what_fits_is_remembered(tmp_path: Path) -> None:
    job = search(most=4)
    next(iter(job.steps()))
    job.save(tmp_path)
    again = search(most=4)
    again.load(tmp_path)
    assert again._engine.most == 4


def test_too_little_memory_for_one_image_is_an_error_with_advice() -> None:
    with pytest.raises(UserError, match=r"a single image at a time\. Lower the crop"):
        list(search(most=0).steps())
