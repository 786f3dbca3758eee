"""How servers and Sentinels are connected to; that they are found is in tests/processes/test_sentinel.py."""

from __future__ import annotations

import ssl
from typing import Any

from pydantic import SecretStr

from turnstream.shared.broker.client import Broker
from turnstream.shared.settings import Settings


def test_what_a_url_says_of_encryption_is_for_both() -> None:
    """A Sentinel whose certificate is checked otherwise than its servers' says where nobody can go. The URL wins."""
    said = (
        "ssl_check_hostname=false&ssl_cert_reqs=required&ssl_certfile=/run/our.crt&ssl_keyfile=/run/our.key"
    )
    url = SecretStr(f"rediss+sentinel://one,two/chat?{said}")
    pool: Any = Broker(Settings(redis_url=url, sentinel_password=SecretStr("x"))).primary.connection_pool
    for each in (pool, *(sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels)):
        context = each.make_connection().ssl_context
        assert not context.check_hostname
        assert context.cert_reqs == ssl.CERT_REQUIRED
        assert (context.certfile, context.keyfile) == ("/run/our.crt", "/run/our.key")
