#!lua flags=allow-oom
-- Note when to look at a task. KEYS 1 due  2… lists of tasks to put it on   ARGV 1 ref  2 ms from now
-- A hint only ever moves earlier here, but it moves: a rescuer that has the task in hand is not to put it off.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local at = now + tonumber(ARGV[2])
local known = redis.call('ZSCORE', KEYS[1], ARGV[1])
if known and tonumber(known) <= at then
  at = tonumber(known) - 1
end
redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[1])
for list = 2, #KEYS do
  redis.call('ZADD', KEYS[list], 'NX', string.format('%.0f', now), ARGV[1])
end
return 1
