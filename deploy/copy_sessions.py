"""``python -m deploy.copy_sessions``: the sessions of one server, copied to the cluster that is to have them.

It reads the settings that the processes will have: from ``TURNSTREAM_REDIS_URL`` (or ``--source``) to
``TURNSTREAM_SESSION_REDIS_URL``, as the user `server` of redis.acl. Each session is copied in one step, as it is in one moment.
Run it while the old processes serve, as often as you like, then once more when they have ended: what has not changed is left
alone. What was written at the target since it was copied is never overwritten.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
from collections import defaultdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from turnstream.shared import settings as settings_module
from turnstream.shared.broker.client import PRIMARY, SESSIONS, Broker, command, let_in
from turnstream.shared.broker.keys import COPIED, SessionKeys, sessions_pattern
from turnstream.shared.broker.urls import CLUSTER, BrokerUrl
from turnstream.shared.errors import BrokerAway, ConfigurationError, TurnstreamError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

# Keys that one SCAN looks at, and sessions that are on their way at once: the old server has others to serve.
LOOK_AT = 1000
AT_ONCE = 4

# A node that fails over is waited for.
AWAY_SECONDS = 60.0

# After so many sessions it says how far it is.
SOME = 1000

AGAIN = "What was copied stays; run it again."

# A session that there is not.
PROBE = SessionKeys("turnstream-copy", "probe")

# All of a session in one moment: for each key its remaining time in ms (0: none) and its content.
READ = """
local found = {}
for number, key in ipairs(KEYS) do
  local content = redis.call('DUMP', key)
  if content then
    found[#found + 1] = key
    found[#found + 1] = tostring(math.max(0, redis.call('PTTL', key)))
    found[#found + 1] = content
  end
end
return found
"""

# KEYS: the note of what was copied, the session's meta, its keys. ARGV: for each key its remaining time, its content, and the
# content's digest. The note has for each key that digest, and the one of what it became here: by that it shows whether
# anybody has written since.
WRITE = """
local NOTE, META = KEYS[1], KEYS[2]

-- A large hash has its fields in another order at each server, also after a restart.
local function digest(key)
  if redis.call('TYPE', key).ok ~= 'hash' then
    return redis.sha1hex(redis.call('DUMP', key))
  end
  local words, fields = redis.call('HGETALL', key), {}
  for index = 1, #words, 2 do
    fields[#fields + 1] = #words[index] .. ' ' .. #words[index + 1] .. ' ' .. words[index] .. words[index + 1]
  end
  table.sort(fields)
  return redis.sha1hex(table.concat(fields))
end

local noted = redis.call('HGETALL', NOTE)
if #noted == 0 and redis.call('EXISTS', META) == 1 then
  return 'written'
end
for index = 1, #noted, 2 do
  local key = noted[index]
  if redis.call('EXISTS', key) == 1 and digest(key) ~= string.match(noted[index + 1], '%S+$') then
    return 'written'
  end
end
if #noted > 0 then
  -- Not where there is none: behind a DEL, even of nothing, a server whose memory is full takes all that follows.
  redis.call('DEL', NOTE)
end
for index = 1, #noted, 2 do
  redis.call('DEL', noted[index])
end
local longest = 0
for index = 3, #KEYS do
  local key, at = KEYS[index], 3 * (index - 3)
  redis.call('RESTORE', key, ARGV[at + 1], ARGV[at + 2], 'REPLACE')
  redis.call('HSET', NOTE, key, ARGV[at + 3] .. ' ' .. digest(key))
  longest = math.max(longest, tonumber(ARGV[at + 1]))
end
if longest > 0 then
  redis.call('PEXPIRE', NOTE, longest)
end
return 'copied'
"""


# What has not changed lives as long as it does at the source, at least.
KEEP = """
for number, key in ipairs(KEYS) do
  if tonumber(ARGV[number]) > 0 then
    redis.call('PEXPIRE', key, ARGV[number], 'GT')
  end
end
"""


class Copying:
    """Copies sessions, and counts what became of each.

    Attributes:
        copied, same: how many were copied now, and how many had not changed since they were.
        refused: those at the target that somebody has written to.
    """

    def __init__(self, source: Redis, target: Redis) -> None:
        self._source = source
        self._target = target
        self.copied = 0
        self.same = 0
        self.refused: list[str] = []

    async def run(self) -> None:
        """Copy all.

        Raises:
            RedisError, OSError: the trouble of a server; what was copied until then stays.
        """
        keys: dict[str, list[str]] = defaultdict(list)
        async for key in self._keys():
            keys[key[: key.index("}:") + 2]].append(key)
        room = asyncio.Semaphore(AT_ONCE)

        async def one(prefix: str, names: list[str]) -> None:
            async with room:
                await self._copy(prefix, names)

        waiting, done = iter(sorted(keys.items())), 0
        while some := list(islice(waiting, SOME)):
            try:
                async with asyncio.TaskGroup() as group:
                    for prefix, names in some:
                        group.create_task(one(prefix, names))
            except BaseExceptionGroup as several:
                first = several.exceptions[0]
                raise first from first.__cause__
            done += len(some)
            if done < len(keys):
                _say(f"{done} of {len(keys)} sessions")

    async def _keys(self) -> AsyncIterator[str]:
        cursor = "0"
        while True:
            after, names = await command(
                self._source, "SCAN", cursor, "MATCH", sessions_pattern("*", None), "COUNT", LOOK_AT
            )
            for name in set(names):
                yield name.decode()
            cursor = after.decode() if isinstance(after, bytes) else str(after)
            if cursor == "0":
                return

    async def _copy(self, prefix: str, names: list[str]) -> None:
        note = f"{prefix}{COPIED}"
        names = [name for name in names if name != note]
        found = await command(self._source, "EVAL", READ, len(names), *names, large=True)
        if not found:
            # It has expired meanwhile.
            return
        contents = {
            name.decode(): (int(ttl), content)
            for name, ttl, content in zip(found[::3], found[1::3], found[2::3], strict=True)
        }
        digests = {name: hashlib.sha256(content).hexdigest() for name, (_, content) in contents.items()}
        noted = await command(self._target, "HGETALL", note)
        if {key.decode(): value.decode().split()[0] for key, value in noted.items()} == digests:
            self.same += 1
            ttls = [ttl for ttl, _ in contents.values()]
            await command(self._target, "EVAL", KEEP, len(contents) + 1, *contents, note, *ttls, max(ttls))
            return
        given = [word for name, (ttl, content) in contents.items() for word in (ttl, content, digests[name])]
        keys = (note, f"{prefix}meta", *contents)
        outcome = await command(self._target, "EVAL", WRITE, len(keys), *keys, *given, large=True)
        if outcome == b"copied":
            self.copied += 1
        else:
            self.refused.append(prefix[4:-2])


async def copy(settings: settings_module.Settings) -> bool:
    """Copy all sessions; whether none was refused.

    Raises:
        ConfigurationError: a server refuses user, password or rights.
        BrokerAway: a server was away for too long.
        RedisError, OSError: other trouble of a server.
    """
    broker = Broker(settings)
    try:
        # What nobody but this user may do; nothing is changed by it.
        for setting, server in {PRIMARY: broker.primary, SESSIONS: broker.sessions}.items():
            await let_in(settings, partial(command, server, "DUMP", PROBE.meta), setting)
        patient = broker.retrying(AWAY_SECONDS)
        return await _copied(Copying(patient.primary, patient.sessions))
    finally:
        await broker.close()


async def _copied(copying: Copying) -> bool:
    try:
        await copying.run()
    finally:
        for session in copying.refused:
            _say(f"{session}: left alone, since it was written to at the target")
        _say(
            f"sessions copied: {copying.copied}; unchanged since they were: {copying.same}; "
            f"left alone: {len(copying.refused)}"
        )
    return not copying.refused


def main() -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.copy_sessions",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "--source", help="another server than TURNSTREAM_REDIS_URL, as redis://server@host:6379/0"
    )
    given = parser.parse_args()
    try:
        settings = settings_module.load(redis_url=given.source)
        target = settings.session_redis_url
        if settings.embedded or target is None or BrokerUrl.parse(target.get_secret_value()).kind != CLUSTER:
            raise ConfigurationError(
                f"Set {PRIMARY} to the server that has the sessions, redis://server@host:6379/0, "
                f"and {SESSIONS} to the cluster that is to have them, redis+cluster://server@host:6379,host:6379."
            )
        return 0 if asyncio.run(copy(settings)) else 1
    except KeyboardInterrupt:
        _say(f"Ended. {AGAIN}")
    except BrokerAway as error:
        _say(f"In {AWAY_SECONDS:.0f} s a server did not do its part: {error.__cause__}. {AGAIN}")
    except TurnstreamError as error:
        _say(error.public_text)
    except (RedisError, OSError) as error:
        _say(f"{type(error).__name__}: {error}. {AGAIN}")
    return 2


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
