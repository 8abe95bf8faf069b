"""TLS of clients and servers: which certificates to show, and which to ask for."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cache.errors import ConfigError


@dataclass(frozen=True)
class ClientTls:
    """A client's side. `ca`: the authority that the server's certificate must come from (PEM), by
    default those of the system. `cert` and `key`: the certificate to show, where it is asked for.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Raises ConfigError for files that are not what they should be."""
        if (self.cert is None) != (self.key is None):
            raise ConfigError("a client certificate and its key must be given together")
        try:
            made = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
            if self.cert is not None and self.key is not None:
                made.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"TLS certificates cannot be loaded: {error}", hint=_HINT) from error
        return made


@dataclass(frozen=True)
class ServerTls:
    """A server's side. `cert` and `key`: what it shows (PEM); both empty is plain http.
    `client_ca`: clients must show a certificate of this authority.
    """

    cert: str = ""
    key: str = ""
    client_ca: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ConfigError("tls_cert and tls_key must be given together")
        if self.client_ca and not self.cert:
            raise ConfigError("tls_client_ca needs tls_cert and tls_key")
        for name in (self.cert, self.key, self.client_ca):
            if name and not Path(name).is_file():
                raise ConfigError(f"there is no file {name}", hint=_HINT)

    @property
    def scheme(self) -> str:
        """http or https."""
        return "https" if self.cert else "http"

    def uvicorn(self) -> dict[str, Any]:
        """The settings by which uvicorn serves so."""
        if not self.cert:
            return {}
        needed = ssl.CERT_REQUIRED if self.client_ca else ssl.CERT_NONE
        return {
            "ssl_certfile": self.cert,
            "ssl_keyfile": self.key,
            "ssl_ca_certs": self.client_ca or None,
            "ssl_cert_reqs": needed,
        }


_HINT = "certificates and keys are PEM files"
