"""The audit of every environment that is built in, with a million episodes: does any go otherwise in another process?

    python -m scripts.attacks.played_twice --episodes 1000000

Episodes are the audit's (``node/environments/audit.py``): scripted, random and hostile actions, each played in two
processes with other hash seeds, time zones, locales, clocks and working folders, in the reverse order, with draws from
global generators in between. What an episode said and earned is compared by a digest a turn. Each environment gets as
many, in batches of other seeds and actions. Exits with 1 if an audit did not pass.
"""

from __future__ import annotations

import argparse
import time

from node.configuration import TasksSection
from node.environments.audit import audit
from node.environments.built_in.all import CONVERSATIONS

OF_EACH_KIND = 2000  # in a batch; there are three kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1_000_000, help="in all, each played twice")
    given = parser.parse_args()
    each = -(-given.episodes // len(CONVERSATIONS))
    played = observed = wrong = 0
    began = time.perf_counter()
    print(f"{'environment':<22} {'episodes':>9} {'observations':>12}  differ  wrong  all so far", flush=True)
    for task in CONVERSATIONS:
        batch = own = own_observed = differ = faults = 0
        while own < each:
            found = audit(TasksSection(), task.name, batch=batch, of_each_kind=min(OF_EACH_KIND, -(-(each - own) // 3)))
            batch, own, own_observed = batch + 1, own + found.episodes, own_observed + found.turns // 2
            differ, faults = differ + len(found.differs), faults + len(found.faults)
            for said in (*found.differs[:5], *found.faults[:5]):
                print(f"    {said[:200]}", flush=True)
        played, observed, wrong = played + own, observed + own_observed, wrong + differ + faults
        seconds = time.perf_counter() - began
        print(
            f"{task.name:<22} {own:>9,} {own_observed:>12,}  {differ:>6}  {faults:>5}  {played:,} in {seconds:,.0f} s",
            flush=True,
        )
    print(f"{played:,} episodes of {observed:,} observations, each played in two processes: {wrong} wrong")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
