#!lua flags=allow-oom
-- Note tasks that should be noted, should the hints have been lost. KEYS 1 due   ARGV 1 ms from now  2… refs
-- → how many were not noted
local clock = redis.call('TIME')
local at = string.format('%.0f', tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000) + tonumber(ARGV[1]))
local noted = 0
for index = 2, #ARGV do
  noted = noted + redis.call('ZADD', KEYS[1], 'NX', at, ARGV[index])
end
return noted
