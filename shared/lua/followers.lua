#!lua flags=allow-oom
-- Tell how many of an owner's followers a front end has, if all of them together stay within a limit.
-- KEYS 1 the owner's followers by front end   ARGV 1 front end  2 how many  3 limit (0: only tell)  4 ms that this is believed
-- → 1, or 0 when there is no room
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local sum = tonumber(ARGV[2])
local told = redis.call('HGETALL', KEYS[1])
for index = 1, #told, 2 do
  local count, believed = string.match(told[index + 1], '^(%d+) (%d+)$')
  if tonumber(believed) < now then
    redis.call('HDEL', KEYS[1], told[index])
  elseif told[index] ~= ARGV[1] then
    sum = sum + tonumber(count)
  end
end
if tonumber(ARGV[3]) > 0 and sum > tonumber(ARGV[3]) then
  return 0
end
if ARGV[2] == '0' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  return 1
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', now + tonumber(ARGV[4])))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
