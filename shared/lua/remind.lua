-- Note when to look at a task. KEYS 1 due   ARGV 1 ref  2 ms from now
-- A hint only ever moves earlier; the rescuer alone moves it later, to what the task's hash says.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
redis.call('ZADD', KEYS[1], 'LT', string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
return 1
