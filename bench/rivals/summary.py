"""From the turns of a run to its figures."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from bench.rivals.contenders import FORGE, Contender

SCENARIOS = ("drain", "enqueue", "latency")
Turns = dict[str, list[dict[str, Any]]]  # by contender, one a round
Results = dict[str, Turns]  # by scenario


def _best(turns: Turns, key: str, among: Iterable[str], better: Callable[..., Any]) -> tuple[float, str] | None:
    """Median over the rounds of forge over the best of `among` in that round; and who was the best most often."""
    ratios, names = [], []
    rivals = [name for name in among if name in turns and all(key in turn for turn in turns[name])]
    if not rivals:
        return None
    for number, ours in enumerate(turns[FORGE.name]):
        theirs = {name: turns[name][number][key] for name in rivals}
        name = better(theirs, key=theirs.__getitem__)
        names.append(name)
        ratios.append(ours[key] / theirs[name])
    return round(statistics.median(ratios), 3), Counter(names).most_common(1)[0][0]


def _medians(turns: list[dict[str, Any]], keys: Iterable[str], digits: int | None = None) -> dict[str, Any]:
    return {
        key: round(statistics.median(t[key] for t in turns), digits) for key in keys if all(key in t for t in turns)
    }


def _each(results: Results, contender: Contender) -> dict[str, Any]:
    """One contender's medians, and what went wrong with its jobs in all turns."""
    found: dict[str, Any] = {"durable": contender.durable}
    mine = {scenario: turns[contender.name] for scenario, turns in results.items() if contender.name in turns}
    if drained := mine.get("drain"):
        found |= {"drain_jobs": drained[0]["jobs"], "drain_per_s": _medians(drained, ["rate"])["rate"]}
        found |= {"steady_per_s": _medians(drained, ["steady"])["steady"]}
        found |= {"tail_ms": round(1000 * statistics.median(turn["tail"] for turn in drained))}
        found |= {"drain_rounds": [round(turn["rate"]) for turn in drained]}
    if enqueued := mine.get("enqueue"):
        found |= {f"{key}_per_s": rate for key, rate in _medians(enqueued, ("single", "bulk")).items()}
    if waited := mine.get("latency"):
        found |= {f"{key}_ms": value for key, value in _medians(waited, ("p50", "p99"), 2).items()}
    every = [turn for turns in mine.values() for turn in turns]
    return found | {key: sum(turn.get(key, 0) for turn in every) for key in ("lost", "duplicates")}


def summary(results: Results, contenders: list[Contender]) -> dict[str, Any]:
    """The figures of the JSON line."""
    peers = {contender.name: _each(results, contender) for contender in contenders}
    rivals = [contender for contender in contenders if contender is not FORGE]
    durable = [rival.name for rival in rivals if rival.durable]
    on_redis = [rival.name for rival in rivals if not rival.durable]
    figures: dict[str, Any] = dict(_headline(results))
    figures |= {key: sum(peer[key] for peer in peers.values()) for key in ("lost", "duplicates")}
    if "drain" in results and (best := _best(results["drain"], "rate", durable + on_redis, max)):
        figures["ratio_to_best_peer"], figures["best_peer"] = best
    if "drain" in results and (best := _best(results["drain"], "steady", durable + on_redis, max)):
        figures["ratio_steady"] = best[0]
    for scenario, key, name, better in (
        ("enqueue", "single", "enqueue_ratio_single", max),
        ("enqueue", "bulk", "enqueue_ratio_bulk", max),
        ("latency", "p50", "p50_ratio", min),
        ("latency", "p99", "p99_ratio", min),
    ):
        for suffix, among in (("", durable), ("_redis", on_redis)):
            if scenario in results and (best := _best(results[scenario], key, among, better)):
                figures[name + suffix] = best[0]
    figures |= {key: peers[FORGE.name][key] for key in ("p50_ms", "p99_ms") if key in peers[FORGE.name]}
    return figures | {"peers": peers}


def _headline(results: Results) -> dict[str, Any]:
    """forge's jobs, seconds and rate in the first scenario of the run, which is `drain` unless it was left out."""
    turns = next(iter(results.values()))[FORGE.name]
    seconds = statistics.median(turn["seconds"] for turn in turns)
    return {"jobs": turns[0]["jobs"], "seconds": round(seconds, 3), "jobs_per_s": round(turns[0]["jobs"] / seconds)}
