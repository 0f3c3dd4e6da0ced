"""The Python interface: the functions behind the verbs. `import segtailor` re-exports the public ones lazily."""

from segtailor.api.networks import (
    CLASSES,
    COUNTING_SIZE,
    architectures,
    baselines,
    count,
    create,
    describe,
    draw,
    load_encoder,
    load_published,
    plan,
    published,
    published_classes,
    resolve,
)

__all__ = [
    "CLASSES",
    "COUNTING_SIZE",
    "architectures",
    "baselines",
    "count",
    "create",
    "describe",
    "draw",
    "load_encoder",
    "load_published",
    "plan",
    "published",
    "published_classes",
    "resolve",
]
