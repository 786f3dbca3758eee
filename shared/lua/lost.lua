#!lua flags=allow-oom
-- Find out whether the queue lost launches (somebody deleted it), and have every live task looked at if so.
-- KEYS 1 queue  2 owners' tags, the number of launches as '#'  3 live tasks  4 due
-- Nothing is looked at one by one while the number is right, however much waits.
-- → 1 if it did
local length = redis.call('ZCARD', KEYS[1])
if length == tonumber(redis.call('HGET', KEYS[2], '#') or '0') then
  return 0
end
if length == 0 then
  redis.call('DEL', KEYS[2])
else
  redis.call('HSET', KEYS[2], '#', length)
end
local clock = redis.call('TIME')
local now = string.format('%.0f', tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000))
local live = redis.call('ZRANGE', KEYS[3], 0, -1)
for from = 1, #live, 1000 do
  local hints = {}
  for index = from, math.min(from + 999, #live) do
    hints[#hints + 1] = now
    hints[#hints + 1] = live[index]
  end
  redis.call('ZADD', KEYS[4], 'LT', unpack(hints))
end
return 1
