#!lua flags=allow-oom
-- Take an admission back that began nothing. KEYS as admit.lua   ARGV 1 the admission  2 session  3 bytes it was to take
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
local held = redis.call('HGET', KEYS[3], ARGV[2])
if held then
  local less = math.min(tonumber(held), tonumber(ARGV[3]))
  redis.call('HINCRBY', KEYS[3], '', -less)
  if redis.call('HINCRBY', KEYS[3], ARGV[2], -less) == 0 then
    -- There is no such session: each one that is there holds something.
    redis.call('HDEL', KEYS[3], ARGV[2])
    redis.call('ZREM', KEYS[4], ARGV[2])
    if redis.call('EXISTS', KEYS[4]) == 0 then
      redis.call('DEL', KEYS[3])
    end
  end
end
return 1
