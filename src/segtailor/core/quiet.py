"""Other packages log advice that does not concern our users."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_errors_of(logger_name: str | None) -> Iterator[None]:
    """Let a logger (None: the root one) pass on errors only."""
    logger = logging.getLogger(logger_name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
