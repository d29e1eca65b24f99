"""The key that signs the tokens of service accounts: ES256 (ECDSA on P-256 with SHA-256), as JSON Web Signatures.

A real API server signs by ES256 too where its key is of this curve. Such a key is made in a tenth of a millisecond,
one of RSA in a tenth of a second. Invariant: a token is accepted in the one spelling in which it was issued, with the
one header that this key writes; so no token chooses its own algorithm.

Source: RFC 7515, RFC 7517, RFC 7518; the ID of a key as in pkg/serviceaccount/jwt.go of Kubernetes 1.36.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from kubekit.errors import Terminal
from tinykube.apiserver.certificates import write_whole

KEY_FILE: Final = "sa.key"
ALGORITHM: Final = "ES256"
_NUMBER_BYTES: Final = 32  # of each of the two numbers of a signature, and of a coordinate
_HASH: Final = ec.ECDSA(hashes.SHA256())


def to_base64(data: bytes) -> str:
    """Encode for URLs, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def from_base64(text: str) -> bytes:
    """Decode what `to_base64` gives. Raises ValueError (binascii.Error)."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class TokenKey:
    """One private key. `public` is its JSON Web Key, for those who check tokens elsewhere."""

    def __init__(self, private: ec.EllipticCurvePrivateKey) -> None:
        self._private = private
        self._public = private.public_key()
        encoded = self._public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        name = to_base64(hashlib.sha256(encoded).digest())
        point = self._public.public_numbers()
        self.public: dict[str, str] = {
            "use": "sig",
            "kty": "EC",
            "kid": name,
            "crv": "P-256",
            "alg": ALGORITHM,
            "x": to_base64(point.x.to_bytes(_NUMBER_BYTES)),
            "y": to_base64(point.y.to_bytes(_NUMBER_BYTES)),
        }
        self._header = to_base64(msgspec.json.encode({"alg": ALGORITHM, "kid": name}))

    @classmethod
    def make(cls) -> TokenKey:
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def ensure(cls, path: Path) -> TokenKey:
        """Return the key of a PEM file that its owner alone reads, made where there is none.

        Raises Terminal for a file that has no such key.
        """
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            key = cls.make()
            write_whole(path, key.pem, 0o600)
            return key
        try:
            private = serialization.load_pem_private_key(data, None)
        except (ValueError, TypeError) as error:
            raise _unusable(path, str(error)) from None
        if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, ec.SECP256R1):
            raise _unusable(path, "it is not of the curve P-256")
        return cls(private)

    @property
    def pem(self) -> bytes:
        return self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def sign(self, payload: bytes) -> str:
        """Return a token with this payload."""
        head = f"{self._header}.{to_base64(payload)}"
        numbers = decode_dss_signature(self._private.sign(head.encode(), _HASH))
        return f"{head}.{to_base64(b''.join(number.to_bytes(_NUMBER_BYTES) for number in numbers))}"

    def verify(self, token: str) -> bytes | None:
        """Return the payload of a token that this key signed, None for any other text."""
        parts = token.split(".")
        if len(parts) != 3 or parts[0] != self._header:
            return None
        try:
            payload, signature = (from_base64(part) for part in parts[1:])
        except (binascii.Error, ValueError):
            return None
        if len(signature) != 2 * _NUMBER_BYTES or [to_base64(payload), to_base64(signature)] != parts[1:]:
            return None
        first, second = signature[:_NUMBER_BYTES], signature[_NUMBER_BYTES:]
        encoded = encode_dss_signature(int.from_bytes(first), int.from_bytes(second))
        try:
            self._public.verify(encoded, f"{parts[0]}.{parts[1]}".encode(), _HASH)
        except InvalidSignature:
            return None
        return payload


def _unusable(path: Path, why: str) -> Terminal:
    cure = "put the file of before back, or delete it: a new key is made, and pods get new tokens"
    return Terminal(f"no key that signs tokens of service accounts: {why}", where=str(path), cure=cure)
