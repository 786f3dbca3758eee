#!lua flags=allow-oom
-- Keep how many bytes a session holds. KEYS 1 bytes by session of its owner, the sum as ''  2 until when, by session
-- ARGV 1 session  2 bytes (negative: it is gone)  3 ms that it lives
-- Totals, not differences: whatever was lost or came twice, the next report sets it right.
local bytes, life = tonumber(ARGV[2]), tonumber(ARGV[3])
local known = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0')
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
if bytes < 0 then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
  bytes = 0
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + life), ARGV[1])
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  return redis.call('DEL', KEYS[1])
end
redis.call('HINCRBY', KEYS[1], '', string.format('%.0f', bytes - known))
for _, key in ipairs({ KEYS[1], KEYS[2] }) do
  if redis.call('PTTL', key) < life then
    redis.call('PEXPIRE', key, string.format('%.0f', life))
  end
end
return 1
