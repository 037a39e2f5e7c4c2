# Jobs run one after another in a worker.

from cpython.contextvars cimport PyContext_CopyCurrent, PyContext_Enter, PyContext_Exit, PyContextVar_Set
from cpython.object cimport PyObject_GenericSetAttr, PyTypeObject
from cpython.tuple cimport PyTuple_GET_SIZE

cdef object loads
from orjson import loads

cdef object DULL = frozenset((int, float, str, bool, bytes, list, tuple, dict))  # results that are nothing but results


# 2.2x the twin (bench/fastpath.py). With what is read and written for it, a no-op job costs a worker 2.6 µs; by the
# steps that can do everything it was 5.5. That each job has context variables of its own is less than 0.05 of it.
def burst(jobs, plain, port, seat, context, current, clock, until, most):
    cdef unsigned char id_[16]
    cdef Py_ssize_t done = 0, left = most
    cdef double end = until, start, now
    cdef bint kept
    if type(plain) is not dict:
        return twin.burst(jobs, plain, port, seat, context, current, clock, until, most)
    take, back, early, link = jobs.popleft, jobs.appendleft, port.early, port.link
    began = clock()
    start = began
    while left > 0 and start < end and len(jobs) and not early and not port.closed:
        claim = take()
        how = None
        if type(claim) is Claim and PyTuple_GET_SIZE(claim) == C_FIELDS:
            kind = item(claim, C_KIND)
            if type(kind) is str and get_uuid(item(claim, C_ID), id_):
                how = (<dict>plain).get(kind)
        if how is None:
            back(claim)
            break
        handler, app, fn, takes_ctx, ctx_first = <tuple>how
        ctx = PyType_GenericAlloc(<PyTypeObject *>context, 0)
        PyObject_GenericSetAttr(ctx, "_claim", claim)
        PyObject_GenericSetAttr(ctx, "_app", app)
        PyObject_GenericSetAttr(ctx, "_link", link)
        PyObject_GenericSetAttr(ctx, "_began", began)
        returned = error = None
        own = PyContext_CopyCurrent()
        PyContext_Enter(own)
        try:
            PyContextVar_Set(current, ctx)
            seat.ctx = ctx
            try:
                payload = loads(item(claim, C_PAYLOAD))
                if takes_ctx:
                    returned = fn(ctx, payload)
                elif ctx_first:
                    returned = fn(ctx, *payload["args"], **payload["kwargs"])
                else:
                    returned = fn(*payload["args"], **payload["kwargs"])
            except BaseException as raised:
                error = raised
            # Between two instructions of Python code a signal can raise; there are none between the handler's last and
            # this.
            seat.ctx = None
            ended = clock()
            now = ended
            kept = item(claim, C_KEEP_RESULT) is not False
            if (
                error is None and (returned is None or not kept and type(returned) in DULL)
                and ctx._children is None and ctx._written is False and 0.0 <= now - start < 1e6
            ):
                port.replies.append(put_done(id_, now - start))
                done += 1
            else:
                seat.ended(ctx, handler, began, returned, error)
                ended = clock()
                now = ended
        finally:
            PyContext_Exit(own)
        began, start = ended, now
        left -= 1
    return done
