#!lua flags=allow-oom
-- Take an admission back that began nothing. Keys, admission, session: as admit.lua; cost: the bytes it was to take.
redis.call('ZREM', turns, admission)
redis.call('ZREM', last_minute, admission)
local held = redis.call('HGET', bytes, session)
if held then
  local less = math.min(tonumber(held), tonumber(cost))
  redis.call('HINCRBY', bytes, '', -less)
  if redis.call('HINCRBY', bytes, session, -less) == 0 then
    -- There is no such session: each one that is there holds something.
    redis.call('HDEL', bytes, session)
    redis.call('ZREM', sessions, session)
    if redis.call('EXISTS', sessions) == 0 then
      redis.call('DEL', bytes)
    end
  end
end
return 1
