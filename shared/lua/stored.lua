#!lua flags=allow-oom
-- Keep how many bytes a session holds. KEYS 1 bytes by session of its owner, the sum as ''  2 until when, by session
-- ARGV 1 session  2 bytes (negative: it is gone)  3 ms that it lives
-- Totals, not differences: whatever was lost or came twice, the next report sets it right.
local bytes, life = tonumber(ARGV[2]), tonumber(ARGV[3])
local known = redis.call('HMGET', KEYS[1], ARGV[1], '')
local sum = string.format('%d', tonumber(known[2] or '0') - tonumber(known[1] or '0') + math.max(bytes, 0))
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
if bytes < 0 then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
  if redis.call('EXISTS', KEYS[2]) == 0 then
    return redis.call('DEL', KEYS[1])
  end
  if known[2] then
    redis.call('HSET', KEYS[1], '', sum)
  end
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2], '', sum)
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + life), ARGV[1])
end
-- Both live as long as the last session.
if redis.call('PTTL', KEYS[2]) < life then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
return 1
