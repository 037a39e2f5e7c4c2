"""The drain of jobs that are run by a pool of children in another language, against the same by Python workers.

A pool's child has one job at a time: a line out, a line back, for each. So this measures that round trip, the master's
share of it and the storage behind it. Children are Perl if there is one, else Node; both mark the scoreboard like the
Python handler does. --workers children, and as many workers for the other side, which takes turns.

Keys: jobs_per_s (the pool's, median), python_jobs_per_s, ratio_to_python, language.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import finish, interleaved, median, options, ratio, say
from bench.drain import Drain
from bench.ground import ground
from bench.pod import Project, project

PERL = r"""
use strict;
$| = 1;
open(my $ran, '+<:raw', "$ENV{FORGE_BENCH_BOARD}/ran") or die $!;
while (<STDIN>) {
    my ($id) = /"id": ?"([^"]+)"/;
    my ($i) = /"i": ?(\d+)/;
    sysseek($ran, $i, 0);
    sysread($ran, my $byte, 1);
    sysseek($ran, $i, 0);
    syswrite($ran, chr(1 + ord $byte));
    print qq({"id":"$id","status":"ok"}\n);
}
"""

NODE = r"""
const fs = require("fs");
const ran = fs.openSync(process.env.FORGE_BENCH_BOARD + "/ran", "r+");
const byte = Buffer.alloc(1);
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, payload } = JSON.parse(line);
  fs.readSync(ran, byte, 0, 1, payload.i);
  byte[0] += 1;
  fs.writeSync(ran, byte, 0, 1, payload.i);
  process.stdout.write(`{"id":"${id}","status":"ok"}\n`);
});
"""

LANGUAGES = {"perl": ("child.pl", PERL), "node": ("child.js", NODE)}


def with_pool(made: Project, language: str, workers: int) -> None:
    """Jobs of the kind `foreign` go to children."""
    name, source = LANGUAGES[language]
    (made.folder / name).write_text(source)
    argv = json.dumps([shutil.which(language), name])
    made.configure(workers, more=f'[pools.foreign]\nkind = "foreign"\nargv = {argv}\nsize = {workers}\n')


def main() -> None:
    """Half a minute."""
    parser = options(__doc__ or "", jobs=10_000, rounds=3)
    there = [name for name in LANGUAGES if shutil.which(name)]
    parser.add_argument("--language", choices=there, default=there[0] if there else None, help="of the children")
    args = parser.parse_args()
    if not there:
        sys.exit("neither perl nor node is installed")
    gc.freeze()
    began = time.perf_counter()
    with ground(args.backend) as db, project(db, args.jobs, args.workers) as made:
        say(f"polyglot, {args.backend}, {args.jobs:,} jobs a turn, {args.workers} children in {args.language}")
        with_pool(made, args.language, args.workers)
        pool, python = (Drain(db, made, args.jobs, kind, args.impl) for kind in ("foreign", "noop"))
        rates = interleaved({args.language: pool.forge, "python": python.forge}, args.rounds)
    verdicts = pool.verdicts + python.verdicts
    finish(
        args,
        began,
        args.jobs,
        jobs_per_s=median(rates[args.language]),
        python_jobs_per_s=median(rates["python"]),
        ratio_to_python=ratio(rates, args.language, "python"),
        language=args.language,
        lost=sum(verdict.lost for verdict in verdicts),
        duplicates=sum(verdict.duplicates for verdict in verdicts),
        server=db.server,
    )


if __name__ == "__main__":
    main()
