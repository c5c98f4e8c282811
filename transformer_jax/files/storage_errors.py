"""What went wrong with storage, from the errors of the operating system, tensorstore and gcsfs."""

import errno
import os
import re
from collections.abc import Iterator

# Errors of the operating system that may pass, and so say nothing about the files.
PASSING = {
    *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EACCES),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
}
FULL = ("No space left", "quota exceeded")
# The number of an error of the operating system in a message of tensorstore.
OS_ERROR = re.compile(r"os_error_code='(\d+)'")
# Signs of a bucket that cannot be reached now: modules that raise such errors, texts of tensorstore and gcsfs.
FORBIDDEN = r"UNAUTHENTICATED|Unauthorized|Forbidden|http_response_code='40[13]'|gcsfs.*, 401$"
UNREACHABLE = (
    r"^(aiohttp|requests|gcsfs|google)\.|UNAVAILABLE|DEADLINE_EXCEEDED|retry attempts failed"
    rf"|http_response_code='(429|5\d\d)'|{FORBIDDEN}"
)


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and all that led to it."""
    yield error
    for inner in (*getattr(error, "exceptions", ()), error.__cause__ or error.__context__):
        if inner is not None:
            yield from causes(inner)


def _text(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__name__}: {error}"


def passing(error: BaseException) -> int | None:
    """The number of an error of the operating system that may pass; None for another error."""
    for cause in causes(error):
        found = OS_ERROR.search(str(cause))
        number = int(found[1]) if found else getattr(cause, "errno", None)
        if re.search(UNREACHABLE, _text(cause)):
            return errno.ETIMEDOUT
        if number in PASSING:
            return number
    return None


def short(error: BaseException) -> str:
    """A short name of what went wrong, where it is known; else the type and first line of the error."""
    texts = list(map(_text, causes(error)))
    if any(words in text for words in FULL for text in texts):
        return "the disk is full"
    if any(re.search(FORBIDDEN, text) for text in texts):
        return "access is denied; are the credentials right?"
    if any(re.search(UNREACHABLE, text) for text in texts):
        return "the bucket does not respond"
    if (number := passing(error)) is not None:
        return os.strerror(number)
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
