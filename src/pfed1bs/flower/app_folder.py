"""What `pfed1bs flower` writes: a folder that `flwr run` takes as it is, and certificates and keys for trying TLS."""

from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path

from pfed1bs.core.errors import UserError
from pfed1bs.core.extras import need
from pfed1bs.flower.settings import tables
from pfed1bs.runs.config import Config

DAYS = 365


def write_app(folder: Path, config: Config) -> Path:
    """A pyproject.toml with every key of a run; the code is in the installed package."""
    path = folder / "pyproject.toml"
    if path.exists():
        raise UserError(f"{path} exists", "choose another folder, or edit it")
    folder.mkdir(parents=True, exist_ok=True)
    app = {
        "publisher": "pfed1bs",
        "components": {
            "serverapp": "pfed1bs.flower.server_app:app",
            "clientapp": "pfed1bs.flower.client_app:app",
        },
        "config": tables(config),
    }
    project = {
        "name": "pfed1bs-federation",
        "version": "1.0.0",
        "description": "One-bit personalised federated learning",
        "license": "Apache-2.0",
        "dependencies": [f"pfed1bs[cli,data,flower]=={version('pfed1bs')}"],
    }
    path.write_text(need("tomli_w", "cli").dumps({"project": project, "tool": {"flwr": {"app": app}}}))
    return path


def write_certificates(folder: Path, hosts: list[str], nodes: int) -> list[Path]:
    """A certificate authority, a server certificate for `hosts`, and a key pair for each of `nodes` SuperNodes.

    For trying things out: the authority's own key is thrown away, so nobody can add a certificate to it later.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty", "keys are never written over; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    ec, serialization = (
        need(f"cryptography.hazmat.primitives.{name}", "flower") for name in ("asymmetric.ec", "serialization")
    )
    plain, pem = serialization.NoEncryption(), serialization.Encoding.PEM
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    root = _certificate("pfed1bs test authority", authority, authority, [])
    leaf = _certificate("pfed1bs test server", server, authority, hosts)
    texts = {
        "ca.crt": root.public_bytes(pem),
        "server.pem": leaf.public_bytes(pem),
        "server.key": server.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
    }
    for node in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        texts[f"node{node}"] = key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, plain)
        texts[f"node{node}.pub"] = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    for name, data in texts.items():
        (folder / name).touch(mode=0o644 if name.endswith((".crt", ".pem", ".pub")) else 0o600)
        (folder / name).write_bytes(data)
    return [folder / name for name in texts]


def _certificate(name, key, signer, hosts: list[str]):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """A certificate of `key`, by itself if it has no hosts."""
    x509, hashes = need("cryptography.x509", "flower"), need("cryptography.hazmat.primitives.hashes", "flower")
    root = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "pfed1bs test authority")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(
        issuer_name=root,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=datetime.now(UTC) - timedelta(hours=1),
        not_valid_after=datetime.now(UTC) + timedelta(days=DAYS),
    ).add_extension(x509.BasicConstraints(ca=not hosts, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(identifier, critical=False)
    if hosts:
        names = [x509.IPAddress(ip_address(host)) if _is_ip(host) else x509.DNSName(host) for host in hosts]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA384())


def _is_ip(host: str) -> bool:
    return host.replace(".", "").isdecimal() or ":" in host
