-- Write a batch for an attempt and keep what it checkpoints. KEYS 10 prefix of the calls' strings
-- ARGV 7 attempt  8… groups, entries, calls, state
-- → ok seq | fenced | ended | gone
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'out')
local no = refusal(task[1], task[2], ARGV[7])
if no then
  return { no }
elseif task[3] == OP then
  return { 'ok', task[4] }
end
local at, seq = write(group(8))
keep(at)
redis.call('HSET', TASK, 'lease', int(NOW + LEASE), 'op', OP, 'out', int(seq))
touch(false)
return { 'ok', int(seq) }
