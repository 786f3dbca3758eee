#!lua flags=allow-oom
-- How long it is until the first hint is due. It writes, though nothing: a broker that keeps no leases (read-only) refuses it.
-- Keys: due.
-- → this broker's time, ms; ms until then, 0 if one is due, or not even the hint for all live tasks is there
redis.call('ZREM', due, '-')
local first = redis.call('ZRANGE', due, '0', '0', 'WITHSCORES')
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
return { string.format('%.0f', now), math.max(0, math.ceil((tonumber(first[2]) or 0) - now)) }
