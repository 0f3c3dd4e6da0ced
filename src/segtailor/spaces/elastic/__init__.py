"""Parts of EfficientNet-Lite0 with a short decoder: every network of the space begins from its ImageNet weights."""

from segtailor.spaces.elastic.architecture import ElasticArchitecture
from segtailor.spaces.elastic.space import Elastic

__all__ = ["Elastic", "ElasticArchitecture"]
