"""What S3 and boto3 say went wrong, as the errors of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import BotoCoreError, ClientError

from cache.counters import Counters
from cache.errors import CacheError, NotReachable, Refused, StoreFull

ABSENT = frozenset({"NoSuchKey", "404", "NotFound"})
TAKEN = frozenset({"PreconditionFailed", "412"})
RACED = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
_DENIED = frozenset(
    {
        "AccessDenied",
        "403",
        "Forbidden",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidToken",
        "TokenRefreshRequired",
        "RequestTimeTooSkewed",
    }
)
_FULL = frozenset({"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "507"})


@contextmanager
def s3_errors(text: str, counters: Counters) -> Iterator[None]:
    """Raise Refused, StoreFull or NotReachable, its message starting with `text`."""
    try:
        yield
    except CacheError:
        raise
    except ClientError as error:
        code = error_code(error)
        counters.add("io_errors")
        if code in _DENIED:
            # Without s3:ListBucket, AWS answers "denied" where "no such object" is meant.
            hint = (
                "check the credentials, their expiry, this machine's clock, and that the policy "
                "allows s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
            )
            raise Refused(f"{text}: {code}", hint=hint) from error
        if code in _FULL:
            raise StoreFull(f"{text}: {code}") from error
        raise NotReachable(f"{text}: {code}", hint="check bucket, region, endpoint") from error
    except RecursionError as error:
        # A server that sends every request elsewhere, and that one back.
        counters.add("io_errors")
        raise NotReachable(
            f"{text}: redirected without end", hint="check bucket, region, endpoint"
        ) from error
    except RuntimeError as error:
        # botocore's way to say that renewed credentials are no good either.
        counters.add("io_errors")
        raise Refused(f"{text}: {error}", hint="check the credentials and their expiry") from error
    except (BotoCoreError, ValueError, OSError) as error:
        # ValueError: an endpoint that is not an address. OSError: a connection cut in the body.
        counters.add("io_errors")
        hint = "check endpoint, region, network and credentials"
        raise NotReachable(f"{text}: {type(error).__name__}", hint=hint) from error


def error_code(error: ClientError) -> str:
    """The code of an error that the server answered with."""
    code: str = error.response.get("Error", {}).get("Code", "")
    return code
