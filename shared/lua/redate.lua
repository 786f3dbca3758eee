#!lua flags=allow-oom
-- Note the next look at a task, as its hash says. KEYS 1 due
-- ARGV 1 ref  2 ms from now (negative: never again)  3 the hint that was taken (due.lua)
-- Not if anybody has moved the hint since: what the hash said then may not be true any more.
-- → the hint from now on (1: none), or 0 when it was moved
local known = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not known or tonumber(known) ~= tonumber(ARGV[3]) then
  return 0
end
if tonumber(ARGV[2]) < 0 then
  return redis.call('ZREM', KEYS[1], ARGV[1])
end
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local at = string.format('%.0f', now + tonumber(ARGV[2]))
redis.call('ZADD', KEYS[1], at, ARGV[1])
return tonumber(at)
