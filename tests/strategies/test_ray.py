"""Ray: the same results as serial, lost workers, and addresses that do not answer."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from segtailor.core.strategy import SearchProblem
from segtailor.strategies import Evolution, RandomSearch, Ray, Serial
from tests.strategies import planted
from tests.strategies.planted import problem
from tests.strategies.test_executors import ROOT, results

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One start for all tests: the executor uses a Ray that runs already."""
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        object_store_memory=80 * 2**20,
    )
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_two_ray_workers_give_the_same_results_as_serial() -> None:
    strategy = Evolution(trials=18, population=6)
    assert results(Ray(workers=2), strategy, noise=0.05) == results(Serial(), strategy, noise=0.05)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_killed_ray_worker_loses_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    strategy = RandomSearch(trials=5)
    assert results(Ray(workers=2), strategy, work=planted.die_once, mark=str(mark)) == results(
        Serial(), strategy
    )
    assert mark.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_trial_that_always_kills_its_ray_worker_is_recorded_as_failed() -> None:
    job: Any = RandomSearch(trials=4).job(
        problem(executor=Ray(workers=2, retries=1), work=planted.die_always)
    )
    assert [step.done for step in job.steps()][-1] == 4
    records = job.result()["trials"]
    assert [item["result"]["status"] for item in records] == ["done", "done", "failed", "done"]
    assert "lost its worker 2 times" in records[2]["result"]["reason"]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_trial_larger_than_the_cluster_is_refused_instead_of_waiting() -> None:
    with pytest.raises(SearchProblem, match="wants 1 GPU, the whole cluster has 0"):
        list(RandomSearch(trials=2).job(problem(executor=Ray(gpus=1.0))).steps())


@pytest.mark.slow
def test_without_an_address_ray_is_started_here_and_ended_again() -> None:
    if ray.is_initialized():
        ray.shutdown()
    strategy = RandomSearch(trials=3)
    assert results(Ray(workers=1), strategy) == results(Serial(), strategy)
    assert not ray.is_initialized()


@pytest.mark.slow
def test_an_address_that_does_not_answer_fails_in_bounded_time() -> None:
    with socket.socket() as silent:  # accepts connections and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(
            SearchProblem, match=f"no Ray cluster answers at {address}.*waited 3 s.*ray start --head"
        ):
            list(RandomSearch(trials=2).job(problem(executor=Ray(address=address, wait=3.0))).steps())
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("address", ["nowhere", "host:port", "http://host:1", ":1"])
def test_an_address_that_is_none_is_refused_at_once(address: str) -> None:
    with pytest.raises(SearchProblem, match="is not host:port"):
        list(RandomSearch(trials=2).job(problem(executor=Ray(address=address))).steps())


def test_impossible_settings_of_ray_are_refused() -> None:
    for wrong in ({"workers": 0}, {"cpus": 0.0}, {"gpus": -1.0}, {"retries": -1}, {"wait": 0.0}):
        with pytest.raises(SearchProblem, match=r"workers: 0|ray: give"):
            Ray(**wrong)  # type: ignore[arg-type]


@pytest.fixture
def head() -> Iterator[tuple[str, dict[str, str]]]:
    """A cluster of our own with a secret of our own: its address, and the environment that may use it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    open_to = {
        **os.environ,
        **secret,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    place = tempfile.mkdtemp(prefix="ray")  # short, because sockets live there
    options = [
        f"--temp-dir={place}",
        "--num-cpus=2",
        "--include-dashboard=false",
        "--object-store-memory=80000000",
    ]
    program = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        f"--port={port}",
        *options,
    ]
    process = subprocess.Popen(program, env=open_to, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"{ray.util.get_node_ip_address()}:{port}", open_to
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(place, ignore_errors=True)


def _client(address: str, environment: dict[str, str]) -> str:
    program = (
        "import sys; from tests.strategies.test_executors import results; from segtailor.strategies import *;"
        "search = RandomSearch(trials=4);"
        "print(results(Ray(address=sys.argv[1]), search) == results(Serial(), search))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", program, address],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return asked.stdout + asked.stderr


@pytest.mark.slow
def test_a_running_cluster_is_used_by_address_and_one_that_refuses_us_says_so(
    head: tuple[str, dict[str, str]],
) -> None:
    address, environment = head
    answer = ""
    for _ in range(10):  # the head needs some seconds to listen
        answer = _client(address, environment)
        if answer.startswith("True"):
            break
        time.sleep(1)
    assert answer.startswith("True"), answer[-600:]
    stranger = {name: value for name, value in environment.items() if not name.startswith("RAY_AUTH")}
    assert "authentication token is missing or wrong" in _client(address, stranger)
