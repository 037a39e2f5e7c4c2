# Bytes that are written into a Buffer, which grows, and read with a Cursor, which moves on.

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy


cdef struct Buffer:
    char *data
    Py_ssize_t size
    Py_ssize_t room


cdef struct Cursor:
    const char *at
    const char *end


cdef int need(Buffer *out, Py_ssize_t more) except -1:
    """Make room for `more` bytes; the put_* of a fixed size rely on it."""
    cdef char *data
    cdef Py_ssize_t room
    if out.size + more > out.room:
        room = (out.size + more) * 2 + 4096
        data = <char *>realloc(out.data, room)
        if data == NULL:
            raise MemoryError
        out.data, out.room = data, room
    return 0


cdef inline void put16(Buffer *out, int value) noexcept:
    out.data[out.size] = <char>(value >> 8)
    out.data[out.size + 1] = <char>value
    out.size += 2


cdef inline void put32(Buffer *out, int32_t value) noexcept:
    put16(out, value >> 16)
    put16(out, value)


cdef inline void put64(Buffer *out, uint64_t value) noexcept:
    put32(out, <int32_t>(value >> 32))
    put32(out, <int32_t>value)


cdef int put_char(Buffer *out, char value) except -1:
    need(out, 1)
    out.data[out.size] = value
    out.size += 1
    return 0


cdef int put_raw "forge_put_raw"(Buffer *out, const char *data, Py_ssize_t size) except -1:
    need(out, size)
    memcpy(out.data + out.size, data, size)
    out.size += size
    return 0


# Two macros, for words that are a literal: so their length is known to the compiler. As functions, which it does not
# always inline, they would count it each time; all of `jobs_in` took 6 % longer, of `job_lines` 3 %.
cdef extern from *:
    """
    #define forge_put_words(out, words) forge_put_raw(out, words, strlen(words))
    #define forge_skip(c, words) \\
        ((c)->end - (c)->at >= (Py_ssize_t)strlen(words) && memcmp((c)->at, words, strlen(words)) == 0 \\
            ? ((c)->at += strlen(words), 1) : 0)
    """
    # Put these words into the buffer.
    int put_words "forge_put_words"(Buffer *out, const char *words) except -1
    # Whether these words come next; if they do, the cursor is past them.
    bint skip "forge_skip"(Cursor *c, const char *words) noexcept


cdef int put_number(Buffer *out, int64_t number) except -1:
    """In decimal."""
    cdef char digits[20]
    cdef int n = 0
    cdef uint64_t rest = <uint64_t>number if number >= 0 else 0 - <uint64_t>number
    need(out, 21)
    if number < 0:
        out.data[out.size] = c"-"
        out.size += 1
    while True:
        digits[n] = <char>(c"0" + rest % 10)
        n += 1
        rest //= 10
        if rest == 0:
            break
    while n > 0:
        n -= 1
        out.data[out.size] = digits[n]
        out.size += 1
    return 0


cdef inline bint is_digit(char c) noexcept:
    return c"0" <= c <= c"9"


cdef bint get_natural(Cursor *c, int64_t *number) noexcept:
    """A natural number as JSON has it, of 18 digits at most."""
    cdef const char *start = c.at
    cdef int64_t value = 0
    while c.at < c.end and is_digit(c.at[0]):
        if c.at - start >= 18:
            return False
        value = value * 10 + (c.at[0] - c"0")
        c.at += 1
    if c.at == start or start[0] == c"0" and c.at - start > 1:
        return False
    number[0] = value
    return True
