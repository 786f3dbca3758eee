#!lua flags=allow-oom
-- Record how many of an owner's followers a front end has: those that it held, and of more that came as many as all of them
-- together may be.
-- Keys: followers: the owner's followers by front end.
-- held, more: of front_end; limit: the most of the owner (0: any number); life_ms: how long the count is valid.
-- → how many of those that came there is room for
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local room = tonumber(limit) > 0 and tonumber(limit) - tonumber(held) or math.huge
local known = redis.call('HGETALL', followers)
for index = 1, #known, 2 do
  local others, valid_until = string.match(known[index + 1], '^(%d+) (%d+)$')
  if tonumber(valid_until) < now then
    redis.call('HDEL', followers, known[index])
  elseif known[index] ~= front_end then
    room = room - tonumber(others)
  end
end
local came = math.max(0, math.min(tonumber(more), room))
local count = tonumber(held) + came
if count == 0 then
  redis.call('HDEL', followers, front_end)
  return 0
end
redis.call('HSET', followers, front_end, string.format('%d %.0f', count, now + tonumber(life_ms)))
redis.call('PEXPIRE', followers, life_ms)
return came
