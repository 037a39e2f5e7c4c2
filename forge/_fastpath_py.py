"""The reference of the native path: what each function means, in plain Python.

This is its front door; the functions are in `_reference`, by subject. `_fastpath.pyx` has the same functions, in parts
of the same names, and hands any input that it is not made for to the function here. So an unusual value costs time, and
the answer or the error is always the reference's.
Callers import `forge.fastpath`, which chooses.
"""

from __future__ import annotations

from forge._reference.backoff import delay
from forge._reference.burst import burst
from forge._reference.endings import plain_endings
from forge._reference.frames import answers, done_line, job_lines, jobs_in
from forge._reference.histogram import timed
from forge._reference.ids import uuids
from forge._reference.json import check_json
from forge._reference.pgwire import copy_rows, int8_array, text_array, uuid_array
from forge._reference.records import claims, survey, task_jobs
from forge._reference.resp import resp_bulk, resp_commands, resp_error, resp_int, resp_simple, resp_values

__all__ = [
    "answers",
    "burst",
    "check_json",
    "claims",
    "copy_rows",
    "delay",
    "done_line",
    "int8_array",
    "job_lines",
    "jobs_in",
    "plain_endings",
    "resp_bulk",
    "resp_commands",
    "resp_error",
    "resp_int",
    "resp_simple",
    "resp_values",
    "survey",
    "task_jobs",
    "text_array",
    "timed",
    "uuid_array",
    "uuids",
]
