"""Lines between a master and its workers: what goes in comes out."""

from __future__ import annotations

from uuid import UUID

import orjson
import pytest

from forge import fastpath
from forge.job import Claim, Done, Ending, Failed, NewJob, Released, Written
from forge.job_messages import ending_of, reply_frame
from tests.worker.conftest import job_line, order_line
from tests.worker.test_inline import ID, claim


@pytest.mark.parametrize(
    "given",
    [
        claim("k", {"args": [1, "é", {"payload": 2}], "kwargs": {}}),
        claim('a","payload":{"x":1', "hostile", queue='q","payload":', keep_result=False, keyed=True),
        claim("k")._replace(payload=b"null"),
    ],
)
def test_a_job_arrives_as_it_was_sent(given: Claim) -> None:
    line = job_line(given)
    wanted = given._replace(priority=0, run_at=None)
    assert fastpath.jobs_in(line + line[:50]) == ([wanted], line[:50])
    assert orjson.loads(line)["kind"] == given.kind


def test_an_order_is_no_job() -> None:
    assert fastpath.jobs_in(order_line("drain") + b'{"answer":5}\n') == ([b'{"do":"drain"}', b'{"answer":5}'], b"")


def test_a_master_reads_the_usual_reply_at_a_glance() -> None:
    given, other = claim("k"), claim("k")._replace(id=UUID(int=7))
    in_hand = {given.id.hex: (given, 1.0), other.id.hex: (other, 1.0)}
    usual, failed = reply_frame(Ending(given, Done()), 0.25), reply_frame(Ending(other, Failed("no")), 1.0)
    done = Done()
    assert fastpath.answers(failed + usual + usual[:9], in_hand, done) == (
        [Ending(given, done)],
        [failed[:-1]],
        usual[:9],
        0.25,
        0.25,
    )
    assert list(in_hand) == [other.id.hex]
    assert fastpath.answers(usual, in_hand, done) == ([], [usual[:-1]], b"", 0.0, 0.0), "it was not in hand"


@pytest.mark.parametrize(
    "ending",
    [
        Ending(claim(), Done()),
        Ending(claim(), Done(), result=b'{"x":1}', children=(NewJob(ID, "k", b"[1]", tags=("t",)),)),
        Ending(claim(), Written()),
        Ending(claim(), Failed("no"), 2.5, "Traceback"),
        Ending(claim(), Released("no handler", give_up_after=77.0), 5.0),
    ],
)
def test_an_ending_arrives_as_it_was_sent(ending: Ending) -> None:
    reply = orjson.loads(reply_frame(ending, 0.25))
    assert reply["took"] == 0.25
    got = ending_of(reply, ending.claim)
    assert (type(got.outcome), got.outcome.__dict__) == (type(ending.outcome), ending.outcome.__dict__)
    assert got[2:] == ending[2:]
