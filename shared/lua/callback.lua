-- Take a client's answer. call_key: the call's string; due (or none).
-- call: its id; result: the answer; look_ms: after which a rescuer looks at a task that goes on; ref: the task's; known_look:
-- see hint_used; entries: the …_output message.
-- → stored pending | launch n (it was the last one) | repeat status launch | unknown | withdrawn | expired | ended
--   | unread (it has no message: who asks has read the call elsewhere, where it had its answer) | looked op | files_missing
local known = redis.call('GET', call_key)
if not known then
  return { 'unknown' }
end
local answered = TID .. ' answered'
local task = redis.call('HMGET', TASK, 'status', 'why', 'parked_until', 'launch', 'ending', 'number', 'fresh', 'looked')
local status = task[1]
if known == answered then
  -- The launch may have been lost with the first reply: the caller launches again, to no effect if not. One that waits for a
  -- time was begun since, and is launched when that has come.
  local waits = redis.call('HEXISTS', TASK, 'not_before') == 1
  return { 'repeat', status or '', not waits and task[4] or '' }
end
if known == TID .. ' withdrawn' then
  return { 'withdrawn' }
end
if not status or TERMINAL[status] or not session(true)[1] then
  if task[2] == 'call_expired' then
    return { 'expired' }
  end
  return { 'ended' }
elseif task[5] then
  -- Somebody is writing the end, and has read what goes into it.
  return { 'ended' }
elseif redis.call('HEXISTS', CALLS, call) == 0 then
  return { 'unknown' }
elseif status == 'parked' and tonumber(task[3]) < NOW then
  return { 'expired' }
elseif ARGV[entries_at] == '0' then
  return { 'unread' }
end
local used = hint_used(task[8], known_look)
if used then
  return used
elseif files_missing() then
  return { 'files_missing' }
end
redis.call('HSET', CALLS, call .. ':result', result)
redis.call('SET', call_key, answered, 'PX', int(math.max(TTL, redis.call('PTTL', call_key))))
local pending = redis.call('HINCRBY', TASK, 'pending', -1)
detect_loss()
local _, _, number = write(entries_at, task[6])
if pending == 0 and status == 'parked' then
  local launch = int(tonumber(task[4]) + 1)
  redis.call('HDEL', TASK, 'parked_until')
  redis.call('HSET', TASK, 'status', 'queued', 'launch', launch, 'launched', int(NOW), 'number', number)
  touch(task[7], true)
  remind(due, ref, look_ms)
  return { 'launch', launch }
end
redis.call('HSET', TASK, 'number', number)
touch(task[7])
return { 'stored', int(pending) }
