"""Pairs of EC keys in PEM, as openssl writes them."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


def write_keys(
    folder: Path, curve: ec.EllipticCurve | None = None, *, password: bytes | None = None
) -> tuple[Path, Path]:
    """Write a new pair of keys; return the paths of the private and of the public one."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    how = BestAvailableEncryption(password) if password else NoEncryption()
    private, public = folder / "key.pem", folder / "key.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how))
    of_public = key.public_key()
    public.write_bytes(of_public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public
