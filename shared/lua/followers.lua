#!lua flags=allow-oom
-- Record how many of an owner's followers a front end has, if all of them together stay within a limit.
-- Keys: followers: the owner's followers by front end.
-- count: how many front_end has; limit: the most of the owner (0: only record); life_ms: how long the count is valid.
-- → 1, or 0 when there is no room
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local sum = tonumber(count)
local known = redis.call('HGETALL', followers)
for index = 1, #known, 2 do
  local others, valid_until = string.match(known[index + 1], '^(%d+) (%d+)$')
  if tonumber(valid_until) < now then
    redis.call('HDEL', followers, known[index])
  elseif known[index] ~= front_end then
    sum = sum + tonumber(others)
  end
end
if tonumber(limit) > 0 and sum > tonumber(limit) then
  return 0
end
if count == '0' then
  redis.call('HDEL', followers, front_end)
  return 1
end
redis.call('HSET', followers, front_end, count .. ' ' .. string.format('%.0f', now + tonumber(life_ms)))
redis.call('PEXPIRE', followers, life_ms)
return 1
