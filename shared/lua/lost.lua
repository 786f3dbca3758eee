#!lua flags=allow-oom
-- Find out whether the queue lost launches (somebody deleted it), and have every live task looked at if so.
-- Keys: queue; tags: the owners' tags, the number of launches as '#'; due. all: the hint that stands for all live tasks.
-- Nothing is looked at one by one while the number is right, however much waits.
-- → 1 if it did
local length = redis.call('ZCARD', queue)
local known = redis.call('HGET', tags, '#')
if known and tonumber(known) == length then
  return 0
end
if length == 0 then
  redis.call('DEL', tags)
end
redis.call('HSET', tags, '#', length)
if not known and not redis.call('ZSCORE', due, all) then
  -- Nothing was ever counted, or all is lost: due.lua sees to that.
  return 0
end
redis.call('ZADD', due, 'LT', '0', all)
return 1
