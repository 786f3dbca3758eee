#!lua flags=allow-oom
-- Look at one due task, for the rescuer. launch_ms: after which a launch is taken for lost; max_crashes: that end a task;
-- strange_ms: between looks at what is not understood; stay_ms: that an ended task's events stay; backlog_ms: between
-- looks at what waits, in the queue or for its turn; gone: a process that seems to have been killed ('': none), which held
-- launch gone_launch; quiet_ms: for how long an attempt of its must have written nothing, to be over before its lease;
-- as_of: a lease that ended later than this is not over yet, by this server's clock ('': now); apart: '1' where the hints are on
-- another server.
-- → launch n ms | passed task n | end attempt launch why | redate ms | lives (what is said to be gone was heard of just now)
--   | drop task (who may have waited for it, or ''); behind one of these `off`, where the hints are on another server, and this was
--   the last look, or the next one is far off
-- The hash may be another release's: a number that is missing is 0, and what is not known is left alone.
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'launch', 'lease', 'launched', 'deadline', 'parked_until',
  'crashes', 'ending', 'sweep_op', 'sweep_launch', 'ended', 'out', 'epoch', 'sweep_passed', 'next', 'fresh', 'not_before',
  'worker')
local status, attempt, launch = task[1], task[2] or '0', task[3] or '0'
local function num(field)
  return tonumber(field) or 0
end
-- Who was told of the turn behind this one launches it, and then takes `next` away (`Tasks.passed_on`). They may be gone
-- before: then it is told again. → a reply, or nil
local function pass_on_again()
  local following = task[16]
  if not following or following == '' then
    return nil
  end
  local known = redis.call('HMGET', sibling(TASK, following), 'status', 'launch', 'launched')
  if known[1] ~= 'queued' or known[2] ~= '1' then
    return nil
  end
  local lost = num(known[3]) + tonumber(launch_ms)
  if lost > NOW then
    return { 'redate', int(lost - NOW) }
  end
  redis.call('HSET', sibling(TASK, following), 'launched', int(NOW))
  redis.call('HSET', TASK, 'sweep_op', OP, 'sweep_launch', '1', 'sweep_passed', following)
  return { 'passed', following, '1' }
end
local function off(reply)
  if apart == '1' then
    table.insert(reply, 'off')
  end
  return reply
end
-- The next look may be far off: who comes with a hint of before leaves another one first (see hint_used).
local function put_off(reply)
  if apart == '1' then
    redis.call('HSET', TASK, 'looked', OP)
  end
  return off(reply)
end
if not status or redis.call('HEXISTS', META, 'epoch') == 0 then
  -- Its hash was lost. It will never end, and must not keep what others said from being cut, nor their turn.
  redis.call('ZREM', LIVE, TID)
  redis.call('LREM', WAITING, 0, TID)
  local reply = put_off({ 'drop', redis.call('LINDEX', WAITING, 0) or '' })
  if apart == '1' and not status then
    redis.call('PEXPIRE', TASK, backlog_ms)
  end
  return reply
elseif task[10] == OP then
  if task[15] ~= '' then
    return { 'passed', task[15], task[11] }
  end
  return put_off({ 'launch', task[11], backlog_ms })
elseif TERMINAL[status] then
  local again = pass_on_again()
  if again then
    return again
  end
  local over = num(task[12]) + tonumber(stay_ms)
  if over > NOW then
    return off({ 'redate', int(over - NOW) })
  end
  -- Its messages stand whole in the history; the pieces they came in can go.
  local epoch = redis.call('HGET', META, 'epoch')
  if epoch and task[14] and slow_paths().has_epoch(task[14]) then
    slow_paths().cut(num(task[13]) + 1)
  end
  return off({ 'drop', '' })
end
local deadline = num(task[6])
-- ms until one that waits must be looked at again.
local function patient()
  local look = math.min(tonumber(backlog_ms), math.floor(TTL / 4))
  return deadline > 0 and math.max(1, math.min(look, deadline - NOW)) or look
end
if status == 'queued' then
  -- Nobody else touches a session whose turns all wait.
  touch(task[17])
end

