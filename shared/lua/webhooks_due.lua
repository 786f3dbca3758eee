#!lua flags=allow-oom
-- Take the tasks of which somebody may have to be told now. Keys: due. most: how many at most; again_ms: until one is due again.
-- They stay noted, later: a worker that dies with them in its hands loses none.
-- → the hint that they have meanwhile, then the refs
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local refs = redis.call('ZRANGEBYSCORE', due, '-inf', string.format('%.0f', now), 'LIMIT', '0', most)
local again = string.format('%.0f', now + tonumber(again_ms))
for _, ref in ipairs(refs) do
  redis.call('ZADD', due, again, ref)
end
table.insert(refs, 1, again)
return refs
