"""Lines between a master and its workers: what goes in comes out."""

from __future__ import annotations

import orjson
import pytest

from forge.job import Claim, Done, Ending, Failed, NewJob, Released, Written
from forge.protocol import claim_in, claim_of, ending_of, job_line, order_line, reply_line
from tests.worker.test_inline import ID, claim

pytestmark = pytest.mark.impl_free


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
    assert claim_in(line[:-1]) == wanted
    assert claim_of(orjson.loads(line)) == wanted


def test_an_order_is_no_job() -> None:
    assert claim_in(order_line("drain")[:-1]) is None
    assert claim_in(b'{"answer":5}') is None


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
    reply = orjson.loads(reply_line(ending, 0.25))
    assert reply["took"] == 0.25
    got = ending_of(reply, ending.claim)
    assert (type(got.outcome), got.outcome.__dict__) == (type(ending.outcome), ending.outcome.__dict__)
    assert got[2:] == ending[2:]
