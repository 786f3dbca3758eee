-- Count an admission of a turn, or of a session, against its owner's limits, or say which one it meets.
-- KEYS 1 owner's turns that count  2 owner's turns of the last minute  3, 4 as stored.lua
-- ARGV 1 the admission: ref and operation id  2 most turns of the owner (0: any)  3 most turns in a minute (0: any)
--      4 ms that the owner's turns are kept  5 most bytes of the owner (0: any)  6 session  7 bytes it will take, about
--      8 ms that the session lives
-- Each admission is counted by itself, also where it repeats another one's turn: whoever is refused later takes back
-- what it counted, and nothing else. It stands in one set at least, whatever is limited: by that a repeat is known.
-- What a turn takes is added to what its session holds, until that is known better.
-- → ok | turns | rate ms until there is room | bytes held
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local stamp = string.format('%.0f', now)
local turns, rate = tonumber(ARGV[2]), tonumber(ARGV[3])
-- A repeat whose first reply was lost.
if redis.call('ZSCORE', KEYS[1], ARGV[1]) or redis.call('ZSCORE', KEYS[2], ARGV[1]) then
  return { 'ok' }
end
local storage, cost, life = tonumber(ARGV[5]), tonumber(ARGV[7]), tonumber(ARGV[8])
if storage > 0 then
  -- Sessions that have expired hold nothing any more.
  local over = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', stamp, 'LIMIT', '0', '100')
  for _, session in ipairs(over) do
    redis.call('HINCRBY', KEYS[3], '', -tonumber(redis.call('HGET', KEYS[3], session) or '0'))
    redis.call('HDEL', KEYS[3], session)
    redis.call('ZREM', KEYS[4], session)
  end
  local held = redis.call('HGET', KEYS[3], '') or '0'
  if tonumber(held) + cost > storage then
    return { 'bytes', held }
  end
end
if turns > 0 and redis.call('ZCARD', KEYS[1]) >= turns then
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
if turns > 0 or rate == 0 then
  -- Nobody asks what became of turns that are not limited: one whose end did not take it out goes by its age.
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - tonumber(ARGV[4])))
  redis.call('ZADD', KEYS[1], stamp, ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
if storage > 0 then
  redis.call('HINCRBY', KEYS[3], ARGV[6], ARGV[7])
  redis.call('HINCRBY', KEYS[3], '', ARGV[7])
  local until_ms = now + life
  local known = redis.call('ZSCORE', KEYS[4], ARGV[6])
  if not known or tonumber(known) < until_ms then
    redis.call('ZADD', KEYS[4], string.format('%.0f', until_ms), ARGV[6])
  end
  for index = 3, 4 do
    if redis.call('PTTL', KEYS[index]) < life then
      redis.call('PEXPIRE', KEYS[index], ARGV[8])
    end
  end
end
return { 'ok' }
