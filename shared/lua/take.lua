#!lua flags=allow-oom
-- Take the attempt that ends a task from outside; the former holder is fenced from here on. KEYS 10 due (or none)
-- ARGV 7 who takes it  8 how it will end (status code)  9 the attempt and launch that the taker saw, as
--      'attempt launch', or '' to take it in any case  10 ref  11 ms after which a rescuer looks whether it has ended
-- → taken attempt snapshot | moved | ended status | gone
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'launch', 'op', 'ended_by', 'fresh')
local status, attempt = task[1], task[2]
if not status or not session()[1] then
  return { 'gone' }
elseif TERMINAL[status] then
  return { 'ended', status }
elseif task[4] ~= OP then
  if ARGV[9] ~= '' and ARGV[9] ~= attempt .. ' ' .. task[3] then
    return { 'moved' }
  end
  attempt = int(tonumber(attempt) + 1)
  redis.call('LREM', WAITING, 0, TID)
  -- `ending` and `ended_by` outlive a taker that dies before it has written the end: the rescuer then writes it.
  redis.call('HSET', TASK, 'status', 'running', 'attempt', attempt, 'lease', int(NOW + LEASE), 'ending', ARGV[8],
    'ended_by', task[5] or ARGV[7], 'op', OP, 'holder', OP, 'out', '')
  touch(task[6])
  remind(KEYS[10], ARGV[10], ARGV[11])
end
return { 'taken', attempt, snapshot(redis.call('HGET', META, 'files')) }
