-- Note the next look at a task, as its hash says. KEYS 1 due   ARGV 1 ref  2 ms from now (negative: never again)
if tonumber(ARGV[2]) < 0 then
  return redis.call('ZREM', KEYS[1], ARGV[1])
end
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
return redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
