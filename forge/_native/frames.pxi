# What a master and a worker say to each other, one line of JSON after another.

from cpython.array cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.math cimport fabs, floor, signbit
from libc.stdint cimport int64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, strlen


# 5.4x the twin (bench/fastpath.py).
def job_lines(claims, in_hand, now):
    cdef Buffer out = Buffer(NULL, 0, 0)
    cdef tuple items
    cdef list keys = []
    cdef Py_ssize_t i
    if type(claims) is not list or type(in_hand) is not dict:
        return twin.job_lines(claims, in_hand, now)
    items = tuple(claims)  # a key of the dict may run code that changes the list
    try:
        for claim in items:
            key = put_job(&out, claim)
            if key is None:
                return twin.job_lines(claims, in_hand, now)
            keys.append(key)
        for i in range(len(items)):
            (<dict>in_hand)[keys[i]] = (items[i], now)
        return PyBytes_FromStringAndSize(out.data, out.size)
    finally:
        free(out.data)


cdef object put_job(Buffer *out, object claim):
    """The line that gives this job to a worker; the answer is the hex of its id. None: the twin must do it."""
    cdef unsigned char id_[16]
    cdef char text[HEX_DIGITS]
    if type(claim) is not Claim or PyTuple_GET_SIZE(claim) != C_FIELDS:
        return None
    payload = item(claim, C_PAYLOAD)
    keep, keyed = item(claim, C_KEEP_RESULT), item(claim, C_KEYED)
    if (
        type(payload) is not bytes or type(keep) is not bool or type(keyed) is not bool
        or not get_uuid(item(claim, C_ID), id_)
    ):
        return None
    to_hex(id_, text)
    put_words(out, b'{"id":"')
    put_raw(out, text, HEX_DIGITS)
    if not put_field(out, b'","token":', item(claim, C_TOKEN)):
        return None
    put_words(out, b',"kind":')
    if not put_quoted(out, item(claim, C_KIND)):
        return None
    put_words(out, b',"queue":')
    if not (
        put_quoted(out, item(claim, C_QUEUE))
        and put_field(out, b',"attempt":', item(claim, C_ATTEMPT))
        and put_field(out, b',"max_attempts":', item(claim, C_MAX_ATTEMPTS))
        and put_field(out, b',"timeout":', item(claim, C_TIMEOUT))
    ):
        return None
    put_words(out, b',"keep":1,"keyed":' if keep is True else b',"keep":0,"keyed":')
    put_words(out, b'1,"payload":' if keyed is True else b'0,"payload":')
    put_raw(out, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
    put_words(out, b"}\n")
    return PyUnicode_DecodeASCII(text, HEX_DIGITS, NULL)


cdef bint put_field(Buffer *out, const char *name, object value) except -1:
    """A name, as it stands between two values, and an int. False: it is none, or has more than 64 bits."""
    cdef int overflow = 0
    cdef int64_t number
    if type(value) is not int:
        return False
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        return False
    put_words(out, name)
    put_number(out, number)
    return True


cdef inline bint to_be_escaped(char c) noexcept:
    """In a JSON string: quotes, backslashes and control characters."""
    return <unsigned char>c < c" " or c == c'"' or c == c"\\"


cdef bint put_quoted(Buffer *out, object text) except -1:
    """Text as JSON has it. False: something in it must be escaped."""
    cdef Py_ssize_t i, size
    cdef const char *data
    if type(text) is not str:
        return False
    data = PyUnicode_AsUTF8AndSize(text, &size)
    if data == NULL:  # a lone surrogate
        PyErr_Clear()
        return False
    for i in range(size):
        if to_be_escaped(data[i]):
            return False
    put_char(out, c'"')
    put_raw(out, data, size)
    put_char(out, c'"')
    return True


# 8.5x the twin (bench/fastpath.py).
def jobs_in(data):
    cdef Cursor line
    cdef const char *at
    cdef const char *end
    cdef const char *stop
    cdef _Names kinds = _Names()
    cdef _Names queues = _Names()
    cdef list found = []
    if type(data) is not bytes:
        return twin.jobs_in(data)
    at = PyBytes_AS_STRING(data)
    end = at + PyBytes_GET_SIZE(data)
    try:
        while True:
            stop = <const char *>memchr(at, c"\n", end - at)
            if stop == NULL:
                break
            line.at, line.end = at, stop
            if skip(&line, b'{"id":'):
                claim = get_job(&line, kinds, queues)
                if claim is None:
                    return twin.jobs_in(data)
                found.append(claim)
            else:
                found.append(PyBytes_FromStringAndSize(at, stop - at))
            at = stop + 1
    except UnicodeDecodeError:
        return twin.jobs_in(data)
    return found, PyBytes_FromStringAndSize(at, end - at)


cdef object get_job(Cursor *line, _Names kinds, _Names queues):
    """The claim in a line that is about one. None: the twin must read it."""
    cdef unsigned char id_[16]
    cdef int64_t token = 0, attempt = 0, max_attempts = 0, timeout = 0
    cdef bint keep = False, keyed = False
    if not (skip(line, b'"') and line.end - line.at > HEX_DIGITS and from_hex(line.at, id_)):
        return None
    line.at += HEX_DIGITS
    if not (skip(line, b'","token":') and get_natural(line, &token) and skip(line, b',"kind":')):
        return None
    kind = kinds.get(line)
    if kind is None or not skip(line, b',"queue":'):
        return None
    queue = queues.get(line)
    if queue is None or not (
        skip(line, b',"attempt":') and get_natural(line, &attempt)
        and skip(line, b',"max_attempts":') and get_natural(line, &max_attempts)
        and skip(line, b',"timeout":') and get_natural(line, &timeout)
        and skip(line, b',"keep":') and get_flag(line, &keep)
        and skip(line, b',"keyed":') and get_flag(line, &keyed)
        and skip(line, b',"payload":') and line.at < line.end
    ):
        return None
    return made_claim(
        0, None, made_uuid(id_), token, queue, kind, PyBytes_FromStringAndSize(line.at, line.end - line.at - 1),
        attempt, max_attempts, timeout, keep, keyed,
    )


cdef bint get_flag(Cursor *c, bint *flag) noexcept:
    """A 0 or a 1."""
    cdef int64_t number = 0
    if not get_natural(c, &number) or number > 1:
        return False
    flag[0] = number == 1
    return True


cdef class _Names:
    """Texts of JSON, decoded once for all jobs that share them."""

    cdef bytes raw
    cdef str text

    def __cinit__(self):
        self.raw, self.text = b"", ""

    cdef str get(self, Cursor *c):
        """The text that comes next. None: there is none, or something in it is escaped."""
        cdef const char *start
        cdef Py_ssize_t size
        if c.at == c.end or c.at[0] != c'"':
            return None
        start = c.at + 1
        size = PyBytes_GET_SIZE(self.raw)
        if c.end - start > size and start[size] == c'"' and memcmp(start, PyBytes_AS_STRING(self.raw), size) == 0:
            c.at = start + size + 1
            return self.text
        c.at = start
        while c.at < c.end and not to_be_escaped(c.at[0]):
            c.at += 1
        if c.at == c.end or c.at[0] != c'"':
            return None
        self.raw = PyBytes_FromStringAndSize(start, c.at - start)
        self.text = self.raw.decode("utf-8")
        c.at += 1
        return self.text


# 6.3x the twin (bench/fastpath.py).
def done_line(id_, seconds):
    cdef unsigned char data[16]
    if type(seconds) is not float or not 0.0 <= <double>seconds < 1e6 or not get_uuid(id_, data):
        return twin.done_line(id_, seconds)
    return put_done(data, <double>seconds)


cdef bytes put_done(const unsigned char *id_, double seconds):
    """The line of a job that took so long: 0 seconds or more, and less than a million."""
    cdef char line[100]
    cdef char digits[16]
    cdef double whole = floor(seconds * 1e6), rest = seconds * 1e6 - whole
    cdef int64_t left = <int64_t>whole + (rest > 0.5)
    cdef char *at = line
    cdef int n = 0
    at = put_at(at, b'{"id":"')
    to_hex(id_, at)
    at = put_at(at + HEX_DIGITS, b'","status":"ok","took":')
    if fabs(rest - 0.5) < 1e-3 or signbit(seconds):
        # Which way it is rounded is not for us to say; nor is -0.0. Not by snprintf: a handler's locale may have a
        # comma.
        return b"%b%.6f}\n" % (PyBytes_FromStringAndSize(line, at - line), seconds)
    # By hand it is 0.2 µs less than by Python's formatting.
    while left or n < 7:
        if n == 6:
            digits[n] = c"."
            n += 1
        digits[n] = <char>(c"0" + left % 10)
        left //= 10
        n += 1
    while n:
        n -= 1
        at[0] = digits[n]
        at += 1
    at = put_at(at, b"}\n")
    return PyBytes_FromStringAndSize(line, at - line)


cdef inline char *put_at(char *at, const char *words) noexcept:
    """Put words where there is room for them; the answer is where they end."""
    memcpy(at, words, strlen(words))
    return at + strlen(words)


# 8x the twin (bench/fastpath.py). Counting times is 0.05 µs of a job's 0.3.
def answers(data, in_hand, done, times=None, ahead=None):
    cdef Cursor line
    cdef const char *at
    cdef const char *end
    cdef const char *stop
    cdef const char *hex_ = NULL
    cdef double seconds = 0.0, total = 0.0, most = 0.0
    cdef list endings = []
    cdef list others = []
    cdef bint counted = times is not None
    if type(data) is not bytes or type(in_hand) is not dict or counted and not good_times(times):
        return twin.answers(data, in_hand, done, times, ahead)
    at = PyBytes_AS_STRING(data)
    end = at + PyBytes_GET_SIZE(data)
    while True:
        stop = <const char *>memchr(at, c"\n", end - at)
        if stop == NULL:
            break
        line.at, line.end = at, stop
        held = None
        if get_done(&line, &hex_, &seconds):
            held = (<dict>in_hand).pop(PyUnicode_DecodeASCII(hex_, HEX_DIGITS, NULL), None)
        if held is None:
            others.append(PyBytes_FromStringAndSize(at, stop - at))
        else:
            endings.append(made_ending(held[0], done))
            if counted:
                if type(held) is tuple and PyTuple_GET_SIZE(held) == 2 and type(item(held, 0)) is Claim:
                    due = item(item(held, 0), C_RUN_AT)
                else:
                    due = held[0].run_at
                count_times(<array>times, seconds, due, held[1], ahead)
            total += seconds
            most = seconds if seconds > most else most
        at = stop + 1
    return endings, others, PyBytes_FromStringAndSize(at, end - at), total, most


cdef bint get_done(Cursor *line, const char **hex_, double *seconds) noexcept:
    """Whether it is a line of `done_line`: then where the digits of its id are, and how long the job took."""
    cdef unsigned char data[16]
    cdef const char *start
    cdef int64_t number = 0
    cdef int i
    if not (skip(line, b'{"id":"') and line.end - line.at > HEX_DIGITS and from_hex(line.at, data)):
        return False
    hex_[0] = line.at
    line.at += HEX_DIGITS
    if not skip(line, b'","status":"ok","took":'):
        return False
    start = line.at
    while line.at < line.end and is_digit(line.at[0]):
        if line.at - start >= 6:
            return False
        number = number * 10 + (line.at[0] - c"0")
        line.at += 1
    if line.at == start or line.end - line.at != 8 or line.at[0] != c"." or line.at[7] != c"}":
        return False
    for i in range(1, 7):
        if not is_digit(line.at[i]):
            return False
        number = number * 10 + (line.at[i] - c"0")
    seconds[0] = <double>number / 1e6
    return True
