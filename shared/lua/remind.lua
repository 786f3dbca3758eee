#!lua flags=allow-oom
-- Note when to look at a task. Keys: due; recent, live: lists of tasks to put it on (or none). look_ms: from now.
-- A hint only ever moves earlier here, but it moves: a rescuer that has the task in hand is not to put it off.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local at = now + tonumber(look_ms)
local known = redis.call('ZSCORE', due, ref)
if known and tonumber(known) <= at then
  at = tonumber(known) - 1
end
redis.call('ZADD', due, string.format('%.0f', at), ref)
for _, list in ipairs({ recent, live }) do
  redis.call('ZADD', list, 'NX', string.format('%.0f', now), ref)
end
return 1
