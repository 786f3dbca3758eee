#!lua flags=allow-oom
-- Find out whether the queue lost launches (somebody deleted it), and have every live task looked at if so.
-- KEYS 1 queue  2 owners' tags, the number of launches as '#'  3 due   ARGV 1 the hint that stands for all live tasks
-- Nothing is looked at one by one while the number is right, however much waits.
-- → 1 if it did
local length = redis.call('ZCARD', KEYS[1])
local known = redis.call('HGET', KEYS[2], '#')
if known and tonumber(known) == length then
  return 0
end
if length == 0 then
  redis.call('DEL', KEYS[2])
end
redis.call('HSET', KEYS[2], '#', length)
if not known and not redis.call('ZSCORE', KEYS[3], ARGV[1]) then
  -- Nothing was ever counted, or all is lost: due.lua sees to that.
  return 0
end
redis.call('ZADD', KEYS[3], 'LT', '0', ARGV[1])
return 1
