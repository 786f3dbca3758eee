#!lua flags=allow-oom
-- Put a launch into the queue. KEYS 1 queue  2 owners' tags  3 the job's string  4 recent tasks  5 live tasks
--      6 due  7 the task's hash, to launch only a task that waits for this launch (or none)
-- ARGV 1 job id  2 owner  3 job  4 ms that the job is kept  5 doorbell channel  6 ref  7 most recent tasks kept
--      8 ms after which a rescuer looks at the task at the latest  9 launch
-- Start-time fair queueing: a launch's score is one more than its owner's last one, but never behind
-- the turn that was claimed last. So owners are claimed in turn, and each owner's launches in order.
-- → how many launches wait now; -1 if this one is not wanted
if KEYS[7] then
  local task = redis.call('HMGET', KEYS[7], 'status', 'launch')
  if task[1] ~= 'queued' or task[2] ~= ARGV[9] then
    return -1
  end
end
redis.call('SET', KEYS[3], ARGV[3], 'PX', ARGV[4])
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  return redis.call('ZCARD', KEYS[1])
end
local tags = redis.call('HMGET', KEYS[2], ARGV[2], '', '#')
local tag = math.max(tonumber(tags[1] or '0') or 0, tonumber(tags[2] or '0') or 0) + 1
redis.call('HSET', KEYS[2], ARGV[2], string.format('%.0f', tag))
redis.call('ZADD', KEYS[1], string.format('%.0f', tag), ARGV[1])
if tags[3] then
  -- Without a number nothing has looked yet, or it was deleted: see lost.lua.
  redis.call('HINCRBY', KEYS[2], '#', 1)
end
redis.call('PUBLISH', ARGV[5], '1')
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
redis.call('ZADD', KEYS[4], 'NX', string.format('%.0f', now), ARGV[6])
redis.call('ZADD', KEYS[5], 'NX', string.format('%.0f', now), ARGV[6])
redis.call('ZADD', KEYS[6], 'LT', string.format('%.0f', now + tonumber(ARGV[8])), ARGV[6])
redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -tonumber(ARGV[7]) - 1)
return redis.call('ZCARD', KEYS[1])