if status == 'running' then
  local lease = num(task[4])
  -- This may be carried out long after it was sent, by a server that stood still: nobody could renew meanwhile.
  local now = math.min(NOW, tonumber(as_of) or NOW)
  if lease > NOW + LEASE then
    -- Given by a clock that was ahead of this one, before the broker failed over.
    lease = NOW + LEASE
    redis.call('HSET', TASK, 'lease', int(lease))
  end
  -- One that is over by NOW alone is looked at again soon.
  local until_lease = int(lease > NOW and lease - NOW or math.min(1000, lease - now))
  if gone ~= '' and task[19] == gone and not task[9] and lease > now then
    if lease - LEASE > NOW - tonumber(quiet_ms) then
      return { 'lives' }
    end
    lease = 0
  end
  if task[9] then
    if lease > now then
      return { 'redate', until_lease }
    end
    return { 'end', attempt, launch, task[9] }
  elseif deadline > 0 and NOW > deadline + LEASE then
    return { 'end', attempt, launch, 'failed deadline' }
  elseif lease > now then
    return { 'redate', until_lease }
  end
  local crashes = num(task[8]) + 1
  redis.call('HSET', TASK, 'crashes', int(crashes))
  if crashes >= tonumber(max_crashes) then
    return { 'end', attempt, launch, 'failed worker_lost' }
  end
  launch = int(num(launch) + 1)
  redis.call('HDEL', TASK, 'lease')
elseif status == 'parked' then
  -- One that does not say how long it waits is never ended for that.
  local until_ms = tonumber(task[7]) or (NOW + tonumber(strange_ms))
  local why = 'failed call_expired'
  if deadline > 0 and deadline < until_ms then
    until_ms, why = deadline, 'failed deadline'
  end
  if until_ms > NOW then
    return put_off({ 'redate', int(until_ms - NOW) })
  end
  return { 'end', attempt, launch, why }
elseif status ~= 'queued' then
  return { 'redate', strange_ms }
elseif deadline > 0 and NOW > deadline then
  return { 'end', attempt, launch, 'failed deadline' }
elseif launch == '0' then
  -- It waits its turn. Whoever has it is looked at, also when that ends: there is no other reason to look here than the
  -- deadline, and the session that must be there still.
  local active = redis.call('HGET', META, 'active')
  local holder = active and active ~= '' and redis.call('HGET', sibling(TASK, active), 'status')
  if holder and not TERMINAL[holder] then
    return pass_on_again() or put_off({ 'redate', int(patient()) })
  end
  -- First come, first served: the turn goes to the one that has waited longest.
  local first
  repeat
    first = redis.call('LPOP', WAITING) or TID
  until first == TID or redis.call('HGET', sibling(TASK, first), 'status') == 'queued'
  redis.call('HSET', META, 'active', first)
  launch = '1'
  if first ~= TID then
    redis.call('HSET', sibling(TASK, first), 'launch', launch, 'launched', int(NOW))
    redis.call('HSET', TASK, 'next', first, 'sweep_op', OP, 'sweep_launch', launch, 'sweep_passed', first)
    return { 'passed', first, launch }
  end
elseif task[18] then
  if num(task[18]) > NOW then
    return put_off({ 'redate', int(math.min(num(task[18]) - NOW, patient())) })
  end
  -- It waits for a worker from now on.
  redis.call('HDEL', TASK, 'not_before', 'waits_for')
elseif gone ~= '' and launch == gone_launch then
  -- It was claimed, and never begun.
  redis.call('HSET', TASK, 'launched', int(NOW))
elseif num(task[5]) > NOW then
  -- By a clock that was ahead, too.
  redis.call('HSET', TASK, 'launched', int(NOW))
  return { 'redate', launch_ms }
elseif num(task[5]) + tonumber(launch_ms) > NOW then
  return { 'redate', int(num(task[5]) + tonumber(launch_ms) - NOW) }
end
-- A launch that was lost, or still waits in the queue, is launched again under the same number:
-- where it still waits that changes nothing, not even its place. The next look is for its deadline, and for its session
-- to be there still: whether the queue has it is not asked again (lost.lua).
redis.call('HSET', TASK, 'status', 'queued', 'launch', launch, 'launched', int(NOW), 'sweep_op', OP,
  'sweep_launch', launch, 'sweep_passed', '')
touch(task[17])
return put_off({ 'launch', launch, int(patient()) })
