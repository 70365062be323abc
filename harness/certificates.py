"""A throw-away certificate authority for TLS listeners, written as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = datetime.timedelta(days=30)


@dataclass(frozen=True)
class Pair:
    """Files of one identity; ``both`` holds key and certificates, as a broker's PEM key store needs them."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates for the brokers (127.0.0.1, localhost) and for clients (common name = Kafka user).

    :param name: two authorities in one file need different names: OpenSSL looks up an issuer by its name.
    """

    def __init__(self, folder: Path, name: str = "harness authority") -> None:
        self.folder = folder
        self._name = name
        self.certificate = folder / "ca.pem"
        self._key: ec.EllipticCurvePrivateKey | None = None
        self._own: x509.Certificate | None = None

    def create(self) -> None:
        """Create the authority; do nothing if this object has already created it."""
        if self._own is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = _name(self._name)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        self._own = (
            _builder(name, name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            # Both identifiers: since Python 3.13 clients refuse a chain without them.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate.write_bytes(_pem(self._own))

    def server(self) -> Pair:
        """The brokers' identity."""
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        return self._pair("server", "broker", ExtendedKeyUsageOID.SERVER_AUTH, names)

    def client(self, user: str) -> Pair:
        """Identity of a client that Kafka will call ``User:<user>``."""
        return self._pair(f"client-{user}", user, ExtendedKeyUsageOID.CLIENT_AUTH, [])

    def _pair(
        self, file_name: str, common_name: str, purpose: x509.ObjectIdentifier, names: list[x509.GeneralName]
    ) -> Pair:
        pair = Pair(*(self.folder / f"{file_name}{suffix}" for suffix in (".pem", ".key", ".both.pem")))
        if pair.both.exists():
            return pair
        assert self._key is not None, "create() comes first"
        assert self._own is not None
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(common_name), self._own.subject, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = _pem(builder.sign(self._key, hashes.SHA256()))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        for path, content in (
            (pair.certificate, certificate),
            (pair.key, private),
            (pair.both, private + certificate + _pem(self._own)),
        ):
            path.touch(mode=0o600)
            path.write_bytes(content)
        return pair


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + _LIFETIME)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
