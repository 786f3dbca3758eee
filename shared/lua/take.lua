#!lua flags=allow-oom
-- Take the attempt that ends a task from outside; the former holder is fenced from here on. due (or none).
-- taker: who takes it; ending: how it will end (status and code); seen: the attempt and launch that the taker saw, as
-- 'attempt launch', or '' to take it in any case; ref: the task's; look_ms: after which a rescuer looks whether it has ended;
-- known_look: see hint_used.
-- → taken attempt snapshot | moved | looked op | ended status | gone
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'launch', 'op', 'ended_by', 'fresh', 'looked')
local status, attempt = task[1], task[2]
if not status or not session()[1] then
  return { 'gone' }
elseif TERMINAL[status] then
  return { 'ended', status }
elseif task[4] ~= OP then
  if seen ~= '' and seen ~= attempt .. ' ' .. task[3] then
    return { 'moved' }
  end
  local used = hint_used(task[7], known_look)
  if used then
    return used
  end
  attempt = int(tonumber(attempt) + 1)
  redis.call('LREM', WAITING, 0, TID)
  -- `ending` and `ended_by` outlive a taker that dies before it has written the end: the rescuer then writes it.
  redis.call('HSET', TASK, 'status', 'running', 'attempt', attempt, 'lease', int(NOW + LEASE), 'ending', ending,
    'ended_by', task[5] or taker, 'op', OP, 'holder', OP, 'out', '')
  touch(task[6])
  remind(due, ref, look_ms)
end
return { 'taken', attempt, snapshot(redis.call('HGET', META, 'files')) }
