#!lua flags=allow-oom
-- Put a launch into the queue.
-- Keys: queue; tags: the owners' tags; job_key: the job's string; recent, live: recent and live tasks; due; task: the
-- task's hash, to launch only a task that waits for this launch (or none).
-- job_ms: how long the job is kept; workers: the key of the workers' presence records, which front ends may only read;
-- doorbell: the channel that all of them have, and what the names of those begin with that some have; bells: how many these
-- are; enough: workers that are rung for; most_recent: recent tasks kept; look_ms: after which a rescuer
-- looks at the task at the latest; launch: its number.
-- Start-time fair queueing: a launch's score is one more than its owner's last one, but never behind
-- the turn that was claimed last. So owners are claimed in turn, and each owner's launches in order.
-- → how many launches wait now; -1 if this one is not wanted
if task then
  local known = redis.call('HMGET', task, 'status', 'launch')
  if known[1] ~= 'queued' or known[2] ~= launch then
    return -1
  end
end
redis.call('SET', job_key, job, 'PX', job_ms)
if redis.call('ZSCORE', queue, job_id) then
  return redis.call('ZCARD', queue)
end
local last = redis.call('HMGET', tags, owner, '', '#')
local tag = math.max(tonumber(last[1] or '0') or 0, tonumber(last[2] or '0') or 0) + 1
redis.call('HSET', tags, owner, string.format('%.0f', tag))
redis.call('ZADD', queue, string.format('%.0f', tag), job_id)
if last[3] then
  -- Without a number nothing has looked yet, or it was deleted: see lost.lua.
  redis.call('HINCRBY', tags, '#', 1)
end
local clock = redis.call('TIME')
if redis.call('HLEN', workers) <= tonumber(enough) then
  redis.call('PUBLISH', doorbell, '1')
else
  -- To ring for all would be as many messages for each launch. A worker without a free slot polls when it has one.
  local rung, bell = 0, tonumber(clock[2])
  for next = 1, tonumber(bells) do
    rung = rung + redis.call('PUBLISH', doorbell .. ':' .. string.format('%d', (bell + next) % tonumber(bells)), '1')
    if rung >= tonumber(enough) then
      break
    end
  end
end
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
redis.call('ZADD', recent, 'NX', string.format('%.0f', now), ref)
redis.call('ZADD', live, 'NX', string.format('%.0f', now), ref)
redis.call('ZADD', due, 'LT', string.format('%.0f', now + tonumber(look_ms)), ref)
redis.call('ZREMRANGEBYRANK', recent, 0, -tonumber(most_recent) - 1)
return redis.call('ZCARD', queue)
