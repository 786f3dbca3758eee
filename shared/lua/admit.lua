-- Count an admission of a turn against its owner's limits, or say which one it meets.
-- KEYS 1 owner's turns that count  2 owner's turns of the last minute
-- ARGV 1 the admission: ref and operation id  2 most turns of the owner (0: any)  3 most turns in a minute (0: any)
--      4 ms that the owner's turns are kept
-- Each admission is counted by itself, also where it repeats another one's turn: whoever is refused later takes back
-- what it counted, and nothing else.
-- → ok | turns | rate ms until there is room
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local stamp = string.format('%.0f', now)
local turns, rate = tonumber(ARGV[2]), tonumber(ARGV[3])
-- A repeat whose first reply was lost.
local turns_known = turns > 0 and redis.call('ZSCORE', KEYS[1], ARGV[1])
local rate_known = rate > 0 and redis.call('ZSCORE', KEYS[2], ARGV[1])
if turns_known or rate_known then
  return { 'ok' }
elseif turns > 0 and redis.call('ZCARD', KEYS[1]) >= turns then
  return { 'turns' }
end
if rate > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now - 60000))
  if redis.call('ZCARD', KEYS[2]) >= rate then
    local oldest = redis.call('ZRANGE', KEYS[2], -rate, -rate, 'WITHSCORES')
    return { 'rate', string.format('%.0f', math.max(1, tonumber(oldest[2]) + 60000 - now)) }
  end
  redis.call('ZADD', KEYS[2], stamp, ARGV[1])
  redis.call('PEXPIRE', KEYS[2], 60000)
end
if turns > 0 then
  redis.call('ZADD', KEYS[1], stamp, ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return { 'ok' }
