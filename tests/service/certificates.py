"""Certificate authorities and certificates for tests, made with `cryptography`."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from genret.service.configuration.server_config import TlsConfig

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
ADDRESSES = (x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1"))
THIS_MACHINE = (x509.DNSName("localhost"), *ADDRESSES)


@dataclass(frozen=True)
class CertificateFiles:
    """A certificate chain and its key, in PEM files."""

    certificate: Path
    key: Path

    @property
    def chain_bytes(self) -> bytes:
        return self.certificate.read_bytes()

    @property
    def key_bytes(self) -> bytes:
        return self.key.read_bytes()

    @property
    def serial(self) -> int:
        """Serial number of the first certificate, by which two certificates of one name differ."""
        return x509.load_pem_x509_certificates(self.chain_bytes)[0].serial_number


class Authority:
    """A certificate authority in `directory`, with its own certificate at `ca_file`."""

    def __init__(self, directory: Path, name: str = "test CA", above: Authority | None = None) -> None:
        self.directory = directory
        self.name = name
        self._above = above
        directory.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, days_valid=30, days_old=1)
        self._certificate = (above or self)._signed(builder, self._key, is_authority=True)
        self.ca_file = directory / f"{_file_name(name)}.ca.pem"
        self.ca_file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    @property
    def ca_bytes(self) -> bytes:
        return self.ca_file.read_bytes()

    def intermediate(self) -> Authority:
        return Authority(self.directory, "test intermediate CA", above=self)

    def issue(
        self,
        name: str,
        *,
        days_valid: float = 30,
        days_old: float = 1,
        client: bool = False,
        key: PrivateKey | None = None,
    ) -> CertificateFiles:
        """Make a key and a certificate for it, signed by this authority.

        Negative `days_valid` mean that it has expired, negative `days_old` that it is not valid yet.
        """
        key = key or ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        builder = (
            _builder(name, days_valid, days_old)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName(THIS_MACHINE), critical=False)
        )
        certificate = self._signed(builder, key, is_authority=False)
        chain = certificate.public_bytes(serialization.Encoding.PEM)
        if self._above is not None:  # the root is known to who verifies; what lies between must be sent
            chain += self._certificate.public_bytes(serialization.Encoding.PEM)
        stem = self.directory / _file_name(name)
        files = CertificateFiles(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        files.certificate.write_bytes(chain)
        write_key(files.key, key)
        return files

    def server_tls(self, *, client_ca: Path | None = None) -> TlsConfig:
        """Return the configuration of a server on this machine, with new files."""
        files = self.issue("server")
        return TlsConfig(certificate=files.certificate, key=files.key, client_ca=client_ca)

    def _signed(
        self, builder: x509.CertificateBuilder, key: PrivateKey, is_authority: bool
    ) -> x509.Certificate:
        """Sign a certificate of a key, as the authority of that name."""
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            builder.issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)]))
            .public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=is_authority), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def write_key(
    path: Path, key: ec.EllipticCurvePrivateKey | None = None, password: bytes | None = None
) -> Path:
    """Write a private key, a new one if none is given, as only its owner may read it."""
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password)
    pem = (key or ec.generate_private_key(ec.SECP256R1())).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
    path.touch(mode=0o600)
    path.write_bytes(pem)
    return path


def _builder(name: str, days_valid: float, days_old: float) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    begins = now - datetime.timedelta(days=days_old)
    ends = now + datetime.timedelta(days=days_valid)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(begins, ends - datetime.timedelta(hours=1)))
        .not_valid_after(ends)
    )


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    unused = dict.fromkeys((*names, "encipher_only", "decipher_only"), False)
    signs = {"key_cert_sign": signs_certificates, "crl_sign": signs_certificates}
    return x509.KeyUsage(digital_signature=True, **signs, **unused)


def _file_name(name: str) -> str:
    return name.replace(" ", "-").replace("/", "-")
