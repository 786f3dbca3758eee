#!lua flags=allow-oom
-- Keep how many bytes a session holds.
-- Keys: bytes: bytes by session of its owner, the sum as ''; sessions: until when (Unix ms), by session.
-- held: the session's bytes, negative when it is gone; life_ms: its time to live.
-- Totals, not differences: whatever was lost or came twice, the next report sets it right.
held = tonumber(held)
local known = redis.call('HMGET', bytes, session, '')
local sum = string.format('%d', tonumber(known[2] or '0') - tonumber(known[1] or '0') + math.max(held, 0))
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
if held < 0 then
  redis.call('HDEL', bytes, session)
  redis.call('ZREM', sessions, session)
  if redis.call('EXISTS', sessions) == 0 then
    return redis.call('DEL', bytes)
  end
  if known[2] then
    redis.call('HSET', bytes, '', sum)
  end
else
  redis.call('HSET', bytes, session, held, '', sum)
  redis.call('ZADD', sessions, string.format('%.0f', now + tonumber(life_ms)), session)
end
-- Both live as long as the last session.
if redis.call('PTTL', sessions) < tonumber(life_ms) then
  redis.call('PEXPIRE', bytes, life_ms)
  redis.call('PEXPIRE', sessions, life_ms)
end
return 1
