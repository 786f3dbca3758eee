"""An MCP server over stdio that writes to its standard error what it is asked to; made without any library."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

# Tool → its parameters.
TOOLS: dict[str, dict[str, Any]] = {
    "say": {"text": {"type": "string"}, "times": {"type": "integer"}},
    "die": {"text": {"type": "string"}},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a request; None when there is no such method."""
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "talker", "version": "1"},
        }
    if method == "tools/list":
        schemas = {name: {"type": "object", "properties": given} for name, given in TOOLS.items()}
        return {"tools": [{"name": name, "inputSchema": schema} for name, schema in schemas.items()]}
    if method == "tools/call":
        given = params["arguments"]
        sys.stderr.write(given["text"] * given.get("times", 1))
        sys.stderr.flush()
        if params["name"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"content": [{"type": "text", "text": "said"}]}
    return None


def main() -> None:
    """Answer until the client hangs up."""
    print(f"the key is {os.environ['TALKER_KEY']}", file=sys.stderr)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result = answer(request["method"], request.get("params", {}))
        reply = (
            {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
        )
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)


if __name__ == "__main__":
    main()
