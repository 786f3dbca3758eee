-- Note when to look at a task. KEYS 1 due  2 recent tasks (or none)   ARGV 1 ref  2 ms from now
-- A hint only ever moves earlier here, but it moves: a rescuer that has the task in hand is not to put it off.
local clock = redis.call('TIME')
local at = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000) + tonumber(ARGV[2])
local known = redis.call('ZSCORE', KEYS[1], ARGV[1])
if known and tonumber(known) <= at then
  at = tonumber(known) - 1
end
redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[1])
if KEYS[2] then
  redis.call('ZADD', KEYS[2], 'NX', clock[1], ARGV[1])
end
return 1
