"""Errors of boto3 as the one tree of exceptions, and the codes that mean missing capacity.

Source: the error codes of EC2's, SSM's, SQS' and pricing's API references, and those that Karpenter's provider closes
offerings for.
"""

from __future__ import annotations

from typing import Final

from botocore import exceptions

from gpuplane.autoscaler.providers.aws import permissions
from kubekit.errors import KubekitError, NoAnswer, Retryable, Terminal

# Answers of CreateFleet that are about capacity, not about the request.
NO_CAPACITY: Final = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientFreeAddressesInSubnet",
        "MaxFleetCountExceeded",
        "MaxSpotInstanceCountExceeded",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "UnfulfillableCapacity",
        "Unsupported",
        "VcpuLimitExceeded",
    }
)
WHOLE_ZONE: Final = frozenset({"InsufficientFreeAddressesInSubnet"})  # no type has a place there
WHOLE_CAPACITY_TYPE: Final = frozenset({"MaxSpotInstanceCountExceeded", "MaxFleetCountExceeded"})  # nor in any zone

_THROTTLED: Final = frozenset(
    {
        "EC2ThrottledException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_REFUSED: Final = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})
_IDENTITY: Final = frozenset(
    {"AuthFailure", "InvalidClientTokenId", "SignatureDoesNotMatch", "UnrecognizedClientException"}
)
_LATER: Final = frozenset(
    {
        "ExpiredToken",  # boto3 has new credentials a moment later
        "ExpiredTokenException",
        "IdempotentInstanceTerminating",
        "InternalError",
        "InternalFailure",
        "RequestExpired",
        "RequestTimeout",
        "ServiceUnavailable",
        "Unavailable",
    }
)
_GONE: Final = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
_NO_TEMPLATE: Final = frozenset(
    {
        "InvalidLaunchTemplateId.NotFound",
        "InvalidLaunchTemplateId.VersionNotFound",
        "InvalidLaunchTemplateName.NotFoundException",
    }
)


class AwsRefusal(Terminal):
    """AWS refuses a call for good. `code` is AWS' name of the reason."""

    def __init__(self, what: str, *, code: str, where: str = "", cure: str = "") -> None:
        super().__init__(what, where=where, cure=cure)
        self.code = code


class AwsBusy(Retryable):
    """AWS is throttling, or broken for a moment. `code` is AWS' name of the reason."""

    def __init__(self, what: str, *, code: str, where: str = "", cure: str = "") -> None:
        super().__init__(what, where=where, cure=cure)
        self.code = code


def translate(error: Exception, operation: str) -> KubekitError:
    """Return an error that a call of boto3 raised as one of ours. `operation` is boto3's name, such as create_fleet."""
    where = f"AWS {operation}"
    if isinstance(error, exceptions.ClientError):
        answer = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return from_code(str(answer.get("Code", "")), str(answer.get("Message", "")), operation, status=status)
    if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        cure = (
            "bind an IAM role to the ServiceAccount (EKS Pod Identity or IRSA), or pass a Secret with AWS_ACCESS_KEY_ID"
        )
        return AwsRefusal("no AWS credentials", code="NoCredentials", where=where, cure=cure)
    if isinstance(error, exceptions.NoRegionError):
        return AwsRefusal("the AWS region is unknown", code="NoRegion", where=where, cure="set AWS_REGION")
    if isinstance(error, (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.CredentialRetrievalError)):
        return NoAnswer(f"no answer: {error}", where=where)
    if isinstance(error, exceptions.ParamValidationError):
        return AwsRefusal(str(error), code="ParamValidation", where=where)
    return NoAnswer(f"{type(error).__name__}: {error}", where=where)


def from_code(code: str, message: str, operation: str, *, status: int = 400) -> KubekitError:
    """Return the error of one code of AWS, from a whole answer or of one part of a fleet's."""
    where, what = f"AWS {operation}", f"{code}: {message}"
    if code in _THROTTLED:
        return AwsBusy(what, code=code, where=where)
    if code in _REFUSED:
        action = permissions.refused_action(message) or ", ".join(permissions.actions_of(operation))
        return AwsRefusal(what, code=code, where=where, cure=f"grant {action} to the autoscaler's IAM role")
    if code in _IDENTITY:
        return AwsRefusal(what, code=code, where=where, cure="correct the autoscaler's AWS credentials")
    if code in _LATER or status >= 500:
        return AwsBusy(what, code=code, where=where)
    return AwsRefusal(what, code=code, where=where)


def code_of(error: KubekitError) -> str:
    """Return AWS' name of the reason; empty where AWS has not answered."""
    return error.code if isinstance(error, (AwsRefusal, AwsBusy)) else ""


def is_instance_gone(error: KubekitError) -> bool:
    return code_of(error) in _GONE


def is_template_missing(error: KubekitError) -> bool:
    return code_of(error) in _NO_TEMPLATE
