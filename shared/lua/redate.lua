#!lua flags=allow-oom
-- Note the next look at a task, as its hash says. Keys: due.
-- look_ms: from now, negative: never again; taken: the hint that was taken (due.lua).
-- Not if anybody has moved the hint since: what the hash said then may not be true any more.
-- → the hint from now on (1: none), or 0 when it was moved
local known = redis.call('ZSCORE', due, ref)
if not known or tonumber(known) ~= tonumber(taken) then
  return 0
end
if tonumber(look_ms) < 0 then
  return redis.call('ZREM', due, ref)
end
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local at = string.format('%.0f', now + tonumber(look_ms))
redis.call('ZADD', due, at, ref)
return tonumber(at)
