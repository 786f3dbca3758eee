#!lua flags=allow-oom
-- Take the tasks that are due. KEYS 1 due   ARGV 1 how many at most  2 ms until one is due again
-- They stay noted, later: a rescuer that dies with them in its hands loses none.
-- → the hint that they have meanwhile, then the refs
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local refs = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', '0', ARGV[1])
local again = string.format('%.0f', now + tonumber(ARGV[2]))
for _, ref in ipairs(refs) do
  redis.call('ZADD', KEYS[1], again, ref)
end
table.insert(refs, 1, again)
return refs
