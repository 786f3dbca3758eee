-- Take a client's answer. KEYS 10 the call's string  11 due (or none)
-- ARGV 7 call  8 result  9 ms after which a rescuer looks at a task that goes on  10 ref  11… entries (the …_output message)
-- → stored pending | launch n (it was the last one) | repeat status launch | unknown | withdrawn | expired | ended | lacking
local known = redis.call('GET', KEYS[10])
if not known then
  return { 'unknown' }
end
local answered = TID .. ' answered'
local task = redis.call('HMGET', TASK, 'status', 'why', 'parked_until', 'launch', 'ending', 'number', 'fresh')
local status = task[1]
if known == answered then
  -- The launch may have been lost with the first reply: the caller launches again, to no effect if not.
  return { 'repeat', status or '', task[4] or '' }
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
elseif redis.call('HEXISTS', CALLS, ARGV[7]) == 0 then
  return { 'unknown' }
elseif status == 'parked' and tonumber(task[3]) < NOW then
  return { 'expired' }
end
if lacks() then
  return { 'lacking' }
end
redis.call('HSET', CALLS, ARGV[7] .. ':result', ARGV[8])
redis.call('SET', KEYS[10], answered, 'PX', int(math.max(TTL, redis.call('PTTL', KEYS[10]))))
local pending = redis.call('HINCRBY', TASK, 'pending', -1)
agree()
local _, _, number = write(11, task[6])
if pending == 0 and status == 'parked' then
  local launch = int(tonumber(task[4]) + 1)
  redis.call('HDEL', TASK, 'parked_until')
  redis.call('HSET', TASK, 'status', 'queued', 'launch', launch, 'launched', int(NOW), 'number', number)
  touch(task[7], true)
  remind(KEYS[11], ARGV[10], ARGV[9])
  return { 'launch', launch }
end
redis.call('HSET', TASK, 'number', number)
touch(task[7])
return { 'stored', int(pending) }
