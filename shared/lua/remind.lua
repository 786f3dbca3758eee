-- Note when to look at a task. KEYS 1 due  2 recent   ARGV 1 ref  2 ms from now  3 most recent tasks kept ('0': not new)
-- A hint only ever moves earlier; the rescuer alone moves it later, to what the task's hash says.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
redis.call('ZADD', KEYS[1], 'LT', string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
if ARGV[3] ~= '0' then
  redis.call('ZADD', KEYS[2], 'NX', string.format('%.0f', now), ARGV[1])
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -tonumber(ARGV[3]) - 1)
end
return 1
