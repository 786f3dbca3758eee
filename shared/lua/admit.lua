-- Count an admission of a turn, or of a session, against its owner's limits, or say which one it meets.
-- Keys: turns: the owner's turns that count; last_minute: those of the last minute; bytes, sessions: as stored.lua.
-- admission: ref and operation id; most_turns, most_rate (in a minute), most_bytes: the owner's limits, 0 for none;
-- turns_ms: how long the owner's turns are kept; cost: bytes that the session will take, about; life_ms: its time to live.
-- Each admission is counted by itself, also where it repeats another one's turn: whoever is refused later takes back
-- what it counted, and nothing else. It stands in one set at least, whatever is limited: by that a repeat is known.
-- What a turn takes is added to what its session holds, until that is known better.
-- → ok | turns | rate ms until there is room | bytes held
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local stamp = string.format('%.0f', now)
most_turns, most_rate = tonumber(most_turns), tonumber(most_rate)
-- Forget what is older, some at a time: there may be very many.
local function forget(set, oldest)
  local old = redis.call('ZRANGEBYSCORE', set, '-inf', oldest, 'LIMIT', '0', '100')
  if old[1] then
    redis.call('ZREM', set, unpack(old))
  end
end
-- A repeat whose first reply was lost.
if redis.call('ZSCORE', turns, admission) or redis.call('ZSCORE', last_minute, admission) then
  return { 'ok' }
end
most_bytes, cost = tonumber(most_bytes), tonumber(cost)
if most_bytes > 0 then
  -- Sessions that have expired hold nothing any more.
  local over = redis.call('ZRANGEBYSCORE', sessions, '-inf', stamp, 'LIMIT', '0', '100')
  for _, expired in ipairs(over) do
    redis.call('HINCRBY', bytes, '', -tonumber(redis.call('HGET', bytes, expired) or '0'))
    redis.call('HDEL', bytes, expired)
    redis.call('ZREM', sessions, expired)
  end
  local held = redis.call('HGET', bytes, '') or '0'
  if tonumber(held) + cost > most_bytes then
    return { 'bytes', held }
  end
end
if most_turns > 0 and redis.call('ZCARD', turns) >= most_turns then
  return { 'turns' }
end
if most_rate > 0 then
  local oldest = string.format('%.0f', now - 60000)
  forget(last_minute, oldest)
  if redis.call('ZCOUNT', last_minute, '(' .. oldest, '+inf') >= most_rate then
    local first = redis.call('ZRANGE', last_minute, -most_rate, -most_rate, 'WITHSCORES')
    return { 'rate', string.format('%.0f', math.max(1, tonumber(first[2]) + 60000 - now)) }
  end
  redis.call('ZADD', last_minute, stamp, admission)
  redis.call('PEXPIRE', last_minute, 60000)
end
if most_turns > 0 or most_rate == 0 then
  -- Nobody asks what became of turns that are not limited: one whose end did not take it out goes by its age.
  forget(turns, string.format('%.0f', now - tonumber(turns_ms)))
  redis.call('ZADD', turns, stamp, admission)
  redis.call('PEXPIRE', turns, turns_ms)
end
if most_bytes > 0 then
  redis.call('HINCRBY', bytes, session, cost)
  redis.call('HINCRBY', bytes, '', cost)
  local until_ms = now + tonumber(life_ms)
  local known = redis.call('ZSCORE', sessions, session)
  if not known or tonumber(known) < until_ms then
    redis.call('ZADD', sessions, string.format('%.0f', until_ms), session)
  end
  for _, key in ipairs({ bytes, sessions }) do
    if redis.call('PTTL', key) < tonumber(life_ms) then
      redis.call('PEXPIRE', key, life_ms)
    end
  end
end
return { 'ok' }
