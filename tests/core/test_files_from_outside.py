"""What is not a regular file is refused instead of waited for."""

import os
from pathlib import Path

import pytest

from segtailor.core.codec import read_json
from segtailor.core.errors import UserError


def test_a_pipe_in_place_of_a_file_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(UserError, match="no regular file"):
        read_json(tmp_path / "a.json", what="recipe")
