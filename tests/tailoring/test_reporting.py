"""The sentence at the top is about what is delivered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from segtailor.deploy.quantise import Reading
from segtailor.tailoring.reporting import delivered_miou, head_start, verdict
from segtailor.tailoring.stage import ComparedNetwork, ContractOutcome, Int8Outcome, Recommendation
from segtailor.targets.machine import Conditions, Machine

FP32 = Int8Outcome(decided=False, kept=False, reason="not tried")
QUIET = Conditions(busy=0.0)
MACHINE = Machine(cpu="a processor", cores=2, memory_gib=8, system="", gpus=(), driver=None, versions={})
CONTRACT = ContractOutcome(
    network="model", target="cpu/onnxruntime/fp32", runtime="1", precision="fp32", inputs=(), machine=MACHINE,
    includes="network+resize+argmax", median_ms=2.0, p95_ms=3.0, min_ms=1.0, spread=0.1, runs=50, repeats=1,
    seconds=1.0, warm_up_runs=1, warm_up_seconds=0.1, steady=True, threads=1, before=QUIET, after=QUIET,
    tries_p95_ms=(3.0,), file="model.onnx", met=True, sentence="", budget_ms=5.0,
)  # fmt: skip


def int8(miou: float, *, kept: bool) -> Int8Outcome:
    reading = Reading(target="cpu/onnxruntime/int8", median_ms=1.0, p95_ms=1.5, spread=0.1, miou=miou)
    return Int8Outcome(decided=True, kept=kept, reason="tried", before=reading, after=reading)


def compared(network: str, miou: float, *, steps: int, p95_ms: float) -> ComparedNetwork:
    return ComparedNetwork(
        network=network, run="r", model="m", steps=steps, miou=miou, params=1, median_ms=1.0, p95_ms=p95_ms
    )


def recommended(
    network: str = "searched", *, best_ready: str | None = "lpsnet-s", steps: int = 100
) -> Recommendation:
    rows = (
        compared("searched", 0.4, steps=100, p95_ms=5.5),
        compared("lpsnet-s", 0.3, steps=steps, p95_ms=3.0),
    )
    miou = next(row.miou for row in rows if row.network == network)
    return Recommendation(
        networks=rows,
        network=network,
        model="m",
        miou=miou,
        worth=network == "searched",
        best_ready=best_ready,
    )


@pytest.mark.parametrize(("kept", "miou"), [(False, 0.4), (True, 0.38)])
def test_the_quality_is_that_of_the_file_which_is_delivered(kept: bool, miou: float) -> None:
    best, quantised = recommended(), int8(0.38, kept=kept)
    assert delivered_miou(best, quantised) == miou
    sentence = verdict(best, quantised, CONTRACT)
    assert f"{100 * miou:.1f} % mIoU" in sentence
    assert "the best ready network (lpsnet-s) reached 30.0 %" in sentence


def test_a_ready_network_that_wins_is_named_beside_the_searched_one() -> None:
    sentence = verdict(recommended("lpsnet-s"), FP32, CONTRACT)
    assert sentence.startswith("Use the ready network lpsnet-s: 30.0 % mIoU")
    assert sentence.endswith("the searched network reached 40.0 % but takes 5.50 ms.")


def test_without_a_ready_network_in_the_budget_that_is_said() -> None:
    sentence = verdict(recommended(best_ready=None), FP32, CONTRACT)
    assert sentence.endswith("no ready network that was tried kept the budget.")


@pytest.mark.parametrize(("ready", "tie"), [(0.39, True), (0.38, False)])
def test_a_difference_within_the_noise_is_called_none(ready: float, tie: bool) -> None:
    best = recommended()
    rows = (best.networks[0], compared("lpsnet-s", ready, steps=100, p95_ms=3.0))
    sentence = verdict(replace(best, networks=rows), FP32, CONTRACT)
    assert ("no difference" in sentence) == tie


@pytest.mark.parametrize("steps", [10, 99, 300])
def test_networks_that_were_not_trained_alike_are_not_compared_in_silence(steps: int) -> None:
    sentence = verdict(recommended(steps=steps), FP32, CONTRACT)
    assert (
        f"reached 30.0 % after {steps} steps of training against 100, which is no fair comparison."
        in sentence
    )


@pytest.mark.parametrize(("seconds", "fair"), [(30.0, False), (58.0, True), (200.0, False)])
def test_networks_with_equal_time_are_compared_whatever_their_steps(seconds: float, fair: bool) -> None:
    best = recommended(steps=999)
    searched, ready = best.networks
    rows = (replace(searched, seconds=60.0), replace(ready, seconds=seconds))
    sentence = verdict(replace(best, networks=rows), FP32, CONTRACT)
    assert ("no fair comparison" in sentence) is not fair
    assert (f"after {seconds:.0f} seconds of training against 60" in sentence) is not fair


@pytest.mark.parametrize(("again", "rival_again", "tie"), [(0.40, 0.30, False), (0.31, 0.34, True)])
def test_two_seeds_of_both_networks_say_what_a_difference_is_worth(
    again: float, rival_again: float, tie: bool
) -> None:
    best = recommended()
    rows = tuple(
        replace(row, repeated_miou=value)
        for row, value in zip(best.networks, (again, rival_again), strict=True)
    )
    sentence = verdict(replace(best, networks=rows), FP32, CONTRACT)
    assert f"with another seed {100 * again:.1f} against {100 * rival_again:.1f} %" in sentence
    assert ("no difference" in sentence) is tie


@pytest.mark.parametrize(("fastest", "told"), [(0.39, True), (0.9, False)])
def test_a_budget_missed_for_other_programs_says_so(fastest: float, told: bool) -> None:
    late = replace(
        CONTRACT, met=False, budget_ms=1.0, min_ms=fastest, median_ms=max(fastest, 0.5), p95_ms=8.4
    )
    sentence = verdict(recommended(), FP32, late)
    assert (
        "because other programs interrupted it (half of all runs take 0.5 ms at most)" in sentence
    ) is told


def test_without_time_for_a_ready_network_that_is_said() -> None:
    best = recommended(best_ready=None)
    sentence = verdict(replace(best, networks=best.networks[:1]), FP32, CONTRACT)
    assert sentence.endswith("there was no time to train a ready network beside it.")


def test_a_ready_network_in_place_of_all_that_was_found_is_named() -> None:
    best = recommended("lpsnet-s")
    sentence = verdict(replace(best, networks=best.networks[1:]), FP32, CONTRACT)
    assert sentence.endswith("no network of the search kept the budget.")


def test_a_missed_budget_is_said_in_capitals() -> None:
    assert "which MISSES the budget of 5 ms" in verdict(recommended(), FP32, replace(CONTRACT, met=False))


def test_what_the_searched_network_learned_in_the_search_is_told_beside_a_ready_one() -> None:
    best = recommended("lpsnet-s")
    assert "158 steps" in str(head_start(best, 158))
    assert head_start(best, None) is None
    assert head_start(replace(best, networks=best.networks[:1]), 158) is None
    assert head_start(replace(best, networks=best.networks[1:]), 158) is None
